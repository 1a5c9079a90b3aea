"""Model folders that are none, or broken: from_pretrained and translate.py say in one line which, and what is wrong."""

import json
import pickle
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration, VanillaModel
from modeling_vanilla.cli import translate as script
from modeling_vanilla.training.tokenizer import train_tokenizer

WEIGHTS = "model.safetensors"
SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good") / "model"
    tokenizer = train_tokenizer(["a small house"] * 3, vocab_size=270)
    VanillaForConditionalGeneration(VanillaConfig(vocab_size=len(tokenizer), **SIZES)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(good, tmp_path):
    """A copy to break."""
    return Path(shutil.copytree(good, tmp_path / "model"))


def cut(folder):
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])


def cut_in_the_header(folder):
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:50])


def emptied(folder):
    (folder / WEIGHTS).write_bytes(b"")


def tampered(folder):
    """The header says that a tensor ends elsewhere."""
    path = folder / WEIGHTS
    content = path.read_bytes()
    (end,) = set(re.findall(rb'"data_offsets":\[0,(\d+)\]', content))
    path.write_bytes(content.replace(b"[0," + end + b"]", b"[4," + end + b"]"))


def pickled_under_the_name(folder):
    (folder / WEIGHTS).write_bytes(pickle.dumps({"weights": [0.0] * 100}))


def pickled(folder):
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def without_weights(folder):
    (folder / WEIGHTS).unlink()


def of_marian(folder):
    special = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    model = MarianMTModel(MarianConfig(vocab_size=vocabulary, **SIZES, **special, **heads))
    save_file({name: value.clone() for name, value in model.state_dict().items()}, folder / WEIGHTS)


def changed(**fields):
    """A fault in config.json; a field that is None is taken out."""

    def change(folder):
        path = folder / "config.json"
        config = {**json.loads(path.read_text()), **fields}
        path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))

    change.__name__ = ",".join(fields)
    return change


def not_json(folder):
    (folder / "config.json").write_text("{not json")


def a_list(folder):
    (folder / "config.json").write_text("[1]")


CANNOT = "the weights of {folder} cannot be loaded: "
BAD = "the configuration of {folder} is bad: "
FAULTS = [
    (cut, CANNOT + ".*incomplete metadata"),
    (cut_in_the_header, CANNOT + ".*header"),
    (emptied, CANNOT + ".*header too small"),
    (tampered, CANNOT + ".*(offset|metadata)"),
    (pickled_under_the_name, CANNOT + ".*header"),
    (pickled, "no file named model.safetensors.* {folder}"),
    (without_weights, "no file named model.safetensors.* {folder}"),
    (of_marian, CANNOT + "they are another architecture's, with final_logits_bias"),
    (changed(d_model=32), CANNOT + "their shapes, reported above, are not the configuration's"),
    (changed(d_model=None), CANNOT + "their shapes, reported above, are not the configuration's"),
    (changed(d_model=15), BAD + "d_model 15 is not divisible by encoder_attention_heads 8"),
    (changed(d_model="big"), BAD + ".*'d_model' expected int, got str"),
    (changed(model_type="marian"), BAD + "model_type 'marian' is of another architecture, not 'vanilla'"),
    (a_list, BAD + "(it is .1., not a JSON object of fields|list indices)"),
    (not_json, "{folder}/config.json' is not a valid JSON file"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
@pytest.mark.parametrize("cls", (VanillaModel, VanillaForConditionalGeneration))
def test_from_pretrained_names_the_folder_and_the_fault(folder, fault, message, cls):
    fault(folder)
    with pytest.raises((ValueError, OSError), match=message.format(folder=re.escape(str(folder)))) as raised:
        cls.from_pretrained(folder)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(("fault", "message"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_the_script_names_the_folder_and_the_fault(folder, fault, message, monkeypatch, capsys, tmp_path):
    """In one line, without a question on the terminal, and with nothing written."""
    fault(folder)
    monkeypatch.setattr(sys, "stdin", None)
    source = tmp_path / "source"
    source.write_text("a house\n")
    with pytest.raises(SystemExit) as exit:
        script.main([str(folder), "--input", str(source), "--output", str(tmp_path / "out")])
    assert exit.value.code == 2
    last = capsys.readouterr().err.rsplit("\r", 1)[-1].strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert str(folder) in last
    assert not list(tmp_path.glob("out*"))


def test_a_configuration_without_its_kind_is_refused_by_the_script(folder, monkeypatch, capsys, tmp_path):
    """It names code of the folder: transformers would ask on the terminal whether to run it."""
    changed(model_type=None)(folder)
    (tmp_path / "source").write_text("a house\n")
    with pytest.raises(SystemExit):
        script.main([str(folder), "--input", str(tmp_path / "source")])
    assert f"error: model: {folder}/config.json is bad: " in capsys.readouterr().err


@pytest.mark.parametrize("file", ("tokenizer.json", "tokenizer_config.json"))
def test_a_tokenizer_that_is_cut_off(folder, capsys, tmp_path, file):
    path = folder / file
    path.write_bytes(path.read_bytes()[:30])
    (tmp_path / "source").write_text("a house\n")
    with pytest.raises(SystemExit):
        script.main([str(folder), "--input", str(tmp_path / "source")])
    assert f"error: model: the tokenizer of {folder} cannot be loaded: " in capsys.readouterr().err


def test_a_pickle_is_read_where_it_is_asked_for(folder, good):
    pickled(folder)
    model = VanillaModel.from_pretrained(folder, use_safetensors=False)
    assert torch.equal(
        model.encoder.embed_tokens.weight, VanillaModel.from_pretrained(good).encoder.embed_tokens.weight
    )


def test_another_architectures_folder_is_not_read_as_ours(tmp_path):
    BartForConditionalGeneration(
        BartConfig(vocab_size=30, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=8, decoder_ffn_dim=8)
    ).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="model_type 'bart' is of another architecture"):
        VanillaForConditionalGeneration.from_pretrained(tmp_path)


def test_a_field_of_another_tool_is_kept(folder):
    changed(made_with="something")(folder)
    assert VanillaConfig.from_pretrained(folder).made_with == "something"


def test_loading_info_is_given_when_asked_for(good):
    model, found = AutoModelForSeq2SeqLM.from_pretrained(good, output_loading_info=True)
    assert isinstance(model, VanillaForConditionalGeneration)
    assert not found["missing_keys"] and not found["unexpected_keys"]

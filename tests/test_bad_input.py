"""Model folders that are none, or broken: from_pretrained and load_translator say in one line which, and why."""

import json
import pickle
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from helpers import call, make_tokenizer, save_folder
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration, VanillaModel
from modeling_vanilla.cli import average, push, translate
from modeling_vanilla.inference import load_translator

WEIGHTS = "model.safetensors"
SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    tokenizer = make_tokenizer(["a small house"], vocab_size=270)
    model = VanillaForConditionalGeneration(VanillaConfig(vocab_size=len(tokenizer), **SIZES))
    return save_folder(tmp_path_factory.mktemp("good") / "model", model, tokenizer)


@pytest.fixture
def folder(good, tmp_path):
    """A copy to break."""
    return Path(shutil.copytree(good, tmp_path / "model"))


def weights(change):
    """A fault in the bytes of the weights."""

    def spoil(folder):
        (folder / WEIGHTS).write_bytes(change((folder / WEIGHTS).read_bytes()))

    return spoil


def moved(content):
    """The header says that a tensor ends elsewhere."""
    (end,) = set(re.findall(rb'"data_offsets":\[0,(\d+)\]', content))
    return content.replace(b"[0," + end + b"]", b"[4," + end + b"]")


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

    return change


def configuration(text):
    return lambda folder: (folder / "config.json").write_text(text)


CANNOT = "the weights of {folder} cannot be loaded: "
BAD = "the configuration of {folder} is bad: "
FAULTS = {
    "cut": (weights(lambda content: content[:-100]), CANNOT + ".*incomplete metadata"),
    "cut in the header": (weights(lambda content: content[:50]), CANNOT + ".*header"),
    "empty": (weights(lambda content: b""), CANNOT + ".*header too small"),
    "moved": (weights(moved), CANNOT + ".*(offset|metadata)"),
    "pickled under the name": (weights(lambda content: pickle.dumps([0.0] * 100)), CANNOT + ".*header"),
    "pickled": (pickled, "no file named model.safetensors.* {folder}"),
    "no weights": (without_weights, "no file named model.safetensors.* {folder}"),
    "of Marian": (of_marian, CANNOT + "they are another architecture's, with final_logits_bias"),
    "other size": (changed(d_model=32), CANNOT + "their shapes, reported above, are not the configuration's"),
    "no size": (changed(d_model=None), CANNOT + "their shapes, reported above, are not the configuration's"),
    "odd size": (changed(d_model=15), BAD + "d_model 15 is not divisible by encoder_attention_heads 8"),
    "size a word": (changed(d_model="big"), BAD + ".*'d_model' expected int, got str"),
    "other type": (changed(model_type="marian"), BAD + "model_type 'marian' is of another architecture, not 'vanilla'"),
    "a list": (configuration("[1]"), BAD + "(it is .1., not a JSON object of fields|list indices)"),
    "no JSON": (configuration("{not json"), "{folder}/config.json' is not a valid JSON file"),
}


@pytest.mark.parametrize(("fault", "message"), FAULTS.values(), ids=FAULTS)
def test_the_folder_and_the_fault_are_named(folder, fault, message, monkeypatch):
    """In one line, and by load_translator without a question on the terminal."""
    fault(folder)
    monkeypatch.setattr(sys, "stdin", None)
    for load in (VanillaModel.from_pretrained, VanillaForConditionalGeneration.from_pretrained):
        with pytest.raises((ValueError, OSError), match=message.format(folder=re.escape(str(folder)))) as raised:
            load(folder)
        assert len(str(raised.value).splitlines()) == 1
    with pytest.raises((ValueError, OSError), match=re.escape(str(folder))):
        load_translator([folder])


CODE = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast
Path(__file__).with_name("executed").touch()
class Own(PreTrainedTokenizerFast):
    pass
"""


@pytest.mark.parametrize("command", ["translate", "average", "push"])
def test_code_of_a_folder_is_never_run(folder, command, tmp_path, monkeypatch):
    """Nor does transformers ask on the terminal whether to run it, and read the answer off the input."""
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    (folder / "own.py").write_text(CODE)
    path = folder / "tokenizer_config.json"
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
    path.write_text(json.dumps({**json.loads(path.read_text()), **own}))
    (folder.parent / "results.json").write_text("{}")
    arguments = {
        "translate": (translate.main, folder),
        "average": (average.main, folder, tmp_path / "new"),
        "push": (push.main, folder, "somebody/a-model"),
    }
    done = call(*arguments[command], stdin=b"y\ny\n")
    assert re.match(f"model: the tokenizer of {folder} cannot be loaded: .*trust_remote_code", done.error)
    assert done.errors.count("\n") == 1
    assert not list(tmp_path.rglob("executed")) and not (tmp_path / "new").exists()


def test_a_configuration_without_its_type_is_refused(folder):
    """It names code of the folder, too."""
    changed(model_type=None)(folder)
    with pytest.raises(ValueError, match=f"^model: {folder}/config.json is bad: "):
        load_translator([folder])


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_is_cut_off(folder, file):
    path = folder / file
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(ValueError, match=f"^model: the tokenizer of {folder} cannot be loaded: "):
        load_translator([folder])


@pytest.mark.parametrize(
    ("file", "lacking"), [("config.json", "no model folder"), ("tokenizer_config.json", "a model without a tokenizer")]
)
def test_a_folder_that_lacks_a_file(folder, file, lacking):
    (folder / file).unlink()
    with pytest.raises(ValueError, match=rf"^model: {folder} is {lacking}, as it has no {file}$"):
        load_translator([folder])


def test_weights_that_are_missing_are_not_made_up(folder):
    tensors = load_file(folder / WEIGHTS)
    tensors.popitem()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"^model: the weights of .* lack "):
        load_translator([folder])


def test_models_and_tokenizers_that_do_not_fit_together(good, folder):
    make_tokenizer(["xyz"]).save_pretrained(folder)
    with pytest.raises(ValueError, match=rf"^vocabulary: {good} and {folder} have different ones, of "):
        load_translator([good, folder])
    make_tokenizer(["a small house over there"]).save_pretrained(folder)
    with pytest.raises(ValueError, match=rf"^vocabulary: the tokenizer of {folder} has \d+ tokens, the model 272$"):
        load_translator([folder])


def test_a_device_that_is_not_there(good):
    with pytest.raises(ValueError, match=r"^device: nowhere cannot be used: .+"):
        load_translator([good], device="nowhere")


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

"""Model folders that are none, or broken: from_pretrained and Translator say in one line which, and why."""

import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from helpers import change_json, change_weights, make_tiny, make_tokenizer, pickled, save_folder, text

from modeling_vanilla import Translator, VanillaForConditionalGeneration, VanillaModel

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    tokenizer = make_tokenizer(["a small house"], vocab_size=270)
    return save_folder(tmp_path_factory.mktemp("good") / "model", make_tiny(len(tokenizer)), tokenizer)


@pytest.fixture
def folder(good, tmp_path):
    """A copy to break."""
    return Path(shutil.copytree(good, tmp_path / "model"))


def changed(**fields):
    return lambda folder: change_json(folder / "config.json", **fields)


def not_a_number(folder):
    change_weights(folder / WEIGHTS, lambda tensors: tensors["model.encoder.embed_tokens.weight"][-1].fill_(torch.nan))


def search(**fields):
    return lambda folder: change_json(folder / "generation_config.json", **fields)


def nested(folder):
    """Its files are one folder further down."""
    shutil.copytree(folder, folder / "model")
    (folder / "config.json").unlink()


FAULTS = {
    "NaN": (not_a_number, "model: {} .*: the weight model[^ ]+ has values that are NaN or infinite$"),
    "huge": (changed(d_model=10**7), "model: {} .*: its weights are of other shapes than config.json says"),
    "decoder alone": (
        changed(is_encoder_decoder=False),
        "model: {}/.* is_encoder_decoder must be True, not False",
    ),
    "layers": (changed(encoder_layers=10**7), "model: {}/config.json is bad: .*encoder_layers must be from 1 to 1000"),
    "eos": (search(eos_token_id=[2, 9999]), "model: {} .*: eos_token_id 9999 is outside the vocabulary"),
    "start": (search(decoder_start_token_id="x"), "model: {} .*: decoder_start_token_id 'x' is outside the vocabulary"),
    "other type": (changed(model_type="marian"), "model: {} is a marian; vanilla convert may convert it"),
    "the folder above": (nested, "model: {} is .* config.json; did you mean {}/model[?]$"),
    "adapter": (text("adapter_config.json", "{}"), "model: {} holds an adapter, as it has adapter_config.json; "),
    "another vocabulary": (
        changed(vocab_size=1000),
        "vocabulary: .* of {} has ids for 272 tokens, the model 1000",
    ),
    "special tokens": (changed(pad_token_id=2, eos_token_id=0), "vocabulary: .* {} has pad_token_id 0, the model "),
}


@pytest.mark.parametrize(("fault", "message"), FAULTS.values(), ids=FAULTS)
def test_the_folder_and_the_fault_are_named(folder, fault, message, monkeypatch, caplog):
    """In one line, without a table in the log or a question on the terminal."""
    fault(folder)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises((ValueError, OSError), match=f"^({message})".replace("{}", re.escape(str(folder)))) as raised:
        Translator.from_pretrained(folder)
    assert "\n" not in str(raised.value) and not caplog.messages


def test_from_pretrained_takes_no_pickle(folder):
    pickled(folder)
    with pytest.raises(OSError, match=f"no file named model.safetensors.* {folder}"):
        VanillaModel.from_pretrained(folder)


def test_models_and_tokenizers_that_do_not_fit_together(good, folder):
    padded = VanillaForConditionalGeneration.from_pretrained(good)
    padded.resize_token_embeddings(pad_to_multiple_of=512)
    padded.save_pretrained(folder)
    assert Translator.from_pretrained(folder).model.config.vocab_size == 512
    shutil.copytree(good, folder, dirs_exist_ok=True)
    make_tokenizer(["xyz"]).save_pretrained(folder)
    with pytest.raises(ValueError, match=rf"^vocabulary: {good} and {folder} have different ones, of "):
        Translator.from_pretrained(good, folder)

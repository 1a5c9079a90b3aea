"""Model folders that are none, or broken: from_pretrained and load_translator say in one line which, and why."""

import json
import math
import re
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

import helpers
import pytest
import torch
from helpers import change_json, change_weights, make_tiny, make_tokenizer, pickled, save_folder, text, without
from transformers import AutoModelForSeq2SeqLM

from modeling_vanilla import VanillaForConditionalGeneration, VanillaModel
from modeling_vanilla.inference import load_translator

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    tokenizer = make_tokenizer(["a small house"], vocab_size=270)
    return save_folder(tmp_path_factory.mktemp("good") / "model", make_tiny(len(tokenizer)), tokenizer)


@pytest.fixture
def folder(good, tmp_path):
    """A copy to break."""
    return Path(shutil.copytree(good, tmp_path / "model"))


def of_marian(folder):
    helpers.make_marian(helpers.read_json(folder / "config.json")["vocab_size"]).save_pretrained(folder / "other")
    (folder / "other" / WEIGHTS).replace(folder / WEIGHTS)


def changed(file="config.json", **fields):
    """A fault in a file of settings."""
    return lambda folder: change_json(folder / file, **fields)


def weights(change):
    return lambda folder: change_weights(folder / WEIGHTS, change)


def cut_off(file):
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:30])


def not_a_number(tensors):
    tensors["model.encoder.embed_tokens.weight"][-1, -1] = torch.nan


def nested(folder):
    """Its files are one folder further down."""
    shutil.copytree(folder, folder / "model")
    (folder / "config.json").unlink()


def vocabulary(change):
    """A fault in the ids of the tokens."""

    def spoil(folder):
        file = json.loads((folder / "tokenizer.json").read_text())
        change(file["model"]["vocab"])
        (folder / "tokenizer.json").write_text(json.dumps(file))

    return spoil


BAD = "the configuration of {} is bad: "
IDS = "vocabulary: the tokenizer of {} "
OTHER_IDS = changed(pad_token_id=2, eos_token_id=0)
# What from_pretrained says, None where it loads the folder or is not asked; and load_translator.
FAULTS = {
    "cut": (cut_off(WEIGHTS), None, "model: {} cannot be loaded: .*header"),
    "pickled": (pickled, "no file named model.safetensors.* {}", ".*{}"),
    "of Marian": (of_marian, None, "model: {} cannot be loaded: the weights lack .*"),
    "other size": (changed(d_model=32), None, "model: {} .*: its weights are of other shapes than config.json says"),
    "size a word": (changed(d_model="big"), BAD + ".*'d_model' expected int, got str", ".*{}"),
    "other type": (changed(model_type="marian"), BAD + "model_type 'marian' is of another architecture, not", ".*{}"),
    "a list": (text("config.json", "[1]"), BAD + "(it is .1., not a JSON object of fields|list indices)", ".*{}"),
    "no JSON": (text("config.json", "{not json"), "{}/config.json' is not a valid JSON file", ".*{}"),
    "number format": (changed(dtype="float7"), BAD + "dtype 'float7' is no number format of torch", ".*{}"),
    "NaN as number format": (changed(dtype=math.nan), BAD + "dtype nan is no number format of torch", ".*{}"),
    "settings cut": (cut_off("tokenizer_config.json"), None, "tokenizer: {} cannot be loaded: "),
    "no configuration": (without("config.json"), None, "model: {} is no model folder, as it has no config.json$"),
    "no settings": (without("tokenizer_config.json"), None, "tokenizer: {} has no tokenizer_config.json$"),
    "the folder above": (nested, None, "model: {} is .* config.json; did you mean {}/model[?]$"),
    # No type could name code of the folder, too.
    "no type": (changed(model_type=...), None, "model: {}/config.json is bad: "),
    "one weight less": (weights(dict.popitem), None, "model: {} cannot be loaded: the weights lack "),
    "NaN": (weights(not_a_number), None, "model: {} .*: the weight model[^ ]+ has values that are NaN or infinite$"),
    "quantised": (changed(quantization_config={"quant_method": "x"}), None, "model: {} has a quantization_config; "),
    "huge": (changed(d_model=10**7), None, "model: {} .*: its weights are of other shapes than config.json says"),
    "adapter": (
        text("adapter_config.json", "{}"),
        None,
        "model: {} holds an adapter, as it has adapter_config.json; ",
    ),
    "a large id": (vocabulary(lambda ids: ids.update(a=99999)), None, IDS + "has ids for 100000 tokens, the model "),
    "other special tokens": (OTHER_IDS, None, IDS + "has pad_token_id 0, the model 2$"),
}


@pytest.mark.parametrize(("fault", "loading", "translating"), FAULTS.values(), ids=FAULTS)
def test_the_folder_and_the_fault_are_named(folder, fault, loading, translating, monkeypatch, caplog):
    """In one line; by load_translator without a table in the log or a question on the terminal."""
    fault(folder)
    monkeypatch.setattr(sys, "stdin", None)

    def assert_refused(load, argument, message):
        with pytest.raises((ValueError, OSError), match=message.replace("{}", re.escape(str(folder)))) as raised:
            load(argument)
        assert len(str(raised.value).splitlines()) == 1

    assert_refused(load_translator, [folder], f"^({translating})")
    assert not caplog.messages
    for cls in (VanillaModel, VanillaForConditionalGeneration) if loading else ():
        assert_refused(cls.from_pretrained, folder, loading)


GENERATION = "generation_config.json"


BAD_SEARCHES = [
    (text(GENERATION, "{no json"), "it cannot be read as JSON"),
    (changed(GENERATION, num_beams="4"), "num_beams must be a whole number of at least 1, not '4'"),
    (changed(GENERATION, forced_bos_token_id=999), "forced_bos_token_id 999: the model has [0-9]+ tokens"),
]


@pytest.mark.parametrize(("fault", "message"), BAD_SEARCHES, ids=["no JSON", "a word", "no token"])
def test_a_bad_generation_configuration_is_not_taken_for_none(folder, fault, message):
    fault(folder)
    for load in (VanillaForConditionalGeneration.from_pretrained, AutoModelForSeq2SeqLM.from_pretrained):
        with pytest.raises(ValueError, match=f"^the generation configuration of {folder} is bad: {message}"):
            load(folder)
    with pytest.raises(ValueError, match=f"^model: .*the generation configuration of {folder} is bad: {message}"):
        load_translator([folder])
    VanillaModel.from_pretrained(folder)  # it has none


def test_models_and_tokenizers_that_do_not_fit_together(good, folder):
    make_tokenizer(["xyz"]).save_pretrained(folder)
    with pytest.raises(ValueError, match=rf"^vocabulary: {good} and {folder} have different ones, of "):
        load_translator([good, folder])
    make_tokenizer(["a small house over there"]).save_pretrained(folder)
    with pytest.raises(
        ValueError, match=rf"^vocabulary: the tokenizer of {folder} has ids for \d+ tokens, the model 272$"
    ):
        load_translator([folder])


@pytest.mark.parametrize(("device", "message"), [("nowhere", "cannot be used: .+"), ("meta", "holds no values")])
def test_a_device_that_is_not_there(good, device, message):
    with pytest.raises(ValueError, match=f"^device: {device} {message}"):
        load_translator([good], device=device)


def test_the_device_is_by_default_the_accelerator(good, monkeypatch):
    for there in ("meta", None):  # meta in place of a GPU: that it was chosen, its refusal shows
        accelerator = there and torch.device(there)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda it=accelerator: it is not None)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda it=accelerator: it)
        with pytest.raises(ValueError, match=r"^device: meta") if there else nullcontext():
            assert load_translator([good])[0].device.type == "cpu"

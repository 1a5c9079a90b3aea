"""`vanilla average`: a model folder with the mean of the weights, or one line and nothing at all."""

import re
import shutil

import numpy as np
import pytest
import torch
from helpers import call, make_tokenizer, save_folder, tree
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerBase, pipeline

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.cli.average import main

WEIGHTS = "model.safetensors"
STEPS = (8, 9, 10, 100)  # by name, 10 and 100 would come before 8
TEXT = "a dog sees a cat"


def save(folder, seed=0, text=TEXT, **overrides):
    """A model folder with a tokenizer and weights of its own."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 264, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 24}
    model = VanillaForConditionalGeneration(VanillaConfig.preset("tiny", **{**sizes, **overrides}))
    model.generation_config.max_extra_tokens = 10 + seed
    return save_folder(folder, model, make_tokenizer([text], vocab_size=264))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Of every kind; "run" has the checkpoints STEPS, and beside them what a killed process may have left."""
    folder = tmp_path_factory.mktemp("sources")
    for seed, step in enumerate(STEPS):
        checkpoint = save(folder / "run" / f"checkpoint-{step}", seed)
        save_file({"moments": np.zeros(3, np.float32)}, checkpoint / "optimizer.safetensors")
        (checkpoint / "progress.json").write_text("{}", encoding="utf-8")
    whole = folder / "run" / "checkpoint-8"
    for name in ("run/checkpoint-101.part", "no tokenizer", "broken"):
        shutil.copytree(whole, folder / name)
    for path in (folder / "no tokenizer").glob("tokenizer*"):
        path.unlink()
    (folder / "broken" / WEIGHTS).write_bytes(b"no weights at all")
    (folder / "empty").mkdir()
    save(folder / "other shape", encoder_ffn_dim=28)
    save(folder / "other words", text="the old man and the sea")
    return folder


@pytest.fixture
def run(sources):
    """A run, which stays as it is."""
    before = tree(sources)
    yield sources / "run"
    assert tree(sources) == before


def weights_of(*folders):
    return [load_file(folder / WEIGHTS) for folder in folders]


def assert_mean(folder, checkpoints):
    """The mean in 64 bits, rounded to 32 once."""
    (found,), expected = weights_of(folder), weights_of(*checkpoints)
    assert found.keys() == expected[0].keys()
    for name, value in found.items():
        assert value.dtype == np.float32
        mean = np.mean([weights[name] for weights in expected], axis=0, dtype=np.float64)
        assert np.array_equal(value, mean.astype(np.float32)), name


@pytest.mark.parametrize("last", [1, 3, 4])
def test_the_last_checkpoints_of_a_run(run, tmp_path, last):
    folder = tmp_path / "new" / "model"
    averaged = [run / f"checkpoint-{step}" for step in STEPS[-last:]]
    said = f"{folder} is written, the mean of {', '.join(map(str, averaged))}\n"
    assert call(main, run, folder, "--last", last)[:2] == (0, said)
    assert_mean(folder, averaged)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_checkpoints_by_name_into_an_empty_folder(run, tmp_path):
    """In any order; the last one named gives all that is no weight."""
    chosen = [run / "checkpoint-100", run / "checkpoint-9"]
    assert call(main, *chosen, tmp_path).code == 0
    assert_mean(tmp_path, chosen)
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generation_config.max_extra_tokens == 11


def test_the_folder_is_a_model_that_loads_and_translates(run, tmp_path):
    """Weights, code, configuration, generation configuration and tokenizer, and nothing that only resuming needs."""
    folder = tmp_path / "model"
    assert call(main, run, folder, "--last", 2).code == 0
    names = {path.name for path in folder.iterdir()}
    assert names == {path.name for path in (run / "checkpoint-100").iterdir()} - {
        *("optimizer.safetensors", "progress.json")
    }
    assert {"modeling_vanilla.py", "generation_config.json", "tokenizer.json"} <= names
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert type(model) is VanillaForConditionalGeneration
    assert model.config.auto_map["AutoModelForSeq2SeqLM"].startswith("modeling_vanilla.")
    assert (model.generation_config.num_beams, model.generation_config.max_extra_tokens) == (4, 13)
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == make_tokenizer([TEXT], 264).get_vocab()
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    for name, value in weights_of(folder)[0].items():
        assert np.array_equal(state[name], value), name
    (translation,) = pipeline("translation", model=str(folder))(TEXT)
    assert isinstance(translation["translation_text"], str)


def test_the_type_of_the_weights_stays(run, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(run / "checkpoint-8", dtype=torch.bfloat16)
    half = save_folder(tmp_path / "half", model, make_tokenizer([TEXT], 264))
    assert call(main, half, tmp_path / "model").code == 0
    found = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert (found.dtype, found.config.dtype) == (torch.bfloat16, torch.bfloat16)
    state = model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in found.state_dict().items())


# Bad input


@pytest.mark.parametrize(
    ("names", "last", "message"),
    [
        (["run"], 5, "{run}: has 4 checkpoints, not 5"),
        (["run"], 0, "last must be at least 1, not 0"),
        (["run", "empty"], 2, "last: of one run, not of 2: {run}, {empty}"),
        (["run"], None, "{run}: no checkpoint, as it has no model.safetensors"),
        (["run/checkpoint-8", "other shape"], None, "{other shape}: its weights have other names or shapes than"),
        (["run/checkpoint-8", "other words"], None, "{other words}: its vocabulary is another than that of"),
        (["run/checkpoint-8", "no tokenizer"], None, "model: {no tokenizer} is a model without a tokenizer"),
        (["run/checkpoint-8", "broken"], None, "{broken}/model.safetensors: cannot be read: "),
    ],
)
def test_bad_sources_get_one_line_and_nothing_is_written(run, sources, tmp_path, names, last, message):
    arguments = [*(sources / name for name in names), tmp_path / "new" / "model"]
    done = call(main, *arguments, *([] if last is None else ["--last", last]))
    assert done.error.startswith(re.sub("{(.+?)}", lambda name: str(sources / name[1]), message))
    assert done.errors.count("\n") == 1
    assert not tree(tmp_path)


def test_a_destination_in_use_is_left_alone(run, tmp_path):
    """The folder that is read, too: the fixture looks whether it has changed."""
    (tmp_path / "thesis.tex").write_text("years of work", encoding="utf-8")
    for destination in (tmp_path, run / "checkpoint-8"):
        error = call(main, run, destination, "--last", 2).error
        assert error == f"destination: {destination} holds something already; choose another folder"
    assert tree(tmp_path) == {"thesis.tex": b"years of work"}


def test_a_full_disk_leaves_nothing(run, tmp_path, monkeypatch):
    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PreTrainedTokenizerBase, "save_pretrained", full)
    error = call(main, run, tmp_path / "new", "--last", 2).error
    assert error == f"{tmp_path / 'new'}: cannot be written: [Errno 28] No space left on device"
    assert not tree(tmp_path)


@pytest.mark.parametrize("name", ["file/model", "file.part"])
def test_a_destination_that_cannot_be_made(run, tmp_path, name):
    """Below a file, and where a file has the name to write under; transformers itself would say nothing then."""
    (tmp_path / name.split("/")[0]).write_text("text", encoding="utf-8")
    before, destination = tree(tmp_path), tmp_path / name.removesuffix(".part")
    assert call(main, run, destination, "--last", 2).error.startswith(f"{destination}: cannot be written: ")
    assert tree(tmp_path) == before

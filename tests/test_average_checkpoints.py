"""examples/average_checkpoints.py: a model folder with the mean of the weights, or one line and nothing at all."""

import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerBase, pipeline
from transformers.utils import logging

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.cli import average as script
from modeling_vanilla.training.tokenizer import train_tokenizer

WEIGHTS = "model.safetensors"
STEPS = (8, 9, 10, 100)  # by name, 10 and 100 would come before 8


@pytest.fixture(scope="module", autouse=True)
def no_progress_bars():
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


def words(text):
    return train_tokenizer([text] * 3, vocab_size=264)


def save(folder, seed=0, text="a dog sees a cat", **overrides):
    """A model folder with a tokenizer and weights of its own."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 264, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 24}
    model = VanillaForConditionalGeneration(VanillaConfig.preset("tiny", **{**sizes, **overrides}))
    model.generation_config.max_extra_tokens = 10 + seed
    model.save_pretrained(folder)
    words(text).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Of every kind; "run" has the checkpoints STEPS, and beside them what a killed process may have left."""
    folder = tmp_path_factory.mktemp("sources")
    for seed, step in enumerate(STEPS):
        checkpoint = save(folder / "run" / f"checkpoint-{step}", seed)
        save_file({"moments": np.zeros(3, np.float32)}, checkpoint / "optimizer.safetensors")
        (checkpoint / "progress.json").write_text("{}", encoding="utf-8")
    whole = folder / "run" / "checkpoint-8"
    for name in ("run/checkpoint-101.part", "no tokenizer", "broken", "cut", "no config"):
        shutil.copytree(whole, folder / name)
    for path in (folder / "no tokenizer").glob("tokenizer*"):
        path.unlink()
    (folder / "broken" / WEIGHTS).write_bytes(b"no weights at all")
    (folder / "cut" / WEIGHTS).write_bytes((whole / WEIGHTS).read_bytes()[:-1])
    (folder / "no config" / "config.json").unlink()
    (folder / "empty").mkdir()
    save(folder / "other shape", encoder_ffn_dim=28)
    save(folder / "other names", encoder_layers=1)
    save(folder / "other words", text="the old man and the sea")
    return folder


@pytest.fixture
def run(sources):
    """A run, which stays as it is."""
    before = tree(sources)
    yield sources / "run"
    assert tree(sources) == before


def tree(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


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
def test_the_last_checkpoints_of_a_run(run, tmp_path, capsys, last):
    script.main([str(run), str(tmp_path / "new" / "model"), "--last", str(last)])
    averaged = [run / f"checkpoint-{step}" for step in STEPS[-last:]]
    assert_mean(tmp_path / "new" / "model", averaged)
    said = ", ".join(map(str, averaged))
    assert capsys.readouterr().out == f"{tmp_path / 'new' / 'model'} is written, the mean of {said}\n"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model"]


def test_checkpoints_by_name_into_an_empty_folder(run, tmp_path):
    """Whichever, in any order: the last one named gives all that is no weight."""
    chosen = [run / "checkpoint-100", run / "checkpoint-9"]
    (tmp_path / "model").mkdir()
    script.main([*map(str, chosen), str(tmp_path / "model")])
    assert_mean(tmp_path / "model", chosen)
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").generation_config.max_extra_tokens == 11


def test_the_folder_is_a_model_that_loads_and_translates(run, tmp_path):
    """Weights, code, configuration, generation configuration and tokenizer, and nothing that only resuming needs."""
    folder = tmp_path / "model"
    script.main([str(run), str(folder), "--last", "2"])
    names = {path.name for path in folder.iterdir()}
    assert names == {path.name for path in (run / "checkpoint-100").iterdir()} - {
        *("optimizer.safetensors", "progress.json")
    }
    assert {"modeling_vanilla.py", "generation_config.json", "tokenizer.json"} <= names
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert type(model) is VanillaForConditionalGeneration
    assert model.config.auto_map["AutoModelForSeq2SeqLM"].startswith("modeling_vanilla.")
    assert (model.generation_config.num_beams, model.generation_config.max_extra_tokens) == (4, 13)
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == words("a dog sees a cat").get_vocab()
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    for name, value in weights_of(folder)[0].items():
        assert np.array_equal(state[name], value), name
    (translation,) = pipeline("translation", model=str(folder))("a dog sees a cat")
    assert isinstance(translation["translation_text"], str)


def test_the_type_of_the_weights_stays(run, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(run / "checkpoint-8", dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "half")
    words("a dog sees a cat").save_pretrained(tmp_path / "half")
    script.main([str(tmp_path / "half"), str(tmp_path / "model")])
    found = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert (found.dtype, found.config.dtype) == (torch.bfloat16, torch.bfloat16)
    state = model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in found.state_dict().items())


# Bad input


def failure(arguments, capsys):
    """The one line that main() ends with."""
    with pytest.raises(SystemExit) as stopped:
        script.main([str(argument) for argument in arguments])
    output, errors = capsys.readouterr()
    assert (stopped.value.code, output) == (2, "")
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    return errors.removeprefix("error: ").removesuffix("\n")


@pytest.mark.parametrize(
    ("names", "last", "message"),
    [
        (["run"], 5, "{run}: has 4 checkpoints, not 5"),
        (["empty"], 1, "{empty}: has 0 checkpoints, not 1"),
        (["nowhere"], 1, "{nowhere}: has 0 checkpoints, not 1"),
        (["run"], 0, "last must be at least 1, not 0"),
        (["run", "empty"], 2, "last: of one run, not of 2: {run}, {empty}"),
        (["run"], None, "{run}: no checkpoint, as it has no model.safetensors"),
        (["nowhere"], None, "{nowhere}: no checkpoint, as it has no model.safetensors"),
        (["run/checkpoint-8", "other shape"], None, "{other shape}: its weights have other names or shapes than"),
        (["run/checkpoint-8", "other names"], None, "{other names}: its weights have other names or shapes than"),
        (["run/checkpoint-8", "other words"], None, "{other words}: its vocabulary is another than that of"),
        (["run/checkpoint-8", "no tokenizer"], None, "{no tokenizer}: no tokenizer, as it has no tokenizer_config"),
        (["no tokenizer", "run/checkpoint-8"], None, "{no tokenizer}: no tokenizer, as it has no tokenizer_config"),
        (["no tokenizer"], None, "{no tokenizer}: no tokenizer, as it has no tokenizer_config.json"),
        (["run/checkpoint-8", "broken"], None, "{broken}/model.safetensors: cannot be read: "),
        (["run/checkpoint-8", "cut"], None, "{cut}/model.safetensors: cannot be read: "),
        (["run/checkpoint-8", "no config"], None, "model: {no config} is no model folder, as it has no config.json"),
    ],
)
def test_bad_sources_get_one_line_and_nothing_is_written(run, sources, tmp_path, capsys, names, last, message):
    arguments = [*(sources / name for name in names), tmp_path / "new" / "model"]
    said = failure(arguments if last is None else [*arguments, "--last", last], capsys)
    assert said.startswith(re.sub("{(.+?)}", lambda name: str(sources / name[1]), message))
    assert list(tmp_path.iterdir()) == []


def test_a_destination_that_holds_something_is_left_alone(run, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file", tmp_path / "folder" / "thesis.tex"):
        path.write_text("years of work", encoding="utf-8")
    before = tree(tmp_path)
    for destination in (tmp_path / "file", tmp_path / "folder", run, run / "checkpoint-8"):
        assert failure([run, destination, "--last", 2], capsys) == f"{destination}: holds something already"
        assert tree(tmp_path) == before


def test_a_full_disk_leaves_nothing(run, tmp_path, capsys, monkeypatch):
    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    (tmp_path / "model").mkdir()
    before = tree(tmp_path)
    monkeypatch.setattr(PreTrainedTokenizerBase, "save_pretrained", full)
    for destination in (tmp_path / "model", tmp_path / "new"):
        said = failure([run, destination, "--last", 2], capsys)
        assert said == f"{destination}: cannot be written: [Errno 28] No space left on device"
        assert tree(tmp_path) == before


@pytest.mark.parametrize("way", ["file", "part"])
def test_a_destination_that_cannot_be_made(run, tmp_path, capsys, way):
    """Below a file, and where a file has the name to write under; transformers itself would say nothing then."""
    destination = tmp_path / "file" / "model" if way == "file" else tmp_path / "model"
    (tmp_path / ("file" if way == "file" else "model.part")).write_text("text", encoding="utf-8")
    before = tree(tmp_path)
    assert failure([run, destination, "--last", 2], capsys).startswith(f"{destination}: cannot be written: ")
    assert tree(tmp_path) == before

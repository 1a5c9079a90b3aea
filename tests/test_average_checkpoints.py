"""`vanilla average`: a model folder with the mean of the weights, or one line and nothing at all."""

import resource
import shutil

import numpy as np
import pytest
import torch
from helpers import as_options, call, make_tokenizer, save_folder, tree
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_vanilla import VanillaForConditionalGeneration, preset_config
from modeling_vanilla.cli.average import main

WEIGHTS = "model.safetensors"
STEPS = (8, 9, 10, 100)  # by name, 10 and 100 would come before 8
TEXT = "a dog sees a cat"


def save(folder, seed=0, text=TEXT):
    """A model folder with a tokenizer and weights of its own."""
    torch.manual_seed(seed)
    config = preset_config("tiny", vocab_size=264, d_model=16, encoder_layers=2, encoder_ffn_dim=24)
    model = VanillaForConditionalGeneration(config)
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
    shutil.copytree(folder / "run/checkpoint-8", folder / "run/.checkpoint-101.12345678.tmp/part")
    (folder / "empty").mkdir()
    save(folder / "other words", text="the old man and the sea")
    return folder


@pytest.fixture
def run(sources):
    """A run, which stays as it is."""
    before = tree(sources)
    yield sources / "run"
    assert tree(sources) == before


def assert_mean(folder, checkpoints):
    """The mean in 64 bits, rounded to 32 once."""
    average, *expected = (load_file(path / WEIGHTS) for path in (folder, *checkpoints))
    assert average.keys() == expected[0].keys()
    for name, value in average.items():
        assert value.dtype == np.float32
        mean = np.mean([weights[name] for weights in expected], axis=0, dtype=np.float64)
        assert np.array_equal(value, mean.astype(np.float32)), name


@pytest.mark.parametrize("last", [3, 5])
def test_the_last_checkpoints_of_a_run(run, tmp_path, last):
    folder = tmp_path / "new" / "model"
    averaged = [run / f"checkpoint-{step}" for step in STEPS[-last:]]
    said = f"{folder} is written, the mean of {', '.join(map(str, averaged))}\n"
    assert call(main, run, folder, "--last", last, "--quiet") == (0, said, "")
    assert_mean(folder, averaged)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_checkpoints_by_name_into_an_empty_folder(run, tmp_path):
    """In any order; the last one named gives all that is no weight, but nothing that only resuming needs."""
    chosen = [run / "checkpoint-100", run / "checkpoint-9"]
    assert call(main, *chosen, tmp_path).code == 0
    assert_mean(tmp_path, chosen)
    assert {*tree(tmp_path)} == {*tree(chosen[-1])} - {"optimizer.safetensors", "progress.json"}
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(model) is VanillaForConditionalGeneration and model.generation_config.max_extra_tokens == 11
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == make_tokenizer([TEXT], 264).get_vocab()


# Bad input


BAD_SOURCES = [
    (["empty"], 5, "empty: has no checkpoints"),
    (["run/checkpoint-8", "other words"], None, "other words: its vocabulary is another than that of"),
]


@pytest.mark.parametrize(("names", "last", "message"), BAD_SOURCES)
def test_bad_sources_get_one_line_and_nothing_is_written(run, sources, tmp_path, names, last, message):
    arguments = [*(sources / name for name in names), tmp_path / "new" / "model"]
    done = call(main, *arguments, *as_options({"last": last}))
    assert message in done.error and done.errors.count("\n") == 1
    assert not tree(tmp_path)


@pytest.mark.parametrize("size", [3000, 200_000], ids=["code", "weights"])
def test_a_full_disk_is_one_line_that_names_the_destination(run, tmp_path, size):
    """The kernel lets no file grow larger than `size`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        done = call(main, run, tmp_path / "new", "--last", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.error == f"{tmp_path}/new: File too large"
    assert not tree(tmp_path)

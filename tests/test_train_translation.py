"""The command `vanilla train` from end to end, and one line for everything that can be wrong with its input."""

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from toy_corpus import toy_corpus, write_corpus
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, HfArgumentParser, pipeline

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.cli import train as script
from modeling_vanilla.training import DataOptions, ModelOptions, TrainingOptions, TranslationOptions, train_translation
from modeling_vanilla.training.tokenizer import train_tokenizer

ROOT = Path(__file__).parents[1]
SIZES = {"vocab_size": 320, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32}
SHORT = {"max_steps": 2, "tokens_per_update": 500, "tokens_per_batch": 250, "warmup_steps": 2}
MODEL = {"preset": "tiny", **SIZES, "init_std": "none"}


def command_line(options):
    """Options by name as arguments; one that is None is not given."""
    return [str(part) for name, value in options.items() if value is not None for part in (f"--{name}", value)]


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def corpus():
    return toy_corpus(train=100, validation=4, test=4)


@pytest.fixture(scope="module")
def files(tmp_path_factory, corpus):
    paths = write_corpus(corpus, tmp_path_factory.mktemp("corpus"))
    return dict(zip(("train_file", "validation_file", "test_file"), map(str, paths), strict=True))


def subprocess_main(options, cwd):
    """The script as a person starts it, from another folder, with nothing of the network."""
    own = {"HF_HOME": "hf", "HF_DATASETS_CACHE": "cache", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ROOT}
    return subprocess.run(
        [sys.executable, ROOT / "examples" / "train_translation.py", *command_line(options)],
        cwd=cwd,
        env={**os.environ, **{name: str(value) for name, value in own.items()}},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


THREE_STEPS = {"max_steps": 3, "checkpoint_steps": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, files):
    """A run of three steps in a process of its own: its folder, its results.json, and what the command printed."""
    folder = tmp_path_factory.mktemp("finished")
    run = folder / "run"
    done = subprocess_main({**files, **MODEL, **SHORT, **THREE_STEPS, "output_dir": run}, folder)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return run, json.loads((run / "results.json").read_text(encoding="utf-8")), done.stdout


# End to end


def test_a_run_writes_model_results_and_picture(finished, corpus):
    run, results, printed = finished
    checkpoints = {f"checkpoint-{step}" for step in (1, 2, 3)}
    assert {path.name for path in run.iterdir()} == checkpoints | {
        *("best", "model", "results.json", "loss.png", "run.json", "tensorboard")
    }
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert results["test_sentences"] == len(corpus["test"])
    assert results["steps"] == 3
    assert all(0 <= results[name] <= 100 for name in ("bleu", "chrf"))
    assert all(results[name] > 0 for name in ("train_seconds", "tokens_per_second", "parameters", "tokens"))
    assert 0 <= results["padding_share"] < 1
    assert math.isfinite(results["validation"]["loss"])
    assert results["averaged_checkpoints"] == [1, 2, 3]
    cost = results["cost"]
    seconds = results["tokens"] / results["tokens_per_second"]
    assert cost["table_2_flops"] == pytest.approx(seconds * cost["sustained_flops_per_second"], rel=1e-2)
    assert cost["sustained_flops_per_second"] > cost["achieved_flops_per_second"] > 0
    assert cost["paper"].keys() == {"base", "big"}
    summary = json.loads(printed[printed.index("{") :])
    assert summary == {name: results[name] for name in summary}
    assert {"bleu", "chrf", "tokens_per_second"} <= summary.keys()


def test_the_model_folder_loads_and_translates(finished):
    run, results, _ = finished
    model = AutoModelForSeq2SeqLM.from_pretrained(run / "model")
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    assert type(model) is VanillaForConditionalGeneration
    assert model.config.vocab_size == len(tokenizer) == 320
    assert model.config.init_std is None  # by --init_std none; the default is 0.02
    assert model.num_parameters() == results["parameters"]
    assert (model.generation_config.num_beams, model.generation_config.length_penalty) == (4, 0.6)
    (translation,) = pipeline("translation", model=str(run / "model"))("The old man sees a dog.")
    assert isinstance(translation["translation_text"], str)
    card = ModelCard.load(run / "model" / "README.md")
    assert card.data.language == ["en", "de"]
    scores = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert scores == {name: pytest.approx(results[name], abs=0.005) for name in ("bleu", "chrf")}
    for path in (run / "model").rglob("*"):
        if path.suffix in (".json", ".md", ".py"):
            assert str(run.parent) not in path.read_text(encoding="utf-8"), path


def test_from_python_with_a_field_set_to_none_and_text_files_without_a_language(corpus, tmp_path):
    sides = {"train_source": 0, "train_target": 1}
    for name, side in sides.items():
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in corpus["train"]), encoding="utf-8")
    results = train_translation(
        DataOptions(**{name: str(tmp_path / name) for name in sides}),
        TrainingOptions(output_dir=str(tmp_path / "run"), **SHORT),
        TranslationOptions(preset="tiny"),
        {**SIZES, "init_std": None},
    )
    assert results["settings"]["model"]["init_std"] is None
    assert VanillaConfig.from_pretrained(tmp_path / "run" / "model").init_std is None
    assert ModelCard.load(tmp_path / "run" / "model" / "README.md").data.language is None


def test_the_help_of_a_model_option_is_what_the_configuration_says_of_it():
    shown = " ".join(HfArgumentParser(ModelOptions).format_help().split())
    documented = " ".join(VanillaConfig.__doc__.split())
    assert "D_MODEL width of every sub-layer's output and of the embeddings (3.1). (default: the preset's)" in shown
    for field in fields(ModelOptions):
        text = field.metadata["help"].removesuffix(" Write none for None.")
        assert len(text) > 10 and text in documented


# Bad input

BAD = '{"translation": {"en": "a", "fr": "un"}}\n'


def tree(folder):
    """Every file below a folder with its bytes."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def refused(run_main):
    """Run the command in this process; it must fail with one line, which is returned."""

    def run(options, *more) -> str:
        code, complaint = run_main(script, *command_line(options), *more)
        assert code == 2
        assert complaint.startswith("error: ")
        assert complaint.count("\n") == 1
        return complaint

    return run


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train_file": None}, "no training data"),
        *(({f"{split}_file": "bad.jsonl"}, 'bad.jsonl, line 1: no "de"') for split in ("train", "validation", "test")),
        ({"preset": "huge"}, "preset: 'huge' is unknown"),
        ({"tokenizer_algorithm": "unigram"}, "algorithm='unigram'"),
        ({"dropout": 1.5}, "dropout must be at least 0 and below 1, not 1.5"),
        ({"tokens_per_batch": 5}, "tokens_per_batch: 5 cannot hold pair"),
        ({"warmup_steps": 0}, "warmup_steps must be at least 1, not 0"),
        ({"model": "nowhere", **dict.fromkeys(MODEL)}, "model: nowhere is no model folder"),
        ({"tokenizer": "nowhere"}, "tokenizer: nowhere has no tokenizer_config.json"),
        ({"resume": "true"}, "holds no run, as it has no run.json"),
        ({"colour": "red"}, "--colour"),
    ],
)
def test_bad_input(values, message, files, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_text(BAD)
    assert message in refused({**files, **MODEL, **SHORT, "output_dir": tmp_path / "run", **values})
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def other_vocabulary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    tokenizer = train_tokenizer(["a dog sees a cat"] * 3, vocab_size=264)
    tokenizer.save_pretrained(folder / "tokenizer")
    config = VanillaConfig.preset("tiny", **{**SIZES, "vocab_size": 304})
    VanillaForConditionalGeneration(config).save_pretrained(folder / "model")
    return folder


def test_a_saved_model_and_tokenizer_must_fit(files, other_vocabulary, tmp_path, refused):
    tokenizer, model = other_vocabulary / "tokenizer", other_vocabulary / "model"
    options = {**files, **SHORT, "output_dir": tmp_path / "run"}
    for own in ({"model": model}, {**MODEL, "vocab_size": 304}):
        complaint = refused({**options, "tokenizer": tokenizer, **own})
        assert f"vocabulary: the tokenizer {tokenizer} has 264 tokens, the model" in complaint
        assert "has 304" in complaint
    assert "d_model cannot be changed" in refused({**options, "model": model, "d_model": 32})
    assert not (tmp_path / "run").exists()


# A folder that holds another run


def test_a_folder_that_is_not_empty_is_not_changed(files, finished, tmp_path, refused):
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("text")
    for folder in (finished[0], other, tmp_path / "file"):
        before = tree(finished[0]) | tree(tmp_path)
        assert f"error: output_dir: {folder} " in refused({**files, **MODEL, **SHORT, "output_dir": folder})
        assert tree(finished[0]) | tree(tmp_path) == before


@pytest.mark.parametrize(
    "change",
    [
        {"preset": "base"},
        {"train_file": "copy.jsonl"},
        {"d_model": 32},
        {"encoder_ffn_dim": None},  # the run has it; the preset has another
        {"init_std": None},  # likewise: not given is not none
        {"seed": 1},
        {"tokenizer": "tokenizer"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_resume_refuses_another_run(change, files, finished, other_vocabulary, tmp_path, monkeypatch, refused):
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    before = tree(run)
    monkeypatch.chdir(other_vocabulary)
    shutil.copy(files["train_file"], "copy.jsonl")
    same = {**files, **MODEL, **SHORT, **THREE_STEPS, "output_dir": run}
    # --resume has no value, so it goes last.
    complaint = refused({**same, **change}, "--resume")
    assert complaint.startswith(f"error: resume: {run} was started with {next(iter(change))} ")
    assert tree(run) == before


def test_bad_input_in_a_process_of_its_own(files, tmp_path):
    """Nothing that libraries say on the way stands beside the one line."""
    (tmp_path / "bad.jsonl").write_text(BAD)
    done = subprocess_main({**files, "train_file": "bad.jsonl", **MODEL, **SHORT, "output_dir": "run"}, tmp_path)
    lines = done.stderr.replace("\r", "\n").splitlines()
    assert done.returncode == 2
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert "Traceback" not in done.stderr
    assert 'bad.jsonl, line 1: no "de" in "translation"' in lines[-1]
    assert done.stdout == ""
    assert not (tmp_path / "run").exists()

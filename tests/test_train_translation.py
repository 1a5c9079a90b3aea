"""The command `vanilla train` from end to end, and one line for everything that can be wrong with its input."""

import inspect
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
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.cli import train as script
from modeling_vanilla.training import DataOptions, ModelOptions, TrainingOptions, TranslationOptions, train_translation
from modeling_vanilla.training.tokenizer import train_tokenizer

ROOT = Path(__file__).parents[1]
SIZES = {
    "vocab_size": 320,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
SHORT = {
    "max_steps": 2,
    "tokens_per_update": 500,
    "tokens_per_batch": 250,
    "warmup_steps": 2,
    "mixed_precision": "no",
}
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
    environment = {
        **os.environ,
        "HF_HOME": str(cwd / "hf"),
        "HF_DATASETS_CACHE": str(cwd / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        [sys.executable, ROOT / "examples" / "train_translation.py", *command_line(options)],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


THREE_STEPS = {"max_steps": 3, "checkpoint_steps": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, files):
    """A run of three steps in a process of its own: (its folder, the process)."""
    folder = tmp_path_factory.mktemp("finished")
    run = folder / "run"
    done = subprocess_main({**files, **MODEL, **SHORT, **THREE_STEPS, "output_dir": run}, folder)
    assert done.returncode == 0, done.stderr
    return run, done


# End to end


def test_a_run_leaves_model_results_and_picture(finished, corpus):
    run, done = finished
    assert {path.name for path in run.iterdir()} == {
        *("model", "results.json", "loss.png", "run.json", "tensorboard"),
        *("checkpoint-1", "checkpoint-2", "checkpoint-3"),
    }
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert results["test_sentences"] == len(corpus["test"])
    assert results["steps"] == 3
    for name in ("bleu", "chrf"):
        assert 0 <= results[name] <= 100
    for name in ("train_seconds", "tokens_per_second", "parameters", "tokens"):
        assert results[name] > 0
    assert 0 <= results["padding_share"] < 1
    assert math.isfinite(results["validation"]["loss"])
    assert results["averaged_checkpoints"] == [1, 2, 3]
    cost = results["cost"]
    seconds = results["tokens"] / results["tokens_per_second"]
    assert cost["table_2_flops"] == pytest.approx(seconds * cost["sustained_flops_per_second"], rel=1e-2)
    assert cost["sustained_flops_per_second"] > cost["achieved_flops_per_second"] > 0
    assert cost["paper"].keys() == {"base", "big"}
    # What it prints at the end is what results.json holds.
    summary = json.loads(done.stdout[done.stdout.index("{") :])
    assert summary == {name: results[name] for name in summary}
    assert {"bleu", "chrf", "tokens_per_second"} <= summary.keys()
    assert "Traceback" not in done.stderr


def test_no_path_of_the_machine_is_in_the_model_folder(finished):
    run, _ = finished
    for path in (run / "model").rglob("*"):
        if path.suffix in (".json", ".md", ".py"):
            assert str(run.parent) not in path.read_text(encoding="utf-8"), path


def test_the_model_folder_loads_and_translates(finished):
    run, _ = finished
    model = AutoModelForSeq2SeqLM.from_pretrained(run / "model")
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    assert type(model) is VanillaForConditionalGeneration
    assert model.config.vocab_size == len(tokenizer) == 320
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert model.num_parameters() == results["parameters"]
    assert (model.generation_config.num_beams, model.generation_config.length_penalty) == (4, 0.6)
    (translation,) = pipeline("translation", model=str(run / "model"))("The old man sees a dog.")
    assert isinstance(translation["translation_text"], str)


def test_the_model_card_says_what_it_is(finished, corpus):
    run, _ = finished
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    card = ModelCard.load(run / "model" / "README.md")
    assert card.data.language == ["en", "de"]
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "translation"
    assert card.data.license is None  # the data decide it; nothing is claimed
    scores = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert scores == {name: pytest.approx(results[name], abs=0.005) for name in ("bleu", "chrf")}
    assert str(results["parameters"]) in card.text
    assert f"{len(corpus['test'])} test sentences" in card.text
    assert "train.jsonl" in card.text
    assert "{{" not in card.text


def test_a_field_may_be_none_and_text_files_may_have_no_language(corpus, tmp_path):
    """From the command line as from Python: Xavier's initialisation is init_std None, the default is not."""
    for side, name in enumerate(("train_source", "train_target")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in corpus["train"]), encoding="utf-8")
    run = tmp_path / "run"
    train_translation(
        DataOptions(train_source=str(tmp_path / "train_source"), train_target=str(tmp_path / "train_target")),
        TrainingOptions(output_dir=str(run), **SHORT),
        TranslationOptions(preset="tiny"),
        {**SIZES, "init_std": None},
    )
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert results["settings"]["model"]["init_std"] is None
    assert results["settings"]["data"]["source_lang"] is None
    assert VanillaConfig.from_pretrained(run / "model").init_std is None
    card = ModelCard.load(run / "model" / "README.md")
    assert card.data.language is None
    assert "None" not in card.text


def test_the_command_sets_a_field_to_none(finished):
    run, _ = finished
    assert VanillaConfig.from_pretrained(run / "model").init_std is None
    assert VanillaConfig.preset("tiny").init_std == 0.02


def test_the_help_of_a_model_option_is_the_configuration_s(run_main, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        monkeypatch.setattr("sys.argv", ["train", "--help"])
        script.main()
    shown = capsys.readouterr().out
    documented = " ".join(inspect.getdoc(VanillaConfig).split())
    for field in fields(ModelOptions):
        text = field.metadata["help"].removesuffix(" Write none for None.")
        assert len(text) > 10 and text in documented
        assert text in shown
    assert "(default: the preset's)" in shown


# Bad input


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


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_bad_data_file(split, files, tmp_path, refused):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"translation": {"en": "a", "fr": "un"}}\n')
    options = {**files, f"{split}_file": bad, **MODEL, **SHORT, "output_dir": tmp_path / "run"}
    assert f'error: {bad}, line 1: no "de" in "translation"' in refused(options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train_file": None}, "no training data"),
        ({"preset": "huge"}, "preset: 'huge' is unknown"),
        ({"tokenizer_algorithm": "unigram"}, "algorithm='unigram'"),
        ({"dropout": 1.5}, "dropout must be at least 0 and below 1, not 1.5"),
        ({"tokens_per_batch": 5}, "tokens_per_batch: 5 cannot hold pair"),
        ({"tokens_per_update": 9_000_000}, "tokens_per_update: 9000000 is more than all"),
        ({"warmup_steps": 0}, "warmup_steps must be at least 1, not 0"),
        ({"max_source_tokens": 1}, "no training pair is left"),
        ({"model": "nowhere", **dict.fromkeys(MODEL)}, "model: nowhere is no model folder"),
        ({"tokenizer": "nowhere"}, "tokenizer: nowhere has no tokenizer_config.json"),
        ({"resume": "true"}, "holds no run, as it has no run.json"),
        ({"colour": "red"}, "--colour"),
    ],
)
def test_bad_settings(values, message, files, tmp_path, refused):
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
        {"tokens_per_update": 600},
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
    bad, run = tmp_path / "bad.jsonl", tmp_path / "run"
    bad.write_text('{"translation": {"en": "a", "fr": "un"}}\n')
    done = subprocess_main({**files, "train_file": bad, **MODEL, **SHORT, "output_dir": run}, tmp_path)
    lines = done.stderr.replace("\r", "\n").splitlines()
    assert done.returncode == 2
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert "Traceback" not in done.stderr
    assert f'{bad}, line 1: no "de" in "translation"' in lines[-1]
    assert done.stdout == ""
    assert not run.exists()

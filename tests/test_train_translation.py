"""examples/train_translation.py from end to end, and one line for everything that can be wrong with its input."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from toy_corpus import toy_corpus, write_corpus
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.cli import train as script
from modeling_vanilla.training.tokenizer import train_tokenizer

ROOT = Path(__file__).parents[1]
TINY = [
    *("--d_model", "16"),
    *("--encoder_layers", "1"),
    *("--decoder_layers", "1"),
    *("--encoder_attention_heads", "2"),
    *("--decoder_attention_heads", "2"),
    *("--encoder_ffn_dim", "32"),
    *("--decoder_ffn_dim", "32"),
]
SHORT = [
    *("--max_steps", "2"),
    *("--tokens_per_update", "500"),
    *("--tokens_per_batch", "250"),
    *("--warmup_steps", "2"),
    *("--mixed_precision", "no"),
]
MODEL = ["--preset", "tiny", "--vocab_size", "320", *TINY]


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def corpus():
    return toy_corpus(train=100, validation=4, test=4)


@pytest.fixture(scope="module")
def files(tmp_path_factory, corpus):
    train, validation, test = map(str, write_corpus(corpus, tmp_path_factory.mktemp("corpus")))
    return ["--train_file", train, "--validation_file", validation, "--test_file", test]


def subprocess_main(arguments, cwd):
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
        [sys.executable, ROOT / "examples" / "train_translation.py", *map(str, arguments)],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory, files):
    """A run of three steps in a process of its own: (its folder, the process)."""
    folder = tmp_path_factory.mktemp("finished")
    run = folder / "run"
    done = subprocess_main(
        [*files, *MODEL, *SHORT, "--max_steps", "3", "--checkpoint_steps", "1", "--output_dir", run], folder
    )
    assert done.returncode == 0, done.stderr
    return run, done


# End to end


def test_a_run_leaves_model_results_and_picture(finished, corpus):
    run, done = finished
    assert {path.name for path in run.iterdir()} == {
        *("model", "results.json", "loss.png", "run.json", "tensorboard"),
        *("checkpoint-1", "checkpoint-2", "checkpoint-3", "best"),
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
    assert "train.jsonl" not in card.text
    assert "{{" not in card.text


# Bad input


def run_main(arguments, monkeypatch, capsys):
    """main() in this process: (exit code, lines on stderr)."""
    monkeypatch.setattr(sys, "argv", ["train_translation.py", *map(str, arguments)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit:
        script.main()
    return exit.value.code, capsys.readouterr().err.splitlines()


def tree(folder):
    """Every file below a folder with its bytes."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def replaced(arguments, **values):
    """The arguments with other values; None takes an option away."""
    arguments = list(map(str, arguments))
    for name, value in values.items():
        option = f"--{name}"
        if option in arguments:
            index = arguments.index(option)
            del arguments[index : index + 2]
        if value is not None:
            arguments += [option, str(value)]
    return arguments


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


BAD_FILES = {
    "missing file": (None, "there is no file"),
    "empty file": (b"", "the file is empty"),
    "not UTF-8": (b'{"translation": {"en": "a", "de": "Gr\xfc\xdfe"}}\n', "line 1: not UTF-8: byte 0xfc"),
    "not JSON": (b"a dog\n", "line 1: not JSON"),
    "JSON without the language": (b'{"translation": {"en": "a", "fr": "un"}}\n', 'line 1: no "de" in "translation"'),
    "JSON without a translation": (b'{"en": "a"}\n', 'line 1: no "translation"'),
    "nothing but empty pairs": (b'{"translation": {"en": "", "de": ""}}\n', None),
}


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("fault", BAD_FILES)
def test_bad_data_file(fault, split, files, tmp_path, monkeypatch, capsys):
    content, message = BAD_FILES[fault]
    if message is None:
        if split != "train":
            pytest.skip("an empty sentence may stand in a test set")
        message = "no text to train on"
    path = tmp_path / "bad.jsonl"
    if content is not None:
        write(path, content)
    run = tmp_path / "run"
    arguments = [*replaced(files, **{f"{split}_file": path}), *MODEL, *SHORT, "--output_dir", run]
    code, lines = run_main(arguments, monkeypatch, capsys)
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert not run.exists()


def test_files_of_unequal_length(tmp_path, monkeypatch, capsys):
    source, target = write(tmp_path / "a.en", "a\nb\nc\n"), write(tmp_path / "a.de", "a\nb\n")
    arguments = ["--train_source", source, "--train_target", target, *MODEL, *SHORT, "--output_dir", tmp_path / "run"]
    code, lines = run_main(arguments, monkeypatch, capsys)
    assert (code, lines) == (2, [f"error: unequal length: {source} has 3 lines, {target} has 2"])
    assert not (tmp_path / "run").exists()


BAD_SETTINGS = {
    "no data at all": ({"train_file": None}, ["no training data"]),
    "unknown preset": ({"preset": "huge"}, ["preset", "'huge'", "base"]),
    "unknown algorithm": ({"tokenizer_algorithm": "unigram"}, ["algorithm", "'unigram'"]),
    "vocabulary too small": ({"vocab_size": 100}, ["vocab_size", "100"]),
    "width no multiple of heads": (
        {"d_model": 100, "encoder_attention_heads": 8},
        ["d_model 100", "encoder_attention_heads 8"],
    ),
    "dropout above 1": ({"dropout": 1.5}, ["dropout", "1.5"]),
    "no layers": ({"encoder_layers": 0}, ["encoder_layers", "0"]),
    "unknown positions": ({"position_embedding_type": "rotary"}, ["position_embedding_type", "rotary"]),
    "batch too small for a pair": ({"tokens_per_batch": 5}, ["tokens_per_batch: 5 cannot hold pair"]),
    "update larger than the data": ({"tokens_per_update": 9_000_000}, ["tokens_per_update: 9000000 is more than all"]),
    "no warm-up": ({"warmup_steps": 0}, ["warmup_steps", "0"]),
    "more averaged than kept": ({"average_checkpoints": 7}, ["average_checkpoints 7", "keep_checkpoints 5"]),
    "unknown precision": ({"mixed_precision": "fp8"}, ["mixed_precision", "fp8"]),
    "unknown BLEU tokeniser": ({"bleu_tokenize": "14a"}, ["14a"]),
    "every pair too long": ({"max_source_tokens": 1}, ["no training pair is left"]),
    "no such model": ({"model": "nowhere", **dict.fromkeys(("vocab_size", *(o[2:] for o in TINY[::2])))}, ["nowhere"]),
    "no such tokenizer": ({"tokenizer": "nowhere"}, ["tokenizer: nowhere"]),
    "no run to resume": ({"resume": "true"}, ["resume", "holds no run"]),
    "unknown option": ({"colour": "red"}, ["--colour"]),
}


@pytest.mark.parametrize("fault", BAD_SETTINGS)
def test_bad_settings(fault, files, tmp_path, monkeypatch, capsys):
    values, messages = BAD_SETTINGS[fault]
    run = tmp_path / "run"
    arguments = replaced([*files, *MODEL, *SHORT, "--output_dir", run], **values)
    code, lines = run_main(arguments, monkeypatch, capsys)
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    for message in messages:
        assert message in lines[0]
    assert not run.exists()


@pytest.fixture(scope="module")
def other_vocabulary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    tokenizer = train_tokenizer(["a dog sees a cat"] * 3, vocab_size=264)
    tokenizer.save_pretrained(folder / "tokenizer")
    VanillaForConditionalGeneration(
        VanillaConfig.preset("tiny", d_model=16, vocab_size=304, encoder_layers=1, decoder_layers=1)
    ).save_pretrained(folder / "model")
    return folder


def test_a_vocabulary_that_does_not_fit_the_model(files, other_vocabulary, tmp_path, monkeypatch, capsys):
    run, tokenizer, model = tmp_path / "run", other_vocabulary / "tokenizer", other_vocabulary / "model"
    own = [*files, *SHORT, "--output_dir", run, "--tokenizer", tokenizer]
    for arguments in ([*own, "--model", model], [*own, *replaced(MODEL, vocab_size=304)]):
        code, lines = run_main(arguments, monkeypatch, capsys)
        assert code == 2
        assert len(lines) == 1
        assert lines[0].startswith("error: vocabulary: the tokenizer")
        assert "264" in lines[0]
        assert "304" in lines[0]
        assert not run.exists()


def test_a_saved_model_keeps_its_shape(files, other_vocabulary, tmp_path, monkeypatch, capsys):
    arguments = [*files, *SHORT, "--output_dir", tmp_path / "run", "--model", other_vocabulary / "model"]
    code, lines = run_main([*arguments, "--d_model", "32"], monkeypatch, capsys)
    assert (code, len(lines)) == (2, 1)
    assert "d_model cannot be changed" in lines[0]


# A folder that holds another run


def test_a_folder_that_holds_something_is_left_alone(files, finished, tmp_path, monkeypatch, capsys):
    other = tmp_path / "other"
    other.mkdir()
    write(other / "thesis.tex", "years of work")
    a_file = write(tmp_path / "file", "text")
    for folder in (finished[0], other, a_file):
        before = tree(finished[0]) | tree(tmp_path)
        code, lines = run_main([*files, *MODEL, *SHORT, "--output_dir", folder], monkeypatch, capsys)
        assert (code, len(lines)) == (2, 1)
        assert lines[0].startswith(f"error: output_dir: {folder} holds something already")
        assert tree(finished[0]) | tree(tmp_path) == before


OTHER_RUNS = {
    "preset": {"preset": "base"},
    "train_file": {"train_file": "copy.jsonl"},
    "d_model": {"d_model": 32},
    "encoder_ffn_dim": {"encoder_ffn_dim": None},  # the run has it; the preset has another
    "seed": {"seed": 1},
    "tokens_per_update": {"tokens_per_update": 600},
    "tokenizer": {"tokenizer": "tokenizer"},
}


@pytest.mark.parametrize("name", OTHER_RUNS)
def test_resume_refuses_another_run(name, files, finished, other_vocabulary, tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    before = tree(run)
    monkeypatch.chdir(other_vocabulary)
    write(other_vocabulary / "copy.jsonl", Path(files[1]).read_bytes())
    same = [*files, *MODEL, *SHORT, "--max_steps", "3", "--checkpoint_steps", "1", "--output_dir", run]
    # --resume has no value, so it goes last.
    code, lines = run_main([*replaced(same, **OTHER_RUNS[name]), "--resume"], monkeypatch, capsys)
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith(f"error: resume: {run} was started with {name} ")
    assert tree(run) == before


# As a person sees it


def test_bad_input_in_a_process_of_its_own(files, tmp_path):
    """Nothing that libraries say on the way stands beside the one line."""
    bad = write(tmp_path / "bad.jsonl", '{"translation": {"en": "a", "fr": "un"}}\n')
    run = tmp_path / "run"
    done = subprocess_main([*replaced(files, train_file=bad), *MODEL, *SHORT, "--output_dir", run], tmp_path)
    lines = done.stderr.replace("\r", "\n").splitlines()
    assert done.returncode == 2
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert "Traceback" not in done.stderr
    assert f'{bad}, line 1: no "de" in "translation"' in lines[-1]
    assert done.stdout == ""
    assert not run.exists()

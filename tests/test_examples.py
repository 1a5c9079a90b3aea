"""Every example says what it does, and the quickstart goes all its way."""

import json
import runpy

import pytest
from helpers import ROOT, call, run_python

EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*.py") if "__main__" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_help(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def main():
        monkeypatch.setattr("sys.argv", [str(script), "--help"])
        runpy.run_path(str(script), run_name="__main__")

    code, output, errors = call(main)
    assert (code, errors) == (0, "")
    assert output.startswith(f"usage: {script.name}")
    assert list(tmp_path.iterdir()) == []


SMALL_QUICKSTART = """
import functools
import sys
from pathlib import Path
import quickstart

quickstart.toy_corpus = functools.partial(quickstart.toy_corpus, train=600, validation=4, test=8)
quickstart.quickstart(Path(sys.argv[1]), max_steps=2)
"""


@pytest.mark.slow
def test_quickstart_goes_all_its_way(tmp_path):
    """Corpus, training, saving, loading, translating, pictures, on a corpus of 600 pairs. Quality is not asked here."""
    done = run_python("-c", SMALL_QUICKSTART, tmp_path / "run", cwd=tmp_path)
    assert done.code == 0, done.errors
    for name in ("source", "output", "reference"):
        assert sum(line.startswith(f"  {name} ") for line in done.output.splitlines()) == 5
    results = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    assert results["test_sentences"] == 8
    assert {"bleu", "chrf", "train_seconds", "tokens_per_second", "parameters"} <= results.keys()
    for picture in ("loss.png", "attention.png"):
        assert (tmp_path / "run" / picture).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert (tmp_path / "run-corpus" / "test.jsonl").is_file()


@pytest.mark.parametrize("arguments", [["quickstart.py"], ["finetune_seq2seq_trainer.py", "--model", "none"]])
def test_what_is_wrong_in_one_line(tmp_path, arguments):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").touch()
    script, *options = arguments
    done = run_python(ROOT / "examples" / script, *options, "--output_dir", "run", cwd=tmp_path)
    assert done.error == "output_dir: run holds something already; choose another folder"
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]

"""Every example says what it does, and the quickstart goes all its way."""

import json
import re
import runpy

import pytest
from helpers import ROOT, call, run_python, tree

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
    assert re.findall("^  (source|output|reference) ", done.output, re.M) == ["source", "output", "reference"] * 5
    files = tree(tmp_path)
    results = json.loads(files["run/results.json"])
    assert results["test_sentences"] == 8
    assert {"bleu", "chrf", "train_seconds", "tokens_per_second", "parameters"} <= results.keys()
    assert {"run/loss.png", "run/attention.png", "run/model/model.safetensors", "run-corpus/test.jsonl"} <= files.keys()


def test_what_is_wrong_in_one_line(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").touch()
    done = run_python(ROOT / "examples" / "quickstart.py", "--output_dir", "run", cwd=tmp_path)
    assert done.error == "output_dir: run holds something already; choose another folder"
    assert tree(tmp_path / "run") == {"thesis.tex": b""}

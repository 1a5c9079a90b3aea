"""The quickstart goes all its way, and `make reproduce` makes all tables."""

import json
import re
import subprocess
import sys

import pytest
from helpers import ROOT, environment, run_python, tree

SMALL_QUICKSTART = """
import sys
from pathlib import Path
import quickstart
import toy_corpus

quickstart.toy_corpus = lambda **sizes: toy_corpus.toy_corpus(600, 4, 8)
quickstart.quickstart(Path(sys.argv[1]), max_steps=2)
"""


@pytest.mark.slow
def test_quickstart_goes_all_its_way(tmp_path):
    """Corpus, training, saving, loading, translating, pictures, on a corpus of 600 pairs. Quality is not asked here."""
    done = run_python("-c", SMALL_QUICKSTART, tmp_path / "run", cwd=tmp_path).succeeded
    assert re.findall("^  (source|output|reference) ", done.output, re.M) == ["source", "output", "reference"] * 5
    files = tree(tmp_path)
    assert json.loads(files["run/results.json"])["test_sentences"] == 8
    assert {"run/loss.png", "run/attention.png", "run/model/model.safetensors", "run-corpus/test.jsonl"} <= files.keys()


@pytest.mark.slow
def test_every_table_is_made(tmp_path):
    (tmp_path / "venv").symlink_to(sys.prefix)
    folders = [f"VENV={tmp_path}/venv", f"-o{tmp_path}/venv/test", f"REPORT={tmp_path}/out"]
    subprocess.run(["make", "reproduce", *folders], cwd=ROOT, env=environment(tmp_path), check=True)
    text = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    assert [f"| {name} |" in text for name in ("system", "row", "Parser")] == [True] * 3
    assert (tmp_path / "out/attention/attention.html").exists()


def test_mean_and_deviation_of_runs(tmp_path):
    for name, bleu in (("a", 40.0), ("b", 41.0), ("c", 43.5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps({"bleu": bleu, "validation": {"perplexity": 5.0}}))
    runs = [tmp_path / name for name in "abc"]
    head, _, *rows = run_python(ROOT / "examples/reproduce/seeds.py", *runs, cwd=tmp_path).succeeded.output.splitlines()
    assert head == f"|  | {' | '.join(map(str, runs))} | mean | standard deviation |"
    assert rows[:2] == ["| bleu | 40 | 41 | 43.5 | 41.5 | 1.80278 |", "| validation perplexity | 5 | 5 | 5 | 5 | 0 |"]

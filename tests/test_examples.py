"""Every example says what it does, and the quickstart goes all its way."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*.py") if "__main__" in path.read_text(encoding="utf-8"))


def run(script, *arguments, cwd):
    environment = {
        **os.environ,
        "HF_HOME": str(cwd / "hf"),
        "HF_DATASETS_CACHE": str(cwd / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "examples"))),
    }
    return subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_help(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    output, errors = capsys.readouterr()
    assert end.value.code == 0 and errors == ""
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
    done = run("-c", SMALL_QUICKSTART, tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("source", "output", "reference"):
        assert sum(line.startswith(f"  {name} ") for line in done.stdout.splitlines()) == 5
    results = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    assert results["test_sentences"] == 8
    assert {"bleu", "chrf", "train_seconds", "tokens_per_second", "parameters"} <= results.keys()
    for picture in ("loss.png", "attention.png"):
        assert (tmp_path / "run" / picture).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert (tmp_path / "run-corpus" / "test.jsonl").is_file()


def test_quickstart_says_what_is_wrong_in_one_line(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").touch()
    done = run(ROOT / "examples" / "quickstart.py", "--output_dir", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: output_dir: ")
    assert "Traceback" not in done.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]

"""The quickstart goes all its way, and the report has all tables and figures."""

import gzip
import json
import re
from functools import partial

import pytest
import report
import sacrebleu
import speedrun
from helpers import as_lines, call, run_python, tree
from toy_corpus import toy_corpus

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
def test_every_table_and_figure_is_made(tmp_path):
    text = report.report(tmp_path / "out").read_text(encoding="utf-8")
    names = ("table1", "translation", "table2", "table3", "table4", "figures", "attention")
    assert re.findall(r"^# (\w+)$", text, re.MULTILINE) == [*names]


@pytest.mark.usefixtures("own_cache", "own_precision")
def test_the_record_is_of_all_seeds_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """From files of Multi30k's names; a seed that is done is not trained again."""
    for split, pairs in zip(("train", "val", "test_2016_flickr"), toy_corpus(120, 4, 8).values(), strict=True):
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{split}.lc.norm.tok.{language}.gz").write_bytes(gzip.compress(as_lines(lines)))
    monkeypatch.setattr(speedrun, "TrainingOptions", partial(speedrun.TrainingOptions, max_steps=1))
    run = tmp_path / "runs"
    for seeds in ((0,), (0, 1)):
        before = tree(run)
        assert call(speedrun.main, "--data", tmp_path, "--output_dir", run, "--seeds", *seeds).succeeded
    assert all(tree(run)[name] == content for name, content in before.items() if name.startswith("seed-0"))
    rows = json.loads((run / "speedrun.json").read_text())["seeds"]
    references = [[target for _, target in toy_corpus(120, 4, 8)["test"]]]
    for seed, row in enumerate(rows):
        lines = (run / f"seed-{seed}" / "test.de").read_text(encoding="utf-8").split("\n")[:-1]
        assert row["test"] == sacrebleu.corpus_bleu(lines, references, tokenize="none", force=True).score

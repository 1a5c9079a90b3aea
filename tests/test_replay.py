"""Next month: old pairs that are replayed, corrections, and the gate for a model that got worse."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers import TINY, as_options, assert_same_weights, call, make_tiny, make_tokenizer, read_json, save_folder
from toy_corpus import toy_corpus, write_corpus

from modeling_vanilla import Translator
from modeling_vanilla.cli import push
from modeling_vanilla.cli.train import main
from modeling_vanilla.corpus.data import load_pairs
from modeling_vanilla.corpus.tokenized import TokenizedPairs, replayed
from modeling_vanilla.metrics import compare_scores
from modeling_vanilla.training import DataOptions

pytestmark = pytest.mark.usefixtures("own_cache")


def test_an_epoch_has_all_new_pairs_and_another_sample_of_the_old():
    """By seed and epoch alone."""
    corpus = TokenizedPairs(range(9000), (np.ones(9000),) * 2, [], 3000, {})
    first, again, second = (corpus.epoch_rows(1, epoch).tolist() for epoch in (0, 0, 1))
    assert first == again and {*first} != {*second} and len({*first}) == len(first) == 6000
    assert all(rows[:3000] == [*range(3000)] and min(rows[3000:]) >= 3000 for rows in (first, second))
    assert [replayed(*sizes) for sizes in ((3000, 6000), (200, 6000), (200, 50), (200, 0))] == [3000, 2000, 50, 0]


def test_the_last_correction_of_a_sentence_replaces_all_other_pairs_of_it(tmp_path):
    texts = {
        "train": "a\tA\nb\tB\n",
        "replay": "c\tC\na\tAA\nd\tD\n",
        "corrections": "en\tm\tde\na\tA\t1\nc\tC\t2\na\t1\t3\na\tA\t\nd\tD\t \n",  # the last two are not filled in
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.tsv").write_text(text, encoding="utf-8")
    pairs = load_pairs(DataOptions(**{f"{name}_file": str(tmp_path / f"{name}.tsv") for name in texts}))
    found = {split: [*zip(rows["source"], rows["target"], strict=True)] for split, rows in pairs.items()}
    corrected = [("a", "3"), ("c", "2")]
    assert found == {"train": [("b", "B"), *corrected], "replay": [("d", "D")], "corrections": corrected}


def test_the_comparison_is_that_of_sacrebleus_command(tmp_path):
    references = [" ".join(pair) for pair in toy_corpus(1, 60, 1)["validation"]]
    systems = [[text[: -3 if row % every else None] for row, text in enumerate(references)] for every in (3, 4)]
    for name, lines in zip(("r", "one", "two"), (references, *systems), strict=True):
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    words = ["r", "-i", "one", "two", "-m", "bleu", "chrf", "--paired-bs", "-f", "text", "-w", "4"]
    done = subprocess.run([sys.executable, "-m", "sacrebleu", *words], cwd=tmp_path, capture_output=True, check=True)
    told = [float(figure) for figure in re.findall(r"\d+\.\d{4}", done.stdout.decode())]
    bleu, chrf = compare_scores(*systems, references).values()
    assert [*bleu.values()] == pytest.approx([told[place] for place in (0, 6, 2, 8, 12)], abs=1e-4)
    assert [*chrf.values()] == pytest.approx([told[place] for place in (3, 9, 5, 11, 13)], abs=1e-4)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Fine-tune a saved model of random weights, with old pairs and a correction: how the command ended.

    Args:
        after: the translations of old and new validation data after the first ones, by their targets; those have a word
            too many.
    """
    corpora = {"old": toy_corpus(40, 9, 1), "new": toy_corpus(20, 9, 1, domain="travel")}
    tokenizer = make_tokenizer((text for pair in corpora["old"]["train"] for text in pair), TINY["vocab_size"])
    given = {"corrections_file": tmp_path / "fixed.tsv", "mixed_precision": "no", "report_to": "none", "max_steps": 6}
    given["corrections_file"].write_text("en\tde\na dog\tein Hund\n", encoding="utf-8")
    given["model"] = save_folder(tmp_path / "model", make_tiny(**TINY, dropout=0.1), tokenizer)
    for prefix, corpus in (("", "new"), ("replay_", "old")):
        paths = write_corpus(corpora[corpus], tmp_path / corpus)
        given |= {f"{prefix or 'train_'}file": paths[0], f"{prefix}validation_file": paths[1]}
    given |= {"tokens_per_update": 300, "tokens_per_batch": 150, "checkpoint_steps": 3, "validate_steps": 3}

    def run(name="run", after=("{}", "{}"), **options):
        answers = {"a dog": ["ein Hund"] * 2}
        for corpus, text in zip(corpora, after, strict=True):
            pairs = corpora[corpus]["validation"]
            answers |= {source: [f"{target} x", text.format(target)] for source, target in pairs}

        def translate(self, texts, **_):
            return [answers[text][(tmp_path / name / "before.json").exists()] for text in texts]

        monkeypatch.setattr(Translator, "translate", translate)
        return call(main, *as_options({**given, **options, "output_dir": tmp_path / name}))

    return run


def test_a_model_that_got_worse_is_not_served(run, tmp_path, monkeypatch):
    """The exit code says so, and it is not published by mistake."""
    done = run(after=("x", "{}"))
    assert done.code == 3 and "no model is better on the new pairs and no worse on the old" in done.errors
    results = read_json(tmp_path / "run/results.json")
    assert results["passed"] is False and results["validation"]["is_worse"] and "model" not in json.loads(done.output)
    assert {path.name for path in (tmp_path / "run").iterdir()}.isdisjoint({"model", "best"})
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    refused = call(push.main, tmp_path / "run/checkpoint-6", "you/it").error
    assert refused.endswith("its run made no model to serve; --despite_gate publishes it")


def test_a_model_that_passes_is_served_with_its_scores_and_where_it_came_from(run, tmp_path):
    done = run(after=("{} x", "{}")).succeeded
    assert "an epoch has 21 new pairs and 40 of 40 old ones" in done.errors
    shown = json.loads(done.output)
    assert shown["validation_bleu_before"] < shown["validation_bleu"] == 100
    assert shown["replay_validation_bleu_before"] == shown["replay_validation_bleu"]
    assert (shown["corrections"], shown["come_out"]) == (1, 1)
    assert_same_weights(tmp_path / "run/model", tmp_path / "run/best")
    pairs = read_json(tmp_path / "run/run.json")["pairs"]
    card = (tmp_path / "run/model/README.md").read_text(encoding="utf-8")
    said = [pairs["training_data"], *pairs["weights"].values(), "| old | sacreBLEU |", "21 sentence pairs and 40 old"]
    assert pairs["weights"] and [text for text in said if text not in card] == []


def test_a_run_with_replay_goes_on_as_if_never_interrupted(run, tmp_path):
    """In the second epoch, of another order than the first."""
    options = {"replay_validation_file": None, "lr_scheduler_type": "inverse_sqrt"}
    runs = [run("whole", max_steps=9, **options), run(**options), run(max_steps=9, resume=True, **options)]
    assert [done.code for done in runs] == [0, 0, 0]
    assert read_json(tmp_path / "run/checkpoint-9/progress.json")["epoch"] >= 1
    assert_same_weights(tmp_path / "run/checkpoint-9", tmp_path / "whole/checkpoint-9")


@pytest.mark.parametrize(
    ("without", "said"),
    [("model", "replay data: old pairs need --model"), ("validation_file", "replay_validation data: there are no")],
)
def test_what_old_pairs_need(run, tmp_path, without, said):
    assert run(**{without: None}).error.startswith(said) and not (tmp_path / "run").exists()

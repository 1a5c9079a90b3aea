"""Table 4 from end to end on toy trees, and one line for bad input."""

import helpers
import pytest
import table4
from helpers import as_options, call, read_json
from nltk import Tree
from parsing.pairs import parsing_vocabulary, target
from parsing.toy_trees import toy_treebank
from parsing.trees import bracketed
from transformers import AutoTokenizer

TINY = {
    **{**helpers.TINY, "vocab_size": 400, "tokens_per_update": 100, "tokens_per_batch": 200},
    **{"max_steps": 2, "warmup_steps": 2, "checkpoint_steps": 1, "num_beams": 2, "max_extra_tokens": 40},
}
FILES = toy_treebank(files=5, sentences=4)

pytestmark = pytest.mark.usefixtures("own_cache")


def penn(files):
    """Files in one, as in the treebank."""
    return "".join("\n" + "".join(f"( {bracketed(tree)} )\n" for tree in trees) + "\n" for trees in files)


@pytest.fixture
def main(tmp_path):
    """Run main() on the toy trees with these options."""
    trees = tmp_path / "toy.mrg"
    trees.write_text(penn(FILES), encoding="utf-8")

    def run(**options):
        return call(table4.main, *as_options({"trees": trees, "output_dir": tmp_path / "run", **TINY, **options}))

    return run


def test_a_run_leaves_figures_table_and_parses(main, tmp_path):
    run = tmp_path / "run"
    assert main().code == 0
    results = read_json(run / "results.json")
    assert (results["training"]["steps"], results["train_sentences"]) == (2, 12)
    table = (run / "table.md").read_text(encoding="utf-8")
    for split, name, gold in (("validation", "development", FILES[3]), ("test", "test", FILES[4])):
        assert (run / "parses" / f"{split}.gold").read_text().splitlines() == list(map(bracketed, gold))
        for kind, title in table4.PARSERS.values():
            texts = (run / "parses" / f"{split}.{kind}").read_text().splitlines()
            # Tags and words are the gold tree's, whatever brackets are above them.
            assert [Tree.fromstring(text).pos() for text in texts] == [tree.pos() for tree in gold]
            scores = results[split][kind]
            assert (scores["sentences"], scores["errors"]) == (4, 0)
            assert f"| {title} | 12 sentences | {name}, 4 sentences | {scores['f1']:.1f} |" in table
        assert results[split]["constrained"]["well_formed"] == 100 > results[split]["unconstrained"]["well_formed"]
    saved = read_json(run / "training" / "model" / "generation_config.json")
    assert (saved["num_beams"], saved["length_penalty"], saved["max_extra_tokens"]) == (2, 0.3, 40)
    assert main().code == 2  # the folder holds a run
    (run / "results.json").unlink()  # as if it had been interrupted
    assert main().code == 0 and read_json(run / "results.json")["training"]["steps"] == 2


@pytest.mark.parametrize("kept, f1", [(slice(None), 100), (slice(-1), 0)])
def test_figures_are_of_what_the_model_writes(kept, f1, main, tmp_path, monkeypatch):
    """An output that lacks its last bracket is no tree."""
    lexicon, _ = parsing_vocabulary([tree for trees in FILES[:3] for tree in trees], 400)
    read = [(tree, lexicon.read(tree.leaves())) for trees in FILES for tree in trees]
    gold = {tuple(tokens): target(tree, tokens).split()[kept] for tree, tokens in read}
    monkeypatch.setattr(table4, "write_trees", lambda model, _, texts, constrained: [gold[(*one,)] for one in texts])
    assert main().succeeded
    results = read_json(tmp_path / "run" / "results.json")
    for split in ("validation", "test"):
        for kind in ("constrained", "unconstrained"):
            assert (results[split][kind]["f1"], results[split][kind]["well_formed"]) == (f1, f1)


def test_an_ensemble_of_runs_is_parsed_with_and_not_trained(main, tmp_path):
    runs = [tmp_path / "run", tmp_path / "other"]
    assert all(main(output_dir=run, seed=seed).succeeded for seed, run in enumerate(runs))
    both = tmp_path / "both"
    options = as_options({"trees": tmp_path / "toy.mrg", **TINY})
    assert call(table4.main, *options, "--output_dir", both, "--ensemble", *runs).code == 0
    assert "other" in (both / "table.md").read_text() and not (both / "training").exists()
    size = len(AutoTokenizer.from_pretrained(runs[0] / "training" / "model"))
    wrong = main(output_dir=tmp_path / "wrong", ensemble=runs[0], vocab_size=size - 1).error
    assert wrong == f"ensemble: {runs[0]} has another vocabulary than these trees"


def test_bad_options_are_one_line(main, tmp_path):
    assert "give trees, which are split, or all of train_trees," in main(train_trees="toy.mrg").error
    assert "vocab_size must be at least" in main(vocab_size=40).error
    assert not (tmp_path / "run").exists()

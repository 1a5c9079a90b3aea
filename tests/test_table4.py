"""Table 4 from end to end on toy trees, and one line for bad input."""

import json
import re

import helpers
import pytest
import table4
from helpers import as_options, call
from linear import is_well_formed, linearise
from nltk import Tree
from pairs import parsing_tokenizer, source, split_files, target, training_pairs
from toy_trees import toy_treebank
from transformers import AutoTokenizer
from trees import bracketed

TINY = {
    **{**helpers.TINY, "vocab_size": 400, "tokens_per_update": 100, "tokens_per_batch": 200, "sustained_tflops": 1},
    **{"max_steps": 2, "warmup_steps": 2, "checkpoint_steps": 1, "num_beams": 2, "max_extra_tokens": 3},
}
FILES = toy_treebank(files=5, sentences=4)

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def treebank(tmp_path):
    """Five files of toy trees in one, as in the treebank."""
    path = tmp_path / "toy.mrg"
    path.write_text(penn(FILES), encoding="utf-8")
    return path


def penn(files):
    return "".join("\n" + "".join(f"( {bracketed(tree)} )\n" for tree in trees) + "\n" for trees in files)


@pytest.fixture
def main(treebank, tmp_path):
    """Run main() on the treebank with these options."""

    def run(**options):
        return call(table4.main, *as_options({"trees": treebank, "output_dir": tmp_path / "run", **TINY, **options}))

    return run


def test_a_run_leaves_figures_table_and_parses(main, tmp_path):
    run = tmp_path / "run"
    assert main().code == 0
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    search = {"num_beams": 2, "length_penalty": 0.3, "max_extra_tokens": 3}
    assert (results["training"]["steps"], results["search"], results["train_sentences"]) == (2, search, 12)
    table = (run / "table.md").read_text(encoding="utf-8")
    for split, name, gold in (("validation", "development", FILES[3]), ("test", "test", FILES[4])):
        assert (run / "parses" / f"{split}.gold").read_text().splitlines() == list(map(bracketed, gold))
        for kind in ("parsed", "baseline"):
            texts = (run / "parses" / f"{split}.{kind}").read_text().splitlines()
            # Tags and words are the gold tree's, whatever brackets are above them.
            assert [Tree.fromstring(text).pos() for text in texts] == [tree.pos() for tree in gold]
        assert (results[split]["sentences"], results[split]["errors"]) == (4, 0)
        assert f"| **this run** | 12 sentences | {name}, 4 sentences | {results[split]['f1']:.1f} |" in table
        assert f"| {name}, 4 sentences | {results[split]['baseline']['f1']:.1f} |" in table
    saved = json.loads((run / "training" / "model" / "generation_config.json").read_text(encoding="utf-8"))
    assert {name: saved[name] for name in search} == search


@pytest.mark.parametrize("writes, f1, well_formed", [("gold", 100, 100), ("nothing", 0, 0), ("half", 100, 0)])
def test_figures_are_of_what_the_model_writes(writes, f1, well_formed, main, tmp_path, monkeypatch):
    """An output that lacks its last bracket ("half") is not well-formed, and repaired without loss."""
    asked = []
    gold = {source(tree): linearise(tree) for trees in FILES for tree in trees}

    def write(model, tokenizer, sentences, show_progress):
        asked.append(model.generation_config.to_dict())
        kept = {"gold": slice(None), "nothing": slice(0), "half": slice(-1)}[writes]
        return [" ".join(gold[sentence][kept]) for sentence in sentences]

    monkeypatch.setattr(table4, "translate", write)
    assert main(num_beams=21, max_extra_tokens=300).code == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    for split in ("validation", "test"):
        assert (results[split]["f1"], results[split]["well_formed"]) == (f1, well_formed)
    assert all((one["num_beams"], one["length_penalty"], one["max_extra_tokens"]) == (21, 0.3, 300) for one in asked)


def test_the_paper_s_search_and_figures():
    options = table4.ParsingOptions()
    assert (options.num_beams, options.length_penalty, options.max_extra_tokens) == (21, 0.3, 300)
    assert [f1 for name, _, f1 in table4.PAPER if "Transformer" in name] == [91.3, 92.7]


# Data


@pytest.mark.parametrize("sizes", [[1, 1, 1], [50, 1, 1], [1, 1, 50], [1, 50, 1, 1], [7] * 10, [9, 2] * 40])
def test_no_file_is_in_two_splits_and_all_are_in_one(sizes):
    files = [[(number, index) for index in range(size)] for number, size in enumerate(sizes)]
    splits = split_files(files)
    assert list(splits) == ["train", "validation", "test"]
    assert [tree for trees in splits.values() for tree in trees] == [tree for trees in files for tree in trees]
    numbers = [{number for number, _ in trees} for trees in splits.values()]
    assert all(numbers) and sum(map(len, numbers)) == len(files)
    if len(files) > 9:  # about a tenth each is for development and testing
        assert [round(10 * len(trees) / sum(sizes)) for trees in splits.values()] == [8, 1, 1]


def test_constituents_are_pairs_of_their_own_once():
    phrase = Tree.fromstring("(NP (NP (NNP John)) (NP (DT a) (NN treasurer)))")
    trees = [Tree("S", [phrase, phrase]), Tree.fromstring("(FRAG (NN treasurer))"), phrase]
    assert [pair["en"] for pair in training_pairs(trees, constituents=True)] == [
        "John a treasurer John a treasurer", "John a treasurer", "a treasurer", "treasurer", "John a treasurer",
    ]  # fmt: skip
    alone = list(training_pairs(trees, constituents=False))
    assert alone == [{"en": source(tree), "tree": target(tree)} for tree in trees]


def test_brackets_are_whole_tokens_and_nothing_is_lost(tmp_path):
    trees = [tree for trees in toy_treebank(files=4) for tree in trees]
    parsing_tokenizer(trees, 400).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for tree in trees:
        ids = tokenizer(text_target=target(tree)).input_ids
        pieces = sum(len(tokenizer(word, add_special_tokens=False).input_ids) for word in tree.leaves())
        brackets = [token for token in linearise(tree) if token[0] in "()"]
        assert len(ids) == len(brackets) + pieces + 1
        tokens = tokenizer.decode(ids, skip_special_tokens=True).split()
        assert is_well_formed(tokens, tree.leaves()) and tokens == linearise(tree)
        assert tokenizer.decode(tokenizer(source(tree)).input_ids, skip_special_tokens=True) == source(tree)


def test_splits_that_are_given(tmp_path):
    parts = {"train": FILES[:2], "validation": FILES[2:4], "test": FILES[4:]}
    for split, files in parts.items():
        (tmp_path / split).write_text(penn(files))
    options = {f"{split}_trees": [str(tmp_path / split)] for split in parts}
    splits = table4.read_splits(table4.ParsingOptions(**options))
    assert splits == {split: [tree for trees in files for tree in trees] for split, files in parts.items()}


# Resuming


def test_a_run_continues_where_it_stopped(main, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(output_dir=whole, max_steps=3).code == 0
    assert main(output_dir=parts).code == 0
    assert main(output_dir=parts, max_steps=3, resume=True).code == 0
    for name in ("training/model/model.safetensors", "parses/test.output", "parses/test.parsed"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()


def test_a_run_that_stopped_before_training_continues_on_the_same_trees_alone(main, treebank, tmp_path):
    run = tmp_path / "run"
    options = table4.ParsingOptions(trees=[str(treebank)])
    table4.prepare(run, table4.read_splits(options), 400, options)
    before = helpers.tree(run)
    other = tmp_path / "other.mrg"
    other.write_text(treebank.read_text().replace("(NN ", "(NNS ", 1))
    assert re.fullmatch(r"resume: \S+run was started with trees \w+, not \w+", main(trees=other, resume=True).error)
    assert helpers.tree(run) == before
    assert main(resume=True).code == 0
    assert (run / "results.json").is_file()


# Bad input


@pytest.mark.parametrize(
    "options, says",
    [
        ({"train_trees": "toy.mrg"}, "train_trees is given beside trees"),
        ({"num_beams": 0}, "num_beams must be at least 1, not 0"),
        ({"vocab_size": 270}, "vocab_size must be at least 2"),
        ({"resume": True}, "holds no parsing run"),
    ],
)
def test_bad_options_are_one_line(options, says, main, tmp_path):
    assert says in main(**options).error
    assert not (tmp_path / "run").exists()


def test_two_files_or_a_split_alone_are_refused():
    with pytest.raises(ValueError, match="trees: 2 files of trees cannot be split into three"):
        split_files(FILES[:2])
    with pytest.raises(ValueError, match="test_trees is given without the others"):
        table4.ParsingOptions(test_trees=["a.mrg"])


@pytest.mark.parametrize("scale", ["smoke", "sample", "paper"])
def test_each_scale_sets_defaults_that_options_override(scale, monkeypatch, tmp_path):
    passed = []
    monkeypatch.setattr(table4, "reproduce", lambda *given: passed.extend(given))
    (tmp_path / "table.md").write_text("")
    done = call(table4.main, "--scale", scale, "--output_dir", tmp_path, "--warmup_steps", 7)
    assert done.code == 0, done.errors
    options, training, model = passed
    expected = json.loads((table4.SCALES / f"{scale}.json").read_text()) | {"warmup_steps": 7}
    given = {**model, **vars(options), **vars(training)}
    assert options.scale == scale
    assert {name: given[name] for name in expected} == expected

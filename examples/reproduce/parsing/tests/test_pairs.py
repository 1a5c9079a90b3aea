"""Training pairs out of trees, and their vocabulary."""

import pytest
from transformers import AutoTokenizer

from ..linear import delinearise, linearise
from ..pairs import parsing_vocabulary, split_files, target, training_pairs
from ..toy_trees import toy_treebank

TREES = [tree for trees in toy_treebank(files=5, sentences=4) for tree in trees]


@pytest.mark.parametrize("sizes", [[1, 1, 1], [50, 1, 1], [1, 50, 1, 1], [9, 2] * 40])
def test_no_file_is_in_two_splits_and_all_are_in_one(sizes):
    files = [[(number, index) for index in range(size)] for number, size in enumerate(sizes)]
    splits = split_files(files)
    assert list(splits) == ["train", "validation", "test"]
    assert [tree for trees in splits.values() for tree in trees] == [tree for trees in files for tree in trees]
    numbers = [{number for number, _ in trees} for trees in splits.values()]
    assert all(numbers) and sum(map(len, numbers)) == len(files)
    if len(files) > 9:  # about a tenth each is for development and testing
        assert [round(10 * len(trees) / sum(sizes)) for trees in splits.values()] == [8, 1, 1]


def test_pairs_are_the_trees_and_copies_of_them_that_differ():
    lexicon, _ = parsing_vocabulary(TREES, 1000)
    pairs = list(training_pairs(TREES, lexicon, copies=3, constituents=0.0, substitution=0.5))
    assert len(pairs) == 3 * len(TREES)
    assert all(delinearise(pair["tree"].split(), pair["en"].split()) for pair in pairs)
    brackets = [[token for token in pair["tree"].split() if token[0] in "()"] for pair in pairs]
    linear = [[token for token in linearise(tree) if token[0] in "()"] for tree in TREES]
    assert brackets[: len(TREES)] == linear  # the first copies have other words alone
    changed = [one != other for one, other in zip(brackets[len(TREES) :], linear * 2, strict=True)]
    assert len(changed) / 4 < sum(changed) < len(changed)
    assert any("UNK" in pair["en"] for pair in pairs)


def test_brackets_and_words_are_whole_tokens_and_nothing_is_lost(tmp_path):
    lexicon, tokenizer = parsing_vocabulary(TREES, 400)
    tokenizer.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for tree in TREES:
        words = lexicon.read(tree.leaves())
        ids = tokenizer(text_target=target(tree, words)).input_ids
        assert len(ids) == len(linearise(tree)) + 1
        tokens = tokenizer.decode(ids, skip_special_tokens=True).split()
        assert tokens == target(tree, words).split()
        assert tokenizer.decode(tokenizer(" ".join(words)).input_ids, skip_special_tokens=True) == " ".join(words)

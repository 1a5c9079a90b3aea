"""Training pairs out of trees, and their vocabulary."""

import random
from collections import Counter

import pytest
from nltk import Tree
from transformers import AutoTokenizer

from ..linear import delinearise, linearise
from ..pairs import parsing_vocabulary, split_files, substitute, target, training_pairs
from ..toy_trees import toy_treebank
from ..trees import bracketed

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


def test_constituents_are_pairs_of_their_own():
    tree = Tree.fromstring("(S (NP (NP (NNP John)) (NP (DT a) (NN treasurer))) (VP (VBZ sleeps)))")
    lexicon, _ = parsing_vocabulary([tree, tree], 1000)

    every, some = (
        Counter(len(pair["en"].split()) for pair in training_pairs([tree] * 100, lexicon, 1, share, substitution=0.0))
        for share in (1.0, 0.5)
    )
    assert every == {4: 100, 3: 100, 2: 100}
    assert some[4] == 100 and 30 < some[3] < 70 and 30 < some[2] < 70


def test_constituents_are_replaced_by_those_of_the_same_place():
    tree = Tree.fromstring("(S (NP (DT the) (NN dog)) (VP (VBD saw) (NP (NNP Rome))))")
    pool = {("S", "NP"): [Tree("NP", ["a"])], ("S", "VP"): [Tree("VP", ["b"])], ("VP", "NP"): [Tree("NP", ["c"])]}
    texts = {bracketed(substitute(tree, pool, 0.5, random.Random(seed))) for seed in range(50)}
    subjects = ("(NP (DT the) (NN dog))", "(NP a)")
    predicates = ("(VP (VBD saw) (NP (NNP Rome)))", "(VP (VBD saw) (NP c))", "(VP b)")
    assert texts == {f"(S {subject} {predicate})" for subject in subjects for predicate in predicates}


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

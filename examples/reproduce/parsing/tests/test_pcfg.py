"""The plain PCFG, against nltk's own induction of a grammar and its Viterbi parser."""

import math

import pytest
from nltk import Nonterminal, Tree, induce_pcfg
from nltk.parse import ViterbiParser

from ..pairs import parsing_vocabulary
from ..pcfg import ORDER, Grammar
from ..toy_trees import toy_treebank

TREES = [tree for trees in toy_treebank(files=10) for tree in trees]


def nltk_form(tree, lexicon):
    """The tree as nltk's grammar has it: binarised, its words as they are read, below a start symbol."""
    words = iter(lexicon.read(tree.leaves()))
    tree = Tree.fromstring(str(tree), read_leaf=lambda leaf: next(words))
    tree.collapse_unary(collapsePOS=True, collapseRoot=True)
    tree.chomsky_normal_form(horzMarkov=ORDER)
    return Tree("START", [tree])


def test_the_parse_is_the_most_probable_one():
    training = TREES[:60]
    lexicon, _ = parsing_vocabulary(training, 1000)
    grammar = Grammar(training, lexicon)
    rules = [rule for tree in training for rule in nltk_form(tree, lexicon).productions()]
    theirs = induce_pcfg(Nonterminal("START"), rules)
    probabilities = {(rule.lhs(), rule.rhs()): rule.prob() for rule in theirs.productions()}
    parser = ViterbiParser(theirs)
    parsed = 0
    for tree in TREES[60:]:
        sentence = tree.leaves()
        known = [word for word in lexicon.read(sentence) if word in lexicon.counts]
        if len(sentence) > 8 or len(known) < len(sentence):
            continue
        best, found = next(parser.parse(lexicon.read(sentence)), None), grammar.parse(sentence)
        assert (best is None) == (found is None)
        if found is not None:
            assert found.leaves() == sentence
            used = [probabilities[rule.lhs(), rule.rhs()] for rule in nltk_form(found, lexicon).productions()]
            assert math.prod(used) == pytest.approx(best.prob(), rel=1e-4)
            parsed += 1
    assert parsed >= 10


def test_labels_of_two_names_come_back():
    """As in the Penn Treebank's (ADVP|PRT (RB back)): nltk marks what it has added to a tree by such signs."""
    tree = Tree.fromstring("(S (NP+X (JJ|NN a) (NN b) (NN c)) (PRT|ADVP (NP^S (A+B d)) (RB e) (RB f)))")
    lexicon, _ = parsing_vocabulary([tree], 1000)
    assert Grammar([tree], lexicon).parse(tree.leaves()) == tree


def test_unknown_words_and_sentences_without_a_parse():
    training = [Tree.fromstring("(S (NP (NN a)) (VP (VB b)))")] * 2 + [Tree.fromstring("(S (NP (NN c)) (VP (VB b)))")]
    lexicon, _ = parsing_vocabulary(training, 1000)
    grammar = Grammar(training, lexicon)
    assert grammar.parse(["Zzz", "b"]) == Tree.fromstring("(S (NP (NN Zzz)) (VP (VB b)))")
    assert grammar.parse(["a", "9", "b"]) is None
    assert grammar.parse(["a"]) is None

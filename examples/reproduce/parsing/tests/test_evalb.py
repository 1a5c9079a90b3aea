"""Scores and baseline, against figures by hand and a second implementation, which works on the text of the trees."""

import random
import re
from collections import Counter

import pytest
from nltk import Tree

from ..baseline import right_branching, right_branching_labels
from ..evalb import constituents, percentages, score
from ..toy_trees import toy_treebank
from ..trees import bracketed, is_preterminal

COUNTS = ("matched", "gold", "tested", "sentences", "complete", "errors")
DELETED = ["TOP", "-NONE-", ",", ":", "``", "''", "."]
GOLD = "(S (NP (NNP John)) (VP (VBD gave) (PRT (RP up)) (NP (DT the) (NN job))) (. .))"


def toy(files):
    return [tree for trees in toy_treebank(files=files) for tree in trees]


def brackets(text):
    """Words and brackets of a tree's text, in one pass over its characters, as EVALB does."""
    sentence, found, opened = [], [], []
    for token in re.findall(r"\([^\s()]+ [^\s()]+\)|\([^\s()]+|\)", text):
        if token == ")":
            start, label = opened.pop()
            label = label.partition("-")[0].partition("=")[0]
            if start != len(sentence) and label not in DELETED:
                found.append(("ADVP" if label == "PRT" else label, start, len(sentence)))
        elif token.endswith(")"):
            tag, word = token[1:-1].split(" ")
            sentence += [word] if tag not in DELETED else []
        else:
            opened.append((len(sentence), token[1:]))
    return sentence, found


def second_score(gold, tested):
    total = Counter()
    for expected, given in zip(map(bracketed, gold), map(bracketed, tested), strict=True):
        (words, expected), (others, given) = brackets(expected), brackets(given)
        if words != others:
            total["errors"] += 1
            continue
        left = list(given)
        for bracket in expected:
            if bracket in left:
                left.remove(bracket)
        matched = len(given) - len(left)
        total += Counter(sentences=1, gold=len(expected), tested=len(given), matched=matched)
        total["complete"] += matched == len(expected) == len(given)
    return [total[name] for name in COUNTS]


def counts(gold, tested):
    return list(map(score(gold, tested).get, COUNTS))


def mangled(part, rng):
    """The tree with some constituents renamed, doubled or dissolved, some tags changed and some words lost."""
    chance = rng.random()
    if is_preterminal(part):
        return [] if chance < 0.01 else [Tree(rng.choice([".", ",", "NN", ":"]), [*part]) if chance < 0.03 else part]
    children = [one for child in part for one in mangled(child, rng)]
    if chance < 0.1 or not children:
        return children
    label = rng.choice(["NP", "PRT", "ADVP", "TOP", "VP-2", "S=1"]) if chance < 0.3 else part.label()
    node = Tree(label, children)
    return [Tree(label, [node]) if chance > 0.9 else node]


def test_scores_are_those_of_a_second_implementation():
    rng = random.Random(1)
    gold = toy(40)
    tested = [Tree("TOP", mangled(one, rng) or [Tree("NN", ["none"])]) for one in gold]
    assert counts(gold, tested) == second_score(gold, tested)
    matched, of, _, _, complete, errors = counts(gold, tested)
    assert errors > 50 and complete > 20 and matched < of - 500  # all cases occur
    for one, other in zip(gold, tested, strict=True):
        assert counts([one], [other]) == second_score([one], [other])
        assert counts([other], [one]) == second_score([other], [one])


@pytest.mark.parametrize(
    "tested, matched, of",
    [
        ("(TOP " + GOLD + ")", 5, 5),
        (GOLD.replace("(PRT", "(ADVP"), 5, 5),
        (GOLD.replace("(PRT", "(PP"), 4, 5),
        (GOLD.replace("(NP (NNP", "(NP-SBJ-1 (NNP").replace("(VP", "(VP=2"), 5, 5),
        # A unary copy is one too many, and its span counts only once.
        ("(S (NP (NP (NNP John))) (VP (VBD gave) (PRT (RP up)) (NP (DT the) (NN job))) (. .))", 5, 6),
        # Punctuation may hang anywhere, and a bracket around it alone does not count.
        ("(S (NP (NNP John)) (VP (VBD gave) (PRT (RP up)) (NP (DT the) (NN job))) (X (. .)))", 5, 5),
        # Tags are not scored.
        (GOLD.replace("NNP", "XX").replace("VBD", "XX"), 5, 5),
        ("(TOP (NNP John) (VBD gave) (RP up) (DT the) (NN job) (. .))", 0, 0),
    ],
)
def test_brackets_by_hand(tested, matched, of):
    found = counts([Tree.fromstring(GOLD)], [Tree.fromstring(tested)])
    assert found == [matched, 5, of, 1, matched == 5 == of, 0]


def test_percentages_by_hand():
    found = percentages({"matched": 3, "gold": 4, "tested": 6, "sentences": 8, "complete": 1})
    f1 = pytest.approx(2 * 50 * 75 / (50 + 75))
    assert found == {"f1": f1, "precision": 50, "recall": 75, "complete_match": 12.5}
    assert set(score([], []).values()) == {0}


# The other is removed as punctuation here, a word there.
@pytest.mark.parametrize("tested", [GOLD.replace("job", "Job"), GOLD.replace("(RP up)", "(. up)")])
def test_other_words_are_an_error_and_in_no_score(tested):
    gold = Tree.fromstring(GOLD)
    assert counts([gold, gold], [gold, Tree.fromstring(tested)]) == [5, 5, 5, 1, 1, 1]


def test_as_many_trees_on_either_side():
    with pytest.raises(ValueError, match="there are 1 gold trees but 0 to score"):
        score([Tree.fromstring(GOLD)], [])


# The baseline


def test_right_branching_by_hand():
    sentence = ["``", "Mary", ",", "who", "sings", ",", "left", "''"]
    text = "(S (XX ``) (XX Mary) (XX ,) (VP (XX who) (VP (XX sings) (XX ,) (XX left) (XX ''))))"
    assert bracketed(right_branching(sentence, "S", "VP")) == text
    assert bracketed(right_branching(["Yes"], "S", "VP")) == "(S (XX Yes))"
    assert bracketed(right_branching([".", "."], "S", "VP")) == "(S (XX .) (XX .))"
    with pytest.raises(ValueError, match="without words"):
        right_branching([], "S", "VP")


def test_no_other_labels_score_higher_on_the_training_trees():
    ends = []
    for sentence, spans in map(constituents, toy(4)):
        ends += [(label, start) for label, start, end in spans if end == len(sentence) > start + 1]

    def matched(root, inner):
        return sum(label == (inner if start else root) for label, start in ends)

    labels = ["S", "SQ", "NP", "VP", "PP", "SBAR", "ADVP"]
    assert matched(*right_branching_labels(toy(4))) == max(matched(root, inner) for root in labels for inner in labels)
    assert right_branching_labels([]) == ("S", "S")
    # A last word alone is no right branch, however many brackets there are around it.
    tree = Tree.fromstring("(S (NP (NN a)) (VP (VB b) (NP (NP (NN c)))))")
    assert right_branching_labels([tree]) == ("S", "VP")

"""Scores, against figures by hand."""

import pytest
from nltk import Tree

from ..evalb import percentages, score

COUNTS = ("matched", "gold", "tested", "sentences", "complete", "errors")
GOLD = "(S (NP (NNP John)) (VP (VBD gave) (PRT (RP up)) (NP (DT the) (NN job))) (. .))"


def counts(gold, tested):
    return list(map(score(gold, tested).get, COUNTS))


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
        # All that is no word: quotation marks, colons, commas and traces.
        (f"(TOP (`` ``) {GOLD[:-1]} (: --) (, ,) (NP (-NONE- *)) ('' '')))", 5, 5),
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

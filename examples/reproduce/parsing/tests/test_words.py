"""Words as the parser reads them, by hand."""

import pytest

from ..words import Lexicon, signature

TEXT = "The trader bought 1,250 shares .\nThe traders sold 3,875 shares .\nHe bought .\nAcme sold .\nthe the"


@pytest.fixture
def lexicon():
    return Lexicon([line.split() for line in TEXT.splitlines()], 100)


def test_known_words_are_read_as_they_are_and_digits_are_one(lexicon):
    assert lexicon.counts == {"The": 2, "the": 2, "bought": 2, "sold": 2, "0,000": 2, "shares": 2, ".": 4}
    sentence = ["The", "trader", "sold", "9,999", "shares", "."]
    assert " ".join(lexicon.read(sentence)) == "the UNK-LC-er sold 0,000 shares ."
    assert lexicon.read(["shares", "The"]) == ["shares", "The"]


@pytest.mark.parametrize(
    "word, first, expected",
    [
        ("Trading", False, "UNK-CAPS-ing"),
        ("Trading", True, "UNK-INITC-ing"),
        ("Shares", True, "UNK-INITC-KNOWNLC-s"),
        ("IBM", True, "UNK-CAPS"),
        ("boss", False, "UNK-LC"),
        ("1990s", False, "UNK-LC-NUM-s"),
        ("31/2", False, "UNK-NUM"),
        ("well-known", False, "UNK-LC-DASH"),
        ("quickly", False, "UNK-LC-ly"),
        ("%", False, "UNK"),
    ],
)
def test_signatures(word, first, expected):
    assert signature(word, first, {"shares"}) == expected

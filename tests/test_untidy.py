"""Untidy pairs, against each form written by hand."""

import random

import pytest
from helpers import ROOT, as_lines, run_python

from modeling_vanilla.training.untidy import mistype, untidy_pair

PAIR = ('>>de<< The man\'s "dog" sleeps.', "Sein Hund schläft.")
FORMS = {
    ('>>de<< the man\'s "dog" sleeps.', "Sein Hund schläft."),
    ('>>de<< THE MAN\'S "DOG" SLEEPS.', "SEIN HUND SCHLÄFT."),
    (">>de<< The man’s ”dog” sleeps.", "Sein Hund schläft."),
    ('>>de<< The man\'s "dog" sleeps', "Sein Hund schläft"),
}


def test_every_form_is_drawn_and_the_tag_stays():
    drawn = {untidy_pair(*PAIR, random.Random(seed)) for seed in range(200)}
    others = drawn - FORMS
    assert drawn > FORMS
    for source, target in others:  # the only word of letters alone is "The"
        assert source.startswith(">>de<< ") and source.endswith(' man\'s "dog" sleeps.') and target == PAIR[1]
        assert source != PAIR[0]


@pytest.mark.parametrize("pair", [("", ""), ("1 2", "3"), (".", "."), ("?", "a?"), ("", "a")])
def test_what_has_no_untidy_form_stays(pair):
    assert {untidy_pair(*pair, random.Random(seed)) for seed in range(20)} == {pair}


@pytest.mark.parametrize("word", ["word", "한국어를"])
def test_one_word_in_ten_has_an_error(word):
    words = [word] * 40
    for seed in range(50):
        found = mistype(" ".join(words), random.Random(seed)).split(" ")
        wrong = [one for one in found if one != word]
        assert len(found) == 40 and 0 < len(wrong) <= 4
        assert all(len(word) - 1 <= len(one) <= len(word) + 1 and {*one} <= {*word} for one in wrong)


def test_the_script_puts_untidy_copies_behind(tmp_path):
    sides = [[f"{word} {row} ." for row in range(20)] for word in ("The dog", "Der Hund")]
    for name, lines in zip(("en", "de"), sides, strict=True):
        (tmp_path / name).write_bytes(as_lines(lines))
    given = ("en", "de", "more.en", "more.de", "--share", "1")
    assert run_python(ROOT / "examples" / "untidy.py", *given, cwd=tmp_path).code == 0
    written = [(tmp_path / f"more.{name}").read_text().split("\n")[:-1] for name in ("en", "de")]
    assert [side[:20] for side in written] == sides and [len(side) for side in written] == [40, 40]
    assert all(copy != tidy for copy, tidy in zip(written[0][20:], sides[0], strict=True))

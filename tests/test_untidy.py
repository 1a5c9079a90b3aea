"""Untidy pairs, against each form written by hand."""

import random

import pytest
import untidy
from helpers import as_lines, call

PAIR = ('>>de<< The man\'s "dog" sleeps.', "Sein Hund schläft.")
FORMS = {
    ('>>de<< the man\'s "dog" sleeps.', "Sein Hund schläft."),
    ('>>de<< THE MAN\'S "DOG" SLEEPS.', "SEIN HUND SCHLÄFT."),
    (">>de<< The man’s ”dog” sleeps.", "Sein Hund schläft."),
    ('>>de<< The man\'s "dog" sleeps', "Sein Hund schläft"),
}


def test_every_form_is_drawn_and_the_tag_stays():
    drawn = {untidy.untidy_pair(*PAIR, random.Random(seed)) for seed in range(200)}
    others = drawn - FORMS
    assert drawn > FORMS
    for source, target in others:  # the only word of letters alone is "The"
        assert source.startswith(">>de<< ") and source.endswith(' man\'s "dog" sleeps.') and target == PAIR[1]
        assert source != PAIR[0]


@pytest.mark.parametrize("pair", [("", ""), ("1 2", "3"), (".", "."), ("", "a")])
def test_what_has_no_untidy_form_stays(pair):
    assert untidy.untidy_pair(*pair, random.Random(0)) == pair


@pytest.mark.parametrize("word", ["word", "한국어를"])
def test_one_word_in_ten_has_an_error(word):
    for seed in range(50):
        found = untidy.mistype(" ".join([word] * 40), random.Random(seed)).split(" ")
        wrong = [one for one in found if one != word]
        assert len(found) == 40 and 0 < len(wrong) <= 4
        assert all(len(word) - 1 <= len(one) <= len(word) + 1 and {*one} <= {*word} for one in wrong)


def test_the_script_puts_untidy_copies_behind(tmp_path, own_cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tidy = ["The dog .", "A cat ."]
    for name, lines in {"en": tidy, "de": ["Der Hund .", "Eine Katze ."], "short": ["a"]}.items():
        (tmp_path / name).write_bytes(as_lines(lines))
    assert call(untidy.main, "en", "de", "more.en", "more.de", "--share", "1").succeeded
    sources, targets = ((tmp_path / name).read_text().splitlines() for name in ("more.en", "more.de"))
    assert len(targets) == len(sources) == 4 and sources[:2] == tidy and not {*sources[2:]} & {*tidy}
    assert "short has 1 lines, en has more" in call(untidy.main, "en", "short", "new.en", "new.de").error

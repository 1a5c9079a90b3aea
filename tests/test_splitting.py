"""Where text is cut: at its lines, sentences, blanks; in linear time whatever the text is."""

import re
import time
from types import SimpleNamespace

import pytest
from datasets import Dataset
from helpers import make_tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from modeling_vanilla import splitting_vanilla
from modeling_vanilla.corpus.options import DataOptions
from modeling_vanilla.corpus.tokenized import tokenize_training_pairs
from modeling_vanilla.spans_vanilla import DEFAULT
from modeling_vanilla.splitting_vanilla import Limits, count_sentences, source_limits, split_sentences, split_texts
from modeling_vanilla.training.model import fit_to_data

# Of each language texts, with a bar behind each sentence but the last.
SENTENCES = {
    "en": ["Mr. Smith sees the dog. |He laughs.", "At 5 p.m. the king laughs.", "the dog runs. |the cat sleeps."],
    "de": ["Am 3. Mai kam Dr. Müller. |Er lachte.", "z. B. am 5. Juni."],
    "ar": ["ذهب الولد؟ |نعم. |عاد الملك إلى البيت."],
    "km": ["សួស្តី។ |សុខសប្បាយ។ |ខ្ញុំទៅ៕ |បាទ។"],
    "bo": ["བཀྲ་ཤིས། |བདེ་ལེགས༎ |ཡིན།"],
    "el": ["Πού είναι; |Εδώ. |Ναι!"],
    "zh": ["一个。|两个！|三个？"],
    "hi": ["वह जाता है। |वह आता है।"],
}


@pytest.mark.parametrize(("language", "marked"), [(lang, text) for lang, texts in SENTENCES.items() for text in texts])
def test_sentences(language, marked):
    assert split_sentences(marked.replace("|", ""), language) == marked.split("|")


@pytest.mark.parametrize("text", ["", " \t", "\u200b", "\u2060\xad", "\ufeff\u3000\n"])
def test_what_is_not_visible_is_blank(text):
    assert (count_sentences(text), count_sentences(f"{text}a")) == (0, 1)


def test_the_language_is_the_tokenizers_or_the_configurations(tokenizer):
    model = make_tiny(len(tokenizer), source_lang="de")
    assert source_limits(model.config, tokenizer).language == "de"
    assert source_limits(model.config, SimpleNamespace(src_lang="fr_XX")).language == "fr"


@pytest.mark.parametrize("tag", ["de", "DE", "de_DE", "de-AT", "deu_Latn"])
def test_training_counts_sentences_by_the_rule_of_translation(tag, tokenizer):
    text = "z. B. am 3. Mai. Er kam."
    pairs = Dataset.from_dict({"source": [text], "target": ["a"]})
    model = make_tiny(len(tokenizer))
    fit_to_data(model.config, tokenizer, tokenize_training_pairs(pairs, tokenizer, DataOptions()), tag)
    language = source_limits(model.config, tokenizer).language
    assert model.config.max_source_sentences == count_sentences(text, language) == count_sentences(text, "de") == 2


def test_without_the_library_lines_are_whole_and_a_warning_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr(splitting_vanilla, "segment", None)
    splitting_vanilla.logger.warning_once.cache_clear()
    assert [split_sentences("A. B c. D e.") for _ in range(2)] == [["A. B c. D e."]] * 2
    assert [message.split(",")[0] for message in caplog.messages] == ["text is split at line ends alone"]


class OneTokenAWord:
    """Counts every word and mark as one token, and EOS, so that the pieces expected can be told by hand."""

    def __call__(self, text, **kwargs):
        return SimpleNamespace(input_ids=[[1] * len(re.findall(r"\w+|[^\w\s]|$", one)) for one in text])


PIECES = [
    (13, "aa bb cc dd. ee ff gg hh!| ii jj?"),
    (9, 'aa bb cc dd."| Ee ff gg hh.| (Ii jj kk.) ll mm'),
    (8, "aa bb cc, dd ee| ff، gg hh.| ii"),
    (8, "aa bb cc dd ee ff gg| hh ii jj.| kk"),
    (8, "狗 狗 狗 狗 狗 狗。|猫 猫 猫 猫！猫"),
    (8, "a_b" * 40),
    (15, "aa\n|bb. cc\r\n|dd"),
    (None, "aa bb cc. dd"),
]


def split(text: str, limit: int | None, **fields) -> list[str]:
    tokenizer = OneTokenAWord()
    (pieces,) = split_texts(tokenizer, [text], source_limits(make_tiny(**fields).config, tokenizer, limit))
    return [piece.text for piece in pieces]


@pytest.mark.parametrize(("limit", "pieces"), PIECES)
def test_long_texts_are_cut_where_it_hurts_least(limit, pieces):
    expected = [piece.strip("\r\n" if "\n" in pieces else None) for piece in pieces.split("|")]
    assert split(pieces.replace("|", ""), limit) == expected


SIGNS = st.sampled_from([*'ab cd.,;!? \t1()-"\u2028\u3000\x85»“。安🙂üİ…', "Mr", "e.g."])


def test_a_number_is_a_mark_but_where_it_may_be_an_ordinal_or_has_a_number_sign():
    assert (split("# 1. May", None), split("1. Mai", None, source_lang="de_DE")) == (["", "May"], ["1. Mai"])
    assert split("# 8 for Iowa", None) == ["# 8 for Iowa"]


def test_layout_within_a_span_is_no_layout(tokenizer):
    spans = ['<a href="x"  class="y | z">', "%d"]
    (pieces,) = split_texts(tokenizer, [f"- {'  '.join(spans)}"], None, spans=DEFAULT)
    assert [piece.text for piece in pieces] == ["", *spans]


@given(st.lists(SIGNS, max_size=150).map("".join), st.integers(8, 40), st.sampled_from(["en", "de", "ru", "zh"]))
@settings(deadline=None, derandomize=True)
def test_pieces_are_short_enough_and_lose_no_letter(text, limit, language):
    pieces = split(text, limit, source_lang=language)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    lengths = [len(ids) for ids in OneTokenAWord()(pieces).input_ids]
    assert all(length <= limit for length in lengths)


def test_every_piece_begins_with_the_prefix(tokenizer):
    limits = Limits(16, None, 16, by_sentence=False)
    (pieces,) = split_texts(tokenizer, ["the dog runs. " * 20], limits, source_prefix="a house: ")
    assert len(pieces) > 2
    for piece in pieces:
        assert [*piece.ids] == tokenizer("a house: " + piece.text).input_ids and len(piece.ids) <= 16


@pytest.mark.parametrize("text", ["a" * 5000, "a " * 5000], ids=["a word", "words"])
def test_a_sentence_that_is_no_piece_is_cut_into_small_ones(tokenizer, text):
    """A search takes a step for each token of an output, and such a text's may end at its limit alone."""
    (pieces,) = split_texts(tokenizer, [text], Limits(512, None, 512, by_sentence=False))
    assert 100 < max(len(piece.ids) for piece in pieces) <= 128


SLOW = [pytest.param(mark, marks=pytest.mark.slow) for mark in (":", " ", "a", "a. ", ",»", "\u200b", "犬", "“a.” ")]


@pytest.mark.parametrize("mark", [".", ",", "»", *SLOW], ids=ascii)
def test_a_long_line_of_one_mark_is_cut_soon(tokenizer, mark):
    """In seconds, where what takes quadratic time takes minutes."""
    text = mark * (100_000 // len(mark))
    start = time.process_time()
    (pieces,) = split_texts(tokenizer, [text], Limits(512, None, 512, by_sentence=False))
    assert "".join("".join(piece.text for piece in pieces).split()) == "".join(text.split())
    assert time.process_time() - start < 20

"""The shared vocabulary: lossless, never an unknown, EOS last, reloaded by AutoTokenizer."""

from unicodedata import normalize

import pytest
from datasets import Dataset
from helpers import batch_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AddedToken, AutoTokenizer

from modeling_vanilla.corpus.tokenizer import MARK, SPECIAL_TOKENS, language_tags, train_tokenizer
from modeling_vanilla.loading import save_tokenizer

ALGORITHMS = ("bpe", "wordpiece")
CORPUS = [
    "Two young men in white T-shirts are sitting near many bushes.",
    "Der Hund läuft über die grüne Wiese, und das Mädchen läuft ihm nach.",
    "the man &apos;s dog isn't here : it costs 3.50 euros .",
] * 3


@pytest.fixture(scope="module", params=ALGORITHMS)
def tokenizer(request, tmp_path_factory):
    """As AutoTokenizer reloads it."""
    folder = tmp_path_factory.mktemp(request.param)
    trained = train_tokenizer(CORPUS, vocab_size=400, algorithm=request.param)
    trained.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer(CORPUS) == trained(CORPUS)
    assert type(tokenizer.backend_tokenizer.model).__name__.lower() == request.param
    return tokenizer


def test_a_truncation_of_an_earlier_call_is_not_saved(tokenizer, tmp_path):
    whole = tokenizer(CORPUS[0]).input_ids
    assert len(tokenizer(CORPUS[0], truncation=True, padding="max_length", max_length=6).input_ids) == 6 < len(whole)
    save_tokenizer(tokenizer, tmp_path)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(CORPUS[0]).ids == whole


# With a token of each kind that may be added.
WITH_ADDED_TOKENS = [train_tokenizer(CORPUS, vocab_size=400, algorithm=name, tags=[">>de<<"]) for name in ALGORITHMS]
for added_to in WITH_ADDED_TOKENS:
    added_to.add_tokens(["<x>", AddedToken("<y>", normalized=False)])
    added_to.add_special_tokens({"additional_special_tokens": ["<z>"]})
ADDED = ("<x>", "<y>", ">>de<<")
FRAGMENTS = (*ADDED, *SPECIAL_TOKENS, "<z>", "<unused0>", "a##b", "Ġ", " ", "  ", "\n", "-", "'", "&apos;", "Hund", "7")
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=MARK), max_size=20)


@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), TEXT)).map("".join))
@settings(deadline=None, derandomize=True, max_examples=300)
@example("")
@example("e\u0301 is \u00e9, ﬁ is not fi, \u2160 is not I, 👩\u200d🚀 👍🏽 🇩🇪 1\ufe0f\u20e3")
@example("A\u030a \u212b >>de<<\u0338 \u1112\u1161\u11ab\uae00 \u0958")
@example("\ttabs\tand  double   blanks, no-break\u00a0space, line\u2028separator, zero\u0000byte\r\n")
@example(" " * 300 + "." * 300 + "\u2019ñ" * 300 + "7" * 300)
@example("a <x> b(<y>)>>de<< c")
def test_every_string_comes_back(text):
    """Each token that was added is found wherever it stands, and nothing else becomes a special token."""
    for tokenizer in WITH_ADDED_TOKENS:
        ids = tokenizer(text).input_ids
        assert normalize("NFC", tokenizer.decode(ids, skip_special_tokens=True)) == normalize("NFC", text)
        assert not set(ids[:-1]) & set(tokenizer.all_special_ids)
        for token in ADDED:
            assert ids.count(tokenizer.convert_tokens_to_ids(token)) == text.count(token)
        ids = tokenizer(text, split_special_tokens=False).input_ids
        assert normalize("NFC", tokenizer.decode(ids[:-1])) == normalize("NFC", text)
        assert ids.count(tokenizer.convert_tokens_to_ids("<z>")) == text.count("<z>")


@pytest.mark.parametrize("text", ["Das Mädchen läuft", " 한국어를 배운다", "ệ", "\u0958 \u03d3"])
def test_canonically_equivalent_texts_have_the_same_ids(tokenizer, text):
    composed, decomposed = normalize("NFC", text), normalize("NFD", text)
    assert tokenizer(decomposed).input_ids == tokenizer(composed).input_ids
    assert tokenizer.decode(tokenizer(decomposed).input_ids, skip_special_tokens=True) == composed != decomposed


# No-break blanks, the ideographic one; the soft hyphen, right-to-left and left-to-right marks, the zero-width space.
@pytest.mark.parametrize("sign", "\u00a0\u202f\u3000\u00ad\u200f\u200e\u200b")
def test_what_looks_like_a_blank_or_like_nothing_is_kept_and_cuts_a_word(tokenizer, sign):
    """The word behind it has no blank, as behind a bracket."""
    before, behind = tokenizer.tokenize("Hund"), tokenizer.tokenize("(Hund")[len(tokenizer.tokenize("(")) :]
    tokens = tokenizer.tokenize(f"Hund{sign}Hund")
    assert tokens[: len(before)] == before and tokens[-len(behind) :] == behind != before
    assert tokenizer.convert_tokens_to_string(tokens[len(before) : -len(behind)]) == sign


def test_every_sequence_ends_in_eos_and_is_padded_on_the_right(tokenizer):
    short, long = "Hund", "Der Hund läuft"
    ids, long_ids = tokenizer(short)["input_ids"], tokenizer(long)["input_ids"]
    assert tokenizer(short, long)["input_ids"] == ids + long_ids
    assert tokenizer(short, text_target=long)["labels"] == long_ids
    assert (ids[-1], long_ids[-1], [*ids, *long_ids].count(2)) == (2, 2, 2)
    batch = tokenizer([short, long], padding=True, return_tensors="pt")
    assert all(batch[name].tolist() == value.tolist() for name, value in batch_of([ids, long_ids]).items())


def test_a_word_has_the_same_ids_wherever_it_stands(tokenizer):
    for word in ("Hund", "unseen", "T-shirt"):
        ids = tokenizer(word)["input_ids"]
        assert tokenizer(f"the {word}")["input_ids"] == tokenizer("the")["input_ids"][:-1] + ids
        assert tokenizer(f"{word}.")["input_ids"][: len(ids) - 1] == ids[:-1]


def test_words_stay_together_and_full_stops_apart():
    """And a pair that occurs once is not merged."""
    words = ["Hund", "T-shirt", "isn't", "3.50", "&apos;s"]
    tokenizer = train_tokenizer([*[f"{word}." for word in words] * 20, "once"], vocab_size=1000)
    for word in words:
        (token,) = tokenizer.tokenize(word)
        assert tokenizer.tokenize(f"{word}.") == [token, "."]
    assert len(tokenizer.tokenize("once")) == 5


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_vocab_size_is_rounded_up_to_a_multiple_of_8(algorithm):
    one, other = (train_tokenizer(iter(CORPUS), vocab_size=size, algorithm=algorithm) for size in (260, 264))
    assert len(one) == one.vocab_size == 264
    assert one.extra_special_tokens == []
    assert one.get_vocab() == other.get_vocab()  # training is deterministic


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_tag_of_a_language_is_one_token(algorithm):
    """It changes no token behind it."""
    texts = [">>de<< a small house", ">>en<< ein kleines Haus"]
    tags = language_tags(Dataset.from_dict({"source": [*texts, *texts, "a >>fr<< house", ""]}))
    assert tags == [">>de<<", ">>en<<"]
    tokenizer = train_tokenizer(texts, vocab_size=300, algorithm=algorithm, tags=tags)
    tag = tokenizer.convert_tokens_to_ids(">>de<<")
    assert tokenizer(">>de<< a small house").input_ids == [tag, *tokenizer("a small house").input_ids]
    assert len(tokenizer) == tokenizer.vocab_size and len(tokenizer) % 8 == 0

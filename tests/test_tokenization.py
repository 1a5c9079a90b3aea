"""The shared vocabulary: lossless, never an unknown, EOS last, reloaded by AutoTokenizer, merges as BPE has them."""

import gzip
import random
from collections import Counter
from itertools import pairwise

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from modeling_vanilla.io import read_lines
from modeling_vanilla.training.tokenizer import MIN_VOCAB_SIZE, SPECIAL_TOKENS, train_tokenizer

ALGORITHMS = ("bpe", "wordpiece")
CORPUS = [
    "Zwei junge Männer in weißen T-Shirts sitzen in der Nähe vieler Büsche.",
    "Two young men in white T-shirts are sitting near many bushes.",
    "Der Hund läuft über die grüne Wiese, und das Mädchen läuft ihm nach.",
    "The dog runs across the green meadow, and the girl runs after it.",
    "the man &apos;s dog isn't here : it costs 3.50 euros .",
] * 3
SENTENCES = [
    "",
    " ",
    "Der Hund läuft über die Straße \u2013 größer als je zuvor!",
    '"Why," he asked, "isn\'t the co-worker\'s U.S. passport (No. 3,141.59) here?!"',
    "„Äpfel“ und »Birnen«: 50 % für 3,99 €…",
    "나는 학교에 갑니다. 안녕하세요?",
    "彼は本を読みます。她喜欢音乐\uff0c也喜欢电影。",
    "हिन्दी में लिखा हुआ एक वाक्य।",
    "e\u0301 is not \u00e9, ﬁ is not fi, \u2160 is not I",
    "👩\u200d🚀 ❤\ufe0f\u200d🔥 👍🏽 🇩🇪 1\ufe0f\u20e3",
    "\ttabs\tand  double   blanks \n lines\r\n",
    "  leading and trailing  ",
    "no-break\u00a0space, thin\u2009space, line\u2028separator, zero\u0000byte",
    "https://example.org/a_b?c=d&e=%20#f, me@example.org, C:\\temp\\x",
    "the man &apos;s dog @-@ like &quot; friend &quot;",
    "a##b ## ### ##ing [UNK] [CLS] Ġthe ▁the Ċ </w>",
    "<s>Hund</s> a<s>b <pad><unk> </s> <unused0><unused1>",
    "Donaudampfschifffahrtsgesellschaftskapitän" * 100,
    " " * 300 + "." * 300 + "\u2019ñ" * 300 + "7" * 300,
]


@pytest.fixture(scope="module", params=[(algorithm, way) for algorithm in ALGORITHMS for way in ("fresh", "reloaded")])
def tokenizer(request, tmp_path_factory):
    algorithm, way = request.param
    tokenizer = train_tokenizer(CORPUS, vocab_size=400, algorithm=algorithm)
    if way == "fresh":
        return tokenizer
    folder = tmp_path_factory.mktemp(algorithm)
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def assert_lossless(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert ids[-1] == tokenizer.eos_token_id
    assert not set(ids[:-1]) & set(tokenizer.all_special_ids)


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda text: ascii(text[:12]))
def test_round_trip(tokenizer, sentence):
    assert_lossless(tokenizer, sentence)


def test_any_unicode_string_round_trips_without_unknowns(tokenizer):
    rng = random.Random(0)
    fragments = [*SPECIAL_TOKENS, "<unused0>", "##", "Ġ", "  ", "\n", "-", "'", "&apos;", "Hund", "7"]

    def draw():
        if rng.random() < 0.5:
            return rng.choice(fragments)
        code = rng.randrange(0x110000 - 0x800)
        return chr(code if code < 0xD800 else code + 0x800)  # any code point but the surrogates

    for _ in range(300):
        assert_lossless(tokenizer, "".join(draw() for _ in range(rng.randrange(30))))


def test_special_tokens_have_the_ids_of_the_model_config(tokenizer):
    assert tokenizer.convert_tokens_to_ids(["<pad>", "<s>", "</s>", "<unk>"]) == [0, 1, 2, 3]
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id) == (0, 1)
    assert (tokenizer.eos_token_id, tokenizer.unk_token_id) == (2, 3)


def test_is_a_stock_tokenizer_with_the_settings_of_a_translation_model(tokenizer):
    assert type(tokenizer) is PreTrainedTokenizerFast
    assert tokenizer.padding_side == "right"
    assert tokenizer.model_input_names == ["input_ids", "attention_mask"]
    assert tokenizer.model_max_length > 10**12
    assert tokenizer.clean_up_tokenization_spaces is False
    assert len(tokenizer) == tokenizer.vocab_size == 400


def test_eos_ends_each_sequence_of_a_pair(tokenizer):
    ids = tokenizer("Hund", "dog")["input_ids"]
    assert ids == tokenizer("Hund")["input_ids"] + tokenizer("dog")["input_ids"]
    assert ids.count(2) == 2


def test_text_target_gives_labels(tokenizer):
    batch = tokenizer(CORPUS[0], text_target=CORPUS[1])
    assert batch["input_ids"] == tokenizer(CORPUS[0])["input_ids"]
    assert batch["labels"] == tokenizer(CORPUS[1])["input_ids"]
    assert batch["labels"][-1] == 2


def test_batch_is_padded_on_the_right(tokenizer):
    short, long = "Hund", "Der Hund läuft"
    batch = tokenizer([short, long], padding=True, return_tensors="pt")
    ids = tokenizer(short)["input_ids"]
    padding = batch["input_ids"].shape[1] - len(ids)
    assert padding > 0
    assert batch["input_ids"].tolist() == [ids + [0] * padding, tokenizer(long)["input_ids"]]
    assert batch["attention_mask"].tolist() == [[1] * len(ids) + [0] * padding, [1] * (len(ids) + padding)]
    assert tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True) == [short, long]


def test_a_word_has_the_same_ids_wherever_it_stands(tokenizer):
    for word in ("Hund", "läuft", "unseen", "T-shirt"):
        ids = tokenizer(word)["input_ids"]
        assert tokenizer(f"the {word}")["input_ids"] == tokenizer("the")["input_ids"][:-1] + ids
        assert tokenizer(f"{word}.")["input_ids"][: len(ids) - 1] == ids[:-1]


def test_words_stay_together_and_full_stops_apart():
    words = ["Hund", "T-shirt", "isn't", "3.50", "&apos;s"]
    tokenizer = train_tokenizer([f"{word}." for word in words] * 20, vocab_size=1000)
    for word in words:
        assert len(tokenizer.tokenize(word)) == 1
        assert tokenizer.tokenize(f"{word}.") == [*tokenizer.tokenize(word), "."]


def test_special_tokens_in_text_are_found_only_when_asked_for(tokenizer):
    text = "Der Hund</s>"
    assert tokenizer(text)["input_ids"].count(2) == 1
    assert tokenizer(text, split_special_tokens=False)["input_ids"].count(2) == 2
    assert tokenizer(text)["input_ids"].count(2) == 1, "one call must not change the next"


def merge(symbols, pair):
    """The symbols with every occurrence of the pair, from the left, made one."""
    merged, i = [], 0
    while i < len(symbols):
        step = 2 if tuple(symbols[i : i + 2]) == pair else 1
        merged.append("".join(symbols[i : i + step]))
        i += step
    return merged


def reference_merges(word_counts):
    """Algorithm 1 of Sennrich et al. (2016), until two pairs are equally frequent."""
    words, merges = {word: list(word) for word in word_counts}, []
    while True:
        pair_counts = Counter()
        for word, symbols in words.items():
            for pair in pairwise(symbols):
                pair_counts[pair] += word_counts[word]
        (pair, count), (_, next_count) = pair_counts.most_common(2)
        if count == next_count:
            return merges
        merges.append(pair)
        words = {word: merge(symbols, pair) for word, symbols in words.items()}


# Counts for which the first merges do not hang on how equally frequent pairs are ordered.
WORD_COUNTS = {
    **{"tone": 41, "stew": 1, "lower": 36, "west": 29, "on": 17, "one": 51, "net": 11},
    **{"new": 42, "stone": 16, "tower": 19, "newest": 25, "low": 3, "newer": 31},
}
MERGES = 12  # MIN_VOCAB_SIZE + 12 is a multiple of 8


@pytest.fixture(scope="module")
def counted_texts():
    words = [word for word, count in WORD_COUNTS.items() for _ in range(count)]
    random.Random(0).shuffle(words)
    return [" ".join(words[i : i + 5]) for i in range(0, len(words), 5)]


@pytest.fixture(scope="module")
def merges():
    merges = reference_merges({f"Ġ{word}": count for word, count in WORD_COUNTS.items()})
    assert len(merges) >= MERGES
    return merges[:MERGES]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_first_tokens_are_the_merges_of_the_bpe_algorithm(counted_texts, merges, algorithm):
    tokenizer = train_tokenizer(counted_texts, vocab_size=MIN_VOCAB_SIZE + MERGES, algorithm=algorithm)
    assert {token for token in tokenizer.get_vocab() if len(token) > 1} == {*SPECIAL_TOKENS, *map("".join, merges)}


def test_bpe_applies_the_merges_in_the_order_learnt(counted_texts, merges):
    tokenizer = train_tokenizer(counted_texts, vocab_size=MIN_VOCAB_SIZE + MERGES)
    for word in [*WORD_COUNTS, "lowest", "townest", "essential"]:
        symbols = list(f"Ġ{word}")
        for pair in merges:
            symbols = merge(symbols, pair)
        assert tokenizer.tokenize(word) == symbols
    assert tokenizer.tokenize("newest") == ["Ġne", "west"]


def test_wordpiece_takes_the_longest_match(counted_texts, merges):
    tokenizer = train_tokenizer(counted_texts, vocab_size=MIN_VOCAB_SIZE + MERGES, algorithm="wordpiece")
    vocabulary = {*"abcdefghijklmnopqrstuvwxyzĠ", *map("".join, merges)}
    for word in [*WORD_COUNTS, "lowest", "townest", "essential"]:
        rest, tokens = f"Ġ{word}", []
        while rest:
            tokens.append(max((token for token in vocabulary if rest.startswith(token)), key=len))
            rest = rest.removeprefix(tokens[-1])
        assert tokenizer.tokenize(word) == tokens
    assert tokenizer.tokenize("newest") == ["Ġnew", "e", "st"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_training_is_deterministic(algorithm):
    first, second = (train_tokenizer(iter(CORPUS), vocab_size=400, algorithm=algorithm) for _ in range(2))
    assert first.get_vocab() == second.get_vocab()
    assert first(SENTENCES)["input_ids"] == second(SENTENCES)["input_ids"]


@pytest.mark.parametrize(("vocab_size", "length"), [(260, 264), (264, 264), (265, 272), (397, 400)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_vocab_size_is_rounded_up_to_a_multiple_of_8(algorithm, vocab_size, length):
    tokenizer = train_tokenizer(CORPUS, vocab_size=vocab_size, algorithm=algorithm)
    assert len(tokenizer) == tokenizer.vocab_size == length
    assert tokenizer.extra_special_tokens == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fillers_complete_a_small_vocabulary_and_are_never_seen(algorithm, tmp_path):
    # Three merges, whatever their order, make " abc" of four bytes: 263 tokens.
    train_tokenizer(["abc"] * 3, algorithm=algorithm).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == tokenizer.vocab_size == 264
    assert tokenizer.extra_special_tokens == ["<unused0>"]
    assert tokenizer.convert_ids_to_tokens(263) == "<unused0>"
    assert tokenizer.decode([*tokenizer("ab")["input_ids"], 263], skip_special_tokens=True) == "ab"
    assert_lossless(tokenizer, "a<unused0>b <unused0>")


def test_rare_pairs_are_not_merged():
    texts = ["frequent"] * 5 + ["rare"] * 4
    tokens = train_tokenizer(texts, min_frequency=5).get_vocab()
    assert "Ġfrequent" in tokens
    assert "Ġrare" not in tokens
    assert "Ġrare" in train_tokenizer(texts, min_frequency=4).get_vocab()


def test_files_plain_and_gz_train_as_their_lines_do(tmp_path):
    plain, zipped = tmp_path / "train.de", tmp_path / "train.en.gz"
    plain.write_bytes("\r\n".join(CORPUS[::2]).encode())
    zipped.write_bytes(gzip.compress("".join(f"{line}\n" for line in CORPUS[1::2]).encode()))
    assert list(read_lines(plain)) == CORPUS[::2]
    assert list(read_lines(zipped)) == CORPUS[1::2]
    expected = train_tokenizer(CORPUS, vocab_size=400).get_vocab()
    assert train_tokenizer(files=[plain, str(zipped)], vocab_size=400).get_vocab() == expected
    one = train_tokenizer(files=plain, vocab_size=400).get_vocab()
    assert one == train_tokenizer(CORPUS[::2], vocab_size=400).get_vocab()


def test_progress_is_shown_only_when_asked_for(capfd):
    train_tokenizer(CORPUS, vocab_size=300)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either texts or files: got neither"),
        ({"texts": CORPUS, "files": "a.en"}, "give either texts or files: got both"),
        ({"texts": CORPUS, "algorithm": "unigram"}, "algorithm='unigram': must be 'bpe' or 'wordpiece'"),
        ({"texts": CORPUS, "vocab_size": 259}, "vocab_size=259: must be at least 260"),
        ({"texts": CORPUS, "min_frequency": 0}, "min_frequency=0: must be at least 1"),
        ({"texts": []}, "texts: no text to train on"),
        ({"texts": iter(["", " \n"])}, "texts: no text to train on"),
        ({"texts": "one sentence"}, "texts='one sentence': must be several strings"),
        ({"texts": ["ok", {"en": "ok"}]}, "texts, item 2: must be a string, not dict"),
        ({"texts": ["ok", "ok", "\ud83d"]}, r"texts, item 3: '\ud83d' is half a surrogate pair"),
        ({"files": []}, "files []: no text to train on"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError) as error:
        train_tokenizer(**arguments)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.en", None, ": no such file"),
        ("blank.en", b"\n \n", "']: no text to train on"),
        ("latin1.de", "gut\nschön\n".encode("latin-1"), ", line 2: not UTF-8"),
        ("latin1.de.gz", gzip.compress("gut\nschön\n".encode("latin-1")), ", line 2: not UTF-8"),
        ("plain.gz", b"no gzip header", ": cannot be read"),
        ("truncated.gz", gzip.compress("".join(CORPUS).encode())[:-20], ": cannot be read"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError) as error:
        train_tokenizer(files=path)
    assert f"{path}{message}" in str(error.value)
    assert "\n" not in str(error.value)

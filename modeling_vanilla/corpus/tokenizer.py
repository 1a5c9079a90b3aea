"""The vocabulary shared by source and target (section 5.1): byte-level BPE or WordPiece, as a stock fast tokenizer."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ..protect import replace_in_pair
from ..spans_vanilla import put_back
from ..splitting_vanilla import TAG

PAD, BOS, EOS, UNK = SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")  # ids 0, 1, 2, 3

# Tensor cores want the vocabulary, a dimension of the output projection, to be a multiple of 8.
VOCAB_MULTIPLE = 8
MIN_VOCAB_SIZE = len(SPECIAL_TOKENS) + 256  # a token for each byte, so that every text can be encoded
MAX_VOCAB_SIZE = 2**20  # tokenizers reserves memory for all of it before it reads the first text
MIN_FREQUENCY = 2  # a pair of tokens that occurs only once is not merged
MAX_PAIRS = 1_000_000  # that a vocabulary is trained on: two million sentences, as many as Marian takes

# Tokens are merged within a piece only. A piece is a word, or a run of other characters, with the blank before it; or
# blanks. One joiner may stand before each letter or digit of a word ("don't", "t-shirt", "3.5", "&apos;s"), so that a
# word of tokenised text is one piece, while the full stop in "shirt." is a piece of its own, not part of a second
# entry "shirt.". "<" and ">" must not be joiners: a piece could then hold "<s>", which WordPiece would match whole.
# MAX_PIECE, in characters, bounds WordPiece's search, which is quadratic in the piece and fails on long ones.
MAX_PIECE = 64
JOINERS = "-'\u2019.,:;&_/@"
PIECE = (
    rf" ?(?:[{JOINERS}]?[\p{{L}}\p{{M}}\p{{N}}]){{1,{MAX_PIECE}}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]{{1,{MAX_PIECE}}}"
    rf"|\s{{1,{MAX_PIECE}}}(?!\S)|\s"
)
MAX_PIECE_BYTES = 1 + MAX_PIECE * 2 * 4  # the blank, then a joiner and a letter MAX_PIECE times, UTF-8

# Stands before a text that begins with a blank while it is split, so that the text gets one more. Unicode keeps this
# character for such internal uses.
MARK = "\ufdd0"


def vocabulary_texts(pairs: Dataset, spans: re.Pattern | None = None) -> Iterator[str]:
    """The sentences of both sides for train_tokenizer: all, or those of MAX_PAIRS pairs spread over a larger corpus.

    From each of MAX_PAIRS stretches of (nearly) equal length one pair is drawn: the same ones whenever it is called.

    Args:
        pairs: string columns "source" and "target". spans: what is left out, where both sides have the same.
    """
    if len(pairs) > MAX_PAIRS:
        edges = np.arange(MAX_PAIRS + 1) * len(pairs) // MAX_PAIRS
        pairs = pairs.select(np.random.default_rng(0).integers(edges[:-1], edges[1:]))
    for rows in pairs.with_format("arrow").iter(1000):
        sides = [rows[side].to_pylist() for side in ("source", "target")]
        if spans is not None:
            replaced = [replace_in_pair(source, target, spans) for source, target in zip(*sides, strict=True)]
            sides = [[put_back(text, {}) for text in pair] for pair in replaced]
        for texts in sides:
            yield from texts


def language_tags(pairs: Dataset) -> list[str]:
    """The tags of target languages, such as ">>de<<", at the heads of the sources of all pairs."""
    column = pairs.with_format("arrow")["source"]
    marked = pc.filter(column, pc.starts_with(column, ">>")).to_pylist()
    return sorted({match[0].rstrip() for source in marked if (match := TAG.match(source))})


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int = 37000, algorithm: str = "bpe", tags: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Train the vocabulary that source and target share, as a tokenizer that AutoTokenizer reloads.

    Section 5.1: English-German uses byte-pair encoding with one vocabulary of about 37000 tokens for both languages,
    English-French 32000 word pieces (`algorithm="wordpiece", vocab_size=32000`).

    - Lossless: `decode(encode(text), skip_special_tokens=True)` is the text in Unicode's form NFC, for every string
      without U+FDD0 (between tokens that were added each part is). So canonically equivalent texts have the same ids:
      "ä" in one code point or two, Hangul in syllables or letters. Nothing else changes: no-break blanks, soft hyphens,
      right-to-left marks stay, as tokens that cut a word. No input is unknown, because the alphabet is the 256 bytes.
    - A blank is put before every text and removed when decoding, so that a word has the same ids at the start of a
      sentence as inside it.
    - Every sequence, source or target, ends in `</s>`; nothing is put before it (the decoder starts from `<s>`).
    - Text cannot inject special tokens: "</s>" in a sentence is four characters like any others
      (`split_special_tokens=True`, which is saved). Your own special tokens are therefore not found in text either,
      unless the call says `tokenizer(text, split_special_tokens=False)`. The setting is in tokenizer_config.json: a
      program that reads tokenizer.json alone must set it itself.
    - `len(tokenizer) == tokenizer.vocab_size`, a multiple of 8. When a small corpus yields fewer tokens than asked
      for, up to seven fillers `<unused0>`, `<unused1>`, ... complete the multiple; they are special tokens that no text
      encodes to and that decoding skips.

    The paper is silent: how text is split into words before the merges; `PIECE` decides it here. WordPiece marks where
    words begin (by the blank), as BPE does, not where they continue ("##"): a "##" in the text would be lost.

    Args:
        texts: source and target sentences together. They are read once, so a generator will do.
        vocab_size: upper limit of the vocabulary, special tokens included, 260 to 2^20; rounded up to a multiple of 8.
        algorithm: "bpe" applies the merges in the order in which they were learned; "wordpiece" learns the same merges,
            and then takes the longest token that matches.
        tags: of languages, such as ">>de<<": each is one token, never split, wherever it stands in a text.

    Raises:
        ValueError: one string instead of several; an unknown algorithm; a vocab_size out of range.
    """
    if isinstance(texts, str):
        raise ValueError(f"texts={texts[:40]!r}: must be several strings, not one")
    check_vocabulary_size(vocab_size, algorithm)
    kwargs: dict = {
        "vocab_size": vocab_size + -vocab_size % VOCAB_MULTIPLE,
        "min_frequency": MIN_FREQUENCY,
        "special_tokens": [*SPECIAL_TOKENS, *tags],
        "initial_alphabet": sorted(pre_tokenizers.ByteLevel.alphabet()),
        "show_progress": False,
    }
    trainer: trainers.Trainer
    if algorithm == "bpe":
        tokenizer, trainer = Tokenizer(models.BPE(unk_token=UNK)), trainers.BpeTrainer(**kwargs)
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token=UNK, max_input_chars_per_word=MAX_PIECE_BYTES))
        trainer = trainers.WordPieceTrainer(continuing_subword_prefix="", **kwargs)
    # The parts between added tokens are normalised and split one by one. Only the first gets the blank: by Metaspace,
    # which knows where a part stands, as no normaliser does, but which passes over a text that begins with a blank.
    mark = normalizers.Replace(Regex(r"(?<![\s\S]) "), f"{MARK} ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), mark])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False),
            pre_tokenizers.Split(Regex(MARK), behavior="removed"),
            pre_tokenizers.Split(Regex(PIECE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])
    tokenizer.train_from_iterator(texts, trainer)
    # Added again as tokens that are not special, or they would be four characters like any others in text.
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in tags])
    # Fillers are put into the model's own vocabulary, as `tokenizer.vocab_size` does not count tokens that are added.
    state, size = json.loads(tokenizer.to_str()), tokenizer.get_vocab_size()
    fillers = {f"<unused{number}>": size + number for number in range(-size % VOCAB_MULTIPLE)}
    state["model"]["vocab"].update(fillers)
    return for_transformers(Tokenizer.from_str(json.dumps(state)), extra_special_tokens=list(fillers))


def for_transformers(tokenizer: Tokenizer, **kwargs) -> PreTrainedTokenizerFast:
    """A tokenizer with SPECIAL_TOKENS as models take it, each sequence ending in EOS.

    kwargs: further ones of PreTrainedTokenizerFast.
    """
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B:1 {EOS}:1", special_tokens=[(EOS, tokenizer.token_to_id(EOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="right",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        **kwargs,
    )


def check_vocabulary_size(vocab_size: int, algorithm: str) -> None:
    """Raise ValueError unless a tokenizer can be trained with these."""
    if not MIN_VOCAB_SIZE <= vocab_size <= MAX_VOCAB_SIZE:
        raise ValueError(f"vocab_size={vocab_size}: must be from {MIN_VOCAB_SIZE} (a token a byte) to {MAX_VOCAB_SIZE}")
    if algorithm not in ("bpe", "wordpiece"):
        raise ValueError(f"algorithm={algorithm!r}: must be 'bpe' or 'wordpiece'")

"""Text cut into the pieces that are translated by themselves: its lines, and of one that is too long its sentences."""

import itertools
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

try:
    from sentencex import segment
except ImportError:  # where a model is loaded by its own code, without what this package requires
    segment = None

logger = logging.get_logger(__name__)

MAX_SOURCE_TOKENS = 512
# A character may take four tokens, one a byte; the blank before it and the end-of-sentence token come on top.
MIN_SOURCE_TOKENS = 8

TAG = re.compile(r">>[^\s<>]+<<\s*")

_WINDOW = 4000  # characters that sentencex is given at once, as it takes quadratic time for repeated quotation marks
_CLOSING = "[\"'\u2019\u201c\u201d\u00ab\u00bb)\\]]*"  # quotation marks and brackets that may follow a clause mark
_CLAUSE_END = re.compile(rf"(?<=[,;:\u2013\u2014\u060c\u061b]){_CLOSING}\s+|[\u3001\uff0c\uff1b\uff1a]+\s*")
# Khmer and Tibetan marks, which sentencex lacks, as the danda, which it has.
_PLAIN = str.maketrans(dict.fromkeys("\u17d4\u17d5\u0f0d\u0f0e", "\u0964"))
_LINE_END = re.compile(r"(\r?\n)")
_BLANK = " "
_INVISIBLE = {"Cc", "Cf", "Zl", "Zp", "Zs"}  # Unicode's categories of controls, formats and separators
_HALF_PAIR = re.compile("[\ud800-\udfff]")


class Piece(NamedTuple):
    """A part of a text that is translated by itself.

    ids: its tokens, EOS included. separator: what joins its translation to that of the next piece: a line end, a blank,
    or at the end of the text nothing. row: the number of its text. begins: whether it is the first of its text that is
    not blank.
    """

    text: str
    ids: array
    separator: str
    row: int = 0
    begins: bool = False


class Limits(NamedTuple):
    """What a source may have, so that it is translated as it is: tokens, EOS included, and sentences (None: any).

    piece_tokens: the most of a piece. by_sentence: a text beyond the limits is translated sentence by sentence, because
    the model has seen no longer one in training; else in as few pieces as its sentences allow. language: the source's.
    """

    tokens: int
    sentences: int | None
    piece_tokens: int
    by_sentence: bool
    language: str = "en"

    def allow(self, text: str, tokens: int) -> bool:
        few = self.sentences is None or count_sentences(text, self.language) <= self.sentences
        return few and tokens <= self.tokens


def source_limits(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_source_tokens: int | None = None
) -> Limits:
    """The limits of a source.

    max_source_tokens is the only one if it is given. If not, they are what the model's training has recorded in its
    configuration, or 512 tokens where there is no record. Learned positions are a limit in any case.

    Raises:
        ValueError: if max_source_tokens is below 8, which may be too few for a character.
    """
    if max_source_tokens is not None and max_source_tokens < MIN_SOURCE_TOKENS:
        raise ValueError(f"max_source_tokens must be at least {MIN_SOURCE_TOKENS}, not {max_source_tokens}")
    config, records = model.config, (None, None)
    if max_source_tokens is None:
        records = getattr(config, "max_source_tokens", None), getattr(config, "max_source_sentences", None)
    longest = max_source_tokens or max(MAX_SOURCE_TOKENS, records[0] or 0)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and getattr(config, "position_embedding_type", None) != "sinusoidal":
        longest = min(longest, positions)
    # "en", "en_XX" and "eng_Latn" are names of languages; our own training and Marian say source_lang, others src_lang.
    named = [getattr(one, name, None) for one in (tokenizer, config) for name in ("src_lang", "source_lang")]
    language = next((re.split("[_-]", name)[0] for name in named if isinstance(name, str)), "en")
    return Limits(min(longest, records[0] or longest), records[1], longest, records != (None, None), language)


def split_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    limits: Limits | None,
    tgt_lang: str | None = None,
    **settings,
) -> list[list[Piece]]:
    """The pieces of each text.

    The tag of a target language, as ">>de<<" at the head of a line, is at the head of each of the line's pieces.

    Args:
        limits: a line beyond them is cut; None: no line is.
        tgt_lang: put its tag before the tokens of each line that has none.
        settings: of the tokenizer.

    Raises:
        ValueError: for a tag that is no token of a tokenizer that has others.
    """
    default = [] if tgt_lang is None else _tag_ids(tokenizer, f">>{tgt_lang}<<", needed=True)
    parts = [_LINE_END.split(text) for text in texts]
    encoded = encode(tokenizer, [line for lines in parts for line in lines[::2]], **settings)
    found: list[list[Piece]] = []
    for row, lines in enumerate(parts):
        found.append([])
        for line, separator in zip(lines[::2], [*lines[1::2], ""], strict=True):
            ids, match = next(encoded)[0], TAG.match(line)
            own = _tag_ids(tokenizer, match[0].rstrip()) if match else []
            tag = own or default
            if limits is None or limits.allow(line, len(ids) + len(tag) - len(own)):
                pieces, tokens = [line], [ids]
            else:
                pieces = _cut(tokenizer, line, limits, limits.piece_tokens - len(tag))
                tokens = [ids for ids, _ in encode(tokenizer, pieces, **settings)]
            for number, (piece, ids) in enumerate(zip(pieces, tokens, strict=True), start=1):
                ids = ids if own and number == 1 else [*tag, *ids]
                end = separator if number == len(pieces) else _BLANK
                begins = not is_blank(piece) and not any(before.begins for before in found[-1][:1])
                # Of all lines at once these are in memory: 4 bytes a token, where a list takes 8 to 40.
                found[-1].append(Piece(piece, array("i", ids), end, row, begins))
    return found


def _tag_ids(tokenizer: PreTrainedTokenizerBase, tag: str, needed: bool = False) -> list[int]:
    """The token of a tag of the OPUS-MT models' form; none if the tokenizer has no tags at all, so that it is text.

    Raises:
        ValueError: if the tokenizer lacks the tag, and has others or the tag is needed.
    """
    number = tokenizer.convert_tokens_to_ids(tag)
    if tokenizer.convert_ids_to_tokens(number) == tag:
        return [number]  # type: ignore[list-item]
    tags = sorted(filter(TAG.fullmatch, tokenizer.get_vocab()))
    if tags or needed:
        raise ValueError(f"{tag} is no token of the tokenizer; its tags are: {' '.join(tags) or 'none'}")
    return []


def check_texts(texts: Iterable[str], name: str = "texts") -> list[str]:
    """The texts as a list.

    Raises:
        ValueError: if they are a single string, or one is no string or has half of a surrogate pair, which JSON may
            hold but no tokenizer can read.
    """
    if isinstance(texts, str):
        raise ValueError(f"{name} must be a list of texts, not one text: {texts!r:.60}")
    texts = list(texts)
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"{name} must be strings, not {type(text).__name__}: {text!r:.60}")
        if _HALF_PAIR.search(text):
            raise ValueError(f"{name}: {text!r:.60} has half of a surrogate pair, which is no character")
    return texts


def is_blank(text: str) -> bool:
    """Whether nothing in a text is visible: white space, controls, zero-width spaces and joiners, soft hyphens."""
    return all(unicodedata.category(character) in _INVISIBLE for character in text)


def join_pieces(pieces: Sequence[Piece], translations: Iterable[str]) -> str:
    """The translation of a text from those of its pieces."""
    lines: list[list[str]] = [[]]
    for piece, translation in zip(pieces, translations, strict=True):
        lines[-1].append(translation)
        if piece.separator != _BLANK:
            lines[-1] = [_BLANK.join(filter(None, lines[-1])) + piece.separator]
            lines.append([])
    return "".join(itertools.chain(*lines))


def split_sentences(text: str, language: str = "en") -> list[str]:
    """A line cut behind each of its sentences, by the rules and abbreviations that sentencex has for a language.

    A full stop before a small letter is an abbreviation's, unless the line itself begins with a small letter, as where
    there are no capitals. Where sentencex is missing, a line is one sentence; a warning says so once.
    """
    if segment is None:
        logger.warning_once("text is split at line ends alone, as sentencex is missing: pip install sentencex")
        return [text]
    plain = re.sub(r"\s", _BLANK, text).translate(_PLAIN)  # sentencex fails at some other white space
    tag = TAG.match(plain)
    has_capitals = not plain[tag.end() if tag else 0 :].lstrip()[:1].islower()
    ends, start = [0], 0
    while start < len(plain):
        window = plain[start : start + _WINDOW]
        parts = segment(language, window)
        if start + len(window) < len(plain):  # its last sentence may go on
            parts = parts[:-1]
        for part in parts:
            start += len(part)
            is_abbreviation = has_capitals and part.rstrip().endswith(".") and plain[start : start + 1].islower()
            if not is_abbreviation:
                ends.append(start)
        if not parts:
            start += len(window)
    return [text[start:end] for start, end in itertools.pairwise([*ends, len(text)]) if end > start]


def count_sentences(text: str, language: str = "en") -> int:
    return sum(not is_blank(sentence) for sentence in split_sentences(text, language))


def _cut(tokenizer: PreTrainedTokenizerBase, line: str, limits: Limits, room: int) -> list[str]:
    """Cut a line into pieces of at most `room` tokens: at the best places that make them so short."""
    chunk = re.compile(f"(?s).{{1,{max(1, room // 8)}}}")
    ways = [partial(_split_behind, mark) for mark in (_CLAUSE_END, re.compile(r"\s+"), chunk)]
    sentences = partial(split_sentences, language=limits.language)
    if limits.by_sentence:
        pieces = [piece for sentence in sentences(line) for piece in _fit(tokenizer, sentence, ways, room)]
    else:
        pieces = _fit(tokenizer, line, [sentences, *ways], room)
    return [piece.strip() for piece in pieces]


def _split_behind(mark: re.Pattern, text: str) -> list[str]:
    ends = [match.end() for match in mark.finditer(text)]
    return [text[start:end] for start, end in itertools.pairwise([0, *ends, len(text)]) if end > start]


def _fit(tokenizer: PreTrainedTokenizerBase, text: str, ways: Sequence[Callable], room: int) -> list[str]:
    """Cut a text in the first of `ways`, and a part of more than `room` tokens in the next; join what fits together."""

    def fits(text: str) -> bool:
        return len(next(encode(tokenizer, [text.strip()]))[0]) <= room

    if not ways or fits(text):
        return [text]
    parts = ways[0](text)
    sizes = [len(ids) for ids, _ in encode(tokenizer, [part.removesuffix(_BLANK) for part in parts])]
    pieces, start = [], 0
    while start < len(parts):
        end, size = start + 1, sizes[start]
        # Every part but one has an EOS too many, and a blank at its end is the start of the next word.
        while end < len(parts) and size + sizes[end] - 1 <= room:
            size += sizes[end] - 1
            end += 1
        while end > start + 1 and not fits("".join(parts[start:end])):  # as around white space other than blanks
            end -= 1 + (end - start - 1) // 4
        whole = "".join(parts[start:end])
        pieces += [whole] if end > start + 1 else _fit(tokenizer, whole, ways[1:], room)
        start = end
    return pieces


def encode(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], name: str = "text", spans: bool = False, **settings
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """The token ids of each text, and the characters that each token stands for, or an empty list.

    Args:
        name: "text" for sources, "text_target" for translations.
        spans: whether to tell the characters, which takes a fast tokenizer.
        settings: of the tokenizer.
    """
    # A thousand at a time: of all that it is given at once the tokenizer holds 9 kB a line.
    for start in range(0, len(texts), 1000):
        batch = {name: list(texts[start : start + 1000]), "verbose": False, **settings}
        encoded = tokenizer(**batch, return_offsets_mapping=spans)
        yield from zip(encoded.input_ids, encoded.offset_mapping if spans else itertools.repeat([]))  # noqa: B905

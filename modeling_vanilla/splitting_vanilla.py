"""Text cut into the pieces that are translated by themselves: its lines, and of what is too long its sentences."""

import itertools
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

MAX_SOURCE_TOKENS = 512
# A character may take four tokens, one a byte; the blank before it and the end-of-sentence token come on top.
MIN_SOURCE_TOKENS = 8

TAG = re.compile(r">>[^\s<>]+<<\s*")

# Where a long text is cut, the best place first; what stands before the cut stays with what is before it.
_CLOSING = "[\"'\u2019\u201c\u201d\u00ab\u00bb)\\]]*"  # quotation marks and brackets that may follow the mark
_CUTS = [
    re.compile(rf"[.!?\u2026]+ ?{_CLOSING}\s+|[\u3002\uff01\uff1f]+[\u300d\u300f\uff09]*\s*"),  # ends of sentences
    re.compile(rf"[,;:\u2013\u2014]+ ?{_CLOSING}\s+|[\u3001\uff0c\uff1b\uff1a]+\s*"),  # clause marks
    re.compile(r"\s+"),
    re.compile(r"(?s)."),
]
_LINE_END = re.compile(r"(\r?\n)")
_BLANK = " "


class Piece(NamedTuple):
    """A part of a text that is translated by itself.

    ids: its tokens, EOS included. spans: the characters of each token, where they were asked for. separator: what joins
    its translation to that of the next piece: a line end, a blank, or at the end of the text nothing.
    """

    text: str
    ids: array
    spans: list[tuple[int, int]]
    separator: str


class Limits(NamedTuple):
    """What a source may have, so that it is translated as it is: tokens, EOS included, and sentences (None: any).

    piece_tokens: the most of a piece. by_sentence: a text beyond the limits is translated sentence by sentence, because
    the model has seen no longer one in training; else in as few pieces as its sentences allow.
    """

    tokens: int
    sentences: int | None
    piece_tokens: int
    by_sentence: bool

    def allow(self, text: str, tokens: int) -> bool:
        return tokens <= self.tokens and (self.sentences is None or count_sentences(text) <= self.sentences)


def source_limits(model: PreTrainedModel, max_source_tokens: int | None = None) -> Limits:
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
    return Limits(min(longest, records[0] or longest), records[1], longest, records != (None, None))


def split_long(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_source_tokens: int | None = None,
) -> list[list[str]]:
    """Cut each text into its lines, and a line that is too long for the model at the ends of its sentences.

    A line of more tokens or sentences than the model has seen in training is cut at the end of each sentence. Where
    max_source_tokens is given, or the model has no record of its training, a line is too long if it has more tokens
    than that, or than 512, and is cut into as few pieces as the ends of its sentences allow. A single sentence that is
    too long is cut at clause marks, if need be at blanks, at last between characters. The pieces of a text, in order,
    are the text without the white space at the cuts.

    Args:
        max_source_tokens: the most tokens of a piece, EOS included.

    Raises:
        ValueError: if texts is a single string, or max_source_tokens is below 8.
    """
    found = split_texts(tokenizer, texts, source_limits(model, max_source_tokens))
    return [[piece.text for piece in pieces] for pieces in found]


def split_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    limits: Limits | None,
    spans: bool = False,
    tgt_lang: str | None = None,
    **settings,
) -> list[list[Piece]]:
    """The pieces of each text.

    The tag of a target language, as ">>de<<" at the head of a line, is at the head of each of the line's pieces.

    Args:
        limits: a line beyond them is cut; None: no line is.
        spans: say where in the text each token stands, which takes a fast tokenizer.
        tgt_lang: put its tag before the tokens of each line that has none.
        settings: of the tokenizer.

    Raises:
        ValueError: for a tag that is no token of a tokenizer that has others, or texts that are no strings.
    """
    if isinstance(texts, str):
        raise ValueError(f"a list of texts is needed, not one text: {texts!r:.60}")
    texts = list(texts)
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"texts must be strings, not {type(text).__name__}: {text!r:.60}")
    parts = [_LINE_END.split(text) for text in texts]
    tags = _Tags(tokenizer, tgt_lang)
    encoded = encode(tokenizer, [line for lines in parts for line in lines[::2]], spans=spans, **settings)
    found: list[list[Piece]] = []
    for lines in parts:
        found.append([])
        for line, separator in zip(lines[::2], [*lines[1::2], ""], strict=True):
            ids, places = next(encoded)
            tag, has_own = tags.of(line)
            if limits is None or limits.allow(line, len(ids) + (0 if has_own else len(tag))):
                pieces, tokens = [line], [(ids, places)]
            else:
                room = limits.piece_tokens - len(tag)
                sentences = _parts(line, _CUTS[0]) if limits.by_sentence else [line]
                pieces = [piece.strip() for piece in _fit(tokenizer, sentences, room, room)]
                tokens = list(encode(tokenizer, pieces, spans=spans, **settings))
            for number, (piece, (ids, places)) in enumerate(zip(pieces, tokens, strict=True), start=1):
                if tag and not (has_own and number == 1):
                    ids, places = [*tag, *ids], places and [(0, 0), *places]
                end = separator if number == len(pieces) else _BLANK
                # Of all lines at once these are in memory: 4 bytes a token, where a list takes 8 to 40 (`make robust`).
                found[-1].append(Piece(piece, array("i", ids), places, end))
    return found


class _Tags:
    """The tags of target languages that a tokenizer has as tokens, ">>de<<", as the OPUS-MT models have them.

    Raises:
        ValueError: if it has none of tgt_lang.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, tgt_lang: str | None):
        self.tokenizer = tokenizer
        self.default = [] if tgt_lang is None else [self._id(f">>{tgt_lang}<<")]

    @cached_property
    def ids(self) -> dict[str, int]:
        return {token: number for token, number in self.tokenizer.get_vocab().items() if TAG.fullmatch(token)}

    def of(self, line: str) -> tuple[list[int], bool]:
        """The tag of a line, as no or one token, and whether it stands in the line. Without tags it is text."""
        own = TAG.match(line)
        return ([self._id(own[0].rstrip())], True) if own and self.ids else (self.default, False)

    def _id(self, tag: str) -> int:
        if tag not in self.ids:
            raise ValueError(
                f"{tag} is no token of the tokenizer; its tags are: {' '.join(sorted(self.ids)) or 'none'}"
            )
        return self.ids[tag]


def is_cut(pieces: Sequence[Piece]) -> bool:
    """Whether a line of a text is cut."""
    return any(piece.separator == _BLANK for piece in pieces)


def join_pieces(pieces: Sequence[Piece], translations: Iterable[str]) -> str:
    """The translation of a text from those of its pieces."""
    text, line = "", []
    for piece, translation in zip(pieces, translations, strict=True):
        line.append(translation)
        if piece.separator != _BLANK:
            text += _BLANK.join(filter(None, line)) + piece.separator
            line = []
    return text


def count_sentences(text: str) -> int:
    """The sentences of a text, as far as their marks tell."""
    return sum(map(bool, map(str.strip, _parts(text, _CUTS[0]))))


def _parts(text: str, cut: re.Pattern) -> list[str]:
    ends = [match.end() for match in cut.finditer(text)]
    return [text[start:end] for start, end in itertools.pairwise([0, *ends, len(text)]) if end > start]


def _fit(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int, target: int) -> list[str]:
    """Cut texts into pieces of at most `limit` tokens, by aiming at `target`.

    The sums of `_cut` may be too small, as around white space other than blanks: such a piece is cut again, with a
    smaller target.
    """
    pieces = []
    for text, size in zip(texts, _count(tokenizer, [text.strip() for text in texts]), strict=True):
        if size <= limit or target < 2:
            pieces.append(text)
        else:
            pieces += _fit(tokenizer, _cut(tokenizer, text, _CUTS, target), limit, target * 3 // 4)
    return pieces


def _cut(tokenizer: PreTrainedTokenizerBase, text: str, cuts: Sequence[re.Pattern], limit: int) -> list[str]:
    """Cut a text at the first of `cuts`, a part that is still too long at the next, and join parts up to `limit`."""
    parts = _parts(text, cuts[0])
    pieces: list[str] = []
    sizes: list[int] = []
    # Tokens add up: every part but one has an EOS too many, and a blank at its end is the start of the next word.
    for part, size in zip(parts, _count(tokenizer, [part.removesuffix(" ") for part in parts]), strict=True):
        if pieces and sizes[-1] + size - 1 <= limit:
            pieces[-1] += part
            sizes[-1] += size - 1
        elif size <= limit or len(cuts) == 1:
            pieces.append(part)
            sizes.append(size)
        else:
            finer = _cut(tokenizer, part, cuts[1:], limit)
            pieces += finer
            sizes += _count(tokenizer, finer)
    return pieces


def _count(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[int]:
    """The tokens of each text, EOS included."""
    return [len(ids) for ids, _ in encode(tokenizer, texts)]


def encode(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], name: str = "text", spans: bool = False, **settings
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """The token ids of each text, and the characters that each token stands for, or an empty list.

    Args:
        name: "text" for sources, "text_target" for translations.
        spans: whether to tell the characters, which takes a fast tokenizer.
        settings: of the tokenizer.
    """
    # A thousand at a time: of all that it is given at once the tokenizer holds 9 kB a line (`make robust`).
    for start in range(0, len(texts), 1000):
        batch = {name: list(texts[start : start + 1000]), "verbose": False, **settings}
        encoded = tokenizer(**batch, return_offsets_mapping=spans)
        yield from zip(encoded.input_ids, encoded.offset_mapping if spans else itertools.repeat([]))  # noqa: B905


__all__ = [
    "Limits",
    "Piece",
    "count_sentences",
    "encode",
    "is_cut",
    "join_pieces",
    "source_limits",
    "split_long",
    "split_texts",
]

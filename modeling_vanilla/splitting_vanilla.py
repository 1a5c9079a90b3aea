"""Texts that are longer than the model's source: split at the ends of sentences, translated in pieces, joined."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

logger = logging.get_logger(__name__)

MAX_SOURCE_TOKENS = 512
# A character may take four tokens, one a byte; the blank before it and the end-of-sentence token come on top.
MIN_SOURCE_TOKENS = 8

# Where a long text is cut, the best place first; what stands before the cut stays with what is before it.
_CLOSING = "[\"'\u2019\u201c\u201d\u00ab\u00bb)\\]]*"  # quotation marks and brackets that may follow the mark
_CUTS = [
    re.compile(rf"[.!?\u2026]+ ?{_CLOSING}\s+|[\u3002\uff01\uff1f]+[\u300d\u300f\uff09]*\s*"),  # ends of sentences
    re.compile(rf"[,;:\u2013\u2014]+ ?{_CLOSING}\s+|[\u3001\uff0c\uff1b\uff1a]+\s*"),  # clause marks
    re.compile(r"\s+"),
    re.compile(r"(?s)."),
]


def split_long(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_source_tokens: int = MAX_SOURCE_TOKENS,
) -> list[list[str]]:
    """Cut each text that is too long for the model into as few pieces as the ends of its sentences allow.

    A single sentence that is too long is cut at clause marks, if need be at blanks, at last between characters. A text
    that is short enough is left as it is. The pieces of a text, in order, are the text without the white space at the
    cuts.

    Args:
        max_source_tokens: the most tokens of a piece, EOS included; see `source_limit`.

    Raises:
        ValueError: if texts is a single string, or max_source_tokens is below 8, which may be too few for a character.
    """
    if isinstance(texts, str):
        raise ValueError(f"a list of texts is needed, not one text: {texts!r:.60}")
    limit = source_limit(model, max_source_tokens)
    return [
        [text] if size <= limit else [piece.strip() for piece in _fit(tokenizer, text, limit, limit)]
        for text, size in zip(texts, _count(tokenizer, texts), strict=True)
    ]


def split_with_warning(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_source_tokens: int = MAX_SOURCE_TOKENS,
) -> list[list[str]]:
    """As `split_long`, with a warning in the log for each text that is cut."""
    pieces = split_long(model, tokenizer, texts, max_source_tokens)
    for text, parts in zip(texts, pieces, strict=True):
        if len(parts) > 1:
            logger.warning(f"a text is too long and translated in {len(parts)} pieces: {text[:60]!r}...")
    return pieces


def join_pieces(translations: Iterable[str]) -> str:
    """The translation of a text from those of its pieces."""
    return " ".join(filter(None, translations))


def source_limit(model: PreTrainedModel, max_source_tokens: int = MAX_SOURCE_TOKENS) -> int:
    """The most tokens of a source: max_source_tokens, or the model's positions where those end earlier.

    Raises:
        ValueError: if max_source_tokens is below 8.
    """
    if max_source_tokens < MIN_SOURCE_TOKENS:
        raise ValueError(f"max_source_tokens must be at least {MIN_SOURCE_TOKENS}, not {max_source_tokens}")
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is None or getattr(model.config, "position_embedding_type", None) == "sinusoidal":
        return max_source_tokens
    return min(max_source_tokens, positions)


def _fit(tokenizer: PreTrainedTokenizerBase, text: str, limit: int, target: int) -> list[str]:
    """Cut a text into pieces of at most `limit` tokens, by aiming at `target`.

    The sums of `_cut` may be too small, as around white space other than blanks: such a piece is cut again, with a
    smaller target.
    """
    pieces = _cut(tokenizer, text, _CUTS, target)
    sizes = _count(tokenizer, [piece.strip() for piece in pieces])
    return [
        shorter
        for piece, size in zip(pieces, sizes, strict=True)
        for shorter in ([piece] if size <= limit or target < 2 else _fit(tokenizer, piece, limit, target * 3 // 4))
    ]


def _cut(tokenizer: PreTrainedTokenizerBase, text: str, cuts: Sequence[re.Pattern], limit: int) -> list[str]:
    """Cut a text at the first of `cuts`, a part that is still too long at the next, and join parts up to `limit`."""
    ends = [match.end() for match in cuts[0].finditer(text)]
    parts = [text[start:end] for start, end in itertools.pairwise([0, *ends, len(text)]) if end > start]
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
    return [len(ids) for ids in token_ids(tokenizer, texts)]


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], name: str = "text") -> Iterator[list[int]]:
    """The token ids of each text, as tokenizer(text=texts) gives them, or tokenizer(text_target=texts).

    A thousand at a time: of all that it is given at once the tokenizer holds 9 kB a line (`make robust`).

    Raises:
        ValueError: for a text that is no string.
    """
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"texts must be strings, not {type(text).__name__}: {text!r:.60}")
    for start in range(0, len(texts), 1000):
        yield from tokenizer(**{name: list(texts[start : start + 1000])}, verbose=False).input_ids


__all__ = ["MAX_SOURCE_TOKENS", "join_pieces", "source_limit", "split_long", "split_with_warning", "token_ids"]

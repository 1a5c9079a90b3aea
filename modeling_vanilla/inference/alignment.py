"""Which source word each word of a translation comes from, read off the cross-attention.

The decoder reads each target. A token is aligned by the attention of the step that reads it, not of the step that
predicts it (the "shifted" attention of Chen et al. 2020, arXiv:2004.14837). The weights are the mean over the heads of
one layer, and over the members of an ensemble.
"""

import bisect
import re
from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase

from ..decoding_vanilla import Translation
from ..spans_vanilla import put_back
from ..splitting_vanilla import TAG, Piece, encode
from .engines import Engine
from .terms import plain

Links = list[tuple[int, int]]  # source word and target word, both from 0
Words = list[int | None]  # of each token the word that it is a piece of, None if of none
Encoded = tuple[list[int], Words]  # a text
_TAG = re.compile(rf"\s*{TAG.pattern}")


def align_translations(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    translations: Sequence[Translation],
    layer: int,
    tokens_per_batch: int | None,
) -> list[Links]:
    """The links of each source and its best translation, which may have been made in pieces."""
    pieces = [piece for translation in translations for piece in translation.pieces]
    before = [len(piece.ids) for piece in pieces]
    for number, ids in enumerate(encode(tokenizer, [piece.text for piece in pieces])):
        before[number] -= len(ids)  # the tag of a language, which is no word
    # The words are those of the texts with their spans.
    restored = [_restored(text, one.pieces) for text, one in zip(sources, translations, strict=True)]
    targets_of = [[*map(put_back, one.best, (each.targets for each in one.pieces))] for one in translations]
    words = encode_words(tokenizer, [piece.text for _, own in restored for piece in own], "text")
    encoded = [
        ([*piece.ids.tolist()[:tags], *ids], [None] * tags + own)
        for piece, tags, (ids, own) in zip(pieces, before, words, strict=True)
    ]
    targets = encode_words(tokenizer, [text for own in targets_of for text in own], "text_target")
    links = iter(align_pairs(engine, encoded, targets, layer, tokens_per_batch))
    return [
        join_links(source, own, texts, [next(links) for _ in own])
        for (source, own), texts in zip(restored, targets_of, strict=True)
    ]


def _restored(source: str, pieces: list[Piece]) -> tuple[str, list[Piece]]:
    """A text and its pieces with spans in the place of their reserved tokens, in the form in which terms are found."""
    if not any(piece.spans for piece in pieces):
        return source, pieces
    return plain(source), [piece._replace(text=plain(put_back(piece.text, piece.spans))) for piece in pieces]


def align_pairs(
    engine: Engine, sources: Sequence[Encoded], targets: Sequence[Encoded], layer: int, tokens_per_batch: int | None
) -> list[Links]:
    """The links of each pair of encoded texts."""
    links: list[Links] = [[] for _ in sources]
    source_ids, target_ids = ([ids for ids, _ in side] for side in (sources, targets))
    for row, weights in engine.cross_attention(source_ids, target_ids, layer, tokens_per_batch):
        source_words, target_words = sources[row][1], targets[row][1][:-1]
        if any(word is not None for word in source_words):  # CTranslate2 does not read a source of EOS alone
            # Step t reads target token t - 1.
            links[row] = align(weights[1 : len(target_words) + 1], source_words, target_words)
    return links


def align(attention: torch.Tensor, source_words: Sequence[int | None], target_words: Sequence[int | None]) -> Links:
    """Link words by the attention between their pieces.

    Two words are linked if a piece of the target word attends more to a piece of the source word than to any other
    source token. A word whose pieces attend most to tokens outside words, such as EOS, has no link.

    Args:
        attention: (T, S), how much target token t attends to source token s.
        source_words, target_words: the word that each token is a piece of, None if of none; S and T long.

    Returns:
        Links (source word, target word), sorted.
    """
    strongest = attention.argmax(dim=-1).tolist()
    pairs = ((source_words[token], word) for token, word in zip(strongest, target_words, strict=True))
    return sorted({pair for pair in pairs if None not in pair})


def join_links(source: str, pieces: Sequence[Piece], targets: Sequence[str], links: Sequence[Links]) -> Links:
    """The links of a text from the links of its pieces, each with its own word numbers from 0.

    targets: the translation of each piece.
    """
    joined, end, target_words = set(), 0, 0
    for piece, target, own in zip(pieces, targets, links, strict=True):
        tag = _TAG.match(source, end)
        if tag and not piece.text.lstrip().startswith(tag[0].strip()):  # it was cut off, and may contain the piece
            end = tag.end()
        start = source.index(piece.text, end)
        end = start + len(piece.text)
        # A word that was cut is one word of the whole.
        halved = start > 0 and not source[start - 1].isspace()
        source_words = len(source[:start].split()) - halved
        joined |= {(left + source_words, right + target_words) for left, right in own}
        target_words += len(target.split())
        for mark in (piece.separator or "").split():  # of a list
            end = source.index(mark, end) + len(mark)
            joined.add((len(source[:end].split()) - 1, target_words))
            target_words += 1
    return sorted(joined)


def pharaoh(links: Links) -> str:
    """Links in the Pharaoh format: "0-0 1-2 2-1", source word before target word, from 0."""
    return " ".join(f"{source}-{target}" for source, target in links)


def encode_words(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], name: str) -> list[Encoded]:
    """Token ids of each text, and the words that they are pieces of. name: as `encode` takes it."""
    spans = encode(tokenizer, texts, name, "offset_mapping", return_offsets_mapping=True)
    words = map(_words, texts, spans)
    return [*zip(encode(tokenizer, texts, name), words, strict=True)]


def _words(text: str, spans: Sequence[tuple[int, int]]) -> Words:
    """The word in which each span of characters begins; after a span's blank the next; None for an empty span."""
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    result = []
    for start, end in spans:
        number = bisect.bisect_right(ends, start)  # of words that end before it
        result.append(number if end > start and number < len(ends) else None)
    return result

"""Which source word each word of a translation comes from, read off the cross attention."""

import bisect
import re
from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..splitting_vanilla import Piece, encode
from ..translation_vanilla import Translation, evaluating
from .loading import is_engine
from .scoring import check_pairs, pair_batches, pair_rows

Links = list[tuple[int, int]]
Words = list[int | None]  # of each token the word that it is a piece of, None if of none


def word_alignments(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[str],
    layer: int = 0,
    tokens_per_batch: int | None = None,
) -> list[Links]:
    """Align the words of each target with those of its source; white space separates words.

    The decoder reads each target. A token is aligned by the attention of the step that reads it, not of the step that
    predicts it (the "shifted" attention of Chen et al. 2020, arXiv:2004.14837). The weights are the mean over the heads
    of one layer, and over the members of an ensemble.

    Args:
        layer: of the decoder, from 0. Which one is best depends on the model, as later layers attend to what predicts
            the next token. It was the third of six in that paper, and the first of four in a model of Multi30k.
        tokens_per_batch: the most tokens of a batch on either side, padding included.

    Returns:
        For each pair its links (source word, target word), both from 0, sorted; see `align`.

    Raises:
        ValueError: if the numbers differ, there is no such layer, or the tokenizer is a slow one, which does not tell
            where in the text a token stands.
    """
    check_pairs(sources, targets)
    check_alignable(model, tokenizer, layer)
    encoded = _encode(tokenizer, sources, "text"), _encode(tokenizer, targets, "text_target")
    return _align_tokens(model, tokenizer, *encoded, layer, tokens_per_batch)


def align_translations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    translations: Sequence[Translation],
    layer: int = 0,
    tokens_per_batch: int | None = None,
) -> list[Links]:
    """As `word_alignments`, of each source and its best translation, which may have been made in pieces."""
    pieces = [piece for translation in translations for piece in translation.pieces]
    words = [words for _, words in _encode(tokenizer, [piece.text for piece in pieces], "text")]
    # The tag of a language that was put before the tokens is no word.
    encoded = [
        (piece.ids.tolist(), [None] * (len(piece.ids) - len(own)) + own)
        for piece, own in zip(pieces, words, strict=True)
    ]
    targets = _encode(tokenizer, [text for translation in translations for text in translation.best], "text_target")
    links = iter(_align_tokens(model, tokenizer, encoded, targets, layer, tokens_per_batch))
    return [
        join_links(source, translation.pieces, translation.best, [next(links) for _ in translation.pieces])
        for source, translation in zip(sources, translations, strict=True)
    ]


def _align_tokens(model, tokenizer, sources, targets, layer: int, tokens_per_batch: int | None):
    """The links of each pair of texts, given as token ids and the words of these."""
    links: list[Links] = [[] for _ in sources]
    source_ids, target_ids = ([ids for ids, _ in side] for side in (sources, targets))
    attend = _attention_of_engine if is_engine(model) else _attention
    for row, weights in attend(model, tokenizer, source_ids, target_ids, layer, tokens_per_batch):
        source_words, target_words = sources[row][1], targets[row][1][:-1]
        # Step t reads target token t - 1.
        links[row] = align(weights[1 : len(target_words) + 1], source_words, target_words)
    return links


def _attention(model, tokenizer, sources, targets, layer, size) -> Iterator[tuple[int, torch.Tensor]]:
    """The number of each pair, and its cross-attention (steps, S); there are steps of padding at the end."""
    for rows, inputs, _ in pair_batches(model, tokenizer, sources, targets, size):
        with evaluating(model):
            outputs = [member(**inputs, use_cache=False, output_attentions=True) for member in _members(model)]
        attention = sum(one.cross_attentions[layer].float().mean(dim=1) for one in outputs)  # (B, T, S)
        for row, weights in zip(rows, attention.cpu(), strict=True):
            yield row, weights[:, : len(sources[row])]


def _attention_of_engine(model, tokenizer, sources, targets, layer, size) -> Iterator[tuple[int, torch.Tensor]]:
    read = [target[:-1] for target in targets]  # without EOS
    for rows in pair_rows(model, sources, targets, size):
        found = model.cross_attention([sources[row] for row in rows], [read[row] for row in rows])
        yield from zip(rows, found, strict=True)


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
        start = source.index(piece.text, end)
        end = start + len(piece.text)
        # A word that was cut is one word of the whole.
        halved = start > 0 and not source[start - 1].isspace()
        source_words = len(source[:start].split()) - halved
        joined |= {(left + source_words, right + target_words) for left, right in own}
        target_words += len(target.split())
    return sorted(joined)


def pharaoh(links: Links) -> str:
    """Links in the Pharaoh format: "0-0 1-2 2-1", source word before target word, from 0."""
    return " ".join(f"{source}-{target}" for source, target in links)


def check_alignable(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, layer: int) -> None:
    """Raise ValueError unless the model has this layer and the tokenizer can say where in the text a token stands."""
    for member in _members(model):
        if not 0 <= layer < member.config.decoder_layers:
            raise ValueError(f"layer must be from 0 to {member.config.decoder_layers - 1}, not {layer}")
        if layer and is_engine(member):
            raise ValueError(f"layer {layer}: the engine ctranslate2 tells of layer 0 alone; the engine torch of all")
    if not tokenizer.is_fast:
        raise ValueError("alignments need a fast tokenizer, one that tells where in the text each token stands")


def _members(model: PreTrainedModel) -> list[PreTrainedModel]:
    return list(getattr(model, "members", [model]))


def _encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], name: str) -> list[tuple[list[int], Words]]:
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

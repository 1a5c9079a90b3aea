"""Which source word each word of a translation comes from, read off the cross attention."""

import bisect
import itertools
import re
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .batching import TOKENS_PER_BATCH, check_pairs, pair_batches, regroup

Links = list[tuple[int, int]]


def word_alignments(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[str],
    layer: int = 0,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    show_progress: bool = False,
) -> list[Links]:
    """Align the words of each target with those of its source, words being what white space separates.

    Each target is decoded by force. A target token is aligned by the attention of the step that reads it as input, not
    of the step before, which produced it without having seen it; the weights are the mean over the heads of one layer,
    for an ensemble over its members, too (the "shifted" attention of Chen et al. 2020, arXiv:2004.14837).

    Args:
        layer: of the decoder, from 0. Which one serves best depends on the model: later layers already look at what
            the next token is made from. It was the third of six in that paper; in a model of four layers trained on
            Multi30k only the first was of use.
        tokens_per_batch: the most tokens of a batch on either side, padding included.

    Returns:
        For each pair its links (source word, target word), both from 0, sorted; see `align`.

    Raises:
        ValueError: if the numbers differ, there is no such layer, or the tokenizer does not tell where in the text a
            token stands (a slow one).
    """
    check_pairs(sources, targets)
    check_alignable(model, tokenizer, layer)
    source_ids, source_words = _encode(tokenizer, text=sources)
    target_ids, target_words = _encode(tokenizer, text_target=targets)
    batches = pair_batches(model, tokenizer, source_ids, target_ids, tokens_per_batch, show_progress)
    links: list[Links] = [[] for _ in sources]
    for rows, inputs, _ in batches:
        attention = sum(_attention(member, inputs, layer) for member in _members(model))
        first = (inputs["attention_mask"].cumsum(dim=-1) == 1).int().argmax(dim=-1).tolist()  # padding may be left
        for row, start, weights in zip(rows, first, attention.cpu(), strict=True):
            # Step t reads target token t - 1; the padding on either side is cut off.
            weights = weights[1 : len(target_ids[row]), start : start + len(source_ids[row])]
            links[row] = align(weights, source_words[row], target_words[row][:-1])
    return links


def align(attention: torch.Tensor, source_words: Sequence[int | None], target_words: Sequence[int | None]) -> Links:
    """Word links from the attention between their pieces.

    Two words are linked if any piece of the target word attends to a piece of the source word more than to any other
    source token. A word whose pieces attend most to what is no word, such as EOS, has no link.

    Args:
        attention: (T, S), how much target token t attends to source token s.
        source_words, target_words: the word that each token is a piece of, None if of none; S and T long.

    Returns:
        Links (source word, target word), sorted.
    """
    if attention.shape != (len(target_words), len(source_words)):
        raise ValueError(
            f"attention of shape {tuple(attention.shape)} does not fit {len(target_words)} target "
            f"and {len(source_words)} source tokens"
        )
    if not len(target_words):
        return []
    strongest = attention.argmax(dim=-1).tolist()
    pairs = ((source_words[token], word) for token, word in zip(strongest, target_words, strict=True))
    return sorted({pair for pair in pairs if None not in pair})


def align_pieces(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    pieces: Sequence[Sequence[str]],
    targets: Sequence[Sequence[str]],
    layer: int = 0,
    tokens_per_batch: int = TOKENS_PER_BATCH,
) -> list[Links]:
    """As `word_alignments`, of texts that were translated in pieces.

    Args:
        pieces: of each source, as `split_long` gives them.
        targets: the translation of each piece; joined by blanks they are the text's.
    """
    flat_pieces, flat_targets = (list(itertools.chain.from_iterable(side)) for side in (pieces, targets))
    links = regroup(word_alignments(model, tokenizer, flat_pieces, flat_targets, layer, tokens_per_batch), pieces)
    return [join_links(*text) for text in zip(sources, pieces, targets, links, strict=True)]


def join_links(source: str, pieces: Sequence[str], targets: Sequence[str], links: Sequence[Links]) -> Links:
    """The links of a text from those of its pieces, in each of which words are counted from 0."""
    joined, end, target_words = set(), 0, 0
    for piece, target, found in zip(pieces, targets, links, strict=True):
        start = source.index(piece, end)
        end = start + len(piece)
        # A cut inside a word leaves its halves one word of the whole.
        halved = start > 0 and not source[start - 1].isspace()
        source_words = len(source[:start].split()) - halved
        joined |= {(left + source_words, right + target_words) for left, right in found}
        target_words += len(target.split())
    return sorted(joined)


def pharaoh(links: Links) -> str:
    """Links in the Pharaoh format: "0-0 1-2 2-1", source word before target word, from 0."""
    return " ".join(f"{source}-{target}" for source, target in links)


def check_alignable(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, layer: int) -> None:
    """Raise ValueError unless `word_alignments` can do with this layer of the model, and with the tokenizer."""
    for member in _members(model):
        if not 0 <= layer < member.config.decoder_layers:
            raise ValueError(f"layer must be from 0 to {member.config.decoder_layers - 1}, not {layer}")
    if not tokenizer.is_fast:
        raise ValueError("alignments need a fast tokenizer, one that tells where in the text each token stands")


def _members(model: PreTrainedModel) -> list[PreTrainedModel]:
    return list(getattr(model, "members", [model]))


def _attention(model: PreTrainedModel, inputs: dict, layer: int) -> torch.Tensor:
    """(B, T, S), the mean over the heads."""
    with torch.inference_mode():
        outputs = model(**inputs, use_cache=False, output_attentions=True)
    return outputs.cross_attentions[layer].float().mean(dim=1)


def _encode(
    tokenizer: PreTrainedTokenizerBase, **side: Sequence[str]
) -> tuple[list[list[int]], list[list[int | None]]]:
    """Token ids of each text, and the number of the word that each token is a piece of, None for EOS.

    side: the texts, as text or as text_target.
    """
    ((name, texts),) = side.items()
    if not texts:
        return [], []
    encoded = tokenizer(**{name: list(texts)}, return_offsets_mapping=True, verbose=False)
    words = [_words(text, spans) for text, spans in zip(texts, encoded.offset_mapping, strict=True)]
    return encoded.input_ids, words


def _words(text: str, spans: Sequence[tuple[int, int]]) -> list[int | None]:
    """The word that each span of characters begins in, or before if it begins with a blank; None for an empty span."""
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    result = []
    for start, end in spans:
        number = bisect.bisect_right(ends, start)  # of words that end before it
        result.append(number if end > start and number < len(ends) else None)
    return result

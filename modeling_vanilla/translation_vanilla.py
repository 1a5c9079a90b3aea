"""Text to translations: split, tokenised, searched in batches of similar length, scored, joined.

`translate_texts` is the one way. The functions of `modeling_vanilla.inference`, `vanilla translate` and the pipeline
call it, and differ in what they take and show.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .constraints_vanilla import ForcedPrefix
from .generation_vanilla import search_settings
from .search_vanilla import length_penalty
from .splitting_vanilla import Limits, Piece, is_cut, join_pieces, source_limits, split_texts
from .terminology_vanilla import Place, Terminology, nowhere, target_ids

logger = logging.get_logger(__name__)

TOKENS_PER_BATCH = 4096  # by default, with padding


class Hypothesis(NamedTuple):
    """A translation and its score, log P / ((5 + |Y|) / 6)^alpha (6.1), natural logarithm, |Y| counting EOS.

    With length_penalty_type="length", as models of transformers have it, the score is log P / |Y|^alpha. P is the
    model's, whatever prefixes and logits processors make of it in the search.

    tokens: EOS included. log_probs: of each token, given those before. ids: as generate() gives them, without padding.
    """

    text: str
    score: float
    tokens: tuple[str, ...] = ()
    log_probs: tuple[float, ...] = ()
    ids: tuple[int, ...] = ()


class Translation(NamedTuple):
    """The hypotheses of a text, best first; its pieces, and the best translation of each."""

    hypotheses: list[Hypothesis]
    pieces: list[Piece]
    best: list[str]


class _Source(NamedTuple):
    """A piece, the number of its text, and the tokens that its translation begins with."""

    piece: Piece
    text: int
    prefix: list[int]


def translate_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    nbest: int = 1,
    with_scores: bool = False,
    with_spans: bool = False,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    max_source_tokens: int | None = None,
    terms: Terminology | None = None,
    prefix: str | Sequence[str] = "",
    tgt_lang: str | None = None,
    tokenizer_settings: dict | None = None,
    decode_settings: dict | None = None,
    place: Place = nowhere,
    track: Callable[[Sequence[list]], Iterable[list]] = iter,
    **generate_kwargs,
) -> list[Translation]:
    """Translate texts by model.generate. What is not below is as the function `translate` has it.

    Warnings in the log tell which texts are cut, and which terms could not be met.

    Args:
        nbest: how many hypotheses of a text; of one in pieces the best ways to put it together, the scores of which add
            up. A blank text has one, its prefix, with score 0.
        with_scores: of a single hypothesis, too. A search that is not this package's takes memory for them.
        with_spans: say which characters each token of a piece stands for (`Piece.spans`).
        tokenizer_settings: of the tokenizer; with truncation set, a text that is too long is truncated, not split, at
            max_length or what the tokenizer and the model take.
        decode_settings: of the tokenizer's decode().
        place: where texts, terms and prefixes stand, for messages.
        track: shows progress: it is given the batches, and gives them back one by one.
    """
    texts = texts if isinstance(texts, str) else list(texts)  # once, as they may be those of a file
    settings = search_settings(model, **generate_kwargs)
    beams = settings.num_beams or 1
    if nbest not in range(1, beams + 1) and not settings.do_sample:
        raise ValueError(f"nbest must be from 1 to the number of beams, {beams}, not {nbest!r}")
    if terms and terms.targets and beams == 1:
        raise ValueError("terms need num_beams of at least 2")
    tokenizer_settings, limits = tokenizer_settings or {}, source_limits(model, max_source_tokens)
    is_truncated = tokenizer_settings.get("truncation") not in (None, False, "do_not_truncate")
    if is_truncated:
        longest = min(tokenizer.model_max_length, limits.piece_tokens)
        tokenizer_settings = {"max_length": longest, **tokenizer_settings}
    split = split_texts(tokenizer, texts, None if is_truncated else limits, with_spans, tgt_lang, **tokenizer_settings)
    _warn_of_cuts(texts, split, limits, place)
    sources = _sources(split, _prefixes(tokenizer, prefix, len(split), place))
    with_scores |= nbest > 1
    generate_kwargs |= {"num_return_sequences": nbest, "return_dict_in_generate": with_scores}
    # The search of 6.1 keeps the scores of its tokens; those of another one are taken from all logits.
    generate_kwargs["output_logits"] = with_scores and (beams == 1 or not _has_own_search(model))
    decode: Callable = partial(tokenizer.decode, skip_special_tokens=True, **(decode_settings or {}))

    found = [[Hypothesis(decode(source.prefix), 0.0, ids=(*source.prefix,))] for source in sources]
    filled = [number for number, source in enumerate(sources) if source.piece.text.strip()]
    lengths = [len(sources[number].piece.ids) * beams for number in filled]
    rows = [[filled[index] for index in indices] for indices in batches_by_length(lengths, tokens_per_batch)]
    for batch in track(rows):
        batch_sources = [sources[row] for row in batch]
        hypotheses = _search(model, tokenizer, terms, place, decode, settings, generate_kwargs, batch_sources)
        for row, best in zip(batch, hypotheses, strict=True):
            found[row] = best
    if terms:
        _warn_of_missing(terms, sources, [best.text for best, *_ in found], place)
    remaining = iter(found)
    return [_join(pieces, [next(remaining) for _ in pieces], nbest) for pieces in split]


def batches_by_length(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Batches of row numbers, sorted by length: the longest rows first.

    In this order a batch that does not fit in memory fails at once, and the time left is estimated too high rather
    than too low. Training has random batches of both sides of a pair instead: `training.batches.epoch_batches`.

    Args:
        lengths: tokens of each row.
        tokens_per_batch: the most tokens of a batch, padding included. A single row is a batch whatever its length.

    Raises:
        ValueError: if tokens_per_batch is below 1.
    """
    if tokens_per_batch < 1:
        raise ValueError(f"tokens_per_batch must be at least 1, not {tokens_per_batch}")
    rows = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    start = 0
    while start < len(rows):
        end = start + max(1, tokens_per_batch // max(1, lengths[rows[start]]))
        yield rows[start:end]
        start = end


def _warn_of_cuts(texts: Sequence[str], split: Sequence[Sequence[Piece]], limits: Limits, place: Place) -> None:
    cut = [row for row, pieces in enumerate(split) if is_cut(pieces)]
    if cut:
        how = (
            "sentence by sentence, as in training"
            if limits.by_sentence
            else f"in pieces of at most {limits.tokens} tokens"
        )
        more = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
        logger.warning(f"{place('text', cut)}too long, translated {how}: {texts[cut[0]][:60]!r}{more}")


def _warn_of_missing(terms: Terminology, sources: Sequence[_Source], best: Sequence[str], place: Place) -> None:
    for (piece, row, _), translation in zip(sources, best, strict=True):
        for term in terms.missing(piece.text, translation):
            message = f"the term {term!r} could not be met in the translation of {piece.text[:60]!r}"
            logger.warning(place("text", [row]) + message)


def _prefixes(tokenizer, prefix: str | Sequence[str], texts: int, place: Place) -> list[list[int]]:
    """The tokens of the prefix of each text; ValueError unless there is one for all or one for each of them."""
    if not isinstance(prefix, (str, list, tuple)):
        raise ValueError(f"prefix must be a string or a list of them, not {prefix!r:.60}")
    if isinstance(prefix, str):
        return target_ids(tokenizer, [prefix], "prefix", place) * texts
    if len(prefix) != texts:
        raise ValueError(f"there are {texts} sentences but {len(prefix)} prefixes")
    return target_ids(tokenizer, prefix, "prefix", place)


def _sources(split: Sequence[Sequence[Piece]], prefixes: Sequence[list[int]]) -> list[_Source]:
    """All pieces. The first of a text that is not blank has its prefix, if there is none the first."""
    found = []
    for row, (pieces, prefix) in enumerate(zip(split, prefixes, strict=True)):
        first = next((number for number, piece in enumerate(pieces) if piece.text.strip()), 0)
        found += [_Source(piece, row, prefix if number == first else []) for number, piece in enumerate(pieces)]
    return found


def _search(
    model,
    tokenizer,
    terms: Terminology | None,
    place: Place,
    decode: Callable,
    settings: GenerationConfig,
    generate_kwargs: dict,
    sources: Sequence[_Source],
) -> list[list[Hypothesis]]:
    """The hypotheses of each source of a batch, best first."""
    inputs = tokenizer.pad({"input_ids": [source.piece.ids.tolist() for source in sources]}, return_tensors="pt")
    phrases = [terms.phrases(source.piece.text) for source in sources] if terms else []
    language = [] if settings.forced_bos_token_id is None else [settings.forced_bos_token_id]  # where there are many
    prefixes = [source.prefix and language + source.prefix for source in sources]
    if any(phrases):
        generate_kwargs = generate_kwargs | {"search": terms.constrained(phrases)}
    if any(prefixes):
        processors = [*(generate_kwargs.get("logits_processor") or ()), ForcedPrefix(prefixes)]
        generate_kwargs = generate_kwargs | {"logits_processor": processors}
    if settings.stop_strings is not None:
        generate_kwargs = generate_kwargs | {"tokenizer": tokenizer}
    inputs = {name: inputs[name].to(model.device) for name in ("input_ids", "attention_mask")}
    with torch.inference_mode():
        output = model.generate(**inputs, **generate_kwargs)
    hypotheses = _hypotheses(model, tokenizer, output, decode, settings, generate_kwargs["return_dict_in_generate"])
    grouped = zip(*[hypotheses] * generate_kwargs["num_return_sequences"], strict=True)
    found = []
    sampled = (settings.num_beams or 1) == 1  # samples come in no order
    for source, prefix, group in zip(sources, prefixes, grouped, strict=True):
        best, *others = sorted(group, key=lambda sample: -sample.score) if sampled else group
        if [*best.ids[1 : len(prefix) + 1]] != prefix:
            message = f"a prefix of {len(source.prefix)} tokens cannot begin its output, by its limit or another rule"
            raise ValueError(place("prefix", [source.text]) + message)
        # There may be fewer continuations than beams.
        found.append([best, *(other for other in others if other.score > -math.inf)])
    return found


def _hypotheses(
    model, tokenizer, output, decode: Callable, settings: GenerationConfig, with_scores: bool
) -> Iterator[Hypothesis]:
    """One for each sequence that generate() has returned."""
    sequences = getattr(output, "sequences", output).tolist()
    log_probs = _log_probs(model, output) if with_scores else [None] * len(sequences)
    ranks = getattr(output, "sequences_scores", None)  # -inf where there is no such hypothesis
    for row, ((start, *ids), values) in enumerate(zip(sequences, log_probs, strict=True)):
        ids = _without_padding(ids, tokenizer)
        if values is None:
            yield Hypothesis(decode(ids), 0.0, ids=(start, *ids))
            continue
        values = values[: len(ids)]
        possible = ranks is None or ranks[row] > -math.inf
        score = sum(values) / _penalty(model, len(ids), settings) if possible else -math.inf
        yield Hypothesis(decode(ids), score, (*tokenizer.convert_ids_to_tokens(ids),), (*values,), (start, *ids))


def _log_probs(model, output) -> list[list[float]]:
    """The model's own log P of each token, given those before."""
    log_probs = getattr(output, "token_log_probs", None)
    if log_probs is None:
        beams = getattr(output, "beam_indices", None)
        log_probs = model.compute_transition_scores(output.sequences, output.logits, beams, normalize_logits=True)
    return log_probs.tolist()


def _join(pieces: list[Piece], found: list[list[Hypothesis]], nbest: int) -> Translation:
    """The best `nbest` ways to put a text together from the hypotheses of its pieces; their scores add up."""
    joined: list[tuple[float, tuple[Hypothesis, ...]]] = [(hypothesis.score, (hypothesis,)) for hypothesis in found[0]]
    for hypotheses in found[1:]:
        pairs = itertools.product(joined, hypotheses)
        longer = ((score + hypothesis.score, (*parts, hypothesis)) for (score, parts), hypothesis in pairs)
        joined = heapq.nlargest(nbest, longer, key=lambda pair: pair[0])
    whole = []
    for score, parts in joined[:nbest]:
        text = join_pieces(pieces, [part.text for part in parts])
        sequences = ([*itertools.chain(*each)] for each in zip(*(part[2:] for part in parts), strict=True))
        whole.append(Hypothesis(text, score, *map(tuple, sequences)))
    return Translation(whole, pieces, [best.text for best, *_ in found])


def _penalty(model: PreTrainedModel, length: int, settings: GenerationConfig) -> float:
    alpha, formula = settings.length_penalty, getattr(settings, "length_penalty_type", None)
    formula = formula or ("gnmt" if _has_own_search(model) else "length")
    return float(length_penalty(length, 1.0 if alpha is None else alpha, formula))


def _has_own_search(model: PreTrainedModel) -> bool:
    return getattr(model, "beams_share_encoding", False)


def _without_padding(sequence: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """One row of generate()'s output up to EOS, or without its padding if it has none."""
    if tokenizer.eos_token_id in sequence:
        return sequence[: sequence.index(tokenizer.eos_token_id) + 1]
    while sequence and sequence[-1] == tokenizer.pad_token_id:
        sequence = sequence[:-1]
    return sequence


__all__ = ["TOKENS_PER_BATCH", "Hypothesis", "Translation", "batches_by_length", "translate_texts"]

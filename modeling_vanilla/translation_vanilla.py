"""Translate texts: split, tokenise, search in batches of similar length, join.

`translate_texts` does it for all: the functions of `modeling_vanilla.inference`, `vanilla translate` and the pipeline.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .configuration_vanilla import named_tokens
from .generation_vanilla import search_settings
from .search_vanilla import length_penalty
from .splitting_vanilla import Limits, Piece, check_texts, is_blank, join_pieces, source_limits, split_texts

logger = logging.get_logger(__name__)

# By default, with padding, times the beams; a GPU is idle with few.
TOKENS_PER_BATCH, GPU_TOKENS_PER_BATCH = 4096, 32768


class Hypothesis(NamedTuple):
    """A translation of a text. Hypotheses are in the order of `finished`, then of `rank`.

    score: log P / ((5 + |Y|) / 6)^alpha (6.1), or log P / |Y|^alpha with length_penalty_type="length", which models of
    transformers have; natural logarithm, |Y| with EOS. P is the model's own, and rank is the score by what prefixes and
    logits processors make of it. tokens: as text, with EOS. log_probs: of each token, given those before. ids: as
    generate() returns them, without padding. finished: whether the limit of the length did not cut it.
    """

    text: str
    score: float = 0.0
    tokens: tuple[str, ...] = ()
    log_probs: tuple[float, ...] = ()
    ids: tuple[int, ...] = ()
    finished: bool = True
    rank: float = 0.0


class Translation(NamedTuple):
    """The hypotheses of a text, best first; its pieces, and the best translation of each."""

    hypotheses: list[Hypothesis]
    pieces: list[Piece]
    best: list[str]


class TranslationSettings:
    """How texts are translated: what the caller gives, and for the rest what the model has.

    `inference.translate` documents the arguments that are not named here.

    Args:
        nbest: hypotheses of each text. with_scores: whether to score a single one, too; a search of transformers takes
            memory for it. arguments: of generate().
        encoding: arguments of the tokenizer. With `truncation`, a longer text is truncated, not cut into pieces, to
            `max_length` or to what tokenizer and model take; `limits` is None then.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        nbest: int = 1,
        with_scores: bool = False,
        tokens_per_batch: int | None = None,
        max_source_tokens: int | None = None,
        tgt_lang: str | None = None,
        encoding: dict | None = None,
        **arguments,
    ):
        self.nbest, self.tgt_lang = nbest, tgt_lang
        self.tokens_per_batch = default_tokens(model.device) if tokens_per_batch is None else tokens_per_batch
        self.encoding = encoding or {}
        self.generation = search_settings(model, **arguments)
        self.beams = self.generation.num_beams or 1
        if nbest not in range(1, self.beams + 1) and not self.generation.do_sample:
            raise ValueError(f"nbest must be from 1 to the number of beams, {self.beams}, not {nbest!r}")
        own_search = hasattr(model, "has_own_beam_search") and not self.generation.do_sample
        formula = getattr(self.generation, "length_penalty_type", None)
        self.generation.length_penalty_type = formula or ("gnmt" if own_search else "length")
        self.limits: Limits | None = source_limits(model, tokenizer, max_source_tokens)
        if self.encoding.get("truncation") not in (None, False, "do_not_truncate"):
            longest = min(tokenizer.model_max_length, self.limits.piece_tokens)
            self.encoding, self.limits = {"max_length": longest, **self.encoding}, None
        self.with_scores = with_scores or nbest > 1
        self.arguments = arguments | {"num_return_sequences": nbest, "return_dict_in_generate": self.with_scores}
        # The search of 6.1 keeps the scores of its tokens; the logits tell those of another one.
        self.arguments["output_logits"] = self.with_scores and (self.beams == 1 or not own_search)
        if self.generation.stop_strings is not None:
            self.arguments["tokenizer"] = tokenizer


def default_tokens(device: torch.device) -> int:
    """The tokens of a batch where the caller does not say how many."""
    return TOKENS_PER_BATCH if device.type == "cpu" else GPU_TOKENS_PER_BATCH


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Without gradients and dropout; each module is in the mode it was in afterwards."""
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in in_training:
            module.training = True


def search_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: TranslationSettings,
    batches: Iterable[list[Piece]],
    further: Callable[[list[Piece]], dict] = lambda pieces: {},
) -> Iterator[list[list[Hypothesis]]]:
    """Of each batch the hypotheses of each piece, best first.

    Args:
        further: gives arguments of generate() for a batch.
    """
    for pieces in batches:
        yield search_batch(model, tokenizer, [piece.ids.tolist() for piece in pieces], settings, further(pieces))


def search_batch(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: list[list[int]],
    settings: TranslationSettings,
    further: dict,
) -> list[list[Hypothesis]]:
    """The hypotheses of each source of a batch, best first: `settings.nbest`, or all if there are fewer.

    Args:
        sources: their token ids. further: arguments of generate() for this batch.
    """
    inputs = tokenizer.pad({"input_ids": sources}, return_tensors="pt").to(model.device)
    processors = [*(settings.arguments.get("logits_processor") or ()), *further.get("logits_processor", ())]
    arguments = {**settings.arguments, **further, "logits_processor": processors}
    with evaluating(model):
        output = model.generate(**inputs, **arguments)
    grouped = zip(*[_hypotheses(model, tokenizer, output, settings)] * settings.nbest, strict=True)
    if settings.beams > 1:
        # There may be fewer continuations than beams.
        return [[best, *(other for other in others if other.score > -math.inf)] for best, *others in grouped]
    # Samples come in no order.
    return [sorted(group, key=lambda sample: (sample.finished, sample.rank), reverse=True) for group in grouped]


def _hypotheses(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, output, settings: TranslationSettings
) -> Iterator[Hypothesis]:
    """One for each sequence that generate() returned; without scores if `settings` asks for none."""
    sequences = getattr(output, "sequences", output).tolist()
    log_probs = getattr(output, "token_log_probs", None)  # the model's own, of each token, given those before
    if settings.with_scores and log_probs is None:
        beams = getattr(output, "beam_indices", None)
        log_probs = model.compute_transition_scores(output.sequences, output.logits, beams, normalize_logits=True)
    alpha, formula = settings.generation.length_penalty, settings.generation.length_penalty_type
    alpha = 1.0 if alpha is None else alpha
    ranks = getattr(output, "sequences_scores", None)  # -inf where there is no such hypothesis
    eos = named_tokens(settings.generation.eos_token_id) or [tokenizer.eos_token_id]
    for row, (start, *ids) in enumerate(sequences):
        end = min((ids.index(token) + 1 for token in eos if token in ids), default=None)
        ids = ids[:end]
        while not end and ids and ids[-1] == tokenizer.pad_token_id:
            ids.pop()
        text = str(tokenizer.decode(ids, skip_special_tokens=True))
        values = () if log_probs is None else tuple(log_probs[row, : len(ids)].tolist())
        score = sum(values) / float(length_penalty(len(ids) or 1, alpha, formula))
        rank = score if ranks is None else ranks[row].item()
        score = score if rank > -math.inf else rank
        # The search of transformers counts a hypothesis at the limit as finished.
        yield Hypothesis(text, score, (), values, (start, *ids), bool(end) or formula == "length", rank)


def translate_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    settings: TranslationSettings,
    *,
    search: Callable[[Iterable[list[Piece]]], Iterable[list[list[Hypothesis]]]] | None = None,
    track: Callable[[Sequence[list]], Iterable[list]] = iter,
    place: Callable[[Sequence[int]], str] = lambda rows: "",
) -> list[Translation]:
    """Translate texts. The log warns of those that are cut.

    Args:
        search: gives the hypotheses of each piece of each batch; by default `search_batches` does.
        track: shows progress: it takes the batches and yields them.
        place: begins a message about texts, given their numbers: where they stand.

    Raises:
        ValueError: as `check_texts`, `split_texts` and model.generate do.
    """
    texts = check_texts(texts)
    split = split_texts(tokenizer, texts, settings.limits, settings.tgt_lang, **settings.encoding)
    cut = [row for row, pieces in enumerate(split) if any(piece.separator == " " for piece in pieces)]
    if cut and settings.limits is not None:
        how = f"in pieces of at most {settings.limits.tokens} tokens"
        how = "sentence by sentence, as in training" if settings.limits.by_sentence else how
        more = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
        logger.warning(f"{place(cut)}too long, translated {how}: {texts[cut[0]][:60]!r}{more}")
    pieces = [*itertools.chain(*split)]
    found = [[Hypothesis("")]] * len(pieces)
    filled = [number for number, piece in enumerate(pieces) if not is_blank(piece.text)]
    lengths = [len(pieces[number].ids) * settings.beams for number in filled]
    batches = batches_by_length(lengths, settings.tokens_per_batch)
    rows = [[filled[index] for index in indices] for indices in batches]
    together = ([pieces[number] for number in batch] for batch in rows)
    search = search or partial(search_batches, model, tokenizer, settings)
    for batch, hypotheses in zip(track(rows), search(together), strict=True):
        for number, best in zip(batch, hypotheses, strict=True):
            found[number] = best
    remaining = iter(found)
    return [_join(pieces, [next(remaining) for _ in pieces], settings.nbest) for pieces in split]


def batches_by_length(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Batches of row numbers, the longest rows first: if a batch does not fit in memory, the first one fails.

    Training has random batches instead: `training.batches.epoch_batches`.

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


def _join(pieces: list[Piece], found: list[list[Hypothesis]], nbest: int) -> Translation:
    """The best `nbest` combinations of the hypotheses of a text's pieces; scores and ranks add up.

    Combinations with more finished hypotheses come first, then those of higher rank.
    """
    joined: list[tuple] = [(0, 0.0, None)]  # finished hypotheses, rank, and the chain (hypotheses before, last one)
    for hypotheses in found:
        longer = (
            (finished + last.finished, rank + last.rank, (chain, last))
            for (finished, rank, chain), last in itertools.product(joined, hypotheses)
        )
        joined = heapq.nlargest(nbest, longer, key=lambda way: way[:2])
    whole = []
    for finished, rank, chain in joined:
        parts: list[Hypothesis] = []
        while chain:
            chain, part = chain
            parts.append(part)
        parts.reverse()
        text = join_pieces(pieces, [part.text for part in parts])
        tokens, log_probs, ids = (
            tuple(itertools.chain(*each)) for each in zip(*(part[2:5] for part in parts), strict=True)
        )
        score = sum(part.score for part in parts)
        whole.append(Hypothesis(text, score, tokens, log_probs, ids, finished == len(parts), rank))
    return Translation(whole, pieces, [best.text for best, *_ in found])

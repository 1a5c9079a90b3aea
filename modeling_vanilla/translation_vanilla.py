"""Text to translations: split, tokenised, searched in batches of similar length, scored, joined.

`translate_texts` is the one way. The functions of `modeling_vanilla.inference`, `vanilla translate` and the pipeline
call it with their `TranslationSettings`, and differ in what they take and show.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .generation_vanilla import search_settings
from .search_vanilla import length_penalty
from .splitting_vanilla import Limits, Piece, check_texts, is_blank, join_pieces, source_limits, split_texts

logger = logging.get_logger(__name__)

TOKENS_PER_BATCH = 4096  # by default, with padding

# How a message begins about texts, terms or prefixes, given which of the three and their numbers: where they stand.
Place = Callable[[str, Sequence[int]], str]


def nowhere(what: str, rows: Sequence[int]) -> str:
    return ""


class Hypothesis(NamedTuple):
    """A translation and its score, log P / ((5 + |Y|) / 6)^alpha (6.1), natural logarithm, |Y| counting EOS.

    With length_penalty_type="length", as models of transformers have it, the score is log P / |Y|^alpha. P is the
    model's, whatever prefixes and logits processors make of it in the search. Finished hypotheses come before those
    that the limit of their length cut, and each of the two by `rank`.

    tokens: as text, EOS included. log_probs: of each token, given those before. ids: as generate() gives them, without
    padding. finished: whether it was not cut by its limit. rank: the score by what logits processors leave of P.
    """

    text: str
    score: float
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


@dataclass(frozen=True)
class TranslationSettings:
    """How texts are translated, as `resolve` makes it of what a caller says and of what the model has for the rest.

    generation: of the search. arguments: those of generate(). limits: of a source; None: one that is too long is
    truncated, not split. encoding, decoding: further arguments of the tokenizer and of its decode().
    """

    generation: GenerationConfig
    arguments: dict
    limits: Limits | None
    nbest: int
    with_scores: bool
    tokens_per_batch: int
    tgt_lang: str | None
    encoding: dict
    decoding: dict

    @property
    def beams(self) -> int:
        return self.generation.num_beams or 1

    @classmethod
    def resolve(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        nbest: int = 1,
        with_scores: bool = False,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        max_source_tokens: int | None = None,
        tgt_lang: str | None = None,
        encoding: dict | None = None,
        decoding: dict | None = None,
        **arguments,
    ) -> "TranslationSettings":
        """The settings of a call. What is not below is as the function `translate` has it.

        Args:
            nbest: how many hypotheses of a text; of one in pieces the best ways to put it together, the scores of which
                add up. A blank text has one, the empty one, of score 0.
            with_scores: of a single hypothesis, too. A search that is not this package's takes memory for them.
            encoding: with truncation set, a text that is too long is truncated at max_length or what the tokenizer and
                the model take.
            arguments: of generate().
        """
        generation = search_settings(model, **arguments)
        beams = generation.num_beams or 1
        if nbest not in range(1, beams + 1) and not generation.do_sample:
            raise ValueError(f"nbest must be from 1 to the number of beams, {beams}, not {nbest!r}")
        encoding = encoding or {}
        limits: Limits | None = source_limits(model, tokenizer, max_source_tokens)
        if encoding.get("truncation") not in (None, False, "do_not_truncate"):
            encoding = {"max_length": min(tokenizer.model_max_length, limits.piece_tokens), **encoding}
            limits = None
        with_scores |= nbest > 1
        if generation.stop_strings is not None:
            arguments["tokenizer"] = tokenizer
        arguments |= {"num_return_sequences": nbest, "return_dict_in_generate": with_scores}
        # The search of 6.1 keeps the scores of its tokens; those of another one are taken from all logits.
        arguments["output_logits"] = with_scores and (beams == 1 or not _has_own_search(model))
        every = (nbest, with_scores, tokens_per_batch, tgt_lang, encoding, decoding or {})
        return cls(generation, arguments, limits, *every)


def search_batch(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: list[list[int]],
    settings: TranslationSettings,
    further: dict,
) -> list[list[Hypothesis]]:
    """The hypotheses of each source of a batch, best first: `settings.nbest` of them, or fewer where there are no more.

    Another engine has such a function of its own, for `translate_texts`.

    Args:
        sources: their token ids. further: arguments of generate() for this batch.
    """
    inputs = tokenizer.pad({"input_ids": sources}, return_tensors="pt")
    processors = [*(settings.arguments.get("logits_processor") or ()), *further.get("logits_processor", ())]
    arguments = {**settings.arguments, **further, "logits_processor": processors}
    with torch.inference_mode():
        output = model.generate(
            input_ids=inputs["input_ids"].to(model.device),
            attention_mask=inputs["attention_mask"].to(model.device),
            **arguments,
        )
    grouped = zip(*[_hypotheses(model, tokenizer, output, settings)] * settings.nbest, strict=True)
    if settings.beams > 1:
        # There may be fewer continuations than beams.
        return [[best, *(other for other in others if other.score > -math.inf)] for best, *others in grouped]
    # Samples come in no order.
    return [sorted(group, key=lambda sample: (sample.finished, sample.rank), reverse=True) for group in grouped]


def translate_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    settings: TranslationSettings,
    *,
    further: Callable[[list[Piece]], dict] = lambda pieces: {},
    search: Callable[..., list[list[Hypothesis]]] = search_batch,
    track: Callable[[Sequence[list]], Iterable[list]] = iter,
    place: Place = nowhere,
) -> list[Translation]:
    """Translate texts. A warning in the log tells which are cut.

    Args:
        further: the further arguments of generate() for a batch of pieces.
        search: as `search_batch`.
        track: shows progress: it is given the batches, and gives them back one by one.
        place: where texts stand, for messages.

    Raises:
        ValueError: as `check_texts`, `split_texts` and model.generate do.
    """
    texts = check_texts(texts)
    split = split_texts(tokenizer, texts, settings.limits, settings.tgt_lang, **settings.encoding)
    if settings.limits is not None:
        _warn_of_cuts(texts, split, settings.limits, place)
    pieces = [*itertools.chain(*split)]
    found = [[Hypothesis("", 0.0)]] * len(pieces)
    filled = [number for number, piece in enumerate(pieces) if not is_blank(piece.text)]
    lengths = [len(pieces[number].ids) * settings.beams for number in filled]
    batches = batches_by_length(lengths, settings.tokens_per_batch)
    for batch in track([[filled[index] for index in indices] for indices in batches]):
        together = [pieces[number] for number in batch]
        sources = [piece.ids.tolist() for piece in together]
        hypotheses = search(model, tokenizer, sources, settings, further(together))
        for number, best in zip(batch, hypotheses, strict=True):
            found[number] = best
    remaining = iter(found)
    return [_join(pieces, [next(remaining) for _ in pieces], settings.nbest) for pieces in split]


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
    cut = [row for row, pieces in enumerate(split) if any(piece.separator == " " for piece in pieces)]
    if cut:
        pieces = f"in pieces of at most {limits.tokens} tokens"
        how = "sentence by sentence, as in training" if limits.by_sentence else pieces
        more = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
        logger.warning(f"{place('text', cut)}too long, translated {how}: {texts[cut[0]][:60]!r}{more}")


def _hypotheses(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, output, settings: TranslationSettings
) -> Iterator[Hypothesis]:
    """One for each sequence that generate() has returned."""
    sequences = getattr(output, "sequences", output).tolist()
    log_probs = getattr(output, "token_log_probs", None)  # the model's own, of each token, given those before
    if settings.with_scores and log_probs is None:
        beams = getattr(output, "beam_indices", None)
        log_probs = model.compute_transition_scores(output.sequences, output.logits, beams, normalize_logits=True)
    alpha = 1.0 if settings.generation.length_penalty is None else settings.generation.length_penalty
    formula = getattr(settings.generation, "length_penalty_type", None)
    formula = formula or ("gnmt" if _has_own_search(model) else "length")
    ranks = getattr(output, "sequences_scores", None)  # -inf where there is no such hypothesis
    for row, (start, *ids) in enumerate(sequences):
        ids = _without_padding(ids, tokenizer)
        text = str(tokenizer.decode(ids, skip_special_tokens=True, **settings.decoding))
        # The search of transformers counts a hypothesis at the limit as finished.
        finished = formula == "length" or ids[-1:] == [tokenizer.eos_token_id]
        if log_probs is None:
            yield Hypothesis(text, 0.0, ids=(start, *ids), finished=finished)
            continue
        values = log_probs[row, : len(ids)].tolist()
        score = sum(values) / float(length_penalty(len(ids), alpha, formula))
        rank = score if ranks is None else ranks[row].item()
        score = score if rank > -math.inf else rank
        tokens = tuple(token_texts(tokenizer, ids))
        yield Hypothesis(text, score, tokens, tuple(values), (start, *ids), finished, rank)


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    """What each token adds to the text: together they are the text with its special tokens.

    Of a character in several tokens, one a byte, the last has it, and the others have nothing.
    """
    texts, start, whole = [], 0, 0  # the tokens from `start` on are decoded, those before `whole` have their text
    for end in range(1, len(ids) + 1):
        parts = ids[start:whole], ids[start:end]
        before, after = (str(tokenizer.decode(part, clean_up_tokenization_spaces=False)) for part in parts)
        if after.endswith("\ufffd") and end < len(ids):
            texts.append("")
            continue
        texts.append(after[len(before) :])
        start, whole = whole, end
    return texts


def _join(pieces: list[Piece], found: list[list[Hypothesis]], nbest: int) -> Translation:
    """The best `nbest` ways to put a text together from the hypotheses of its pieces; their scores add up.

    The fewer of them the limit cut, the better; then by rank.
    """
    joined: list[tuple] = [(0, 0.0, None)]  # finished pieces, rank, and the hypotheses: (those before, the last one)
    for hypotheses in found:
        longer = (
            (way[0] + part.finished, way[1] + part.rank, (way[2], part))
            for way, part in itertools.product(joined, hypotheses)
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


def _has_own_search(model: PreTrainedModel) -> bool:
    return getattr(model, "beams_share_encoding", False)


def _without_padding(sequence: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """One row of generate()'s output up to EOS, or without its padding if it has none."""
    if tokenizer.eos_token_id in sequence:
        return sequence[: sequence.index(tokenizer.eos_token_id) + 1]
    while sequence and sequence[-1] == tokenizer.pad_token_id:
        sequence = sequence[:-1]
    return sequence

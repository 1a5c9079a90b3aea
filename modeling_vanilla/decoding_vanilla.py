"""The three steps of Translator and the pipeline: `cut_texts`, a search over `make_batches`, `join_hypotheses`."""

import heapq
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .configuration_vanilla import token_ids
from .generation_vanilla import generation_config_of
from .search_vanilla import length_penalty
from .spans_vanilla import DEFAULT, SPANS, differing, has_reserved, put_back, replace_spans, span_pattern
from .splitting_vanilla import Limits, Piece, check_texts, has_letters, join_pieces, source_limits, split_texts, tags_of

logger = logging.get_logger(__name__)

# Defaults of tokens_per_batch; a GPU is idle with few tokens.
TOKENS_PER_BATCH, GPU_TOKENS_PER_BATCH = 4096, 32768
WIDER = 4  # times the beams for what no hypothesis of a search has all spans of
# Where there are fewer hypotheses than beams, the search of 6.1 ranks what is none at -inf, that of transformers at
# -1e9, which it may divide by the length.
_NO_HYPOTHESIS = -1e6


class Hypothesis(NamedTuple):
    """A translation of a text. Hypotheses are sorted by `finished`, `missed` and `rank`.

    score: log P / ((5 + |Y|) / 6)^alpha (6.1), or log P / |Y|^alpha with length_penalty_type="length", as models of
    transformers have it. P is the model's probability, log the natural logarithm, and |Y| counts EOS.
    """

    text: str
    score: float = 0.0
    tokens: tuple[str, ...] = ()  # as text, with EOS
    log_probs: tuple[float, ...] = ()  # of each token, given those before
    ids: tuple[int, ...] = ()  # as generate() returns them, without padding
    finished: bool = True  # whether it ended before the limit of the length
    rank: float = 0.0  # the score with the probabilities that prefixes and logits processors leave
    missed: int = 0  # how many spans and numbers differ from the source's, where spans are protected


class Translation(NamedTuple):
    """The hypotheses of a text, best first; its pieces, and the best translation of each, with reserved tokens."""

    hypotheses: list[Hypothesis]
    pieces: list[Piece]
    best: list[str]
    compared: re.Pattern = DEFAULT  # the spans in which text and translation are compared

    @property
    def differing(self) -> list[str]:
        """The spans and numbers in which the best translation differs from the text."""
        pairs = zip(self.pieces, self.best, strict=True)
        found = ((piece, each) for piece, best in pairs for each in differing(piece.text, best, self.compared))
        return [*filter(None, (put_back(each, piece.spans) for piece, each in found))]  # one for nothing is left out


Keys = list[tuple[int, int]]  # the number of the text, and of the piece in it, for each piece of a batch
Batch = tuple[Keys, list[Piece]]
Found = tuple[Keys, list[list[Hypothesis]]]  # the hypotheses, best first, of each piece of a batch


class DecodingOptions:
    """How to search for translations: the caller's options, and the model's for the rest.

    Args:
        model: a model or an engine; its `config`, `generation_config` and `device` are read.
        nbest: the number of hypotheses of each text. with_scores: whether to score a single one, too.
        tokens_per_batch, max_source_tokens, tgt_lang, source_prefix, protect: see `Translator.translations`.
        arguments: of generate().
        encoding: arguments of the tokenizer. With `truncation`, a longer text is truncated to `max_length`, or to the
            limit of tokenizer and model, and not cut into pieces; then `limits` is None.
    """

    def __init__(
        self,
        model,
        tokenizer: PreTrainedTokenizerBase,
        *,
        nbest: int = 1,
        with_scores: bool = False,
        tokens_per_batch: int | None = None,
        max_source_tokens: int | None = None,
        tgt_lang: str | None = None,
        source_prefix: str = "",
        protect: Mapping[str, str] | None = None,
        encoding: dict | None = None,
        **arguments,
    ):
        self.nbest, self.tgt_lang, self.source_prefix = nbest, tgt_lang, source_prefix
        self.tokens_per_batch = default_tokens(model.device) if tokens_per_batch is None else tokens_per_batch
        self.encoding = encoding or {}
        self.generation_config = generation_config_of(model, **arguments)
        self.beams = self.generation_config.num_beams or 1
        if nbest < 1 or (nbest > self.beams and not self.generation_config.do_sample):
            raise ValueError(f"nbest must be from 1 to the number of beams, {self.beams}, not {nbest!r}")
        table = getattr(model.config, "protected_spans", None) if protect is None else protect
        self.spans, self.compared = span_pattern(table), span_pattern({**SPANS, **(table or {})})
        # Terms for which reserved tokens stand, too, with their targets, and what gives a text the form of the terms.
        self.terms: Mapping[str, str] = {}
        self.prepare: Callable[[str], str] = str
        self.has_reserved = has_reserved(tokenizer)
        # Whether it is the search of 6.1.
        self.is_own = model.config.model_type == "vanilla" and not self.generation_config.do_sample
        formula = getattr(self.generation_config, "length_penalty_type", None)
        self.generation_config.length_penalty_type = formula or "length"
        self.limits: Limits | None = source_limits(model.config, tokenizer, max_source_tokens)
        if self.encoding.get("truncation") not in (None, False, "do_not_truncate"):
            longest = min(tokenizer.model_max_length, self.limits.piece_tokens) - bool(tags_of(tokenizer))
            self.encoding, self.limits = {"max_length": longest, **self.encoding}, None
        self.with_scores = with_scores or nbest > 1
        self.arguments = arguments | {"num_return_sequences": nbest, "return_dict_in_generate": self.with_scores}
        # The search of 6.1 returns log P of its tokens; that of transformers returns logits, which take memory.
        self.arguments["output_logits"] = self.with_scores and (self.beams == 1 or not self.is_own)
        # transformers ranks by these; its logits are taken before the processors.
        self.arguments["output_scores"] = self.with_scores and self.beams > 1 and not self.is_own
        if self.generation_config.stop_strings is not None:
            self.arguments["tokenizer"] = tokenizer

    @property
    def can_choose(self) -> bool:
        """Whether a search may find more hypotheses than are wanted, of which one has all spans."""
        return self.spans is not None and self.nbest < self.beams and not self.generation_config.do_sample

    def replace(self, line: str) -> tuple[str, dict | None, dict | None]:
        """A line with reserved tokens, their spans and what stands for them in the translation."""
        if self.spans is None:
            return line, None, None
        text, spans = replace_spans(self.prepare(line), self.spans)
        if self.terms and self.terms.keys().isdisjoint(spans.values()):  # the line has none, and stays as it is
            text, spans = replace_spans(line, self.spans)
        if not self.has_reserved and has_letters(text):
            return line, None, None
        return text, spans, {token: self.terms.get(span, span) for token, span in spans.items()}

    def lacking(self, found: list[list[Hypothesis]]) -> list[int]:
        """The rows of which a search with more beams may find a hypothesis with more spans and numbers."""
        return [row for row, (best, *_) in enumerate(found) if best.missed and self.can_choose]

    def choose(self, piece: Piece, found: list[Hypothesis]) -> list[Hypothesis]:
        """The hypotheses of a piece, best first: those that miss the fewest of its spans and numbers."""
        if self.spans is not None:
            found = [one._replace(missed=len(differing(piece.text, one.text, self.compared))) for one in found]
        return sorted(found, key=order, reverse=True)


def default_tokens(device: torch.device) -> int:
    """The default of tokens_per_batch."""
    return TOKENS_PER_BATCH if device.type == "cpu" else GPU_TOKENS_PER_BATCH


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Turn off gradients and dropout, and afterwards put each module back into its mode."""
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in in_training:
            module.training = True


def cut_texts(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], options: DecodingOptions) -> list[list[Piece]]:
    """The pieces of each text. A warning tells of texts that are too long; its record has their numbers as `rows`."""
    texts = check_texts(texts)
    more = {"replace": options.replace, "spans": options.spans, **options.encoding}
    split = split_texts(tokenizer, texts, options.limits, options.tgt_lang, options.source_prefix, **more)
    cut = [row for row, pieces in enumerate(split) if any(piece.separator is None for piece in pieces)]
    if cut and options.limits is not None:
        how = f"in pieces of at most {options.limits.tokens} tokens"
        how = "sentence by sentence, as in training" if options.limits.by_sentence else how
        more = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
        message = f"too long, translated {how}: {texts[cut[0]][:60]!r}{more}"
        logger.warning(message, extra={"what": "text", "rows": cut})
    return split


def make_batches(texts: Sequence[list[Piece]], options: DecodingOptions) -> Iterator[Batch]:
    """Batches of the pieces that are not copied, similar lengths together."""
    keys = [
        (row, number) for row, pieces in enumerate(texts) for number, piece in enumerate(pieces) if not piece.is_copied
    ]
    rows = max(options.beams, options.nbest)  # of the decoder for each sentence; samples have one each
    lengths = [len(texts[row][number].ids) * rows for row, number in keys]
    for indices in batches_by_length(lengths, options.tokens_per_batch):
        chosen = [keys[index] for index in indices]
        yield chosen, [texts[row][number] for row, number in chosen]


def batches_by_length(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Batches of row numbers by the tokens of each row, the longest first: if one is too large, the first one fails.

    A batch has at most tokens_per_batch, padding included; a longer row is a batch by itself.
    """
    if tokens_per_batch < 1:
        raise ValueError(f"tokens_per_batch must be at least 1, not {tokens_per_batch}")
    rows = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    start = 0
    while start < len(rows):
        end = start + max(1, tokens_per_batch // max(1, lengths[rows[start]]))
        yield rows[start:end]
        start = end


def search_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batches: Iterable[Batch],
    options: DecodingOptions,
    further: Callable[[list[Piece]], dict] = lambda pieces: {},
) -> Iterator[Found]:
    """Search by generate(): for each piece of a batch `options.nbest` hypotheses, or all if there are fewer.

    `further` returns more arguments of generate() for the pieces of a batch.
    """
    for keys, pieces in batches:
        found = [options.choose(*each) for each in _search(model, tokenizer, pieces, options, further)]
        again = options.lacking(found)
        rows = max(1, len(pieces) // WIDER)  # as many as there is memory for
        for few in (again[start : start + rows] for start in range(0, len(again), rows)):
            more = {"num_beams": WIDER * options.beams, "num_return_sequences": WIDER * options.beams}
            more |= {"return_dict_in_generate": True, "output_scores": not options.is_own}
            wider = _search(model, tokenizer, [pieces[row] for row in few], options, further, **more)
            for row, each in zip(few, wider, strict=True):
                found[row] = max(found[row], options.choose(*each)[: options.nbest], key=order_of_best)
        yield keys, found


def _search(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pieces: list[Piece],
    options: DecodingOptions,
    further: Callable[[list[Piece]], dict],
    **arguments,
) -> Iterator[tuple[Piece, list[Hypothesis]]]:
    """Each piece of a batch and its hypotheses. arguments: of generate(), in place of those of `options`."""
    inputs = tokenizer.pad({"input_ids": [piece.ids.tolist() for piece in pieces]}, return_tensors="pt")
    more = further(pieces)
    processors = [*(options.arguments.get("logits_processor") or ()), *more.pop("logits_processor", ())]
    given = {**options.arguments, **more, **arguments, "logits_processor": processors}
    with evaluating(model):
        output = model.generate(**inputs.to(model.device), **given)
    grouped = zip(*[_hypotheses(model, tokenizer, output, options)] * given["num_return_sequences"], strict=True)
    for piece, (best, *others) in zip(pieces, grouped, strict=True):
        # There may be fewer outputs than beams.
        yield piece, [best, *(one for one in others if options.beams == 1 or one.score > -math.inf)]


def order_of_best(hypotheses: list[Hypothesis]) -> tuple[bool, int, float]:
    return order(hypotheses[0])


def order(hypothesis: Hypothesis) -> tuple[bool, int, float]:
    """The key by which hypotheses are sorted; the best has the highest."""
    return hypothesis.finished, -hypothesis.missed, hypothesis.rank


def _hypotheses(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, output, options: DecodingOptions
) -> Iterator[Hypothesis]:
    """The hypothesis of each sequence that generate() returned, without scores unless `options` asks for them."""
    sequences = getattr(output, "sequences", output).tolist()
    log_probs = getattr(output, "token_log_probs", None)
    if options.with_scores and log_probs is None:
        beams = getattr(output, "beam_indices", None)
        log_probs = model.compute_transition_scores(output.sequences, output.logits, beams, normalize_logits=True)
    alpha, formula = options.generation_config.length_penalty, options.generation_config.length_penalty_type
    alpha = 1.0 if alpha is None else alpha
    ranks = getattr(output, "sequences_scores", None)
    eos = token_ids(options.generation_config.eos_token_id) or [tokenizer.eos_token_id]
    for row, (start, *ids) in enumerate(sequences):
        end = min((ids.index(token) + 1 for token in eos if token in ids), default=None)
        ids = ids[:end]
        while not end and ids and ids[-1] == tokenizer.pad_token_id:
            ids.pop()
        text = str(tokenizer.decode(ids, skip_special_tokens=True))
        values = () if log_probs is None else tuple(log_probs[row, : len(ids)].tolist())
        score = sum(values) / float(length_penalty(len(ids) or 1, alpha, formula))
        rank = score if ranks is None else ranks[row].item()
        score = score if rank > _NO_HYPOTHESIS else -math.inf
        # transformers counts a hypothesis at the limit as finished.
        yield Hypothesis(text, score, (), values, (start, *ids), bool(end) or formula == "length", rank)


def join_hypotheses(
    texts: Sequence[list[Piece]], found: Iterable[Found], options: DecodingOptions
) -> Iterator[tuple[list[int], list[Translation]]]:
    """The numbers of the texts that each batch of a search completes, and their translations."""
    best = [[[Hypothesis(piece.text)] if piece.is_copied else [] for piece in pieces] for pieces in texts]
    missing = Counter(row for row, pieces in enumerate(texts) for piece in pieces if not piece.is_copied)
    if copied := [row for row in range(len(texts)) if not missing[row]]:
        yield copied, [_join(texts[row], best[row], options) for row in copied]
    for keys, hypotheses in found:
        for (row, number), each in zip(keys, hypotheses, strict=True):
            best[row][number] = each
            missing[row] -= 1
        if done := [row for row in dict.fromkeys(row for row, _ in keys) if not missing[row]]:
            yield done, [_join(texts[row], best[row], options) for row in done]


def _join(pieces: list[Piece], found: list[list[Hypothesis]], options: DecodingOptions) -> Translation:
    """The `options.nbest` best combinations of the hypotheses of a text's pieces; scores and ranks add up."""
    joined: list[tuple] = [((0, 0, 0.0), None)]  # the sums of `order`, and the chain (hypotheses before, last one)
    for hypotheses in found:
        longer = (
            (tuple(map(sum, zip(sums, order(last), strict=True))), (chain, last))
            for (sums, chain), last in itertools.product(joined, hypotheses)
        )
        joined = heapq.nlargest(options.nbest, longer, key=lambda way: way[0])
    whole = []
    for (finished, missed, rank), chain in joined:
        parts: list[Hypothesis] = []
        while chain:
            chain, part = chain
            parts.append(part)
        parts.reverse()
        texts, scores, *sequences, _, _, _ = zip(*parts, strict=True)
        tokens, log_probs, ids = (tuple(itertools.chain(*each)) for each in sequences)
        text = join_pieces(pieces, [put_back(text, piece.targets) for text, piece in zip(texts, pieces, strict=True)])
        whole.append(Hypothesis(text, sum(scores), tokens, log_probs, ids, finished == len(parts), rank, -missed))
    return Translation(whole, pieces, [best.text for best, *_ in found], options.compared)

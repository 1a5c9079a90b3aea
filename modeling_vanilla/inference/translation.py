"""Translate texts: long ones in pieces, the pieces batched by length, the translations in the order of the texts."""

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..constraints_vanilla import ForcedPrefix
from ..files import read_lines
from ..generation_vanilla import GnmtGenerationMixin, search_settings
from ..progress import progress_bar
from ..search_vanilla import length_penalty
from ..splitting_vanilla import MAX_SOURCE_TOKENS, join_pieces, split_with_warning, token_ids
from ..terminology_vanilla import Terminology, target_ids
from .batching import TOKENS_PER_BATCH, batches_by_length, regroup


class Hypothesis(NamedTuple):
    """A translation and its score, log P / ((5 + |Y|) / 6)^alpha (6.1), natural logarithm, |Y| counting EOS.

    With length_penalty_type="length", as models of transformers have it, the score is log P / |Y|^alpha.

    tokens: EOS included. log_probs: of each token, given those before.
    """

    text: str
    score: float
    tokens: tuple[str, ...] = ()
    log_probs: tuple[float, ...] = ()


def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    tokens_per_batch: int = TOKENS_PER_BATCH,
    max_source_tokens: int = MAX_SOURCE_TOKENS,
    show_progress: bool = False,
    terms: Iterable[tuple[str, str]] = (),
    prefix: str | Sequence[str] = "",
    **generate_kwargs,
) -> list[str]:
    """Translate `sentences` with model.generate, by default the search of 6.1.

    Args:
        sentences: source sentences. An empty or blank one gives an empty translation.
        tokens_per_batch: the most source tokens of a batch, padding included, times the beams.
        max_source_tokens: a sentence of more tokens, EOS included, is translated in pieces (`split_long`), with a
            warning in the log.
        show_progress: a progress bar on stderr.
        terms: pairs (source term, target term), as `read_terms` gives them: where the source term is in a sentence, as
            whole words, the translation has the target term. Several target terms of one source term are
            alternatives. A term that cannot be met within the limit is left out, with a warning in the log.
        prefix: what every translation begins with, or what each of them does. It counts in score and length.
        generate_kwargs: what model.generate takes.

    Returns:
        One translation for each sentence, in their order.

    Raises:
        ValueError: if sentences is a single string, tokens_per_batch is below 1, or a prefix contains EOS or is longer
            than the limit, and as split_long, Terminology and model.generate do.
    """
    pieces = split_with_warning(model, tokenizer, sentences, max_source_tokens)
    wanted, prefixes = Terminology(terms, tokenizer), _for_each(prefix, pieces)
    settings = (tokens_per_batch, show_progress, wanted, prefixes)
    found = translate_pieces(model, tokenizer, pieces, *settings, **generate_kwargs)
    for piece, translation in zip(itertools.chain(*pieces), itertools.chain(*found), strict=True):
        wanted.warn_of_missing(piece, translation)
    return [join_pieces(parts) for parts in found]


def translate_nbest(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    nbest: int,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    max_source_tokens: int = MAX_SOURCE_TOKENS,
    show_progress: bool = False,
    terms: Iterable[tuple[str, str]] = (),
    prefix: str | Sequence[str] = "",
    **generate_kwargs,
) -> list[list[Hypothesis]]:
    """The `nbest` best translations of each sentence, in all else as `translate`.

    Returns:
        For each sentence its hypotheses, best first. An empty or blank sentence has one, the empty one of score 0; a
        sentence in pieces those of `join_nbest`.

    Raises:
        ValueError: if there are fewer beams than hypotheses asked for, or as `translate` does.
    """
    pieces = split_with_warning(model, tokenizer, sentences, max_source_tokens)
    wanted, prefixes = Terminology(terms, tokenizer), _for_each(prefix, pieces)
    settings = (tokens_per_batch, show_progress, wanted, prefixes)
    found = translate_pieces_nbest(model, tokenizer, pieces, nbest, *settings, **generate_kwargs)
    for piece, hypotheses in zip(itertools.chain(*pieces), itertools.chain(*found), strict=True):
        wanted.warn_of_missing(piece, hypotheses[0].text)
    return [join_nbest(parts, nbest) for parts in found]


def read_terms(path: Path) -> list[tuple[str, str]]:
    """The terms of a file of lines "SOURCE TERM<tab>TARGET TERM"; ValueError if it cannot be read or is none."""
    terms = []
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise ValueError(
                f"{path}, line {number}: 2 columns, source term and target term, are needed, not {len(columns)}"
            )
        if not all(column.strip() for column in columns):
            raise ValueError(f"{path}, line {number}: a term is empty")
        terms.append((columns[0], columns[1]))
    return terms


def translate_pieces(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pieces: Sequence[Sequence[str]],
    tokens_per_batch: int = TOKENS_PER_BATCH,
    show_progress: bool = False,
    terms: Terminology | None = None,
    prefixes: Sequence[str] | None = None,
    **generate_kwargs,
) -> list[list[str]]:
    """The translation of each piece of each text; pieces as `split_long` gives them, else as `translate`."""
    if (generate_kwargs.get("num_return_sequences") or 1) > 1 or generate_kwargs.get("return_dict_in_generate"):
        raise ValueError("num_return_sequences and return_dict_in_generate are for translate_nbest, which sets them")
    generate_kwargs |= {"num_return_sequences": 1, "return_dict_in_generate": False}  # whatever the model's own are
    sources = list(itertools.chain.from_iterable(pieces))
    translations = [""] * len(sources)
    for rows, output in _generate(
        model, tokenizer, sources, tokens_per_batch, show_progress, terms, _of_pieces(prefixes, pieces), generate_kwargs
    ):
        for row, text in zip(rows, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True):
            translations[row] = text
    return regroup(translations, pieces)


def translate_pieces_nbest(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pieces: Sequence[Sequence[str]],
    nbest: int,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    show_progress: bool = False,
    terms: Terminology | None = None,
    prefixes: Sequence[str] | None = None,
    **generate_kwargs,
) -> list[list[list[Hypothesis]]]:
    """The `nbest` best translations of each piece of each text, in all else as `translate_nbest`."""
    beams = _beams(model, generate_kwargs)
    if nbest not in range(1, beams + 1):
        raise ValueError(f"nbest must be from 1 to the number of beams, {beams}, not {nbest!r}")
    # The search of 6.1 keeps the scores of its tokens; another one has them in those of all tokens.
    scores = beams == 1 or not isinstance(model, GnmtGenerationMixin)
    generate_kwargs |= {"num_return_sequences": nbest, "return_dict_in_generate": True, "output_scores": scores}
    texts = list(itertools.chain.from_iterable(pieces))
    hypotheses = [[Hypothesis("", 0.0)]] * len(texts)
    for batch, output in _generate(
        model, tokenizer, texts, tokens_per_batch, show_progress, terms, _of_pieces(prefixes, pieces), generate_kwargs
    ):
        found = list(_hypotheses(model, tokenizer, output, generate_kwargs))
        for number, row in enumerate(batch):
            of_row = found[number * nbest : (number + 1) * nbest]
            # There may be fewer continuations than beams.
            hypotheses[row] = [one for one in of_row if one.score > -math.inf] or of_row[:1]
    return regroup(hypotheses, pieces)


def _hypotheses(model: PreTrainedModel, tokenizer, output, generate_kwargs: dict) -> Iterator[Hypothesis]:
    """One for each sequence that generate() has returned."""
    log_probs = getattr(output, "token_log_probs", None)
    if log_probs is None:
        beams = getattr(output, "beam_indices", None)
        log_probs = model.compute_transition_scores(output.sequences, output.scores, beams, beams is None)
    scores = getattr(output, "sequences_scores", None)
    for row, (ids, values) in enumerate(zip(output.sequences[:, 1:].tolist(), log_probs.tolist(), strict=True)):
        ids = _without_padding(ids, tokenizer)
        values = values[: len(ids)]
        score = sum(values) / _penalty(model, len(ids), generate_kwargs) if scores is None else float(scores[row])
        text = str(tokenizer.decode(ids, skip_special_tokens=True))
        yield Hypothesis(text, score, tuple(tokenizer.convert_ids_to_tokens(ids)), tuple(values))


def _penalty(model: PreTrainedModel, length: int, generate_kwargs: dict) -> float:
    alpha = _setting(model, generate_kwargs, "length_penalty")
    formula = _setting(model, generate_kwargs, "length_penalty_type")
    formula = formula or ("gnmt" if isinstance(model, GnmtGenerationMixin) else "length")
    return float(length_penalty(length, 1.0 if alpha is None else alpha, formula))


def join_nbest(pieces: Sequence[Sequence[Hypothesis]], nbest: int) -> list[Hypothesis]:
    """The best `nbest` ways to put a text together from the hypotheses of its pieces; their scores add up."""
    joined = pieces[0]
    for piece in pieces[1:]:
        pairs = (
            Hypothesis(
                join_pieces((left.text, right.text)),
                left.score + right.score,
                left.tokens + right.tokens,
                left.log_probs + right.log_probs,
            )
            for left, right in itertools.product(joined, piece)
        )
        joined = heapq.nlargest(nbest, pairs, key=lambda hypothesis: hypothesis.score)
    return list(joined[:nbest])


def _generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    tokens_per_batch: int,
    show_progress: bool,
    terms: Terminology | None,
    prefixes: Sequence[str],
    generate_kwargs: dict,
) -> Iterator[tuple[list[int], Any]]:
    """Translate the sentences that are not blank, batch by batch: row numbers, generate's output."""
    filled = [row for row, sentence in enumerate(sentences) if sentence.strip()]
    ids = list(token_ids(tokenizer, [sentences[row] for row in filled]))
    beams = _beams(model, generate_kwargs)
    if terms and terms.targets and beams == 1:
        raise ValueError("terms need num_beams of at least 2")
    with progress_bar(total=len(filled), unit=" sentences", disable=not show_progress) as bar:
        for batch in batches_by_length([len(row) * beams for row in ids], tokens_per_batch):
            inputs = tokenizer.pad({"input_ids": [ids[row] for row in batch]}, return_tensors="pt").to(model.device)
            phrases = [terms.phrases(sentences[filled[row]]) for row in batch] if terms else []
            settings = generate_kwargs | ({"force_words_ids": phrases} if any(phrases) else {})
            begun = [prefixes[filled[row]] for row in batch]
            forced = ForcedPrefix([target_ids(tokenizer, one, "prefix") for one in begun]) if any(begun) else None
            if forced is not None:
                settings["logits_processor"] = [*(settings.get("logits_processor") or ()), forced]
            with torch.inference_mode():
                output = model.generate(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, **settings)
            if forced is not None:
                forced.check(output if isinstance(output, torch.Tensor) else output.sequences)
            yield [filled[row] for row in batch], output
            bar.update(len(batch))


def _for_each(prefix: str | Sequence[str], texts: Sequence) -> list[str]:
    """The prefix of each text; ValueError unless there is one for all or one for each of them."""
    if not isinstance(prefix, (str, list, tuple)):
        raise ValueError(f"prefix must be a string or a list of them, not {prefix!r:.60}")
    prefixes = [prefix] * len(texts) if isinstance(prefix, str) else list(prefix)
    if len(prefixes) != len(texts):
        raise ValueError(f"there are {len(texts)} sentences but {len(prefixes)} prefixes")
    return prefixes


def _of_pieces(prefixes: Sequence[str] | None, pieces: Sequence[Sequence[str]]) -> list[str]:
    """The prefix of each piece: the first one's is that of the text."""
    prefixes = [""] * len(pieces) if prefixes is None else prefixes
    return [one for prefix, parts in zip(prefixes, pieces, strict=True) for one in (prefix, *[""] * (len(parts) - 1))]


def _beams(model: PreTrainedModel, generate_kwargs: dict) -> int:
    """The beams of the search; ValueError if one of its settings has no meaning, as `check_search_settings` says."""
    return search_settings(model, **generate_kwargs).num_beams or 1


def _setting(model: PreTrainedModel, generate_kwargs: dict, name: str) -> Any:
    """A setting of the search: that of the call, of the configuration given, or of the model's; None if of none."""
    configurations = generate_kwargs.get("generation_config"), model.generation_config
    values = generate_kwargs.get(name), *(getattr(one, name, None) for one in configurations)
    return next((value for value in values if value is not None), None)


def _without_padding(sequence: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """One row of generate()'s output up to EOS, or without its padding if it has none."""
    if tokenizer.eos_token_id in sequence:
        return sequence[: sequence.index(tokenizer.eos_token_id) + 1]
    while sequence and sequence[-1] == tokenizer.pad_token_id:
        sequence = sequence[:-1]
    return sequence

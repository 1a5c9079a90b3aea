"""Translate texts: the functions that programs call."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..files import read_lines
from ..progress import track_batches
from ..terminology_vanilla import Terminology
from ..translation_vanilla import TOKENS_PER_BATCH, Hypothesis, Translation, translate_texts
from .constraints import constrained

Terminology.constrained = staticmethod(constrained)  # what the search is given for its phrases


def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    tokens_per_batch: int = TOKENS_PER_BATCH,
    max_source_tokens: int | None = None,
    show_progress: bool = False,
    terms: Iterable[tuple[str, str]] = (),
    prefix: str | Sequence[str] = "",
    tgt_lang: str | None = None,
    **generate_kwargs,
) -> list[str]:
    """Translate `sentences` with model.generate, by default the search of 6.1.

    Args:
        sentences: source texts. Each line of a text is translated by itself, and one that is longer than what the model
            has seen in training sentence by sentence (`split_long`), with a warning in the log.
        tokens_per_batch: the most source tokens of a batch, padding included, times the beams.
        max_source_tokens: if given, lines up to so many tokens, EOS included, are translated whole, whatever the model
            has seen, and longer ones in pieces of at most so many.
        show_progress: a progress bar on stderr.
        terms: pairs (source term, target term), as `read_terms` gives them: where the source term is in a sentence, as
            whole words, the translation has the target term. Several target terms of one source term are
            alternatives. A term that cannot be met within the limit is left out, with a warning in the log.
        prefix: what every translation begins with, or what each of them does. It counts in score and length.
        tgt_lang: of a model of several languages the one to translate to: its tag, such as ">>de<<", is put before the
            tokens of each line that has none.
        generate_kwargs: what model.generate takes.

    Returns:
        One translation for each sentence, in their order; of a blank one its prefix.

    Raises:
        ValueError: if sentences is a single string, tokens_per_batch is below 1, or a prefix contains EOS or is longer
            than the limit, and as split_long, Terminology and model.generate do.
    """
    if (generate_kwargs.get("num_return_sequences") or 1) > 1 or generate_kwargs.get("return_dict_in_generate"):
        raise ValueError("num_return_sequences and return_dict_in_generate are for translate_nbest, which sets them")
    limits = {"tokens_per_batch": tokens_per_batch, "max_source_tokens": max_source_tokens}
    how = {"prefix": prefix, "tgt_lang": tgt_lang, **generate_kwargs}
    found = _translate(model, tokenizer, sentences, terms, show_progress, **limits, **how)
    return [translation.hypotheses[0].text for translation in found]


def translate_nbest(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    nbest: int,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    max_source_tokens: int | None = None,
    show_progress: bool = False,
    terms: Iterable[tuple[str, str]] = (),
    prefix: str | Sequence[str] = "",
    tgt_lang: str | None = None,
    **generate_kwargs,
) -> list[list[Hypothesis]]:
    """The `nbest` best translations of each sentence, in all else as `translate`.

    Returns:
        For each sentence its hypotheses, best first. A blank sentence has one, its prefix, of score 0; a sentence in
        pieces the best ways to put it together from theirs, the scores of which add up.

    Raises:
        ValueError: if there are fewer beams than hypotheses asked for, or as `translate` does.
    """
    limits = {"tokens_per_batch": tokens_per_batch, "max_source_tokens": max_source_tokens}
    how = {"prefix": prefix, "tgt_lang": tgt_lang, "nbest": nbest, "with_scores": True, **generate_kwargs}
    found = _translate(model, tokenizer, sentences, terms, show_progress, **limits, **how)
    return [translation.hypotheses for translation in found]


def _translate(model, tokenizer, sentences, terms, show_progress: bool, **settings) -> list[Translation]:
    settings |= {
        "terms": Terminology(terms, tokenizer),
        "track": partial(track_batches, unit=" sentences", show=show_progress),
    }
    return translate_texts(model, tokenizer, sentences, **settings)


def read_terms(path: Path) -> list[tuple[str, str]]:
    """The terms of a file of lines "SOURCE TERM<tab>TARGET TERM"; ValueError if it cannot be read or is none."""
    terms = []
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise ValueError(
                f"{path}, line {number}: 2 columns, source term and target term, are needed, not {len(columns)}"
            )
        terms.append((columns[0], columns[1]))
    return terms

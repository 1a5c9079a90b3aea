"""Translate texts: the functions that programs call."""

from collections.abc import Iterable, Sequence
from functools import partial

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..progress import track_batches
from ..splitting_vanilla import check_texts, source_limits, split_texts
from ..translation_vanilla import (
    TOKENS_PER_BATCH,
    Hypothesis,
    Place,
    Translation,
    TranslationSettings,
    nowhere,
    translate_texts,
)
from .terms import Prefixes, Terminology


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
        One translation for each sentence, in their order; of a blank one the empty one.

    Raises:
        ValueError: if tokens_per_batch is below 1, a prefix contains EOS or is longer than the limit, and as
            split_long, Terminology and model.generate do.
    """
    if (generate_kwargs.get("num_return_sequences") or 1) > 1 or generate_kwargs.get("return_dict_in_generate"):
        raise ValueError("num_return_sequences and return_dict_in_generate are for translate_nbest, which sets them")
    given: dict = {"tokens_per_batch": tokens_per_batch, "max_source_tokens": max_source_tokens, "tgt_lang": tgt_lang}
    settings = TranslationSettings.resolve(model, tokenizer, **(given | generate_kwargs))
    terminology = Terminology(terms, tokenizer)
    found = translate_with(model, tokenizer, sentences, settings, terminology, prefix, show_progress=show_progress)
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
        For each sentence its hypotheses, best first. A blank sentence has one, the empty one, of score 0; a sentence
        in pieces the best ways to put it together from theirs, the scores of which add up.

    Raises:
        ValueError: if there are fewer beams than hypotheses asked for, or as `translate` does.
    """
    given: dict = {"tokens_per_batch": tokens_per_batch, "max_source_tokens": max_source_tokens, "tgt_lang": tgt_lang}
    given |= {"nbest": nbest, "with_scores": True}
    settings = TranslationSettings.resolve(model, tokenizer, **(given | generate_kwargs))
    terminology = Terminology(terms, tokenizer)
    found = translate_with(model, tokenizer, sentences, settings, terminology, prefix, show_progress=show_progress)
    return [translation.hypotheses for translation in found]


def translate_with(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    settings: TranslationSettings,
    terms: Terminology,
    prefix: str | Sequence[str] = "",
    *,
    show_progress: bool = False,
    place: Place = nowhere,
) -> list[Translation]:
    """`translate_texts` with terms and prefixes: what the functions above and `vanilla translate` share.

    Args:
        place: where texts, terms and prefixes stand, for messages.
    """
    if terms.targets and settings.beams == 1:
        raise ValueError("terms need num_beams of at least 2")
    sentences = check_texts(sentences)
    prefixes = Prefixes(prefix, tokenizer, settings, len(sentences), place)
    found = translate_texts(
        model,
        tokenizer,
        sentences,
        settings,
        further=lambda pieces: terms.arguments(pieces) | prefixes.arguments(pieces),
        track=partial(track_batches, unit=" sentences", show=show_progress),
        place=place,
    )
    prefixes.check(found)
    terms.warn_of_missing(found, place)
    return found


def split_long(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_source_tokens: int | None = None,
) -> list[list[str]]:
    """Cut each text into its lines, and a line that is too long for the model at the ends of its sentences.

    A line of more tokens or sentences than the model has seen in training is cut at the end of each sentence. Where
    max_source_tokens is given, or the model has no record of its training, a line is too long if it has more tokens
    than that, or than 512, and is cut into as few pieces as the ends of its sentences allow. A single sentence that is
    too long is cut at clause marks, if need be at blanks, at last between characters. The pieces of a text, in order,
    are the text without the white space at the cuts.

    Args:
        max_source_tokens: the most tokens of a piece, EOS included.

    Raises:
        ValueError: as `check_texts` does, or if max_source_tokens is below 8.
    """
    found = split_texts(tokenizer, check_texts(texts), source_limits(model, tokenizer, max_source_tokens))
    return [[piece.text for piece in pieces] for pieces in found]

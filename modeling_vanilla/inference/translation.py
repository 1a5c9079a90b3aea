"""Translate texts: the functions that programs call."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..progress import track_batches
from ..splitting_vanilla import Piece, check_texts
from ..translation_vanilla import (
    Hypothesis,
    Translation,
    TranslationSettings,
    search_batches,
    translate_texts,
)
from .loading import is_engine
from .terms import Place, Prefixes, Terminology, nowhere


def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    tokens_per_batch: int | None = None,
    max_source_tokens: int | None = None,
    show_progress: bool = False,
    terms: Iterable[tuple[str, ...]] = (),
    prefix: str | Sequence[str] = "",
    tgt_lang: str | None = None,
    **generate_kwargs,
) -> list[str]:
    """Translate `sentences` with model.generate, by default the search of 6.1.

    Args:
        sentences: source texts. Each line of a text is translated separately. A line longer than those of the model's
            training is translated sentence by sentence (`split_texts`), and the log warns of it.
        tokens_per_batch: the most source tokens of a batch, padding included, times the beams; None is 4096 on a CPU,
            32768 on a GPU.
        max_source_tokens: if given, lines of up to so many tokens, EOS included, are translated whole, whatever the
            model has seen, and longer ones in pieces of at most so many.
        show_progress: a progress bar on stderr.
        terms: pairs (source term, target term), as `read_terms` returns them. Where a sentence has the source term, as
            whole words, the translation has the target term. The log warns of one that cannot be met within the limit.
        prefix: what every translation begins with, or a list with the beginning of each. It counts in score and length.
        tgt_lang: the target language of a model of several: its tag, such as ">>de<<", is put before the tokens of each
            line that has none.
        generate_kwargs: what model.generate takes.

    Returns:
        One translation for each sentence, in their order; of a blank one the empty one.

    Raises:
        ValueError: if tokens_per_batch is below 1, a prefix contains EOS or is longer than the limit, there are terms
            for a model with another search, and as split_texts, Terminology and model.generate do.
    """
    if (generate_kwargs.get("num_return_sequences") or 1) > 1 or generate_kwargs.get("return_dict_in_generate"):
        raise ValueError("num_return_sequences and return_dict_in_generate are for translate_nbest, which sets them")
    settings = {"tokens_per_batch": tokens_per_batch, "max_source_tokens": max_source_tokens, "tgt_lang": tgt_lang}
    found = _translate(model, tokenizer, sentences, terms, prefix, show_progress, **settings, **generate_kwargs)
    return [translation.hypotheses[0].text for translation in found]


def translate_nbest(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], nbest: int, **settings
) -> list[list[Hypothesis]]:
    """The `nbest` best translations of each sentence.

    Args:
        settings: as `translate` takes them.

    Returns:
        For each sentence its hypotheses, best first. A blank sentence has one, the empty one, of score 0. A sentence in
        pieces has the best combinations of their hypotheses, whose scores add up.

    Raises:
        ValueError: if there are fewer beams than hypotheses asked for, or as `translate` does.
    """
    found = _translate(model, tokenizer, sentences, nbest=nbest, with_scores=True, **settings)
    return [translation.hypotheses for translation in found]


def _translate(model, tokenizer, sentences, terms=(), prefix="", show_progress=False, **given) -> list[Translation]:
    settings = TranslationSettings(model, tokenizer, **given)
    terminology = Terminology(terms, tokenizer)
    track = partial(track_batches, unit=" sentences", show=show_progress)
    return translate_with(model, tokenizer, sentences, settings, terminology, prefix, track=track)


def translate_with(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    settings: TranslationSettings,
    terms: Terminology,
    prefix: str | Sequence[str] = "",
    *,
    track: Callable[[Sequence[list]], Iterable[list]] = iter,
    place: Place = nowhere,
) -> list[Translation]:
    """`translate_texts` with terms, prefixes and, where scores are asked for, tokens as text.

    Args:
        place: begins a message about texts, terms or prefixes.
    """
    if terms.targets and is_engine(model):
        raise ValueError("terms: the engine ctranslate2 has none; the engine torch has")
    if terms.targets and not hasattr(model, "has_own_beam_search"):
        raise ValueError(f"terms need the search of this package, which {type(model).__name__} does not have")
    if terms.targets and settings.beams == 1:
        raise ValueError("terms need num_beams of at least 2")
    sentences = check_texts(sentences)
    prefixes = Prefixes(prefix, tokenizer, settings, len(sentences), place)
    search: Callable[..., Iterator[list[list[Hypothesis]]]]
    if is_engine(model):
        search = partial(model.search_batches, tokenizer, settings, prefixes.of_pieces)  # type: ignore[arg-type]
    else:

        def further(pieces: list[Piece]) -> dict:
            return terms.arguments(pieces) | prefixes.arguments(pieces)

        search = partial(search_batches, model, tokenizer, settings, further=further)
    found = translate_texts(
        model,
        tokenizer,
        sentences,
        settings,
        search=partial(_search_with_tokens, search, tokenizer) if settings.with_scores else search,
        track=track,
        place=partial(place, "text"),
    )
    prefixes.check(found)
    terms.warn_of_missing(found, place)
    return found


def _search_with_tokens(
    search: Callable, tokenizer: PreTrainedTokenizerBase, batches: Iterable[list[Piece]]
) -> Iterator[list[list[Hypothesis]]]:
    for found in search(batches):
        yield [
            [one._replace(tokens=tuple(token_texts(tokenizer, one.ids[1:]))) for one in hypotheses]
            for hypotheses in found
        ]


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text; together they are the text with its special tokens.

    If a character takes several tokens, one for each byte, the last of them has it, and the others have nothing.
    """
    texts, start, whole = [], 0, 0  # the tokens from `start` on are decoded, those before `whole` have their text
    for end in range(1, len(ids) + 1):
        parts = [*ids[start:whole]], [*ids[start:end]]
        before, after = (str(tokenizer.decode(part, clean_up_tokenization_spaces=False)) for part in parts)
        if after.endswith("\ufffd") and end < len(ids):
            texts.append("")
            continue
        texts.append(after[len(before) :])
        start, whole = whole, end
    return texts

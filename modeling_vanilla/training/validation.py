"""The scores of a model on validation or test data, computed by all processes together."""

from collections.abc import Mapping
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset

from ..files import read_json, write_json
from ..inference import Translator
from ..inference.scoring import PairScore
from ..metrics import compare_scores, translation_scores

# A batch of the search has so many times the tokens of one of training, which keeps activations for its gradient.
_SEARCH_TOKENS = 4
_SETS = ("validation", "replay_validation")  # new and old
_GATE = 0.05  # of the p-value, below which a lower BLEU on the old data is no chance


def validation_scores(translator: Translator, pairs: Dataset, tokens_per_batch: int, tokenize: str) -> dict:
    """Score a model on pairs with the string columns "source" and "target".

    Every process must call this, with all the model's weights.

    Returns:
        "loss" in nats per word piece, without label smoothing, "perplexity" per word piece, and translation_scores.
    """
    return scores_of(translator, pairs, translate_all(translator, pairs, tokens_per_batch), tokens_per_batch, tokenize)


def scores_of(
    translator: Translator, pairs: Dataset, translations: list[str], tokens_per_batch: int, tokenize: str
) -> dict:
    """validation_scores of a model whose translations are there. Every process must call this."""
    scores = translation_scores(translations, pairs["target"][:], tokenize)
    return {**losses(translator, pairs, tokens_per_batch), **scores}


def gate_scores(
    translator: Translator, pairs: Mapping[str, Dataset], tokens_per_batch: int, tokenize: str, before: Path
) -> dict:
    """Score a model on new and old validation pairs, and compare it with the model to start with.

    Args:
        before: a file of that model's translations, which is written if it is not there.

    Returns:
        validation_scores on the new pairs; "changes", the compare_scores on both; and "is_worse", whether the BLEU on
        the old ones is lower by more than chance.
    """
    texts = {name: translate_all(translator, pairs[name], tokens_per_batch) for name in _SETS}
    if PartialState().is_main_process and not before.exists():
        write_json(before, texts)
    PartialState().wait_for_everyone()
    start = read_json(before)
    changes = {name: compare_scores(start[name], texts[name], pairs[name]["target"][:], tokenize) for name in _SETS}
    old = changes["replay_validation"]["bleu"]
    is_worse = old["after"] < old["before"] and old["p_value"] < _GATE
    scores = scores_of(translator, pairs["validation"], texts["validation"], tokens_per_batch, tokenize)
    return {**scores, "changes": changes, "is_worse": is_worse}


def tell_changes(changes: Mapping[str, dict[str, dict[str, float]]]) -> str:
    """The scores on new and old validation pairs before and after, with half of their 95% intervals, a line each."""
    form = "{} {before:.2f} ± {before_interval:.2f} before, {after:.2f} ± {after_interval:.2f} after, p = {p_value:.3f}"
    told = ["; ".join(form.format(metric, **was) for metric, was in changes[name].items()) for name in _SETS]
    return "new pairs: {}\nold pairs: {}".format(*told)


def losses(translator: Translator, pairs: Dataset, tokens_per_batch: int) -> dict[str, float]:
    """The loss of the targets in nats and the perplexity, per word piece. Every process must call this."""
    texts = {"sources": pairs["source"][:], "targets": pairs["target"][:]}
    with PartialState().split_between_processes(texts) as own:
        scores = gather_object(translator.score(**own, tokens_per_batch=tokens_per_batch))
    total = PairScore(sum(score.log_prob for score in scores), sum(score.tokens for score in scores))
    return {"loss": -total.log_prob / total.tokens, "perplexity": total.perplexity}


def translate_all(
    translator: Translator, pairs: Dataset, tokens_per_batch: int, show_progress: bool = False
) -> list[str]:
    """Translate the sources, a share on each process. Every process must call this.

    Args:
        tokens_per_batch: of training; the batches of the search are larger.
        show_progress: a progress bar on the main process.
    """
    state = PartialState()
    shown = show_progress and state.is_main_process
    with state.split_between_processes(pairs["source"][:]) as own:
        translated = translator.translate(own, tokens_per_batch=_SEARCH_TOKENS * tokens_per_batch, show_progress=shown)
        return gather_object(translated)

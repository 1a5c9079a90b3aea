"""Validation while training, and the translation of a test set by all processes together."""

from accelerate import Accelerator, PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..inference import score_pairs, translate
from ..inference.scoring import PairScore
from .metrics import translation_scores


def validate(
    accelerator: Accelerator,
    model,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    tokens_per_batch: int,
    bleu_tokenize: str,
) -> dict:
    """Score the model as it is on `pairs`, which have the string columns "source" and "target".

    Every process must call this, with all the model's weights.

    Returns:
        "loss" in nats per word piece, without label smoothing, "perplexity" per word piece, and translation_scores.
    """
    model.eval()
    sources, targets = pairs["source"][:], pairs["target"][:]
    with accelerator.autocast():
        with accelerator.split_between_processes({"sources": sources, "targets": targets}) as own:
            scores = gather_object(score_pairs(model, tokenizer, **own, tokens_per_batch=tokens_per_batch))
        translations = translate_together(model, tokenizer, sources, tokens_per_batch)
    total = PairScore(sum(score.log_prob for score in scores), sum(score.tokens for score in scores))
    losses = {"loss": -total.log_prob / total.tokens, "perplexity": total.perplexity}
    return {**losses, **translation_scores(translations, targets, bleu_tokenize)}


def translate_together(
    model,
    tokenizer: PreTrainedTokenizerBase,
    sources: list[str],
    tokens_per_batch: int,
    show_progress: bool = False,
) -> list[str]:
    """Translate `sources` as `translate` does; each process translates its share, and gets all translations.

    Every process must call this.
    """
    state = PartialState()
    shown = show_progress and state.is_main_process
    with state.split_between_processes(sources) as own:
        return gather_object(translate(model, tokenizer, own, tokens_per_batch, show_progress=shown))

"""The scores of a model on validation and test pairs, which all processes compute together."""

from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..inference import score_pairs, translate
from ..inference.scoring import PairScore
from .metrics import translation_scores
from .options import TrainingOptions


def validation_scores(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Dataset, training: TrainingOptions
) -> dict:
    """Score a model, in evaluation mode, on pairs with the string columns "source" and "target".

    Every process must call this, with all the model's weights.

    Returns:
        "loss" in nats per word piece, without label smoothing, "perplexity" per word piece, and translation_scores.
    """
    texts = {"sources": pairs["source"][:], "targets": pairs["target"][:]}
    with PartialState().split_between_processes(texts) as own:
        scores = gather_object(score_pairs(model, tokenizer, **own, tokens_per_batch=training.tokens_per_batch))
    total = PairScore(sum(score.log_prob for score in scores), sum(score.tokens for score in scores))
    losses = {"loss": -total.log_prob / total.tokens, "perplexity": total.perplexity}
    return {**losses, **translate_and_score(model, tokenizer, pairs, training)}


def translate_and_score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    training: TrainingOptions,
    show_progress: bool = False,
) -> dict:
    """Translate the sources, a share on each process, and give their translation_scores. Every process must call this.

    Args:
        show_progress: a progress bar on the main process.
    """
    state = PartialState()
    shown = show_progress and state.is_main_process
    with state.split_between_processes(pairs["source"][:]) as own:
        translations = gather_object(translate(model, tokenizer, own, training.tokens_per_batch, show_progress=shown))
    return translation_scores(translations, pairs["target"][:], training.bleu_tokenize)

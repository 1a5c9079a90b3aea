"""Validation while training, and the translation of a test set by all processes together."""

from contextlib import AbstractContextManager

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..inference import score_pairs, translate
from ..inference.scoring import PairScore
from .metrics import translation_scores


def validate(
    model,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    tokens_per_batch: int,
    bleu_tokenize: str,
) -> dict:
    """Score `model` on `pairs`, which have the string columns "source" and "target", in the precision of the training.

    Every process must call this, with all the model's weights.

    Returns:
        "loss" in nats per word piece, without label smoothing, "perplexity" per word piece, and translation_scores.
    """
    model.eval()
    sources, targets = pairs["source"][:], pairs["target"][:]
    with autocast(model.device):
        with PartialState().split_between_processes({"sources": sources, "targets": targets}) as own:
            scores = gather_object(score_pairs(model, tokenizer, **own, tokens_per_batch=tokens_per_batch))
        translations = translate_together(model, tokenizer, sources, tokens_per_batch)
    total = PairScore(sum(score.log_prob for score in scores), sum(score.tokens for score in scores))
    losses = {"loss": -total.log_prob / total.tokens, "perplexity": total.perplexity}
    return {**losses, **translation_scores(translations, targets, bleu_tokenize)}


def autocast(device: torch.device) -> AbstractContextManager:
    """The mixed precision of the training; accelerate's own needs the Accelerator, which ends with the updates."""
    precision = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(AcceleratorState().mixed_precision)
    return torch.autocast(device.type, dtype=precision, enabled=precision is not None)


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

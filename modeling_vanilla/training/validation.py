"""Validation while training, and the translation of a test set by all processes together."""

from collections.abc import Sequence

import torch
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
    own = slice(accelerator.process_index, None, accelerator.num_processes)
    with accelerator.autocast():
        scores = score_pairs(model, tokenizer, sources[own], targets[own], tokens_per_batch)
        translations = translate_together(model, tokenizer, sources, tokens_per_batch)
    sums = torch.tensor([-sum(score.log_prob for score in scores), float(sum(score.tokens for score in scores))])
    nll, tokens = accelerator.reduce(sums.to(accelerator.device), reduction="sum").tolist()
    perplexity = PairScore(-nll, int(tokens)).perplexity
    return {"loss": nll / tokens, "perplexity": perplexity, **translation_scores(translations, targets, bleu_tokenize)}


def translate_together(
    model,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    tokens_per_batch: int,
    show_progress: bool = False,
) -> list[str]:
    """Translate `sources` as `translate` does; each process translates its share, and gets all translations.

    Every process must call this.
    """
    state = PartialState()
    own = slice(state.process_index, None, state.num_processes)
    shown = show_progress and state.is_main_process
    shares = gather_object([translate(model, tokenizer, sources[own], tokens_per_batch, show_progress=shown)])
    translations = [""] * len(sources)
    for index, share in enumerate(shares):
        translations[index :: state.num_processes] = share
    return translations

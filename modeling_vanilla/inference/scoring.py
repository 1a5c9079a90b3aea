"""Score given translations: log P(target | source)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..splitting_vanilla import token_ids
from .batching import TOKENS_PER_BATCH, check_pairs, pair_batches


class PairScore(NamedTuple):
    """log P(target | source), natural logarithm, and the number of target tokens, EOS counted in both."""

    log_prob: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """Per token: exp(-log_prob / tokens)."""
        mean = -self.log_prob / self.tokens
        return math.exp(mean) if mean < 709 else math.inf  # exp overflows beyond


def score_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[str],
    tokens_per_batch: int = TOKENS_PER_BATCH,
    show_progress: bool = False,
) -> list[PairScore]:
    """log P(target | source) of given pairs, without label smoothing. An empty text is scored as EOS alone.

    Args:
        tokens_per_batch: the most tokens of a batch on either side, padding included.

    Raises:
        ValueError: if the numbers differ, one is a string, or tokens_per_batch is below 1.
    """
    check_pairs(sources, targets)
    if not sources:
        return []
    source_ids = list(token_ids(tokenizer, sources))
    target_ids = list(token_ids(tokenizer, targets, "text_target"))
    scores = [PairScore(0.0, 0)] * len(sources)
    for rows, inputs, labels in pair_batches(model, tokenizer, source_ids, target_ids, tokens_per_batch, show_progress):
        with torch.inference_mode():
            logits = model(**inputs, use_cache=False).logits.float()
            # log softmax(logits)[label] without the (B, T, V) of a whole log-softmax.
            log_probs = logits.gather(-1, labels[..., None]).squeeze(-1) - logits.logsumexp(dim=-1)
        for row, values in zip(rows, log_probs.double().cpu(), strict=True):
            scores[row] = PairScore(values[: len(target_ids[row])].sum().item(), len(target_ids[row]))
    return scores

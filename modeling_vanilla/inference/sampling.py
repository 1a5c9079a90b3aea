"""Samples that a seed and the source alone decide, whatever else is in the batch."""

import random
from collections.abc import Sequence

import torch
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel


def random_of(seed: int, *sources: Sequence[int]) -> random.Random:
    """The generator of token ids and a seed."""
    return random.Random(f"{seed} {[[*ids] for ids in sources]}")


def sample(model: PreTrainedModel, input_ids: torch.Tensor, logits_processor, generators, **given) -> torch.Tensor:
    """`custom_generate` of generate(): its own loop, in which each row draws by a generator of its own."""
    processors = LogitsProcessorList([*logits_processor, Draw(generators)])
    return model._sample(input_ids, logits_processor=processors, **given)


class Draw(LogitsProcessor):
    """Leaves each row one token, drawn by its probabilities, after what else changes them, such as temperature."""

    def __init__(self, generators: Sequence[random.Random]):
        self.generators = generators

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """scores: (rows, V)"""
        sums = scores.float().softmax(dim=-1).cumsum(dim=-1)
        drawn, total = sums.new_tensor([[each.random()] for each in self.generators]), sums[:, -1:]
        # The first token whose sum is above the number; if rounding leaves none, the last that has a probability.
        token = torch.minimum((sums <= drawn * total).sum(dim=-1), (sums < total).sum(dim=-1))
        return torch.full_like(scores, -torch.inf).scatter(1, token[:, None], 0.0)

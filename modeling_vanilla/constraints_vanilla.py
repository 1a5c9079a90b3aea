"""What an output has to begin with."""

import copy
from collections.abc import Sequence

import torch
from torch import nn
from transformers import LogitsProcessor


class ForcedPrefix(LogitsProcessor):
    """Lets the output of each sentence begin with given tokens, in any search; their probabilities count as they are.

    Args:
        prefixes: the tokens of each sentence of the batch, behind the start token; empty for none.
    """

    row_by_row = True

    def __init__(self, prefixes: Sequence[Sequence[int]]):
        rows = [torch.tensor(prefix, dtype=torch.long) for prefix in prefixes]
        self.prefixes = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)  # (B, longest)

    def select(self, sentences: torch.Tensor) -> "ForcedPrefix":
        """For some sentences of the batch, given as a mask (B,) or as indices."""
        remaining = copy.copy(self)
        remaining.prefixes = self.prefixes[sentences.cpu()]
        return remaining

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """input_ids (rows, length), as many rows of each sentence; scores (rows, V)."""
        step = input_ids.shape[1] - 1
        if step >= self.prefixes.shape[1]:
            return scores
        rows = len(input_ids) // len(self.prefixes)  # of each sentence
        token = self.prefixes[:, step].to(scores.device).repeat_interleave(rows)[:, None]
        given = token.clamp(min=0)
        forced = torch.full_like(scores, -torch.inf).scatter(1, given, scores.gather(1, given))
        return torch.where(token >= 0, forced, scores)


__all__ = ["ForcedPrefix"]

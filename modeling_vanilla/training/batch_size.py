"""The largest batch that a device holds."""

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, find_executable_batch_size

from .batches import epoch_batches


def fit_batch(accelerator: Accelerator, model, lengths: tuple[np.ndarray, np.ndarray], tokens_per_batch: int) -> int:
    """The largest tokens_per_batch, from the given one downwards, with which a training step fits in memory everywhere.

    Tried are the first pass forward and backward of the batches that need most, with room for Adam's moments.

    Args:
        model: as accelerate has prepared it; its gradients are cleared.
        lengths: tokens of each training pair, as pair_lengths gives them.

    Raises:
        ValueError: if not even a batch of the longest pair fits, or the model is sharded, where a process that runs out
            of memory would leave the others waiting.
    """
    if accelerator.distributed_type == DistributedType.FSDP:
        raise ValueError("fit_batch: a model sharded by FSDP cannot be tried out; set tokens_per_batch instead")
    model = accelerator.unwrap_model(model).train()
    longest = int(max(side.max() for side in lengths))

    def attempt(tokens_per_batch: int) -> int:
        if tokens_per_batch < longest:
            raise ValueError(f"fit_batch: a batch of the longest pair, {longest} tokens, does not fit in memory")
        moments = [torch.zeros_like(parameter) for parameter in model.parameters() for _ in range(2)]
        batches = epoch_batches(*lengths, tokens_per_batch, seed=0, epoch=0)
        for rows, source, target in _largest(batches, lengths):
            ids = torch.ones(rows, source, dtype=torch.long, device=accelerator.device)
            labels = torch.ones(rows, target, dtype=torch.long, device=accelerator.device)
            with accelerator.autocast():
                loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
            accelerator.backward(loss)
        del moments
        return tokens_per_batch

    found = find_executable_batch_size(attempt, starting_batch_size=tokens_per_batch)()
    model.zero_grad()
    return int(accelerator.gather(torch.tensor([found], device=accelerator.device)).min())


def _largest(batches: list[np.ndarray], lengths: tuple[np.ndarray, np.ndarray]) -> set[tuple[int, int, int]]:
    """(rows, longest source, longest target) of the batch of most positions and of that of most attention weights."""
    shapes = [(len(rows), int(lengths[0][rows].max()), int(lengths[1][rows].max())) for rows in batches]
    positions = max(shapes, key=lambda shape: shape[0] * (shape[1] + shape[2]))
    weights = max(shapes, key=lambda shape: shape[0] * (shape[1] ** 2 + shape[2] ** 2 + shape[1] * shape[2]))
    return {positions, weights}

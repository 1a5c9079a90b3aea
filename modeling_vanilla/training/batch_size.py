"""The largest batch that a device holds."""

import torch
from accelerate.utils import DistributedType, find_executable_batch_size
from datasets import Dataset

from .batches import epoch_batches
from .checkpoints import TrainingState
from .preprocessing import pair_lengths


def fit_batch(state: TrainingState, training_data: Dataset) -> int:
    """The largest tokens_per_batch, at most the option's, whose training step fits in the memory of every device.

    Each size is tried with a pass forward and backward of the batches that need most, and with room for Adam's moments.

    Raises:
        ValueError: not even a batch of the longest pair fits, or FSDP shards the model: a process that runs out of
            memory would leave the others waiting.
    """
    accelerator, lengths = state.accelerator, pair_lengths(training_data)
    if accelerator.distributed_type == DistributedType.FSDP:
        raise ValueError("fit_batch: a model sharded by FSDP cannot be tried out; set tokens_per_batch instead")
    model = accelerator.unwrap_model(state.model).train()
    longest = int(max(side.max() for side in lengths))

    def attempt(tokens_per_batch: int) -> int:
        if tokens_per_batch < longest:
            raise ValueError(f"fit_batch: a batch of the longest pair, {longest} tokens, does not fit in memory")
        moments = [torch.zeros_like(parameter) for parameter in model.parameters() for _ in range(2)]
        batches = epoch_batches(*lengths, tokens_per_batch, seed=0, epoch=0)
        shapes = [(len(rows), int(lengths[0][rows].max()), int(lengths[1][rows].max())) for rows in batches]
        most_positions = max(shapes, key=lambda shape: shape[0] * (shape[1] + shape[2]))
        most_weights = max(shapes, key=lambda shape: shape[0] * (shape[1] ** 2 + shape[2] ** 2 + shape[1] * shape[2]))
        for rows, source, target in {most_positions, most_weights}:
            ids = torch.ones(rows, source, dtype=torch.long, device=accelerator.device)
            labels = torch.ones(rows, target, dtype=torch.long, device=accelerator.device)
            with accelerator.autocast():
                loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
            accelerator.backward(loss)
        del moments
        return tokens_per_batch

    found = find_executable_batch_size(attempt, starting_batch_size=state.options.tokens_per_batch)()
    model.zero_grad()
    return int(accelerator.gather(torch.tensor([found], device=accelerator.device)).min())

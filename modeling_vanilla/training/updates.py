"""Updates: the pairs of each, their distribution over the processes, and the step of Adam (5.3)."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset
from torch import nn

from .batches import collate, epoch_batches, update_batches
from .checkpoints import TrainingState
from .optimization import learning_rate
from .options import TrainingOptions
from .preprocessing import pair_lengths


@dataclass
class Update:
    """One process's share of one optimizer update.

    Attributes:
        batches: its batches, collated.
        weights: 1 for each batch, 0 for one that fills up a share, so that all shares have as many batches.
        target_tokens, tokens, positions: of the whole update, on all processes.
    """

    batches: list[dict]
    weights: list[float]
    target_tokens: int
    tokens: int
    positions: int


def read_updates(state: TrainingState, training_data: Dataset) -> Iterator[Update]:
    """Yield this process's share of every update from the state's progress on, epoch after epoch, without end.

    The processes take an update's batches in turn, so that its pairs do not depend on the number of processes.

    Raises:
        ValueError: at once, if a batch of the size asked for cannot hold a pair.
    """
    lengths, progress = pair_lengths(training_data), state.progress
    data = training_data.with_format("arrow")
    rank, world = state.accelerator.process_index, state.accelerator.num_processes

    def plan_epoch() -> list[list[np.ndarray]]:
        """The rows of each batch of each update of the epoch."""
        batches = epoch_batches(*lengths, state.training.tokens_per_batch, state.training.seed, progress.epoch)
        return update_batches(batches, *lengths, state.training.tokens_per_update)

    def share(update: list[np.ndarray]) -> Update:
        # Every process must take part in as many backward passes: the first batch fills up the shares, with weight 0.
        own = (update + update[:1] * (-len(update) % world))[rank::world]
        rows = np.concatenate(update)
        target_tokens = int(lengths[1][rows].sum())
        return Update(
            batches=[collate(data[batch], state.tokenizer.pad_token_id) for batch in own],
            weights=[float(rank + world * index < len(update)) for index in range(len(own))],
            target_tokens=target_tokens,
            tokens=target_tokens + int(lengths[0][rows].sum()),
            positions=sum(len(batch) * int(side[batch].max()) for batch in update for side in lengths),
        )

    def read(plan: list[list[np.ndarray]]) -> Iterator[Update]:
        while True:
            yield from map(share, plan[progress.updates_of_epoch :])
            progress.epoch += 1
            progress.updates_of_epoch = 0
            plan = plan_epoch()

    return read(plan_epoch())


def take_update(state: TrainingState, model, update: Update) -> dict[str, float]:
    """Take one update: the gradient of its mean loss, on all processes, and Adam's step.

    Args:
        model: the state's, or what torch.compile has made of it.

    Returns:
        "loss", the mean over all its target tokens on all processes, in nats; "gradient_norm" before it is clipped; and
        the "learning_rate".

    Raises:
        ValueError: the loss or the gradient is not finite.
    """
    accelerator, training, step = state.accelerator, state.training, state.progress.step + 1
    # Dropout is a function of seed, step and process: a resumed run draws what the uninterrupted one would have.
    torch.manual_seed(
        int(np.random.SeedSequence([training.seed, step, accelerator.process_index]).generate_state(1)[0])
    )
    rate = rate_of(training, state.own_model.config.d_model, step)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    model.train()
    losses = []
    for index, (batch, weight) in enumerate(zip(update.batches, update.weights, strict=True), start=1):
        batch = {name: value.to(accelerator.device, non_blocking=True) for name, value in batch.items()}
        with nullcontext() if index == len(update.batches) else accelerator.no_sync(model):
            loss = model(**batch, num_items_in_batch=update.target_tokens).loss * weight
            # Processes' gradients are averaged where the mean over the update's tokens asks for their sum.
            accelerator.backward(loss * accelerator.num_processes)
        losses.append(loss.detach())
    total = accelerator.reduce(torch.stack(losses).sum(), reduction="sum")
    if training.max_grad_norm is not None:
        norm = accelerator.clip_grad_norm_(model.parameters(), training.max_grad_norm)
    else:
        accelerator.unscale_gradients()  # as clip_grad_norm_ does
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    loss, norm = float(total), float(norm)
    # In 16-bit floats (fp16) a gradient may overflow: accelerate's scaler then skips the step, and halves its scale.
    if not math.isfinite(loss) or (accelerator.scaler is None and not math.isfinite(norm)):
        name = "learning_rate_scale" if training.learning_rate is None else "learning_rate"
        raise ValueError(
            f"the loss of step {step} is {loss}, its gradient's norm {norm}. Post-LN is sensitive to warm-up: raise "
            f"warmup_steps ({training.warmup_steps}), lower {name} ({getattr(training, name)}) or set max_grad_norm "
            f"({training.max_grad_norm})"
        )
    state.optimizer.step()
    state.optimizer.zero_grad()
    return {"loss": loss, "gradient_norm": norm, "learning_rate": rate}


def rate_of(training: TrainingOptions, d_model: int, step: int) -> float:
    """The learning rate of a step: Eq. 3, times learning_rate_scale or so that its peak is learning_rate."""
    scale = training.learning_rate_scale or 1.0
    if training.learning_rate is not None:
        scale = training.learning_rate * (d_model * training.warmup_steps) ** 0.5
    return learning_rate(step, d_model, training.warmup_steps, scale)

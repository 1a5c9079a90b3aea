"""One update: the gradient of its mean loss, on all processes, and Adam's step."""

import math
from contextlib import nullcontext

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from .optimization import learning_rate
from .options import TrainingOptions
from .updates import Update

_NAMED_ROWS = 5


def take_step(
    accelerator: Accelerator, model, optimizer, update: Update, options: TrainingOptions, step: int
) -> tuple[float, float]:
    """Take one update.

    Returns:
        Its loss, the mean over all its target tokens on all processes, in nats, and the gradient's norm.

    Raises:
        ValueError: the loss or the gradient is not finite.
    """
    # Dropout is a function of seed, step and process: a resumed run draws what the uninterrupted one would have.
    torch.manual_seed(int(np.random.SeedSequence([options.seed, step, accelerator.process_index]).generate_state(1)[0]))
    d_model = accelerator.unwrap_model(model).config.d_model
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, d_model, options.warmup_steps, options.rate_scale(d_model))
    model.train()
    losses = []
    for index, (batch, weight) in enumerate(zip(update.batches, update.weights, strict=True)):
        batch = {name: value.to(accelerator.device, non_blocking=True) for name, value in batch.items()}
        last = index + 1 == len(update.batches)
        with nullcontext() if last else accelerator.no_sync(model):
            loss = model(**batch, num_items_in_batch=update.target_tokens).loss * weight
            # Processes' gradients are averaged where the mean over the update's tokens asks for their sum.
            accelerator.backward(loss * accelerator.num_processes)
        losses.append(loss.detach())
    total = accelerator.reduce(torch.stack(losses).sum(), reduction="sum")
    norm = float(_gradient_norm(accelerator, model, options.max_grad_norm))
    loss = float(total)  # by now it is there: the host of a GPU has waited for the gradient
    # In 16-bit floats (fp16) a gradient may overflow: accelerate's scaler then skips the step, and halves its scale.
    if not math.isfinite(loss) or (accelerator.scaler is None and not math.isfinite(norm)):
        raise ValueError(_divergence(step, loss, norm, losses, update, options))
    optimizer.step()
    optimizer.zero_grad()
    return loss, norm


def _gradient_norm(accelerator: Accelerator, model, limit: float | None) -> torch.Tensor:
    """The norm of the whole gradient, without the scale of fp16's loss, before it is clipped to `limit`."""
    if limit is not None:
        return accelerator.clip_grad_norm_(model.parameters(), limit)
    accelerator.unscale_gradients()  # as clip_grad_norm_ does
    return nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])


def _divergence(step: int, loss: float, norm: float, losses: list, update: Update, options: TrainingOptions) -> str:
    """What went wrong, in which batch, and what to do about it."""
    what = f"gradient norm of step {step} is {norm}" if math.isfinite(loss) else f"loss of step {step} is {loss}"
    bad = [index for index, value in enumerate(losses) if not math.isfinite(value)]
    if not bad and math.isfinite(loss):
        bad = list(range(len(losses)))
    where = "none of this process's batches"
    if bad:
        rows = np.concatenate([update.rows[index] for index in bad])
        named = ", ".join(str(row + 1) for row in rows[:_NAMED_ROWS]) + (", ..." if len(rows) > _NAMED_ROWS else "")
        where = f"{len(bad)} of {len(losses)} batches, of {len(rows)} training pairs ({named} of those kept)"
    rate = "learning_rate_scale" if options.learning_rate is None else "learning_rate"
    return (
        f"the {what}, in {where}. "
        f"Post-LN is sensitive to warm-up: raise warmup_steps ({options.warmup_steps}), lower {rate} "
        f"({getattr(options, rate)}) or set max_grad_norm ({options.max_grad_norm})"
    )

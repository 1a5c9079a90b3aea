"""Section 5: the training loop, on accelerate."""

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import tqdm
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .checkpoints import (
    average_checkpoints,
    checkpoint_step,
    list_checkpoints,
    load_optimizer,
    prune_checkpoints,
    save_checkpoint,
    whole_model,
)
from .data import collate, pair_lengths, token_batches, tokenize_pairs, update_batches
from .memory import fit_batch, keep_freed_memory
from .optimization import adam, learning_rate
from .options import TrainingOptions
from .validation import validate


@dataclass
class Progress:
    """How far a run is; all that a checkpoint holds besides weights and moments.

    seconds: of training, without validation and checkpoints. tokens: real tokens read, both sides. positions: those,
    padding included. tokens_per_batch: what fit_batch found. averaged: steps of the checkpoints that the final model is
    the mean of. losses: each update's, in nats per target token, label-smoothed. validations: one entry each.
    """

    step: int = 0
    epoch: int = 0
    updates_of_epoch: int = 0
    seconds: float = 0.0
    tokens: int = 0
    positions: int = 0
    tokens_per_batch: int | None = None
    averaged: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    validations: list[dict] = field(default_factory=list)

    def best(self) -> dict | None:
        """The validation with the highest BLEU."""
        return max(self.validations, key=lambda entry: entry["bleu"], default=None)

    def stalled(self, patience: int | None) -> bool:
        """Whether the last `patience` validations were all no better than an earlier one."""
        return patience is not None and self.best() in self.validations[:-patience]


@dataclass
class Update:
    """One process's part of one optimizer update.

    batches: its batches, collated. rows: their rows of the training data. weights: 1 for each batch, 0 for one that is
    there only because another process has one more. target_tokens, tokens, positions: of the whole update, on all
    processes.
    """

    batches: list[dict]
    rows: list[np.ndarray]
    weights: list[float]
    target_tokens: int
    tokens: int
    positions: int


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    training_data: Dataset,
    validation_pairs: Dataset | None,
    options: TrainingOptions,
    progress: Progress | None = None,
) -> tuple[PreTrainedModel, Progress]:
    """Train `model` by section 5 and return it with the average of its last checkpoints (6.1).

    Args:
        training_data: as tokenize_training_pairs gives it.
        validation_pairs: string columns "source" and "target", or None not to validate.
        progress: where to go on; the model's weights and the optimizer's moments are then of the run's last checkpoint.

    Raises:
        ValueError: if the data do not fill one update, or a loss or gradient is not finite.
        OSError: if a checkpoint cannot be written.
    """
    run = Path(options.output_dir)
    accelerator = Accelerator(mixed_precision=options.mixed_precision, log_with="tensorboard", project_dir=run)
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    resumed, progress = progress is not None, progress or Progress()
    model, optimizer = _prepare(accelerator, model)
    if resumed:
        load_optimizer(list_checkpoints(run)[-1], model, optimizer)
    elif options.fit_batch:
        progress.tokens_per_batch = fit_batch(accelerator, model, pair_lengths(training_data), options.tokens_per_batch)
    options = replace(options, tokens_per_batch=progress.tokens_per_batch or options.tokens_per_batch)
    save = partial(_save, run, accelerator, model, optimizer, tokenizer, progress, options)
    validation_data = None if validation_pairs is None else tokenize_pairs(validation_pairs, tokenizer)
    compiled = torch.compile(model, dynamic=True) if options.compile else model

    def over() -> bool:
        out_of_time = options.max_minutes is not None and progress.seconds >= 60 * options.max_minutes
        stalled = progress.stalled(options.early_stopping)
        return _agree(accelerator, progress.step >= options.max_steps or out_of_time or stalled)

    accelerator.init_trackers("tensorboard")
    updates = _updates(training_data, tokenizer, options, progress, accelerator)
    last_save = start = time.monotonic()
    finished = over()
    with tqdm(initial=progress.step, unit=" updates", desc="Training", smoothing=0.05) as bar:
        while not finished:
            update = next(updates)
            loss, norm = _take_step(accelerator, compiled, optimizer, update, options, progress.step + 1)
            progress.step += 1
            progress.updates_of_epoch += 1
            progress.losses.append(loss)
            progress.seconds += time.monotonic() - start
            progress.tokens += update.tokens
            progress.positions += update.positions
            speed = progress.tokens / progress.seconds
            rate = optimizer.param_groups[0]["lr"]
            figures = {"loss": loss, "gradient_norm": norm, "learning_rate": rate, "tokens_per_second": speed}
            accelerator.log(figures, step=progress.step)
            bar.total = _expected_steps(progress, options)
            bar.set_postfix_str(f"loss {loss:.3f}, {speed:.0f} tokens/s", refresh=False)
            bar.update()

            finished, best = over(), False
            if validation_data is not None and (finished or progress.step % options.validate_steps == 0):
                scores = validate(
                    accelerator,
                    model,
                    tokenizer,
                    validation_pairs,
                    validation_data,
                    options.tokens_per_batch,
                    options.bleu_tokenize,
                )
                progress.validations.append({"step": progress.step, **scores})
                best = progress.best() is progress.validations[-1]
                accelerator.log(_numbers("validation", scores), step=progress.step)
                if accelerator.is_main_process:
                    bar.write(f"step {progress.step}: " + ", ".join(f"{key} {scores[key]:.2f}" for key in _SHOWN))
                finished = over()
            by_step = options.checkpoint_steps is not None and progress.step % options.checkpoint_steps == 0
            minutes = (time.monotonic() - last_save) / 60
            by_time = options.checkpoint_minutes is not None and minutes >= options.checkpoint_minutes
            if _agree(accelerator, finished or best or by_step or by_time):
                save()
                last_save = time.monotonic()
            start = time.monotonic()
    for tracker in accelerator.trackers:  # end_training() would end the processes' group, too
        tracker.finish()
    trained = accelerator.unwrap_model(whole_model(accelerator, model), keep_fp32_wrapper=False)
    last = list_checkpoints(run)[-options.average_checkpoints :]
    progress.averaged = [checkpoint_step(checkpoint) for checkpoint in last]
    trained.load_state_dict(average_checkpoints(last), strict=False)
    trained.tie_weights()
    accelerator.wait_for_everyone()
    return trained.eval(), progress


def _prepare(accelerator: Accelerator, model: PreTrainedModel):
    """Model and optimizer as accelerate wants them trained: spread over the processes, if it was told so (FSDP2)."""
    # FSDP2 takes a weight that input and output embedding share, but no third module: the stacks share theirs.
    model.set_input_embeddings(model.get_input_embeddings())
    if accelerator.is_fsdp2 and accelerator.mixed_precision != "no":
        plugin = accelerator.state.fsdp_plugin
        # By accelerate's policy the processes' gradients would be summed, and the loss given, in 16 bits.
        plugin.mixed_precision_policy = replace(
            plugin.mixed_precision_policy, reduce_dtype=torch.float32, output_dtype=None
        )
    return accelerator.prepare(model, adam(model))


def _expected_steps(progress: Progress, options: TrainingOptions) -> int:
    if options.max_minutes is None:
        return options.max_steps
    return min(options.max_steps, math.ceil(progress.step * 60 * options.max_minutes / progress.seconds))


def _numbers(prefix: str, scores: dict) -> dict[str, float]:
    return {f"{prefix}_{name}": value for name, value in scores.items() if not isinstance(value, str)}


_SHOWN = ("loss", "perplexity", "bleu")


def _updates(
    training_data: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    options: TrainingOptions,
    progress: Progress,
    accelerator: Accelerator,
) -> Iterator[Update]:
    """This process's part of every update from `progress` on, epoch after epoch, without end.

    An update's batches are dealt out to the processes in turn, so that which sentences make an update does not depend
    on how many processes there are.
    """
    rank, world = accelerator.process_index, accelerator.num_processes
    data = training_data.select_columns(["input_ids", "labels"])
    lengths = pair_lengths(data)
    while True:
        batches = token_batches(*lengths, options.tokens_per_batch, options.seed, progress.epoch)
        plan = update_batches(batches, *lengths, options.tokens_per_update)[progress.updates_of_epoch :]
        # Every process must take part in as many backward passes: the one too few repeats a batch with weight 0.
        rounds = [math.ceil(len(update) / world) for update in plan]
        own = [
            [update[rank + turn * world] if rank + turn * world < len(update) else None for turn in range(count)]
            for update, count in zip(plan, rounds, strict=True)
        ]
        read = [[update[0] if rows is None else rows for rows in part] for update, part in zip(plan, own, strict=True)]
        loader = DataLoader(
            data,
            batch_sampler=[rows for part in read for rows in part],
            collate_fn=partial(collate, pad_token_id=tokenizer.pad_token_id),
            num_workers=options.data_workers,
            pin_memory=accelerator.device.type == "cuda",
        )
        loaded = iter(loader)
        for update, part, part_rows in zip(plan, own, read, strict=True):
            rows = np.concatenate(update)
            targets = int(lengths[1][rows].sum())
            yield Update(
                batches=[next(loaded) for _ in part],
                rows=part_rows,
                weights=[float(batch is not None) for batch in part],
                target_tokens=targets,
                tokens=targets + int(lengths[0][rows].sum()),
                positions=sum(len(batch) * int(side[batch].max()) for batch in update for side in lengths),
            )
        progress.epoch += 1
        progress.updates_of_epoch = 0


def _take_step(
    accelerator: Accelerator, model, optimizer, update: Update, options: TrainingOptions, step: int
) -> tuple[float, float]:
    """One update; its loss, the mean over all its target tokens on all processes, in nats, and the gradient's norm."""
    # Dropout is a function of seed, step and process: a resumed run draws what the uninterrupted one would have.
    torch.manual_seed(int(np.random.SeedSequence([options.seed, step, accelerator.process_index]).generate_state(1)[0]))
    d_model = accelerator.unwrap_model(model).config.d_model
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, d_model, options.warmup_steps, options.learning_rate_scale)
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
    loss = float(accelerator.reduce(torch.stack(losses).sum(), reduction="sum"))
    norm = _gradient_norm(accelerator, model, options.max_grad_norm)
    # In 16-bit floats (fp16) a gradient may overflow: accelerate's scaler then skips the step, and halves its scale.
    if not math.isfinite(loss) or (accelerator.scaler is None and not math.isfinite(norm)):
        raise ValueError(_divergence(step, loss, norm, losses, update, options))
    optimizer.step()
    optimizer.zero_grad()
    return loss, norm


def _gradient_norm(accelerator: Accelerator, model, limit: float | None) -> float:
    """The norm of the whole gradient, before it is clipped to `limit`."""
    if limit is not None:
        return float(accelerator.clip_grad_norm_(model.parameters(), limit))
    return float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))


def _divergence(step: int, loss: float, norm: float, losses: list, update: Update, options: TrainingOptions) -> str:
    """What went wrong, in which batch, and what to do about it."""
    bad = [index for index, value in enumerate(losses) if not math.isfinite(value)] or range(len(losses))
    rows = np.concatenate([update.rows[index] for index in bad])
    named = ", ".join(str(row + 1) for row in rows[:_NAMED_ROWS]) + (", ..." if len(rows) > _NAMED_ROWS else "")
    what = f"gradient norm of step {step} is {norm}" if math.isfinite(loss) else f"loss of step {step} is {loss}"
    return (
        f"the {what}, in {len(bad)} of {len(losses)} batches, of {len(rows)} training pairs ({named}). Post-LN is "
        f"sensitive to warm-up: raise warmup_steps ({options.warmup_steps}), lower learning_rate_scale "
        f"({options.learning_rate_scale}) or set max_grad_norm ({options.max_grad_norm})"
    )


_NAMED_ROWS = 5


def _save(run, accelerator, model, optimizer, tokenizer, progress: Progress, options: TrainingOptions) -> None:
    save_checkpoint(run, accelerator, model, optimizer, tokenizer, asdict(progress))
    if accelerator.is_main_process:
        best = progress.best()
        prune_checkpoints(run, options.keep_checkpoints, None if best is None else best["step"])


def _agree(accelerator: Accelerator, condition: bool) -> bool:
    """Whether the main process says so: clocks differ, and what depends on one must be decided once."""
    if accelerator.num_processes == 1:
        return condition
    flag = torch.tensor(int(condition and accelerator.is_main_process), device=accelerator.device)
    return bool(accelerator.reduce(flag, reduction="sum"))

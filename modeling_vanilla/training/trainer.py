"""Section 5: the training loop, on accelerate."""

import logging
import math
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import Interrupted, on_signal
from ..progress import inform, progress_bar
from .batch_size import fit_batch
from .batches import collate, epoch_batches, update_batches
from .checkpoints import (
    average_checkpoints,
    checkpoint_step,
    list_checkpoints,
    load_optimizer,
    newest_checkpoint,
    prune_checkpoints,
    save_best,
    save_checkpoint,
    whole_model,
)
from .cpu_memory import bound_kernel_caches, keep_freed_memory
from .optimization import adam, learning_rate
from .options import TrainingOptions
from .preprocessing import pair_lengths
from .validation import validate

logger = logging.getLogger(__name__)
_NAMED_ROWS = 5


@dataclass
class Progress:
    """How far a run is; all that a checkpoint holds besides weights and moments.

    Attributes:
        step: updates taken. epoch, updates_of_epoch: complete epochs, and updates of the current one.
        seconds: time spent in updates, without validation and checkpoints.
        tokens, positions: read so far on both sides, without and with padding.
        tokens_per_batch: what fit_batch found.
        scaler: state of the scaler of the loss, in fp16.
        averaged: steps of the checkpoints that the final model is the mean of.
        losses: of each update, in nats per target token, label-smoothed.
        validations: the step and the scores of each.
    """

    step: int = 0
    epoch: int = 0
    updates_of_epoch: int = 0
    seconds: float = 0.0
    tokens: int = 0
    positions: int = 0
    tokens_per_batch: int | None = None
    scaler: dict | None = None
    averaged: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    validations: list[dict] = field(default_factory=list)

    def add(self, update: "Update", loss: float, seconds: float) -> None:
        """Count an update."""
        self.step += 1
        self.updates_of_epoch += 1
        self.losses.append(loss)
        self.seconds += seconds
        self.tokens += update.tokens
        self.positions += update.positions

    def best(self) -> dict | None:
        """The validation with the highest BLEU, of equal ones that with the least loss, or else the first."""
        return max(self.validations, key=lambda entry: (entry["bleu"], -entry["loss"]), default=None)

    def validated(self) -> bool:
        """Whether the model was validated as it is now."""
        return bool(self.validations) and self.validations[-1]["step"] == self.step

    def stalled(self, patience: int | None) -> bool:
        """Whether none of the last `patience` validations was better than all before them."""
        return patience is not None and self.best() in self.validations[:-patience]


@dataclass
class Update:
    """One process's share of one optimizer update.

    Attributes:
        batches: its batches, collated. rows: their rows of the training data.
        weights: 1 for each batch, 0 for one that only fills up a share that is one batch short.
        target_tokens, tokens, positions: of the whole update, on all processes.
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

    Before each validation there is a checkpoint, so that whatever happens in it costs no update.

    Args:
        training_data: as tokenize_training_pairs gives it.
        validation_pairs: string columns "source" and "target", or None not to validate.
        progress: of the run's newest checkpoint, to resume from that; the model has its weights.

    Raises:
        ValueError: the data do not fill one update, or a loss or gradient is not finite.
        OSError: a checkpoint cannot be written.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; the update was finished and a checkpoint written.
    """
    accelerator = Accelerator(
        mixed_precision=options.mixed_precision, log_with="tensorboard", project_dir=options.output_dir
    )
    model, optimizer = _prepare(accelerator, model)
    if progress is None:
        progress = _start(accelerator, model, training_data, options)
    else:
        _resume(accelerator, model, optimizer, progress, options)
    options = replace(options, tokens_per_batch=progress.tokens_per_batch or options.tokens_per_batch)
    compiled = torch.compile(model, dynamic=True) if options.compile else model
    updates = _updates(training_data, tokenizer, options, progress, accelerator)
    save = partial(_save, accelerator, model, optimizer, tokenizer, progress, options)
    stop, received = partial(_stop, progress, options), [0]

    def signalled() -> int:
        """The number of the signal that a process has received, or 0."""
        return _agree(accelerator, received[-1])

    accelerator.init_trackers("tensorboard")
    saved_step, saved_time = progress.step, time.monotonic()
    with (
        on_signal(received.append),
        progress_bar(
            initial=progress.step,
            unit=" updates",
            desc="Training",
            smoothing=0.05,
            disable=not accelerator.is_main_process,
        ) as bar,
    ):
        while True:
            finished = _finished(accelerator, progress, options)
            validation_due = validation_pairs is not None and _validation_due(progress, options, finished)
            needed = finished or validation_due or signalled() > 0
            if progress.step > saved_step and save(needed, saved_time):
                saved_step, saved_time = progress.step, time.monotonic()
            if progress.step == saved_step and signalled():
                break
            if validation_due:
                with on_signal(stop):  # at once, as all is saved
                    _validate(accelerator, model, tokenizer, validation_pairs, progress, options)
                finished = _finished(accelerator, progress, options)  # early stopping
                if finished:
                    save(True, saved_time)  # once more: a longer run has to know what the best model scored
            if finished:
                break
            start = time.monotonic()
            update = next(updates)
            loss, norm = _take_step(accelerator, compiled, optimizer, update, options, progress.step + 1)
            progress.add(update, loss, time.monotonic() - start)
            rate = optimizer.param_groups[0]["lr"]
            _report(accelerator, bar, progress, options, {"loss": loss, "gradient_norm": norm, "learning_rate": rate})
    for tracker in accelerator.trackers:  # end_training() would end the processes' group, too
        tracker.finish()
    if signum := signalled():
        stop(signum)
    return _average(accelerator, model, progress, options), progress


def _prepare(accelerator: Accelerator, model: PreTrainedModel):
    """Model and optimizer as accelerate wants them trained: spread over the processes, if it was told so (FSDP2)."""
    if accelerator.device.type == "cpu":
        keep_freed_memory()
        bound_kernel_caches()
    # FSDP2 takes a weight that input and output embedding share, but no third module: the stacks share theirs.
    model.set_input_embeddings(model.get_input_embeddings())
    if accelerator.is_fsdp2 and accelerator.mixed_precision != "no":
        plugin = accelerator.state.fsdp_plugin
        # By accelerate's policy the processes' gradients would be summed, and the loss given, in 16 bits.
        plugin.mixed_precision_policy = replace(
            plugin.mixed_precision_policy, reduce_dtype=torch.float32, output_dtype=None
        )
    return accelerator.prepare(model, adam(model))


def _start(accelerator: Accelerator, model, training_data: Dataset, options: TrainingOptions) -> Progress:
    if accelerator.is_main_process:
        for line in options.warnings():
            logger.warning(line)
    if not options.fit_batch:
        return Progress()
    return Progress(
        tokens_per_batch=fit_batch(accelerator, model, pair_lengths(training_data), options.tokens_per_batch)
    )


def _resume(accelerator: Accelerator, model, optimizer, progress: Progress, options: TrainingOptions) -> None:
    checkpoint = newest_checkpoint(Path(options.output_dir))
    assert checkpoint is not None  # the one that `progress` was read from
    load_optimizer(checkpoint, model, optimizer)
    if accelerator.scaler is not None and progress.scaler is not None:
        accelerator.scaler.load_state_dict(progress.scaler)


def _updates(
    training_data: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    options: TrainingOptions,
    progress: Progress,
    accelerator: Accelerator,
) -> Iterator[Update]:
    """This process's share of every update from `progress` on, epoch after epoch, without end.

    An update's batches are dealt out to the processes in turn, so that which sentences make an update does not depend
    on how many processes there are.
    """
    data = training_data.select_columns(["input_ids", "labels"])
    lengths = pair_lengths(data)
    while True:
        batches = epoch_batches(*lengths, options.tokens_per_batch, options.seed, progress.epoch)
        plan = update_batches(batches, *lengths, options.tokens_per_update)[progress.updates_of_epoch :]
        shares = [_share(update, accelerator.process_index, accelerator.num_processes) for update in plan]
        loader = DataLoader(
            data,
            batch_sampler=[batch for share, _ in shares for batch in share],
            collate_fn=partial(collate, pad_token_id=tokenizer.pad_token_id),
            num_workers=options.data_workers,
            pin_memory=accelerator.device.type == "cuda",
        )
        loaded = iter(loader)
        for update, (share, weights) in zip(plan, shares, strict=True):
            rows = np.concatenate(update)
            target_tokens = int(lengths[1][rows].sum())
            yield Update(
                batches=[next(loaded) for _ in share],
                rows=share,
                weights=weights,
                target_tokens=target_tokens,
                tokens=target_tokens + int(lengths[0][rows].sum()),
                positions=sum(len(batch) * int(side[batch].max()) for batch in update for side in lengths),
            )
        progress.epoch += 1
        progress.updates_of_epoch = 0


def _share(update: list[np.ndarray], rank: int, world: int) -> tuple[list[np.ndarray], list[float]]:
    """The batches of an update that fall to process `rank` of `world`, and their weights.

    Every process must take part in as many backward passes: a share that is one short repeats a batch with weight 0.
    """
    own = update[rank::world]
    missing = math.ceil(len(update) / world) - len(own)
    return own + [update[0]] * missing, [1.0] * len(own) + [0.0] * missing


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
    """The norm of the whole gradient, without the scale of fp16's loss, before it is clipped to `limit`."""
    if limit is not None:
        return float(accelerator.clip_grad_norm_(model.parameters(), limit))
    accelerator.unscale_gradients()  # as clip_grad_norm_ does
    return float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))


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
    return (
        f"the {what}, in {where}. "
        f"Post-LN is sensitive to warm-up: raise warmup_steps ({options.warmup_steps}), lower learning_rate_scale "
        f"({options.learning_rate_scale}) or set max_grad_norm ({options.max_grad_norm})"
    )


def _report(accelerator: Accelerator, bar, progress: Progress, options: TrainingOptions, figures: dict) -> None:
    """An update's figures, to TensorBoard and beside the progress bar."""
    speed = progress.tokens / progress.seconds
    accelerator.log({**figures, "tokens_per_second": speed}, step=progress.step)
    bar.total = options.max_steps
    if options.max_minutes is not None:
        bar.total = min(bar.total, math.ceil(progress.step * 60 * options.max_minutes / progress.seconds))
    bar.set_postfix_str(f"loss {figures['loss']:.3f}, {speed:.0f} tokens/s", refresh=False)
    bar.update()


def _validate(
    accelerator: Accelerator,
    model,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    progress: Progress,
    options: TrainingOptions,
) -> None:
    """Validate, report the scores, and save the model in best/ if its BLEU is the best so far."""
    scores = validate(accelerator, model, tokenizer, pairs, options.tokens_per_batch, options.bleu_tokenize)
    progress.validations.append({"step": progress.step, **scores})
    numbers = {f"validation_{name}": value for name, value in scores.items() if not isinstance(value, str)}
    accelerator.log(numbers, step=progress.step)
    if accelerator.is_main_process:
        shown = ", ".join(f"{name} {scores[name]:.2f}" for name in ("loss", "perplexity", "bleu"))
        inform(f"step {progress.step}: {shown}")
    if progress.best() is progress.validations[-1]:
        save_best(Path(options.output_dir), accelerator, model, tokenizer)


def _finished(accelerator: Accelerator, progress: Progress, options: TrainingOptions) -> bool:
    out_of_time = options.max_minutes is not None and progress.seconds >= 60 * options.max_minutes
    finished = progress.step >= options.max_steps or out_of_time or progress.stalled(options.early_stopping)
    # Clocks differ, so one process decides for all.
    return bool(_agree(accelerator, accelerator.is_main_process and finished))


def _validation_due(progress: Progress, options: TrainingOptions, finished: bool) -> bool:
    scheduled = progress.step > 0 and progress.step % options.validate_steps == 0
    return (scheduled or finished) and not progress.validated()


def _stop(progress: Progress, options: TrainingOptions, signum: int) -> NoReturn:
    name = signal.Signals(signum).name
    where = f"update {progress.step} of {options.output_dir}"
    raise Interrupted(signum, f"{name}: stopped after {where}; the same command with --resume goes on from there")


def _save(
    accelerator: Accelerator,
    model,
    optimizer,
    tokenizer: PreTrainedTokenizerBase,
    progress: Progress,
    options: TrainingOptions,
    needed: bool,
    saved: float,
) -> bool:
    """Write a checkpoint if one is due: those of the schedule for the average, others only to resume from.

    Args:
        needed: whether one is due in any case.
        saved: time.monotonic() of the last one.

    Returns:
        Whether one was written.
    """
    scheduled = options.is_scheduled(progress.step)
    minutes = (time.monotonic() - saved) / 60
    overdue = options.checkpoint_minutes is not None and minutes >= options.checkpoint_minutes
    if not (scheduled or needed or _agree(accelerator, accelerator.is_main_process and overdue)):
        return False
    run = Path(options.output_dir)
    progress.scaler = None if accelerator.scaler is None else accelerator.scaler.state_dict()
    save_checkpoint(run, accelerator, model, optimizer, tokenizer, asdict(progress), scheduled)
    if accelerator.is_main_process:
        prune_checkpoints(run, options.keep_checkpoints)
    return True


def _agree(accelerator: Accelerator, value: int) -> int:
    """The largest of all processes' values."""
    if accelerator.num_processes == 1:
        return int(value)  # no tensor, for which a GPU's host would wait at each update
    return int(accelerator.gather(torch.tensor([int(value)], device=accelerator.device)).max())


def _average(accelerator: Accelerator, model, progress: Progress, options: TrainingOptions) -> PreTrainedModel:
    """The model with the mean of the last checkpoints of the schedule (6.1), or the newest one's weights if none was
    due. A run that was resumed with another max_steps or checkpoint_steps has checkpoints of another schedule, too,
    which do not count. Every process must call this."""
    run = Path(options.output_dir)
    trained = accelerator.unwrap_model(whole_model(accelerator, model), keep_fp32_wrapper=False)
    scheduled = [path for path in list_checkpoints(run) if options.is_scheduled(checkpoint_step(path))]
    newest = newest_checkpoint(run)
    assert newest is not None  # a training ends with one
    last = scheduled[-options.average_checkpoints :] or [newest]
    progress.averaged = [checkpoint_step(checkpoint) for checkpoint in last]
    trained.load_state_dict(average_checkpoints(last), strict=False)
    trained.tie_weights()
    accelerator.wait_for_everyone()
    return trained.eval()

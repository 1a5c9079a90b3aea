"""Section 5: the training loop, on accelerate."""

import logging
import math
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from accelerate import Accelerator
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import Interrupted, on_signal
from ..options import TrainingOptions
from ..progress import inform, progress_bar
from .batch_size import fit_batch
from .checkpoints import (
    Progress,
    average_checkpoints,
    checkpoint_step,
    last_checkpoints,
    load_optimizer,
    load_progress,
    prune_checkpoints,
    save_best,
    save_checkpoint,
    whole_model,
)
from .cpu_memory import bound_kernel_caches, keep_freed_memory
from .optimization import adam
from .preprocessing import pair_lengths
from .recipe import complete
from .step import take_step
from .updates import Lengths, plan_epoch, updates
from .validation import validate

logger = logging.getLogger(__name__)


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    training_data: Dataset,
    validation_pairs: Dataset | None,
    options: TrainingOptions,
    checkpoint: Path | None = None,
    validate_on_start: bool = False,
    on_train_begin: Callable[[], None] = lambda: None,
) -> tuple[PreTrainedModel, Progress]:
    """Train `model` by section 5 and return it with the average of its last checkpoints (6.1).

    Before each validation there is a checkpoint, so that whatever happens in it costs no update.

    Args:
        training_data: as tokenize_training_pairs gives it.
        validation_pairs: string columns "source" and "target", or None not to validate.
        options: what they leave open is as in the paper.
        checkpoint: to resume from; the model has its weights.
        validate_on_start: validate before the first update, too, as a model that is fine-tuned should become better.
        on_train_begin: called when all is checked and before anything is written, by every process.

    Raises:
        ValueError: the data do not fill one update, the checkpoint cannot be read, or a loss or gradient is not finite.
        OSError: a checkpoint cannot be written.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; the update was finished and a checkpoint written.
    """
    accelerator = Accelerator(
        mixed_precision=options.mixed_precision, log_with="tensorboard", project_dir=options.output_dir
    )
    model, optimizer = _prepare(accelerator, model)
    options, lengths = complete(options), pair_lengths(training_data)
    if checkpoint is None:
        progress = _start(accelerator, model, lengths, options)
    else:
        progress = _resume(accelerator, model, optimizer, checkpoint)
    options = replace(options, tokens_per_batch=progress.tokens_per_batch or options.tokens_per_batch)
    compiled = torch.compile(model, dynamic=True) if options.compile else model
    plan = plan_epoch(lengths, options, progress.epoch)
    to_take = updates(plan, lengths, training_data, tokenizer, options, progress, accelerator)
    first_validation = 0 if validate_on_start else options.validate_steps
    save = partial(_save, accelerator, model, optimizer, tokenizer, progress, options)
    stop, received = partial(_stop, progress, options), [0]

    def signalled() -> int:
        """The number of the signal that a process has received, or 0."""
        return _agree(accelerator, received[-1])

    on_train_begin()
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
            scheduled = progress.step >= first_validation and progress.step % options.validate_steps == 0
            validation_due = validation_pairs is not None and (scheduled or finished) and not progress.validated()
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
            update = next(to_take)
            loss, norm = take_step(accelerator, compiled, optimizer, update, options, progress.step + 1)
            progress.add(loss, time.monotonic() - start, update.tokens, update.positions)
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


def _start(accelerator: Accelerator, model, lengths: Lengths, options: TrainingOptions) -> Progress:
    if accelerator.is_main_process:
        for line in options.warnings():
            logger.warning(line)
    if not options.fit_batch:
        return Progress()
    return Progress(tokens_per_batch=fit_batch(accelerator, model, lengths, options.tokens_per_batch))


def _resume(accelerator: Accelerator, model, optimizer, checkpoint: Path) -> Progress:
    progress = load_progress(checkpoint)
    load_optimizer(checkpoint, model, optimizer)
    if accelerator.scaler is not None and progress.scaler is not None:
        accelerator.scaler.load_state_dict(progress.scaler)
    return progress


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
    save_checkpoint(run, accelerator, model, optimizer, tokenizer, progress, scheduled)
    if accelerator.is_main_process:
        prune_checkpoints(run, options.keep_checkpoints)
    return True


def _agree(accelerator: Accelerator, value: int) -> int:
    """The largest of all processes' values."""
    if accelerator.num_processes == 1:
        return int(value)  # no tensor, for which a GPU's host would wait at each update
    return int(accelerator.gather(torch.tensor([int(value)], device=accelerator.device)).max())


def _average(accelerator: Accelerator, model, progress: Progress, options: TrainingOptions) -> PreTrainedModel:
    """The model with the mean weights of the last checkpoints (6.1). Every process must call this."""
    trained = accelerator.unwrap_model(whole_model(accelerator, model), keep_fp32_wrapper=False)
    last = last_checkpoints(Path(options.output_dir), options.average_checkpoints)
    progress.averaged = [checkpoint_step(checkpoint) for checkpoint in last]
    trained.load_state_dict(average_checkpoints(last), strict=False)
    trained.tie_weights()
    accelerator.wait_for_everyone()
    return trained.eval()

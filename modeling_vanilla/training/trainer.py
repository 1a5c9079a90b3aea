"""Section 5: the training loop, on accelerate."""

import logging
import math
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NoReturn

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import ProjectConfiguration
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import Interrupted, on_signal
from ..files import whole_folder
from ..progress import inform, progress_bar
from .batch_size import fit_batch
from .checkpoints import (
    LAST,
    SCHEDULED,
    Progress,
    average_checkpoints,
    checkpoint_step,
    last_checkpoints,
    load_optimizer,
    load_progress,
    prune_checkpoints,
    save_checkpoint,
    save_model,
    whole_model,
)
from .cpu_memory import bound_kernel_caches, keep_freed_memory
from .optimization import adam
from .options import TrainingOptions
from .preprocessing import pair_lengths
from .recipe import complete
from .step import take_step
from .updates import plan_epoch, updates
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
    on_best: Callable[[Path], None] = lambda folder: None,
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
        on_best: called with the folder of each new best model by the main process.

    Raises:
        ValueError: the data do not fill one update, the checkpoint cannot be read, or a loss or gradient is not finite.
        OSError: a checkpoint cannot be written.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; the update was finished and a checkpoint written.
    """
    accelerator = Accelerator(
        mixed_precision=options.mixed_precision,
        log_with=options.trackers() or None,
        project_config=ProjectConfiguration(logging_dir=str(Path(options.output_dir, "tensorboard"))),
    )
    model, optimizer = _prepare(accelerator, model)
    options, lengths, progress = complete(options), pair_lengths(training_data), Progress()
    if checkpoint is not None:
        progress = load_progress(checkpoint)
        load_optimizer(checkpoint, model, optimizer)
        if accelerator.scaler is not None and progress.scaler is not None:
            accelerator.scaler.load_state_dict(progress.scaler)
    else:
        if accelerator.is_main_process and options.warmup_steps > options.max_steps / 2:
            logger.warning(
                f"warmup_steps: the learning rate rises for {options.warmup_steps} of {options.max_steps} updates and "
                "hardly falls; set fewer"
            )
        if options.fit_batch:
            progress.tokens_per_batch = fit_batch(accelerator, model, lengths, options.tokens_per_batch)
    options = replace(options, tokens_per_batch=progress.tokens_per_batch or options.tokens_per_batch)
    compiled = torch.compile(model, dynamic=True) if options.compile else model
    plan = plan_epoch(lengths, options, progress.epoch)
    to_take = updates(plan, lengths, training_data, tokenizer, options, progress, accelerator)
    first_validation = 0 if validate_on_start else options.validate_steps
    run, received = _Run(accelerator, model, optimizer, tokenizer, options, progress, on_best), [0]
    on_train_begin()
    accelerator.init_trackers(
        "modeling_vanilla", {name: value for name, value in asdict(options).items() if value is not None}
    )
    saved_step, saved_time = progress.step, time.monotonic()
    bar = progress_bar(initial=progress.step, unit=" updates", desc="Training", disable=not accelerator.is_main_process)
    with on_signal(received.append), bar:
        while True:
            finished = run.is_finished()
            scheduled = progress.step >= first_validation and progress.step % options.validate_steps == 0
            validation_due = validation_pairs is not None and (scheduled or finished) and not progress.validated()
            signalled = run.agree(received[-1]) > 0
            if progress.step > saved_step and run.save(finished or validation_due or signalled, saved_time):
                saved_step, saved_time = progress.step, time.monotonic()
            if progress.step == saved_step and run.agree(received[-1]):
                break
            if validation_due:
                with on_signal(run.stop):  # at once, as all is saved
                    run.validate(validation_pairs)
                finished = run.is_finished()  # early stopping
                if finished:
                    run.save(True, saved_time)  # once more: a longer run has to know what the best model scored
            if finished:
                break
            start = time.monotonic()
            update = next(to_take)
            loss, norm = take_step(accelerator, compiled, optimizer, update, options, progress.step + 1)
            progress.add(loss, time.monotonic() - start, update.tokens, update.positions)
            run.report(bar, {"loss": loss, "gradient_norm": norm, "learning_rate": optimizer.param_groups[0]["lr"]})
    for tracker in accelerator.trackers:  # end_training() would end the processes' group, too
        tracker.finish()
    if signum := run.agree(received[-1]):
        run.stop(signum)
    return run.average(), progress


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


@dataclass
class _Run:
    """What belongs to a training that is under way, on each process, and what is done with it between updates."""

    accelerator: Accelerator
    model: PreTrainedModel
    optimizer: AcceleratedOptimizer
    tokenizer: PreTrainedTokenizerBase
    options: TrainingOptions
    progress: Progress
    on_best: Callable[[Path], None]

    def agree(self, value: int) -> int:
        """The largest of all processes' values."""
        if self.accelerator.num_processes == 1:  # nothing for a GPU's host to wait for
            return int(value)
        return int(self.accelerator.gather(torch.tensor([int(value)], device=self.accelerator.device)).max())

    def is_finished(self) -> bool:
        options, progress = self.options, self.progress
        out_of_time = options.max_minutes is not None and progress.seconds >= 60 * options.max_minutes
        finished = progress.step >= options.max_steps or out_of_time or progress.stalled(options.early_stopping)
        # Clocks differ, so one process decides for all.
        return bool(self.agree(self.accelerator.is_main_process and finished))

    def save(self, needed: bool, saved: float) -> bool:
        """Write a checkpoint if one is due: those of the schedule for the average, others only to resume from.

        Args:
            needed: whether one is due in any case.
            saved: time.monotonic() of the last one.

        Returns:
            Whether one was written.
        """
        accelerator, options, progress = self.accelerator, self.options, self.progress
        scheduled = options.is_scheduled(progress.step)
        minutes = (time.monotonic() - saved) / 60
        overdue = options.checkpoint_minutes is not None and minutes >= options.checkpoint_minutes
        if not (scheduled or needed or self.agree(accelerator.is_main_process and overdue)):
            return False
        run = Path(options.output_dir)
        folder = run / f"{SCHEDULED if scheduled else LAST}-{progress.step}"
        progress.scaler = None if accelerator.scaler is None else accelerator.scaler.state_dict()
        save_checkpoint(folder, accelerator, self.model, self.optimizer, self.tokenizer, progress)
        if accelerator.is_main_process:
            prune_checkpoints(run, options.keep_checkpoints)
        return True

    def validate(self, pairs: Dataset) -> None:
        """Validate, report the scores, and save the model in best/ if its BLEU is the best so far."""
        accelerator, options, progress = self.accelerator, self.options, self.progress
        model = whole_model(accelerator, self.model)
        scores = validate(model, self.tokenizer, pairs, options.tokens_per_batch, options.bleu_tokenize)
        progress.validations.append({"step": progress.step, **scores})
        numbers = {f"validation_{name}": value for name, value in scores.items() if not isinstance(value, str)}
        accelerator.log(numbers, step=progress.step)
        if accelerator.is_main_process:
            shown = ", ".join(f"{name} {scores[name]:.2f}" for name in ("loss", "perplexity", "bleu"))
            inform(f"step {progress.step}: {shown}")
            if progress.stalled(options.early_stopping):
                inform(f"early_stopping: no better BLEU in {options.early_stopping} validations, the run ends")
            if progress.best() is progress.validations[-1]:
                best = Path(options.output_dir, "best")
                with whole_folder(best) as part:
                    save_model(model, self.tokenizer, part)
                self.on_best(best)
        accelerator.wait_for_everyone()

    def report(self, bar, figures: dict) -> None:
        """An update's figures, to the trackers and beside the progress bar."""
        options, progress = self.options, self.progress
        speed = progress.tokens / progress.seconds
        self.accelerator.log({**figures, "tokens_per_second": speed}, step=progress.step)
        bar.total = options.max_steps
        if options.max_minutes is not None:
            bar.total = min(bar.total, math.ceil(progress.step * 60 * options.max_minutes / progress.seconds))
        bar.set_postfix_str(f"loss {figures['loss']:.3f}, {speed:.0f} tokens/s", refresh=False)
        bar.update()

    def stop(self, signum: int) -> NoReturn:
        name, where = signal.Signals(signum).name, f"update {self.progress.step} of {self.options.output_dir}"
        raise Interrupted(signum, f"{name}: stopped after {where}; the same command with --resume goes on from there")

    def average(self) -> PreTrainedModel:
        """The model with the mean weights of the last checkpoints (6.1). Every process must call this."""
        whole = whole_model(self.accelerator, self.model)
        trained = self.accelerator.unwrap_model(whole, keep_fp32_wrapper=False)
        last = last_checkpoints(Path(self.options.output_dir), self.options.average_checkpoints)
        self.progress.averaged = [checkpoint_step(checkpoint) for checkpoint in last]
        trained.load_state_dict(average_checkpoints(last))
        self.accelerator.wait_for_everyone()
        return trained.eval()

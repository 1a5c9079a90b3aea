"""Section 5 on one page: an update and its rate, the loop over updates, and validation. run.py surrounds it.

An update: its batches (5.1), the gradient of their mean loss (5.4), the rate of Eq. 3 and the step of Adam (5.3).
A recipe's alternatives, a rate that falls to 0 and Muon (muon.py), stand beside them.
"""

import math
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..corpus.batches import collate, epoch_batches, join_batches, update_batches
from ..corpus.tokenized import TokenizedPairs
from ..errors import Interrupted, on_signal
from ..files import whole_folder
from ..inference import Translator
from ..loading import save_model
from ..progress import inform, progress_bar
from .checkpoints import Progress, add_validation, is_scheduled, write_checkpoint
from .muon import Muon
from .options import TrainingOptions
from .validation import gate_scores, tell_changes, validation_scores


@dataclass
class TrainingState:
    """What each process holds of a running training.

    Attributes:
        model: as accelerate has prepared it, by which each process has its copy (DDP) if there are several.
        optimizer: likewise.
        training: every option of the recipe has a value.
    """

    accelerator: Accelerator
    model: PreTrainedModel
    optimizer: AcceleratedOptimizer
    tokenizer: PreTrainedTokenizerBase
    training: TrainingOptions
    progress: Progress

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return Path(self.training.output_dir)

    @property
    def own_model(self) -> PreTrainedModel:
        """The model without the wrappers of accelerate."""
        return self.accelerator.unwrap_model(self.model)


# 5.1: batches


@dataclass
class Update:
    """One process's share of one optimizer update.

    Attributes:
        batches: its batches, collated.
        weights: 1 for each batch, 0 for one that fills up a share, so that all shares have as many batches.
        target_tokens, tokens, positions: of the whole update, on all processes; tokens are those of both sides, and
            positions count their padding, too.
    """

    batches: list[dict]
    weights: list[float]
    target_tokens: int
    tokens: int
    positions: int


def read_updates(state: TrainingState, corpus: TokenizedPairs) -> Iterator[Update]:
    """Yield this process's share of every update from the state's progress on, epoch after epoch, without end.

    The processes take an update's batches in turn, so that its pairs do not depend on the number of processes.
    """
    lengths, progress = corpus.lengths, state.progress
    data = corpus.rows.with_format("arrow")
    rank, processes = state.accelerator.process_index, state.accelerator.num_processes

    def plan_epoch() -> list[list[np.ndarray]]:
        """The rows of each batch of each update of the epoch."""
        seed, epoch = state.training.seed, progress.epoch
        rows = corpus.epoch_rows(seed, epoch)
        batches = epoch_batches(lengths[0][rows], lengths[1][rows], state.training.tokens_per_batch, seed, epoch)
        return update_batches([rows[batch] for batch in batches], *lengths, state.training.tokens_per_update)

    def share(update: list[np.ndarray]) -> Update:
        shares = [update[first::processes] for first in range(processes)]
        if state.training.join_batches:
            shares = [join_batches(batches, *lengths) for batches in shares]
        # Every process must take part in as many backward passes: the first batch fills up the shares, with weight 0.
        own = shares[rank]
        missing = max(map(len, shares)) - len(own)
        rows = np.concatenate(update)
        target_tokens = int(lengths[1][rows].sum())
        return Update(
            batches=[collate(data[batch], state.tokenizer.pad_token_id) for batch in own + update[:1] * missing],
            weights=[1.0] * len(own) + [0.0] * missing,
            target_tokens=target_tokens,
            tokens=target_tokens + int(lengths[0][rows].sum()),
            positions=sum(
                len(batch) * int(side[batch].max()) for batches in shares for batch in batches for side in lengths
            ),
        )

    def read(plan: list[list[np.ndarray]]) -> Iterator[Update]:
        while True:
            yield from map(share, plan[progress.updates_of_epoch :])
            progress.epoch += 1
            progress.updates_of_epoch = 0
            plan = plan_epoch()

    return read(plan_epoch())


# 5.3: optimizer and rate


def adam(model: nn.Module) -> torch.optim.Adam:
    """Adam with beta_1 0.9, beta_2 0.98, epsilon 1e-9 (5.3); each step sets its rate."""
    return torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)


def muon(model: nn.Module) -> Muon:
    """Muon for the matrices of the layers, and Adam for all else. The paper has Adam for all."""
    return Muon(model, **adam(model).defaults)


OPTIMIZERS = {"adam": adam, "muon": muon}  # by the values of --optim


def learning_rate(step: int, d_model: int, warmup_steps: int, scale: float = 1.0) -> float:
    """scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (5.3, Eq. 3); the first step is 1.

    Raises:
        ValueError: if step or warmup_steps is below 1.
    """
    if step < 1 or warmup_steps < 1:
        raise ValueError(f"step and warmup_steps must be at least 1, not {step} and {warmup_steps}")
    return scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def rate_of(training: TrainingOptions, d_model: int, step: int) -> float:
    """The learning rate of a step.

    That of Eq. 3, times learning_rate_scale or so that its peak is learning_rate; with lr_scheduler_type "linear" from
    the same peak evenly to what would be 0 in the step after the last. The paper has Eq. 3.
    """
    warmup, steps = training.warmup_steps, training.max_steps
    scale = training.learning_rate_scale or 1.0
    if training.learning_rate is not None:
        scale = training.learning_rate * (d_model * warmup) ** 0.5
    if training.lr_scheduler_type == "linear" and step > warmup:
        return learning_rate(warmup, d_model, warmup, scale) * (steps + 1 - step) / (steps + 1 - warmup)
    return learning_rate(step, d_model, warmup, scale)


# 5.4: the gradient of the label-smoothed loss (loss_vanilla.py), with dropout (layers_vanilla.py), and the step


def take_update(state: TrainingState, model, update: Update) -> dict[str, float]:
    """Take one update: the gradient of its mean loss, on all processes, and the optimizer's step.

    Args:
        model: the state's, or its compiled form.

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
    with accelerator.autocast():  # for Muon's products; Adam has none
        state.optimizer.step()
    state.optimizer.zero_grad()
    return {"loss": loss, "gradient_norm": norm, "learning_rate": rate}


# The loop


def train(state: TrainingState, updates: Iterator[Update], pairs: Mapping[str, Dataset]) -> None:
    """Take updates until max_steps or early_stopping ends the run; save and validate on the way.

    Before each validation there is a checkpoint, so that whatever happens in it costs no update.
    """
    accelerator, training, progress = state.accelerator, state.training, state.progress
    received = [0]  # the last is the signal received last, 0 before any
    model = torch.compile(state.model, dynamic=True) if training.compile else state.model
    seconds_before, tokens_before = progress.seconds, progress.tokens  # those of another start had another speed
    bar = progress_bar(
        desc="Training",
        unit=" updates",
        initial=progress.step,
        total=training.max_steps,
        disable=not accelerator.is_main_process,
    )
    with on_signal(received.append), bar:
        while True:
            # At the top, so that a resumed run makes up for a validation that it missed.
            if "validation" in pairs and is_validation_due(training, progress.step) and not progress.validated():
                validate(state, pairs)
            if progress.step >= training.max_steps:
                break
            if progress.stalled(training.early_stopping):
                if accelerator.is_main_process:
                    patience = f"no better BLEU in {training.early_stopping} validations"
                    inform(f"early_stopping: {patience}, the run ends; a larger one goes on")
                break
            start = time.monotonic()
            update = next(updates)
            figures = take_update(state, model, update)
            seconds = time.monotonic() - start
            progress.add(figures["loss"], figures["learning_rate"], seconds, update.tokens, update.positions)
            speed = (progress.tokens - tokens_before) / (progress.seconds - seconds_before)
            accelerator.log({**figures, "tokens_per_second": speed}, step=progress.step)
            bar.set_postfix_str(f"label-smoothed loss {figures['loss']:.3f}, {speed:.0f} tokens/s", refresh=False)
            bar.update()
            is_due = "validation" in pairs and is_validation_due(training, progress.step)
            signum = largest_of_processes(accelerator, received[-1])  # all stop if one was told to
            if is_due or signum or is_scheduled(training, progress.step):
                save(state)
                signum = largest_of_processes(accelerator, received[-1])  # it may have come meanwhile
            if signum:
                stop(state, signum)


def save(state: TrainingState) -> None:
    """Write a checkpoint: the model, and the moments and the progress that resuming needs. Every process calls this."""
    accelerator, progress = state.accelerator, state.progress
    progress.scaler = None if accelerator.scaler is None else accelerator.scaler.state_dict()
    if accelerator.is_main_process:
        model, moments = state.own_model, state.optimizer.optimizer.state
        named = {name: moments[parameter] for name, parameter in model.named_parameters()}
        write_checkpoint(state.run, state.training, model, state.tokenizer, named, progress)
    accelerator.wait_for_everyone()


def largest_of_processes(accelerator: Accelerator, value: int) -> int:
    """The largest of the values that the processes give."""
    if accelerator.num_processes == 1:  # a GPU need not be waited for
        return value
    return int(accelerator.gather(torch.tensor([value], device=accelerator.device)).max())


def is_validation_due(training: TrainingOptions, step: int) -> bool:
    """Whether validate_steps divides the updates taken, or this was the last one."""
    return step == training.max_steps or (step > 0 and step % training.validate_steps == 0)


def validate(state: TrainingState, pairs: Mapping[str, Dataset]) -> None:
    """Validate, report the scores, and save the model in best/ if its BLEU is the best so far.

    With old validation pairs the model to start with stays where it is: best/ is one that may take its place.

    A signal ends the run at once: the last checkpoint has all updates.
    """
    accelerator, training, progress = state.accelerator, state.training, state.progress
    translator = Translator(state.own_model, state.tokenizer)
    with on_signal(partial(stop, state)):
        with accelerator.autocast():
            how = (training.tokens_per_batch, training.bleu_tokenize)
            if "replay_validation" in pairs:
                scores = gate_scores(translator, pairs, *how, state.run / "before.json")
            else:
                scores = validation_scores(translator, pairs["validation"], *how)
        progress.validations.append({"step": progress.step, **scores})
        numbers = {f"validation_{name}": value for name, value in scores.items() if isinstance(value, float)}
        accelerator.log(numbers, step=progress.step)
        if accelerator.is_main_process:
            loss, perplexity, bleu = (f"{scores[name]:.2f}" for name in ("loss", "perplexity", "bleu"))
            inform(f"step {progress.step}: validation loss {loss} (unsmoothed), perplexity {perplexity}, BLEU {bleu}")
            if "changes" in scores and progress.step:
                inform(f"{tell_changes(scores['changes'])}{', which is worse' if scores['is_worse'] else ''}")
            if progress.best() is progress.validations[-1] and (progress.step or "changes" not in scores):
                with whole_folder(state.run / "best") as part:
                    save_model(state.own_model, state.tokenizer, part)
            add_validation(state.run, progress)
        accelerator.wait_for_everyone()


def stop(state: TrainingState, signum: int) -> NoReturn:
    """End the run at a signal."""
    name = signal.Signals(signum).name
    raise Interrupted(signum, f"{name}: stopped after update {state.progress.step} of {state.run}")

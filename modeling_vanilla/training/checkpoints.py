"""Checkpoints: folders checkpoint-STEP, written whole or not at all, of safetensors and JSON only."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import one_line
from ..files import delete_folder, digest_of, json_text, read_json, whole_folder, write_json
from ..loading import save_model
from .options import TrainingOptions

OPTIMIZER = "optimizer.safetensors"
PROGRESS = "progress.json"


@dataclass
class Progress:
    """The progress of a run: a checkpoint holds it besides weights and moments.

    Attributes:
        step: updates taken. epoch, updates_of_epoch: complete epochs, and updates of the current one.
        seconds: time spent in updates, without validation and checkpoints.
        tokens, positions: read so far on both sides, without and with padding.
        scaler: state of the scaler of the loss, in fp16.
        losses, rates: label-smoothed loss of each update, in nats per target token, and its learning rate.
        validations: step and scores of each validation.
        digests: of the other files of the checkpoint, by name.
    """

    step: int = 0
    epoch: int = 0
    updates_of_epoch: int = 0
    seconds: float = 0.0
    tokens: int = 0
    positions: int = 0
    scaler: dict | None = None
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    validations: list[dict] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)

    def add(self, loss: float, rate: float, seconds: float, tokens: int, positions: int) -> None:
        """Count an update."""
        self.step += 1
        self.updates_of_epoch += 1
        self.losses.append(loss)
        self.rates.append(rate)
        self.seconds += seconds
        self.tokens += tokens
        self.positions += positions

    def best(self) -> dict | None:
        """The validation with the highest BLEU, of equal ones that with the least loss, or else the first.

        One of a model that is worse on the old data (gate_scores) does not count.
        """
        right = (entry for entry in self.validations if not entry.get("is_worse"))
        return max(right, key=lambda entry: (entry["bleu"], -entry["loss"]), default=None)

    def validated(self) -> bool:
        """Whether the model was validated as it is now."""
        return bool(self.validations) and self.validations[-1]["step"] == self.step

    def stalled(self, patience: int | None) -> bool:
        """Whether none of the last `patience` validations was better than all before them."""
        return patience is not None and self.best() in self.validations[:-patience]


# Writing


def write_checkpoint(
    run: Path,
    training: TrainingOptions,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    moments: Mapping[str, Mapping[str, torch.Tensor]],
    progress: Progress,
) -> None:
    """Write a model folder that from_pretrained loads, with the moments and the progress that resuming needs.

    Checkpoints that are no longer kept are then deleted.

    Args:
        moments: of each parameter, by its name, what the optimizer keeps.

    Raises:
        OSError: the checkpoint cannot be written; nothing half-written stays.
    """
    with whole_folder(run / f"checkpoint-{progress.step}") as part:
        save_model(model, tokenizer, part)
        flat = {f"{name}/{key}": value.contiguous() for name, each in moments.items() for key, value in each.items()}
        save_file(flat, part / OPTIMIZER)
        progress.digests = {path.name: digest_of(path) for path in sorted(part.iterdir())}
        (part / PROGRESS).write_text(json_text(asdict(progress)), encoding="utf-8")
    prune_checkpoints(run, training)


def add_validation(run: Path, progress: Progress) -> None:
    """Add the last validation to the progress in the newest checkpoint, which was written just before it."""
    newest = list_checkpoints(run)[-1:]
    if newest and checkpoint_step(newest[0]) == progress.step:
        write_json(newest[0] / PROGRESS, asdict(progress))


def is_scheduled(training: TrainingOptions, step: int) -> bool:
    """Whether a checkpoint is due after this update. Checkpoints are evenly spaced, and the last update has one."""
    return (training.max_steps - step) % training.checkpoint_steps == 0


def prune_checkpoints(run: Path, training: TrainingOptions) -> None:
    """Delete all checkpoints but the newest and the last scheduled ones, as many as are to be kept or averaged."""
    kept = max(training.keep_checkpoints, training.average_checkpoints)
    *older, newest = list_checkpoints(run)
    scheduled = [path for path in (*older, newest) if is_scheduled(training, checkpoint_step(path))]
    for path in older:
        if path not in scheduled[-kept:]:
            delete_folder(path)


# Reading


def list_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    name = re.compile(r"checkpoint-\d+")
    return sorted((path for path in run.glob("checkpoint-*") if name.fullmatch(path.name)), key=checkpoint_step)


def checkpoint_step(checkpoint: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(checkpoint.name.rpartition("-")[2])


def newest_checkpoint(run: Path) -> Path | None:
    """The checkpoint to resume a run from, if there is one; ValueError if its files are not as they were written."""
    checkpoints = list_checkpoints(run)
    if not checkpoints:
        return None
    newest = checkpoints[-1]
    try:
        for name, digest in read_progress(newest).digests.items():
            if digest_of(newest / name) != digest:
                raise ValueError(f"{name} is not as it was written")
    except Exception as error:  # a damaged file may raise anything
        advice = "delete or move it to go on from the one before"
        raise ValueError(f"resume: {newest} cannot be read: {one_line(error)}; {advice}") from error
    return newest


def read_progress(checkpoint: Path) -> Progress:
    """The progress that a checkpoint was written with."""
    return Progress(**read_json(checkpoint / PROGRESS))


def read_moments(checkpoint: Path, parameters: Sequence[str]) -> dict[int, dict[str, torch.Tensor]]:
    """What the optimizer keeps of each parameter, by its number among these names."""
    numbers = {name: number for number, name in enumerate(parameters)}
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in load_file(checkpoint / OPTIMIZER).items():
        parameter, key = name.rsplit("/", 1)
        moments.setdefault(numbers[parameter], {})[key] = value
    return moments

"""Checkpoints: folders checkpoint-STEP, written whole or not at all, of safetensors and JSON only."""

import hashlib
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import one_line
from ..files import delete_folder, json_text, read_json, whole_folder, write_json
from .options import TrainingOptions

OPTIMIZER = "optimizer.safetensors"
PROGRESS = "progress.json"


@dataclass
class Progress:
    """The progress of a run: all that a checkpoint holds besides weights and moments.

    Attributes:
        step: updates taken. epoch, updates_of_epoch: complete epochs, and updates of the current one.
        seconds: time spent in updates, without validation and checkpoints.
        tokens, positions: read so far on both sides, without and with padding.
        scaler: state of the scaler of the loss, in fp16.
        losses: label-smoothed loss of each update, in nats per target token.
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
    validations: list[dict] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)

    def add(self, loss: float, seconds: float, tokens: int, positions: int) -> None:
        """Count an update."""
        self.step += 1
        self.updates_of_epoch += 1
        self.losses.append(loss)
        self.seconds += seconds
        self.tokens += tokens
        self.positions += positions

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
        """The model without what accelerate has put around it."""
        return self.accelerator.unwrap_model(self.model)


# Writing


def save_checkpoint(state: TrainingState) -> None:
    """Write a model folder that from_pretrained loads, with the moments and the progress that resuming needs.

    Checkpoints that are no longer kept are then deleted. Every process must call this.

    Raises:
        OSError: the checkpoint cannot be written; nothing half-written stays.
    """
    accelerator, progress = state.accelerator, state.progress
    progress.scaler = None if accelerator.scaler is None else accelerator.scaler.state_dict()
    if accelerator.is_main_process:
        model, moments = state.own_model, state.optimizer.optimizer.state
        with whole_folder(state.run / f"checkpoint-{progress.step}") as part:
            save_model(model, state.tokenizer, part)
            named = ((name, moments[parameter]) for name, parameter in model.named_parameters())
            flat = {f"{name}/{key}": value.contiguous() for name, each in named for key, value in each.items()}
            save_file(flat, part / OPTIMIZER)
            progress.digests = {path.name: _digest(path) for path in sorted(part.iterdir())}
            (part / PROGRESS).write_text(json_text(asdict(progress)), encoding="utf-8")
        prune_checkpoints(state.run, state.training)
    accelerator.wait_for_everyone()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_validation(state: TrainingState) -> None:
    """Add the last validation to the progress in the newest checkpoint, which was written just before it."""
    newest = list_checkpoints(state.run)[-1:]
    if newest and checkpoint_step(newest[0]) == state.progress.step:
        write_json(newest[0] / PROGRESS, asdict(state.progress))


def save_model(model, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model folder: weights, code, configuration, generation configuration and tokenizer."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


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
        for name, digest in load_progress(newest).digests.items():
            if _digest(newest / name) != digest:
                raise ValueError(f"{name} is not as it was written")
    except Exception as error:  # a damaged file may raise anything
        advice = "delete or move it to go on from the one before"
        raise ValueError(f"resume: {newest} cannot be read: {one_line(error)}; {advice}") from error
    return newest


def load_progress(checkpoint: Path) -> Progress:
    """The progress that a checkpoint was written with."""
    return Progress(**read_json(checkpoint / PROGRESS))


def load_checkpoint(checkpoint: Path, state: TrainingState) -> None:
    """Load the progress and the optimizer's moments of a checkpoint, whose weights the state's model has already."""
    optimizer = state.optimizer.optimizer
    state.progress = load_progress(checkpoint)
    numbers = {name: number for number, (name, _) in enumerate(state.own_model.named_parameters())}
    moments: dict = {}
    for name, value in load_file(checkpoint / OPTIMIZER).items():
        parameter, key = name.rsplit("/", 1)
        moments.setdefault(numbers[parameter], {})[key] = value
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    if state.accelerator.scaler is not None and state.progress.scaler is not None:
        state.accelerator.scaler.load_state_dict(state.progress.scaler)

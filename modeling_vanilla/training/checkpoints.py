"""Checkpoints: written whole or not at all, safetensors and JSON only, and averaged as in section 6.1."""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import count
from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_NAME

from ..files import delete_folder, json_text, read_json, whole_folder
from ..inference.loading import check_readable, check_weights, load_model

OPTIMIZER = "optimizer.safetensors"
PROGRESS = "progress.json"
DIGESTS = "SHA256SUMS"  # in the form that `sha256sum --check` reads
SCHEDULED = "checkpoint"  # the names of checkpoints of the schedule, which are averaged, begin with this
LAST = "last"  # and those of any other step, to resume from


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


def whole_model(accelerator: Accelerator, model) -> PreTrainedModel:
    """The model with all its weights on this process: itself or, under FSDP, which leaves a shard here, a copy.

    Every process must call this.
    """
    model = accelerator.unwrap_model(model)
    if not accelerator.is_fsdp2:
        return model
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    whole = type(model)(model.config)  # FSDP's class makes instances of the one whose place it has taken
    whole.generation_config = model.generation_config
    whole.load_state_dict(weights)
    return whole.to(accelerator.device)


def save_checkpoint(
    folder: Path, accelerator: Accelerator, model, optimizer, tokenizer: PreTrainedTokenizerBase, progress: Progress
) -> None:
    """Write a model folder that from_pretrained loads, with all that resuming needs: moments, progress and digests.

    Every process must call this. The folder is written under another name and renamed, so that one with this name is
    always whole, and what a killed process leaves behind is never taken for one.

    Raises:
        OSError: it cannot be written; nothing half-written stays.
    """
    whole = whole_model(accelerator, model)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    moments = get_optimizer_state_dict(model, optimizer.optimizer, options=options)  # empty but on the main process
    if accelerator.is_main_process:
        with whole_folder(folder) as part:
            save_model(whole, tokenizer, part)
            flat = {f"{name}/{key}": value for name, state in moments["state"].items() for key, value in state.items()}
            save_file({name: value.contiguous() for name, value in flat.items()}, part / OPTIMIZER)
            (part / PROGRESS).write_text(json_text(asdict(progress)), encoding="utf-8")
            digests = "".join(f"{_digest(path)}  {path.name}\n" for path in sorted(part.iterdir()))
            (part / DIGESTS).write_text(digests, encoding="utf-8")
    accelerator.wait_for_everyone()


def save_model(model, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model folder: weights, code, configuration, generation configuration and tokenizer."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_digests(checkpoint: Path, names: Sequence[str] | None = None) -> None:
    """Raise ValueError that names the file unless those of a checkpoint, by default all, are as they were written."""
    if not (checkpoint / DIGESTS).is_file():
        raise ValueError(f"{checkpoint / DIGESTS}: no such file")
    lines = (checkpoint / DIGESTS).read_text(encoding="utf-8", errors="replace").splitlines()
    digests = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name in names or sorted({*digests, SAFE_WEIGHTS_NAME, OPTIMIZER, PROGRESS}):
        if not (checkpoint / name).is_file():
            raise ValueError(f"{checkpoint / name}: no such file")
        if _digest(checkpoint / name) != digests.get(name):
            raise ValueError(f"{checkpoint / name}: damaged, as it is not what was written")


def put_aside_damaged(run: Path) -> list[str]:
    """Rename each damaged checkpoint of a run to NAME.damaged: it is neither resumed from nor averaged.

    If there is such a folder, the name is NAME.damaged1, and so on.

    Returns:
        A line for each, which names the file at fault.
    """
    lines = []
    for checkpoint in list_checkpoints(run) + list_checkpoints(run, LAST):
        try:
            check_digests(checkpoint)
        except (ValueError, OSError) as error:
            names = (run / f"{checkpoint.name}.damaged{number or ''}" for number in count())
            aside = checkpoint.rename(next(name for name in names if not name.exists()))
            lines.append(f"{error}; {checkpoint.name} is put aside as {aside.name}")
    return lines


def load_progress(checkpoint: Path) -> Progress:
    """The progress that a checkpoint was written with; ValueError if another version of this package wrote it."""
    values, names = read_json(checkpoint / PROGRESS), {field.name for field in fields(Progress)}
    for name in sorted(values.keys() ^ names):
        verb = "lacks" if name in names else "has"
        raise ValueError(f"resume: {checkpoint / PROGRESS} is of another version of this package, as it {verb} {name}")
    return Progress(**values)


def load_optimizer(checkpoint: Path, model, optimizer) -> None:
    """Give the optimizer the moments that save_checkpoint has written."""
    state: dict = {}
    for name, value in load_file(checkpoint / OPTIMIZER).items():
        parameter, key = name.rsplit("/", 1)
        state.setdefault(parameter, {})[key] = value
    groups = get_optimizer_state_dict(model, optimizer.optimizer)["param_groups"]
    set_optimizer_state_dict(
        model,
        optimizer.optimizer,
        {"state": state, "param_groups": groups},
        options=StateDictOptions(full_state_dict=True, cpu_offload=True),
    )


def list_checkpoints(run: Path, kind: str = SCHEDULED) -> list[Path]:
    """The whole checkpoints of a run, SCHEDULED or LAST, oldest first."""
    name = re.compile(rf"{kind}-\d+")
    return sorted((path for path in run.glob(f"{kind}-*") if name.fullmatch(path.name)), key=checkpoint_step)


def checkpoint_step(checkpoint: Path) -> int:
    """The step after which a checkpoint of a run was written."""
    return int(checkpoint.name.rpartition("-")[2])


def last_checkpoints(run: Path, number: int) -> list[Path]:
    """The checkpoints that the average is of (6.1): the last `number` of the schedule, oldest first.

    They are all of these if there are fewer, and the newest of any step if there is none.
    """
    return list_checkpoints(run)[-number:] or list_checkpoints(run, LAST)[-1:]


def newest_checkpoint(run: Path) -> Path | None:
    """The whole checkpoint of the highest step, of the schedule or not."""
    return max(list_checkpoints(run) + list_checkpoints(run, LAST), key=checkpoint_step, default=None)


def follow_schedule(run: Path, is_scheduled: Callable[[int], bool]) -> None:
    """Name the checkpoints of a run by the schedule that it has from now on, so that those of it alone are averaged."""
    for checkpoint in list_checkpoints(run) + list_checkpoints(run, LAST):
        step = checkpoint_step(checkpoint)
        named = run / f"{SCHEDULED if is_scheduled(step) else LAST}-{step}"
        if not named.exists():
            checkpoint.rename(named)


def prune_checkpoints(run: Path, keep: int) -> None:
    """Delete all checkpoints but the last `keep` of the schedule and the newest.

    Raises:
        OSError: one cannot be deleted.
    """
    newest = newest_checkpoint(run)
    for path in list_checkpoints(run)[:-keep] + list_checkpoints(run, LAST):
        if path != newest:
            delete_folder(path)


def average_checkpoints(checkpoints: Sequence[Path | str]) -> dict[str, torch.Tensor]:
    """The mean of every weight over the checkpoints (6.1: the last 5 for the base model, 20 for the big one).

    Raises:
        ValueError: if there are none, one has no weights or some that are not finite, or their names or shapes differ;
            the message names it.
    """
    if not checkpoints:
        raise ValueError("no checkpoints to average")
    total: dict[str, torch.Tensor] = {}
    types: dict[str, torch.dtype] = {}
    for checkpoint in map(Path, checkpoints):
        check_readable(checkpoint)
        if (checkpoint / DIGESTS).is_file():  # a model folder has none
            check_digests(checkpoint, [SAFE_WEIGHTS_NAME])
        weights = load_model(checkpoint, "auto").state_dict()
        check_weights(weights, total or weights, checkpoint)
        for name, value in weights.items():
            types[name] = value.dtype
            # In 64 bits, so that the order of the checkpoints cannot change the mean.
            total[name] = total[name] + value.double() if name in total else value.double()
    return {name: (value / len(checkpoints)).to(types[name]) for name, value in total.items()}

"""Training and fine-tuning killed before all that they do to a file: the same command goes on to the same end."""

import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
import torch
from helpers import tensors
from trial import PROGRAMS

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
RUN = "new"


class Operations:
    """Counts what this process does to the files of the run, in a file; kills it before the one of a number.

    Args:
        number: from 1; None kills never.
    """

    def __init__(self, log: Path, number: int | None = None):
        self.log, self.number, self.done, self.busy = log, number, 0, False

    def __call__(self, event, arguments):
        if self.busy or event not in EVENTS or not isinstance(arguments[0], str | os.PathLike):
            return
        writes = event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        self.busy = True
        path = os.path.relpath(os.fspath(arguments[0]))
        if writes and path.split(os.sep)[0].startswith(RUN) and "tensorboard" not in path:
            self.done += 1
            if self.done == self.number:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.number is None:
                with open(self.log, "a", encoding="utf-8") as file:
                    file.write(f"{event} {path}\n")
        self.busy = False


class FileSize:
    """Lets the kernel kill this process in the middle of writing a file that grows beyond so many bytes."""

    def __init__(self, size: int):
        self.size = size

    def __call__(self, event, arguments):
        if self.size and event in EVENTS and RUN in str(arguments[0]):
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.size))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            self.size = 0


def has_begun(program: str, run: Path) -> bool:
    """Whether the run is one to resume; otherwise the command is given again as it was."""
    return (run / "run.json").exists() if program == "train" else any(run.glob("checkpoint-*"))


def is_same(run: Path, whole: Path) -> bool:
    """Whether two runs have the same files of tensors, to the bit, and nothing half-written lies about."""
    try:
        torch.testing.assert_close(tensors(run), tensors(whole), rtol=0, atol=0)
    except AssertionError:
        return False
    return not list(run.parent.rglob(".*.tmp"))


class Killer:
    """Kills runs of a program in every way, and sees how they end when the command is given again."""

    def __init__(self, trial, program: str):
        self.trial, self.program, self.words = trial, program, PROGRAMS[program].split()
        folder, log = trial.copy(), trial.folder / f"{program}.operations"
        done = trial.run(self.words, folder, hooks=[Operations(log)])
        assert done.code == 0, done.errors
        self.whole, self.operations = folder / RUN, log.read_text(encoding="utf-8").splitlines()

    def survives(self, hook) -> str:
        """What went wrong after a run that the hook kills, or nothing."""
        folder = self.trial.copy()
        done = self.trial.run(self.words, folder, hooks=[hook])
        if done.code not in (0, -signal.SIGKILL, -signal.SIGXFSZ):
            return f"ends with {done.code}: {done.errors[-500:]}"
        words = self.words + ["--resume"] * has_begun(self.program, folder / RUN)
        done = self.trial.run(words, folder)
        if done.code != 0:
            return f"does not go on: {done.code}: {done.errors[-500:]}"
        same = is_same(folder / RUN, self.whole)
        shutil.rmtree(folder)
        return "" if same else "ends otherwise"


def assert_all_survive(record_property, tries: dict[str, str]) -> None:
    record_property("kills", f"{sum(not fault for fault in tries.values())} of {len(tries)}")
    assert tries and not any(tries.values()), {where: fault for where, fault in tries.items() if fault}


@pytest.fixture(scope="module", params=["train", "finetune"])
def killer(trial, request):
    return Killer(trial, request.param)


def test_before_every_operation_on_a_file(killer, record_property):
    tries = {}
    for number, operation in enumerate(killer.operations, start=1):
        tries[f"{number}: {operation}"] = killer.survives(Operations(killer.whole, number))
    assert len(tries) > 40
    assert_all_survive(record_property, tries)


def test_in_the_middle_of_a_file(killer, record_property):
    sizes = sorted({path.stat().st_size - 1 for path in killer.whole.rglob("*.*") if path.stat().st_size > 1})
    sizes = sizes[:: max(1, len(sizes) // 12)]
    assert_all_survive(record_property, {f"{size} bytes": killer.survives(FileSize(size)) for size in sizes})

"""A training that is killed at any moment, or runs into a full disk: what it leaves is whole and goes on the same.

Every run here is `vanilla train` in a process of its own. They are forked from one that has done nothing
but import, so that a start costs next to nothing.
"""

import errno
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import datasets
import pytest
import torch
from helpers import ROOT, tensors, tree
from safetensors.torch import load_file
from toy_corpus import toy_corpus, write_corpus
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_vanilla.cli import train as script
from modeling_vanilla.files import locked
from modeling_vanilla.training import trainer
from modeling_vanilla.training.checkpoints import checkpoint_step, list_checkpoints

RECIPE = """
    --preset tiny --vocab_size 320 --d_model 16 --encoder_layers 1 --decoder_layers 1 --encoder_attention_heads 2
    --decoder_attention_heads 2 --encoder_ffn_dim 32 --decoder_ffn_dim 32 --dropout 0.2 --mixed_precision no
    --tokens_per_update 800 --tokens_per_batch 300 --warmup_steps 4 --checkpoint_steps 2 --validate_steps 6
    --keep_checkpoints 2 --average_checkpoints 2
"""
STEPS = 16
STOP = 12  # a multiple of checkpoint_steps and validate_steps, as if the run had not been told to end here


def load_progress(checkpoint):
    return json.loads((checkpoint / "progress.json").read_text(encoding="utf-8"))


# Processes


def train(arguments, cache, log, faults):
    """In a process of its own: the script, as a person starts it, with what shall befall it."""
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGHUP):  # which a shell lets its background ignore
        signal.signal(number, signal.SIG_DFL)
    datasets.config.HF_DATASETS_CACHE = str(cache)
    for fault in faults:
        sys.addaudithook(fault)
    sys.argv = ["vanilla train", *map(str, arguments)]
    script.main()


class At:
    """Does something when this process is about to do `event` to a file or folder of this name, once.

    The name of what is being written is that of what it becomes.
    """

    def __init__(self, event, name, action):
        self.event, self.name, self.action = event, name, action

    def __call__(self, event, arguments):
        if event == self.event and _name_of(Path(str(arguments[0]))) == self.name:
            self.name = None
            self.action()


def _name_of(path):
    folder = path.parent if path.name == "part" else path
    return folder.name[1:].removesuffix(folder.name[-len(".12345678.tmp") :]) if folder.suffix == ".tmp" else path.name


def litter(folder):
    """The names of what a process was writing in a folder, or deleting, when it was killed."""
    return [_name_of(path) for path in folder.rglob(".*.tmp")]


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_by_size(size):
    """The kernel kills this process in the middle of a write, when a file grows beyond `size` bytes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def fill_disk(size):
    """From now on no file can grow beyond `size` bytes: a write goes as far as that and then fails."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # Python ignores SIGXFSZ


def deny():
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


class Runs:
    """Starts runs of one recipe."""

    def __init__(self, folder, context):
        self.folder, self.context = folder, context
        train_file, validation_file, _ = write_corpus(toy_corpus(train=200, validation=2, test=1), folder / "corpus")
        self.data = ["--train_file", train_file, "--validation_file", validation_file]

    def start(self, run, max_steps=STEPS, resume=False, faults=()):
        arguments = [*self.data, *RECIPE.split(), "--max_steps", max_steps, "--output_dir", run]
        process = self.context.Process(
            target=train,
            args=(arguments + ["--resume"] * resume, self.folder / "cache", self.log(run), faults),
            daemon=True,
        )
        process.start()
        return process

    def finish(self, run, **settings):
        """Its exit code and its lines on stderr."""
        process = self.start(run, **settings)
        process.join(300)
        return process.exitcode, self.log(run).read_text(encoding="utf-8").replace("\r", "\n").splitlines()

    def complete(self, name, **settings):
        """The folder of a run that comes to its end."""
        code, lines = self.finish(self.folder / name, **settings)
        assert code == 0, lines
        return self.folder / name

    def log(self, run):
        return self.folder / f"{run.name}.log"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["modeling_vanilla.cli.train", "modeling_vanilla.training"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "examples"))))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        yield Runs(tmp_path_factory.mktemp("runs"), context)


@pytest.fixture(scope="module")
def whole(runs):
    """The run that nothing befalls."""
    whole = runs.complete("whole")
    progress = load_progress(whole / f"checkpoint-{STEPS}")  # what can go wrong: epochs, accumulation, deletion
    assert progress["epoch"] > 0 and progress["tokens"] / progress["step"] > 2 * 300 * 2
    assert not (whole / "checkpoint-2").exists()
    return whole


@pytest.fixture(scope="module")
def stopped(runs):
    """A run that came to its end in good order after STOP steps."""
    return runs.complete("stopped", max_steps=STOP)


@pytest.fixture
def run(runs, stopped, request):
    """A copy of it to go on from."""
    return Path(shutil.copytree(stopped, runs.folder / f"copy-{request.node.name}"))


def assert_same_end(run, whole):
    """The same losses, weights and moments to the bit, and the same files."""
    names = [{name for name in tree(folder) if not name.startswith("tensorboard/")} for folder in (run, whole)]
    assert names[0] == names[1]
    torch.testing.assert_close(tensors(run), tensors(whole), rtol=0, atol=0)
    progress, expected = (load_progress(list_checkpoints(folder)[-1]) for folder in (run, whole))
    assert len(expected["losses"]) == expected["step"]
    assert progress | {"seconds": 0} == expected | {"seconds": 0}


def steps_of(run):
    return [checkpoint_step(checkpoint) for checkpoint in list_checkpoints(run)]


def assert_checkpoints_load(run, steps):
    """These are all that there are, and the run can go on from each."""
    assert steps_of(run) == steps
    for folder, step in zip(list_checkpoints(run), steps, strict=True):
        AutoTokenizer.from_pretrained(folder)
        names = load_file(folder / "model.safetensors").keys()
        assert names <= AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict().keys()
        assert {name.rsplit("/", 1)[0] for name in load_file(folder / "optimizer.safetensors")} >= names
        assert load_progress(folder)["step"] == step


# Killed


def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(runs, whole):
    """Before the first checkpoint, and while one is written, named and deleted."""
    run = runs.folder / "killed"
    weights = (whole / f"checkpoint-{STEPS}" / "model.safetensors").stat().st_size
    deleting = At("os.remove", "model.safetensors", die)
    for fault, signal_number, left, part in (
        (At("os.mkdir", "checkpoint-2", die), signal.SIGKILL, [], []),
        (At("os.mkdir", "checkpoint-4", partial(die_by_size, weights - 1)), signal.SIGXFSZ, [2], [4]),
        (At("os.rename", "checkpoint-6", die), signal.SIGKILL, [2, 4], [6]),
        (At("shutil.rmtree", "checkpoint-2", partial(sys.addaudithook, deleting)), signal.SIGKILL, [4, 6], [2]),
    ):
        code, lines = runs.finish(run, resume=run.exists(), faults=(fault,))
        assert code == -signal_number, lines
        assert_checkpoints_load(run, left)
        assert litter(run) == [f"checkpoint-{step}" for step in part]
    assert_resumes(runs, run, whole)


# Asked to end


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def send_in_update():
    """Send the signal at the beginning of the next update."""
    take_step = trainer.take_step

    def signalled(*arguments):
        terminate()
        return take_step(*arguments)

    trainer.take_step = signalled


def test_a_signal_ends_a_run_with_a_checkpoint(runs, whole):
    """As Slurm and Kubernetes send it, and a closed terminal or Ctrl-C theirs."""
    run = runs.folder / "signal"
    code, lines = runs.finish(run, faults=(At("os.mkdir", "checkpoint-2", send_in_update),))
    assert code == 143, lines
    stopped = f"error: SIGTERM: stopped after update 3 of {run}; the same command with --resume goes on from there"
    assert lines[-1] == stopped
    assert_checkpoints_load(run, [2])
    assert (run / "last-3").is_dir() and not litter(run)
    assert_resumes(runs, run, whole)


@pytest.mark.parametrize("written", ["checkpoint-6", "best"])
def test_a_signal_at_the_last_checkpoint_or_in_validation_ends_the_run_at_once(runs, whole, written):
    run = runs.folder / f"signal-{written}"
    code, lines = runs.finish(run, faults=(At("os.mkdir", written, terminate),))
    assert code == 143 and "stopped after update 6" in lines[-1], lines
    assert steps_of(run) == [4, 6] and not (run / "best").exists() and not litter(run)
    assert_resumes(runs, run, whole)


# Damaged, in use


def test_a_damaged_checkpoint_is_named_and_the_last_whole_one_taken(runs, run, whole):
    with open(run / f"checkpoint-{STOP}" / "optimizer.safetensors", "r+b") as file:
        file.truncate(1000)
    code, lines = runs.finish(run, resume=True)
    assert code == 0, lines
    file = run / f"checkpoint-{STOP}" / "optimizer.safetensors"
    aside = f"checkpoint-{STOP} is put aside as checkpoint-{STOP}.damaged"
    assert f"{file}: damaged, as it is not what was written; {aside}" in lines
    shutil.rmtree(run / f"checkpoint-{STOP}.damaged")
    assert_same_end(run, whole)


def test_a_run_in_use_is_refused(runs, run):
    before = tree(run)
    with locked("output_dir", run):
        code, lines = runs.finish(run, resume=True)
    assert assert_one_error(code, lines, "output_dir: ").endswith(f"{run} is in use by another process")
    assert tree(run) == before


# A full disk, and folders that cannot be written to


def assert_one_error(code, lines, start):
    assert code == 2, lines
    (error,) = [line for line in lines if "error: " in line]
    assert error.startswith(f"error: {start}")
    assert "Traceback" not in "".join(lines)
    return error


def assert_resumes(runs, run, whole):
    """Nothing is in the way any more: the run comes to the end of the one that nothing befell."""
    code, lines = runs.finish(run, resume=True)
    assert code == 0, lines
    assert_same_end(run, whole)


NEXT = f"checkpoint-{STOP + 2}"


@pytest.mark.parametrize("folder", [NEXT, "model"])
def test_a_full_disk_is_one_error_and_all_before_it_stays(runs, run, whole, folder):
    """From this folder on the kernel lets no file grow to the size of this one."""
    size = (run / f"checkpoint-{STOP}" / "model.safetensors").stat().st_size
    before, left = tree(run / "model"), steps_of(run if folder == NEXT else whole)
    fault = At("os.mkdir", folder, partial(fill_disk, size - 1))
    code, lines = runs.finish(run, resume=True, faults=(fault,))
    assert "File too large" in assert_one_error(code, lines, f"{run / folder}: cannot be written: ")
    assert_checkpoints_load(run, left)
    assert tree(run / "model") == before
    assert not litter(run)
    assert_resumes(runs, run, whole)


def test_a_run_that_may_not_be_written_to_any_more_is_one_error(runs, run, whole):
    before = {path.name: tree(path) for path in run.iterdir() if path.is_dir()}
    # Root has every permission, so the kernel would not say so to a test run by root.
    code, lines = runs.finish(run, resume=True, faults=(At("os.mkdir", NEXT, deny),))
    assert_one_error(code, lines, f"{run / NEXT}: cannot be written: Permission denied")
    for name in (f"checkpoint-{STOP}", "model", "best"):
        assert tree(run / name) == before[name]
    assert_resumes(runs, run, whole)


@pytest.mark.parametrize("place", ["file", "proc"])
def test_an_output_dir_that_cannot_be_made_is_one_error(runs, whole, tmp_path, place):
    (tmp_path / "file").write_text("text", encoding="utf-8")
    folder = tmp_path / "file" / "run" if place == "file" else Path("/proc/run")
    code, lines = runs.finish(folder)
    assert str(folder) in assert_one_error(code, lines, "")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

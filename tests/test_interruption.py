"""A training that is told to end, or runs into a full disk: what it leaves is whole and goes on to the same end.

robustness/test_kills.py has those that are killed.
"""

import multiprocessing
import os
import resource
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import datasets
import pytest
import torch
from helpers import TINY, as_options, call, tensors, tree, write_toy_corpus

from modeling_vanilla.cli.train import main
from modeling_vanilla.files import locked
from modeling_vanilla.training import trainer
from modeling_vanilla.training.checkpoints import checkpoint_step, list_checkpoints, load_progress

OPTIONS = {
    **TINY,
    **{"preset": "tiny", "dropout": 0.2, "mixed_precision": "no", "warmup_steps": 4},
    **{"tokens_per_update": 1050, "tokens_per_batch": 300, "checkpoint_steps": 2, "validate_steps": 6},
    **{"keep_checkpoints": 2, "average_checkpoints": 2, "test_file": None},
}
STEPS = 16
STOP = 12  # a multiple of checkpoint_steps and validate_steps, as if the run had not been told to end here


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Call the command for a run: how it ended."""
    folder = tmp_path_factory.mktemp("data")
    data = write_toy_corpus(folder, train=200, validation=2, test=1)

    def train(run, max_steps=STEPS, **options):
        given = {"max_steps": max_steps, "output_dir": run, **options}
        return call(main, *as_options({**data, **OPTIONS, **given}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder / "cache"))
        yield train


@pytest.fixture(scope="module")
def whole(tmp_path_factory, train):
    """The run that nothing befalls."""
    whole = tmp_path_factory.mktemp("whole")
    assert train(whole).code == 0
    progress = load_progress(whole / f"checkpoint-{STEPS}")  # what can go wrong: epochs, accumulation, deletion
    assert (progress.epoch, progress.updates_of_epoch) == (2, 4)  # so that at STOP an epoch ends
    assert progress.tokens / progress.step > 2 * 300 * 2
    assert not (whole / "checkpoint-2").exists()
    return whole


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, train):
    """A run that came to its end in good order after STOP steps."""
    stopped = tmp_path_factory.mktemp("stopped")
    assert train(stopped, max_steps=STOP).code == 0
    return stopped


@pytest.fixture
def run(stopped, tmp_path):
    """A copy of it to go on from."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


@pytest.fixture
def when_written(monkeypatch):
    """Do something once, when a folder of this name is about to be written."""

    def act(name, action):
        mkdir, actions = os.mkdir, [action]

        def watched(path, *arguments, **keywords):
            if actions and Path(path).name.startswith(f".{name}."):
                actions.pop()()
            return mkdir(path, *arguments, **keywords)

        monkeypatch.setattr(os, "mkdir", watched)

    return act


def steps_of(run):
    """Those of the checkpoints; nothing half-written lies beside them."""
    assert not list(run.rglob(".*.tmp"))
    return [checkpoint_step(checkpoint) for checkpoint in list_checkpoints(run)]


def assert_same_end(run, whole):
    """The same losses, weights and moments to the bit, and the same files."""
    names = [{name for name in tree(folder) if not name.startswith("tensorboard/")} for folder in (run, whole)]
    assert names[0] == names[1]
    torch.testing.assert_close(tensors(run), tensors(whole), rtol=0, atol=0)
    progress, expected = (load_progress(list_checkpoints(folder)[-1]) for folder in (run, whole))
    assert len(expected.losses) == expected.step
    assert replace(progress, seconds=0) == replace(expected, seconds=0)


def assert_resumes(train, run, whole):
    assert train(run, resume=True).code == 0
    assert_same_end(run, whole)


def terminate():
    signal.raise_signal(signal.SIGTERM)


def test_a_signal_in_an_update_ends_a_run_with_a_checkpoint(train, whole, tmp_path, monkeypatch):
    """As Slurm and Kubernetes send it, and a closed terminal or Ctrl-C theirs."""
    take_step, before, run = trainer.take_step, [terminate], tmp_path / "run"

    def signalled(*arguments):
        for worker in multiprocessing.active_children():  # it may go to the whole group
            worker.terminate()
        if before and (run / "checkpoint-2").exists():
            before.pop()()
        return take_step(*arguments)

    monkeypatch.setattr(trainer, "take_step", signalled)
    done = train(run, data_workers=1)
    stopped = f"error: SIGTERM: stopped after update 3 of {run}; the same command with --resume goes on from there"
    assert (done.code, done.errors.splitlines()[-1]) == (143, stopped)
    assert steps_of(run) == [2] and (run / "last-3").is_dir()
    assert_resumes(train, run, whole)


@pytest.mark.parametrize("written", ["checkpoint-6", "best"])
def test_a_signal_at_the_last_checkpoint_or_in_validation_ends_the_run_at_once(
    train, whole, tmp_path, when_written, written
):
    when_written(written, terminate)
    done, run = train(tmp_path / "run"), tmp_path / "run"
    assert done.code == 143 and "stopped after update 6" in done.errors.splitlines()[-1]
    assert steps_of(run) == [4, 6] and not (run / "best").exists()
    assert_resumes(train, run, whole)


def test_a_run_that_came_to_its_end_goes_on_and_then_no_further(train, run, whole):
    for _ in range(2):
        assert_resumes(train, run, whole)


def test_a_damaged_checkpoint_is_named_and_the_last_whole_one_taken(train, run, whole, caplog):
    file = run / f"checkpoint-{STOP}" / "optimizer.safetensors"
    os.truncate(file, 1000)
    done = train(run, resume=True)
    aside = f"checkpoint-{STOP} is put aside as checkpoint-{STOP}.damaged"
    assert f"{file}: damaged, as it is not what was written; {aside}" in done.errors + caplog.text
    shutil.rmtree(run / f"checkpoint-{STOP}.damaged")
    assert_same_end(run, whole)


def test_a_run_in_use_is_refused(train, run):
    before = tree(run)
    with locked("output_dir", run):
        assert train(run, resume=True).error == f"output_dir: {run} is in use by another process"
    assert tree(run) == before


NEXT = f"checkpoint-{STOP + 2}"


@pytest.mark.parametrize("folder", [NEXT, "model"])
def test_a_full_disk_is_one_error_and_all_before_it_stays(train, run, whole, when_written, folder):
    """From this folder on the kernel lets no file grow to the size of the weights."""
    size = (run / f"checkpoint-{STOP}" / "model.safetensors").stat().st_size
    before, left = tree(run / "model"), steps_of(run if folder == NEXT else whole)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    when_written(folder, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, hard)))
    try:
        done = train(run, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.error == f"{run / folder}: File too large"
    assert steps_of(run) == left
    assert tree(run / "model") == before
    assert_resumes(train, run, whole)

"""A training that is told to end, or runs into a full disk: what it leaves is whole and goes on to the same end.

robustness/test_kills.py has those that are killed.
"""

import os
import resource
import shutil
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import datasets
import pytest
import torch
from helpers import TINY, as_options, call, make_tokenizer, read_json, tensors, tree, write_toy_corpus

from modeling_vanilla.cli.train import main
from modeling_vanilla.corpus import tokenized
from modeling_vanilla.training.checkpoints import checkpoint_step, list_checkpoints, read_progress

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
    progress = read_progress(whole / f"checkpoint-{STEPS}")  # what can go wrong: epochs, accumulation, deletion
    assert progress.epoch >= 2
    assert progress.tokens / progress.step > 2 * 300 * 2
    assert not (whole / "checkpoint-2").exists()
    return whole


def test_a_run_that_is_there_can_go_on(whole, train):
    assert (
        train(whole).error
        == f"output_dir: {whole} holds a run; add --resume to go on with it, or choose another folder"
    )


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


def steps_of(run):
    """Those of the checkpoints; nothing half-written lies beside them."""
    assert not list(run.rglob(".*.tmp"))
    return [checkpoint_step(checkpoint) for checkpoint in list_checkpoints(run)]


def assert_same_end(run, whole):
    """The same losses, weights and moments to the bit, and the same files."""
    names = [{name for name in tree(folder) if not name.startswith("tensorboard/")} for folder in (run, whole)]
    assert names[0] == names[1]
    for path in whole.rglob("tokenizer*.json"):
        assert (run / path.relative_to(whole)).read_bytes() == path.read_bytes(), path
    torch.testing.assert_close(tensors(run), tensors(whole), rtol=0, atol=0)
    progress, expected = (read_progress(list_checkpoints(folder)[-1]) for folder in (run, whole))
    assert len(expected.losses) == expected.step
    assert replace(progress, seconds=0, digests={}) == replace(expected, seconds=0, digests={})


def assert_resumes(train, run, whole):
    """Options that are not given again are those of the first start."""
    kept = dict.fromkeys(("checkpoint_steps", "keep_checkpoints", "average_checkpoints"))
    assert train(run, resume=True, **kept).code == 0
    assert_same_end(run, whole)


@pytest.mark.parametrize("written", ["checkpoint-2", "best"])
def test_a_signal_ends_a_run_with_a_checkpoint(train, whole, tmp_path, written):
    """As Slurm and Kubernetes send it, and a closed terminal or Ctrl-C theirs: in updates and about a validation."""
    run = tmp_path / "run"

    def terminate():
        while not (run / written).exists():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=terminate)
    watcher.start()
    done = train(run)
    watcher.join()
    step = checkpoint_step(list_checkpoints(run)[-1])
    stopped = f"error: SIGTERM: stopped after update {step} of {run}; the same command with --resume goes on from there"
    assert (done.code, done.errors.splitlines()[-1]) == (143, stopped)
    assert step < STEPS and not (run / "model").exists()
    assert_resumes(train, run, whole)


def test_a_signal_ends_the_processes_that_tokenise(train, tmp_path, monkeypatch):
    process = os.getpid()

    def encode(rows, tokenizer, spans):
        with suppress(FileExistsError):  # a second signal would end this process
            (tmp_path / "sent").touch(exist_ok=False)
            os.kill(process, signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr(tokenized, "_encode", encode)
    monkeypatch.setattr(tokenized, "_PAIRS_OF_A_PROCESS", 100)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    start = time.monotonic()
    ended = train(tmp_path / "run")
    assert (ended.code, ended.errors.splitlines()[-1]) == (128 + signal.SIGTERM, "error: interrupted")
    assert time.monotonic() - start < 50
    assert not (tmp_path / "run").exists()


def test_errors_of_processes_that_end_at_a_signal_do_not_hide_it(monkeypatch):
    def fail(*_, **__):
        try:
            try:
                raise KeyboardInterrupt
            finally:
                raise TimeoutError
        finally:
            raise OSError

    monkeypatch.setattr(datasets.Dataset, "map", fail)
    with pytest.raises(KeyboardInterrupt):
        tokenized.tokenize_pairs(datasets.Dataset.from_dict({"source": ["a"], "target": ["b"]}), make_tokenizer(["a"]))


def test_a_run_that_came_to_its_end_goes_on_and_then_no_further(train, run, whole):
    for _ in range(2):
        assert_resumes(train, run, whole)


def test_another_length_is_told_with_what_becomes_of_rate_and_average(train, tmp_path):
    run, linear = tmp_path / "run", {"lr_scheduler_type": "linear", "warmup_steps": 1}
    assert train(run, max_steps=4, **linear).code == 0
    told = train(run, max_steps=9, resume=True, **linear).succeeded.errors
    rates = read_progress(run / "checkpoint-9").rates
    line = f"max_steps 9, not 4: the learning rate goes from {rates[3]:.2g} to {rates[4]:.2g}; "
    line += "model/ will be the mean of the checkpoints 7, 9; 2, 4 of the old schedule will be deleted\n"
    assert line in told and rates[4] > 1.5 * rates[3]
    assert read_json(run / "results.json")["averaged_checkpoints"] == steps_of(run) == [7, 9]


def test_a_full_disk_is_one_error_and_all_before_it_stays(train, run, whole):
    """The kernel lets no file grow to the size of the moments."""
    size = (run / f"checkpoint-{STOP}" / "optimizer.safetensors").stat().st_size
    before, left = tree(run / "model"), steps_of(run)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, hard))
    try:
        done = train(run, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.error == f"{run}/checkpoint-{STOP + 2}: File too large"
    assert steps_of(run) == left and tree(run / "model") == before
    assert_resumes(train, run, whole)

"""Training killed at random times: the same command goes on to the same end."""

import random
import shutil
import signal
import time

import torch
from helpers import tensors
from trial import PROGRAMS, run_process

KILLS = 12


def written(folder):
    """The tensors of a run without what lies half-written in hidden folders."""
    return {name: values for name, values in tensors(folder).items() if not name.startswith(".")}


def test_a_run_that_is_killed_goes_on_to_the_same_end(template, tmp_path):
    def copy(name):
        return shutil.copytree(template, tmp_path / name, symlinks=True)

    words, folder, start = PROGRAMS["train"], copy("whole"), time.monotonic()
    assert run_process(words, folder).succeeded
    seconds, expected = time.monotonic() - start, written(folder / "new")
    times = random.Random(0)
    for number in range(KILLS):
        folder, moment = copy(f"killed-{number}"), times.uniform(0.3, 1) * seconds  # before, libraries are imported
        done = run_process(words, folder, kill_after=moment)
        assert done.code in (0, -signal.SIGKILL), done.errors
        is_begun = (folder / "new/run.json").exists()
        done = run_process(f"{words} --resume" if is_begun else words, folder)
        assert done.code == 0, f"killed after {moment:.2f} s of {seconds:.2f}: {done.errors[-500:]}"
        torch.testing.assert_close(written(folder / "new"), expected, rtol=0, atol=0)

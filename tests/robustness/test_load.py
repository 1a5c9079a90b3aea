"""Many made-up lines through what reads and tokenises them: the memory that each adds, and its time."""

import multiprocessing
import os
import time
from pathlib import Path

import datasets
import pytest
from helpers import make_tiny

from modeling_vanilla.files import read_lines
from modeling_vanilla.inference import split_long
from modeling_vanilla.training import DataOptions
from modeling_vanilla.training.data import load_pairs
from modeling_vanilla.training.preprocessing import tokenize_training_pairs
from modeling_vanilla.training.tokenizer import train_tokenizer

LINES = int(os.environ.get("ROBUST_LINES", 200_000))


def write_lines(folder: Path, lines: int) -> None:
    """Two text files of so many different lines of about 20 words."""
    for name, word in (("source.txt", "dog"), ("target.txt", "Hund")):
        with (folder / name).open("w", encoding="utf-8") as file:
            for number in range(lines):
                words = (f"{word}{number * k % 9973}" for k in range(1, 20))
                file.write(" ".join(words) + f" {number}.\n")


def tokenizer_of(folder):
    sample = (line for _, line in zip(range(2000), read_lines(folder / "source.txt"), strict=False))
    return train_tokenizer(sample, vocab_size=2000)


def tokenise(folder):
    """What `vanilla train` does with its data before the training."""
    options = DataOptions(train_source=str(folder / "source.txt"), train_target=str(folder / "target.txt"))
    return len(tokenize_training_pairs(load_pairs(options)["train"], tokenizer_of(folder), options)[0])


def translate(folder):
    """What `vanilla translate` does with its input before the search: it is read and cut into pieces."""
    tokenizer = tokenizer_of(folder)
    return len(split_long(make_tiny(len(tokenizer)), tokenizer, list(read_lines(folder / "source.txt"))))


STEPS = {"tokenise": tokenise, "translate": translate}


def memory(name: str) -> int:
    """This process's resident bytes: VmRSS, now; VmHWM, at the peak."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status[name].split()[0])


def measure(step: str, folder: Path) -> dict:
    """In a process of its own: seconds, and the bytes by which the memory has grown at its peak."""
    datasets.config.HF_DATASETS_CACHE = str(folder / "cache" / step)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: a new process has inherited its parent's
    before, start = memory("VmRSS"), time.monotonic()
    lines = STEPS[step](folder)
    return {"lines": lines, "seconds": time.monotonic() - start, "bytes": memory("VmHWM") - before}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A quarter of the lines, and all."""
    made = {}
    for lines in (LINES // 4, LINES):
        made[lines] = tmp_path_factory.mktemp("lines")
        write_lines(made[lines], lines)
    return made


@pytest.mark.parametrize("step", STEPS)
def test_the_memory_of_a_line_is_bounded(folders, step, record_property):
    figures = []
    for lines, folder in folders.items():
        with multiprocessing.get_context("spawn").Pool(1) as process:
            figures.append(process.apply(measure, (step, folder)))
        assert figures[-1]["lines"] == lines
    few, many = figures
    added = (many["bytes"] - few["bytes"]) / (many["lines"] - few["lines"])
    times = " and ".join(f"{1e6 * part['seconds'] / part['lines']:.1f}" for part in figures)
    record_property(
        "load", f"{step}: {times} microseconds a line of {LINES // 4} and {LINES}, {added:.0f} bytes a line"
    )
    assert added < 2000

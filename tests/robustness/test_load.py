"""Many lines through what reads and tokenises them: the memory that each adds is bounded."""

import multiprocessing
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

LINES = 20_000, 80_000


def tokenise(sources: Path, targets: Path) -> None:
    """What `vanilla train` does with its data before the training."""
    options = DataOptions(train_source=str(sources), train_target=str(targets))
    tokenize_training_pairs(load_pairs(options)["train"], tokenizer_of(sources), options)


def split(sources: Path, targets: Path) -> None:
    """What `vanilla translate` does with its input before the search."""
    tokenizer = tokenizer_of(sources)
    split_long(make_tiny(len(tokenizer)), tokenizer, list(read_lines(sources)))


def tokenizer_of(path: Path):
    return train_tokenizer([line for _, line in zip(range(2000), read_lines(path), strict=False)], vocab_size=2000)


def memory(name: str) -> int:
    """This process's resident bytes: VmRSS, now; VmHWM, at the peak."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status[name].split()[0])


def growth(step, folder: Path, lines: int) -> int:
    """In a process of its own: the bytes by which so many different lines of 20 words make the memory grow."""
    datasets.config.HF_DATASETS_CACHE = str(folder / "cache")
    paths = [folder / "source.txt", folder / "target.txt"]
    for path, word in zip(paths, ("dog", "Hund"), strict=True):
        with path.open("w", encoding="utf-8") as file:
            for number in range(lines):
                file.write(" ".join(f"{word}{number * k % 9973}" for k in range(1, 20)) + f" {number}.\n")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: a new process has inherited its parent's
    before = memory("VmRSS")
    step(*paths)
    return memory("VmHWM") - before


@pytest.mark.parametrize("step", [tokenise, split])
def test_the_memory_of_a_line_is_bounded(tmp_path_factory, step):
    grown = []
    for lines in LINES:
        with multiprocessing.get_context("spawn").Pool(1) as process:
            grown.append(process.apply(growth, (step, tmp_path_factory.mktemp("lines"), lines)))
    assert (grown[1] - grown[0]) / (LINES[1] - LINES[0]) < 2000

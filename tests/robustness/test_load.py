"""Many made-up lines through what reads and tokenises them: the time grows as the lines do, the memory does not."""

import json
import os
import resource
import time
from pathlib import Path

import pytest
from trial import run_apart

LINES = int(os.environ.get("ROBUST_LINES", 200_000))


def write_lines(folder: Path, lines: int) -> None:
    """Two text files of so many different lines of about 20 words."""
    for name, word in (("source.txt", "dog"), ("target.txt", "Hund")):
        with (folder / name).open("w", encoding="utf-8") as file:
            for number in range(lines):
                words = (f"{word}{number * k % 9973}" for k in range(1, 20))
                file.write(" ".join(words) + f" {number}.\n")


def read(folder):
    from modeling_vanilla.io import read_lines

    return sum(1 for _ in read_lines(folder / "source.txt"))


def pairs(folder):
    from modeling_vanilla.training import DataOptions
    from modeling_vanilla.training.reading import load_pairs

    options = DataOptions(train_source=str(folder / "source.txt"), train_target=str(folder / "target.txt"))
    return load_pairs(options)["train"]


def tokenizer_of(folder):
    from modeling_vanilla.io import read_lines
    from modeling_vanilla.training.tokenizer import train_tokenizer

    sample = (line for _, line in zip(range(2000), read_lines(folder / "source.txt"), strict=False))
    return train_tokenizer(sample, vocab_size=2000)


def tokenise(folder):
    from modeling_vanilla.training import DataOptions
    from modeling_vanilla.training.batching import tokenize_training_pairs

    return len(tokenize_training_pairs(pairs(folder), tokenizer_of(folder), DataOptions())[0])


def train_vocabulary(folder):
    from modeling_vanilla.io import read_lines
    from modeling_vanilla.training.tokenizer import train_tokenizer

    train_tokenizer(read_lines(folder / "source.txt"), vocab_size=2000)
    return sum(1 for _ in read_lines(folder / "source.txt"))


def translate(folder):
    """What `vanilla translate` does with its input before the search: it is read and cut into pieces."""
    from helpers import make_tiny

    from modeling_vanilla.inference import split_long
    from modeling_vanilla.io import read_lines

    tokenizer = tokenizer_of(folder)
    return len(split_long(make_tiny(len(tokenizer)), tokenizer, list(read_lines(folder / "source.txt"))))


STEPS = {"read": read, "pairs": lambda folder: len(pairs(folder)), "tokenise": tokenise}
STEPS |= {"vocabulary": train_vocabulary, "translate": translate}


def measure(step: str, folder: Path) -> None:
    """In a process of its own: seconds, and the bytes by which the memory has grown, to a file."""
    import datasets

    datasets.config.HF_DATASETS_CACHE = str(folder / "cache" / step)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    lines = STEPS[step](folder)
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = {"lines": lines, "seconds": seconds, "bytes": 1024 * (after - before)}
    (folder / f"{step}.json").write_text(json.dumps(figures), encoding="utf-8")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A quarter of the lines, and all."""
    made = {}
    for lines in (LINES // 4, LINES):
        made[lines] = tmp_path_factory.mktemp("lines")
        write_lines(made[lines], lines)
    return made


@pytest.mark.parametrize("step", STEPS)
def test_the_time_is_linear_and_the_memory_bounded(folders, step, record_property):
    found = []
    for lines, folder in folders.items():
        run_apart(measure, step, folder)
        found.append(json.loads((folder / f"{step}.json").read_text(encoding="utf-8")))
        assert found[-1]["lines"] == lines
    few, many = found
    record_property(
        "load",
        f"{step}: {1e6 * many['seconds'] / LINES:.1f} microseconds and "
        f"{max(0, many['bytes'] - few['bytes']) / (LINES - LINES // 4):.0f} bytes a line, of {LINES} lines",
    )
    assert many["seconds"] < 2 * 4 * few["seconds"] + 5
    assert many["bytes"] < 2000 * LINES

"""Many lines through what reads and tokenises them: the memory that each adds is bounded."""

import sys

import pytest
from helpers import run_python

# What `vanilla train` does with its data before the training, and `vanilla translate` with its input before the search.
STEPS = {
    "tokenise": """
options = DataOptions(train_source="source.txt", train_target="target.txt")
tokenize_training_pairs(load_pairs(options)["train"], tokenizer, options)
""",
    "split": "split_long(make_tiny(len(tokenizer)), tokenizer, list(read_lines('source.txt')))",
}
PROGRAM = """
from itertools import islice
from pathlib import Path
from helpers import make_tiny
from modeling_vanilla.files import read_lines
from modeling_vanilla.inference import split_long
from modeling_vanilla.training import DataOptions
from modeling_vanilla.training.data import load_pairs
from modeling_vanilla.training.preprocessing import tokenize_training_pairs
from modeling_vanilla.training.tokenizer import train_tokenizer

tokenizer = train_tokenizer(islice(read_lines("source.txt"), 2000), vocab_size=2000)
{}
peak = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())["VmHWM"]
print(1024 * int(peak.split()[0]))
"""
LINES = 20_000, 80_000


@pytest.mark.parametrize("step", STEPS)
def test_the_memory_of_a_line_is_bounded(tmp_path, step):
    peaks = []
    for count in LINES:
        for name, word in (("source", "dog"), ("target", "Hund")):
            lines = (" ".join(f"{word}{number * k % 9973}" for k in range(1, 20)) for number in range(count))
            (tmp_path / f"{name}.txt").write_text("".join(f"{line} {n}.\n" for n, line in enumerate(lines)))
        done = run_python("-c", PROGRAM.format(STEPS[step]), cwd=tmp_path, PYTHONPATH=":".join(sys.path)).succeeded
        peaks.append(int(done.output.splitlines()[-1]))
    assert (peaks[1] - peaks[0]) / (LINES[1] - LINES[0]) < 2000

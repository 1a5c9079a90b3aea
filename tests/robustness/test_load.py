"""Many lines through what reads and tokenises them: the memory that each adds is bounded."""

import sys

from helpers import run_python

# What `vanilla train` does with its data before the training.
PROGRAM = """
from itertools import islice
from pathlib import Path
from modeling_vanilla.files import read_lines
from modeling_vanilla.training import DataOptions
from modeling_vanilla.training.data import load_pairs
from modeling_vanilla.training.preprocessing import tokenize_training_pairs
from modeling_vanilla.training.tokenizer import train_tokenizer

tokenizer = train_tokenizer(islice(read_lines("text"), 2000), vocab_size=2000)
options = DataOptions(train_source="text", train_target="text")
tokenize_training_pairs(load_pairs(options)["train"], tokenizer, options)
peak = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())["VmHWM"]
print(1024 * int(peak.split()[0]))
"""


def test_the_memory_of_a_line_is_bounded(tmp_path):
    counts, peaks = (20_000, 80_000), []
    for count in counts:
        lines = (" ".join(f"dog{number * k % 9973}" for k in range(1, 20)) for number in range(count))
        (tmp_path / "text").write_text("".join(f"{line} {number}.\n" for number, line in enumerate(lines)))
        done = run_python("-c", PROGRAM, cwd=tmp_path, PYTHONPATH=":".join(sys.path)).succeeded
        peaks.append(int(done.output.splitlines()[-1]))
    assert (peaks[1] - peaks[0]) / (counts[1] - counts[0]) < 2000

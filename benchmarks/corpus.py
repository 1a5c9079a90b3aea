"""What a large corpus takes before training starts: seconds and peak memory of each stage, on made-up text.

usage: python benchmarks/corpus.py [--pairs 200000 2000000] [--vocab_size 37000]

The text has 4 to 22 words a sentence and 200,000 words a language, with Zipf's frequencies; a pair in a thousand has an
empty side or one that is too long. Each number of pairs has processes and caches of its own. "CPU" is the time of all
processes together; memory is that of all processes, pages that they share counted once, and of it "anonymous" is what
the system cannot take back, unlike pages of files.
"""

import os
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import psutil
from common import in_own_process, timed

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.training import DataOptions
from modeling_vanilla.training.batches import epoch_batches, update_batches
from modeling_vanilla.training.data import load_pairs
from modeling_vanilla.training.preprocessing import pair_lengths, tokenize_training_pairs
from modeling_vanilla.training.resume import data_digest
from modeling_vanilla.training.tokenizer import train_tokenizer, vocabulary_texts

WORDS, MIN_LENGTH, MAX_LENGTH = 200_000, 4, 22
FIRST, VOWELS, LAST = "b d f g h k l m n p r s t v w z br st tr sch", "a e i o u ei au", ["", *"nrslt"]


def words(rng: np.random.Generator) -> np.ndarray:
    """A language's words, the frequent ones first: of one to four syllables."""
    syllables = [first + vowel + last for first in FIRST.split() for vowel in VOWELS.split() for last in LAST]
    count = rng.choice(4, WORDS, p=(0.1, 0.4, 0.35, 0.15)) + 1
    drawn = np.array(syllables, object)[rng.integers(len(syllables), size=(WORDS, 4))]
    return np.array(["".join(word[:length]) for word, length in zip(drawn, count, strict=True)], object)


def write_text(path: Path, lines: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lexicon, frequency = words(rng), 1 / np.arange(1, WORDS + 1)
    cumulative = np.cumsum(frequency / frequency.sum())
    with path.open("w", encoding="utf-8") as stream:
        for number in range(lines):
            # In every thousand lines an empty one, and one that is too long.
            length = rng.integers(MIN_LENGTH, MAX_LENGTH + 1) * {500: 0, 700: 100}.get(number % 1000, 1)
            drawn = lexicon[np.searchsorted(cumulative[:-1], rng.random(length))]
            stream.write(" ".join(drawn).capitalize() + ".\n" if length else "\n")


class Peak(threading.Thread):
    """Watches the memory of this process and its children, in MiB: all of it, and what is anonymous."""

    peak = np.zeros(2)

    def run(self) -> None:
        while True:
            family = [psutil.Process(), *psutil.Process().children(recursive=True)]
            self.peak = np.maximum(self.peak, sum(memory(process.pid) for process in family))
            time.sleep(0.1)


def memory(process: int) -> np.ndarray:
    """MiB of a process, 0 if it has ended: all of it, pages that it shares in part, and what is anonymous."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return np.zeros(2)
    sizes = {name: int(value) / 1024 for name, value, _ in map(str.split, lines)}
    return np.array([sizes["Pss:"], sizes["Pss_Anon:"]])


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    return sum(os.times()[:4])


def measure(pairs: int, vocab_size: int) -> None:
    """Print the row of each stage."""
    datasets.disable_progress_bars()
    watch = Peak(daemon=True)
    watch.start()

    def stage(name: str, function: Callable):
        watch.peak, cpu = np.zeros(2), cpu_seconds()
        seconds, result = timed(function)
        cpu = cpu_seconds() - cpu
        time.sleep(0.3)  # for a last look at the memory
        total, anonymous = watch.peak
        print(f"| {pairs} | {name} | {seconds:.1f} | {cpu:.1f} | {total:.0f} | {anonymous:.0f} |", flush=True)
        return result

    with tempfile.TemporaryDirectory() as folder:
        datasets.config.HF_DATASETS_CACHE = Path(folder, "cache")
        source, target = (Path(folder, name) for name in ("source", "target"))
        stage("(writing the text)", lambda: [write_text(path, pairs, i) for i, path in enumerate((source, target))])
        options = DataOptions(train_source=str(source), train_target=str(target))
        text = stage("read", lambda: load_pairs(options))["train"]
        tokenizer = stage("train the tokenizer", lambda: train_tokenizer(vocabulary_texts(text), vocab_size=vocab_size))
        data, _ = stage("tokenise, filter", lambda: tokenize_training_pairs(text, tokenizer, options))
        stage("digest", lambda: data_digest(data))
        lengths = stage("lengths", lambda: pair_lengths(data))
        batches = stage("batches of an epoch", lambda: epoch_batches(*lengths, 3125, seed=0, epoch=0))
        stage("its updates", lambda: update_batches(batches, *lengths, 25_000))


def measure_all(options: Namespace) -> None:
    print("| pairs | stage | seconds | CPU seconds | MiB | anonymous |\n|---|---|---|---|---|---|", flush=True)
    for pairs in options.pairs:
        in_own_process(partial, measure, pairs, options.vocab_size)()


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("--pairs", type=int, nargs="+", default=[200_000, 2_000_000], help="of each corpus")
    parser.add_argument("--vocab_size", type=int, default=37_000, help="of the tokenizer")
    run_command(parser, measure_all)

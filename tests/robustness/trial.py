"""A command in a process of its own, in a folder made for it: what it said, how it ended, what it left behind.

The processes are forked from one that has imported every command, so that a start costs a fraction of a second.
"""

import importlib
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from helpers import ROOT, tree

from vanilla_command import COMMANDS

# What the process imports that all others are forked from.
PRELOADED = ["finetune_seq2seq_trainer", *(f"modeling_vanilla.cli.{name}" for name in COMMANDS)]
FOLDERS = (".", "tests", "tests/robustness", "examples", "examples/reproduce")
PATHS = [str(ROOT / folder) for folder in FOLDERS]
MEMORY = 10 * 2**30  # bytes of address space: a command that asks for more must say so, not fill the machine
SECONDS = 180

SIZES = """--preset tiny --vocab_size 320 --d_model 16 --encoder_layers 1 --decoder_layers 1 --encoder_attention_heads 2
    --decoder_attention_heads 2 --encoder_ffn_dim 32 --decoder_ffn_dim 32"""
DATA = "--train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl"
TRAIN = f"""{DATA} --max_steps 4 --tokens_per_update 300 --tokens_per_batch 300 --warmup_steps 2 --checkpoint_steps 2
    --validate_steps 4 --keep_checkpoints 2 --average_checkpoints 2"""
FINETUNE = f"""{DATA} --max_steps 4 --warmup_steps 0 --eval_steps 2 --save_steps 2 --use_cpu"""
# What each program is told where nothing is wrong, all in the folder that `furnish` makes.
PROGRAMS = {
    "check": f"vanilla check {DATA} --tokenizer model --output_dir new",
    "train": f"vanilla train {SIZES} {TRAIN} --output_dir new",
    "train --model": f"vanilla train --model model {TRAIN} --output_dir new",
    "train --tokenizer": f"vanilla train --tokenizer model {SIZES} {TRAIN} --output_dir new",
    "train --resume": f"vanilla train {SIZES} {TRAIN} --output_dir run --resume",
    "translate": "vanilla translate model --input source.txt --output out.txt",
    "score": "vanilla score model --input source.txt --target target.txt --output out.txt",
    "average": "vanilla average run/checkpoint-2 run/checkpoint-4 new",
    "average --last": "vanilla average run new --last 2",
    "convert marian": "vanilla convert --from marian marian new",
    "convert fsmt": "vanilla convert --from fsmt fsmt new",
    "convert fairseq": "vanilla convert --from fairseq fairseq new",
    "export ctranslate2": "vanilla export --to ctranslate2 model new",
    "export marian": "vanilla export --to marian model new",
    "export onnx": "vanilla export --to onnx model new",
    "export transformers.js": "vanilla export --to transformers.js model new",
    "attention": "vanilla attention model --sentence dog --target Hund --output_dir new",
    "demo": "vanilla demo model",
    "push": "vanilla push run/model somebody/a-model",
    "push --static": "vanilla push run/model somebody/a-page --space --static",
    "finetune": f"finetune_seq2seq_trainer --model model {FINETUNE} --output_dir new",
}

# The model folder that each of them reads.
READERS = {
    **dict.fromkeys(("translate", "score", "attention", "export ctranslate2", "export onnx"), "model"),
    **dict.fromkeys(("finetune", "train --model"), "model"),
    "push": "run/model",
    "average": "run/checkpoint-4",
}


class Outcome(NamedTuple):
    """How a command ended: its exit code, what it wrote, and the names of the files that it changed."""

    code: int
    output: str
    errors: str
    changes: list[str]

    @property
    def said(self) -> list[str]:
        """The lines on stderr but for those of progress and warnings."""
        lines = [line.strip() for line in self.errors.replace("\r", "\n").splitlines()]
        return [line for line in lines if line and not re.search(r" \[\d+:\d+<|^warning: ", line)]


def _play(words: Sequence[str], folder: Path, files: Path, cache: Path, hooks: Sequence[Callable]) -> None:
    """In the process of its own: call the program's main() with the words behind its name."""
    flags = {"stdin": os.O_RDONLY, "stdout": os.O_WRONLY | os.O_APPEND, "stderr": os.O_WRONLY | os.O_APPEND}
    for number, (name, flag) in enumerate(flags.items()):
        os.dup2(os.open(files / name, flag), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  it lives as long as the process
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    importlib.import_module("datasets").config.HF_DATASETS_CACHE = str(cache)
    os.chdir(folder)
    for hook in hooks:
        sys.addaudithook(hook)
    program = "modeling_vanilla.__main__" if words[0] == "vanilla" else words[0]
    sys.argv = list(words)
    importlib.import_module(program).main()
    sys.stdout.flush()


class Trial:
    """Runs commands in copies of one folder.

    Args:
        folder: where all of it is to be kept.
    """

    def __init__(self, folder: Path):
        os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_TOKEN": "hf_none"}
        os.environ["PYTHONPATH"] = os.pathsep.join(PATHS)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        self.folder, self.number = folder, 0
        self.template = folder / "template"
        furnish(self.template)
        done = self.run(f"{PROGRAMS['train'].replace('new', 'run')}".split(), self.template)
        assert done.code == 0, done.errors

    def copy(self) -> Path:
        """A folder of its own for a case."""
        self.number += 1
        return Path(shutil.copytree(self.template, self.folder / str(self.number), symlinks=True))

    def run(
        self,
        words: Sequence[str],
        folder: Path,
        stdin: bytes = b"",
        hooks: Sequence[Callable] = (),
        kill_after: float | None = None,
    ) -> Outcome:
        """Run a program in a folder to its end, or so many seconds."""
        files = self.folder / "streams"
        files.mkdir(exist_ok=True)
        for name, content in {"stdin": stdin, "stdout": b"", "stderr": b""}.items():
            (files / name).write_bytes(content)
        before = tree(folder)
        arguments = (list(words), folder, files, self.folder / "cache", tuple(hooks))
        process = self.context.Process(target=_play, args=arguments)
        process.start()
        process.join(kill_after)
        if process.is_alive():
            process.kill()
        process.join()
        after = tree(folder)
        changes = sorted(name for name in before.keys() | after.keys() if before.get(name, 0) != after.get(name, 0))
        texts = [(files / name).read_bytes().decode("utf-8", "backslashreplace") for name in ("stdout", "stderr")]
        return Outcome(process.exitcode, *texts, changes)


def furnish(folder: Path) -> None:
    """Make the folder that every case has a copy of: data, models of four kinds."""
    from helpers import TINY, as_lines, make_tokenizer, save_folder
    from importers import WRITERS
    from toy_corpus import toy_corpus, write_corpus

    from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration

    corpus = toy_corpus(train=60, validation=3, test=3)
    write_corpus(corpus, folder)
    for number, name in enumerate(("source.txt", "target.txt")):
        (folder / name).write_bytes(as_lines(pair[number] for pair in corpus["test"]))
    tokenizer = make_tokenizer([text for pair in corpus["train"] for text in pair], TINY["vocab_size"])
    model = VanillaForConditionalGeneration(VanillaConfig(**TINY))
    model.generation_config.max_extra_tokens = 4
    save_folder(folder / "model", model, tokenizer)

    for name, write in WRITERS.items():
        (folder / name).mkdir()
        write(folder / name)


def check(done: Outcome, *names: str) -> None:
    """A command that was given something bad has ended with one error, which says one of the names of it."""
    errors = [line for line in done.said if line.startswith("error: ")]
    assert (done.code, errors) == (2, done.said[-1:]) and "Traceback" not in done.errors, done
    assert any(name in errors[0] for name in names), errors[0]
    assert not done.changes

"""Every command where nothing is wrong, the folder that it works in, and how a bad input must end it."""

import re
import subprocess
import sys
from pathlib import Path

from helpers import TINY, Done, as_lines, call, environment, make_tiny, make_tokenizer, save_folder, tree
from importers import WRITERS
from toy_corpus import toy_corpus, write_corpus

import vanilla_command

SIZES = "--preset tiny " + " ".join(f"--{name} {size}" for name, size in TINY.items())
DATA = "--train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl"
TRAIN = f"""{DATA} --max_steps 4 --tokens_per_update 300 --tokens_per_batch 300 --warmup_steps 2 --checkpoint_steps 2
    --validate_steps 4 --keep_checkpoints 2 --average_checkpoints 2"""
# What each program is told where nothing is wrong, all in the folder that `furnish` makes.
PROGRAMS = {
    "check": f"vanilla check {DATA} --output_dir new",
    "train": f"vanilla train {SIZES} {TRAIN} --optim muon --lr_scheduler_type linear --output_dir new",
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
}
# The model folder that each of them reads.
READERS = {
    **dict.fromkeys(("translate", "score", "attention", "export ctranslate2", "export onnx"), "model"),
    **dict.fromkeys(("train --model", "train --tokenizer"), "model"),
    "push": "run/model",
    "average": "run/checkpoint-4",
}


def furnish(folder: Path) -> None:
    """Write what the programs read: data, models of four kinds, and a run."""
    corpus = toy_corpus(train=60, validation=3, test=3)
    write_corpus(corpus, folder)
    for number, name in enumerate(("source.txt", "target.txt")):
        (folder / name).write_bytes(as_lines(pair[number] for pair in corpus["test"]))
    tokenizer = make_tokenizer([text for pair in corpus["train"] for text in pair], TINY["vocab_size"])
    save_folder(folder / "model", make_tiny(**TINY), tokenizer)
    for name, write in WRITERS.items():
        (folder / name).mkdir()
        write(folder / name)
    assert run_process(PROGRAMS["train"].replace("new", "run"), folder).succeeded


def run(command: str, *options: str, stdin: bytes = b"") -> Done:
    """Run a program in this process and folder."""
    return call(vanilla_command.main, *command.split()[1:], *options, stdin=stdin)


def run_process(command: str, folder: Path, before: str = "", kill_after: float | None = None) -> Done:
    """Run a program in a process of its own, to its end or so many seconds, after some statements of Python."""
    start = f"{before}\nfrom vanilla_command import main\nmain()"
    streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    variables = environment(folder.with_name("cache"), HF_TOKEN="hf_none")
    process = [sys.executable, "-P", "-c", start, *command.split()[1:]]
    try:
        done = subprocess.run(process, cwd=folder, env=variables, timeout=kill_after or 180, **streams)
    except subprocess.TimeoutExpired:
        assert kill_after, f"{command} has not ended within three minutes"
        return Done(-9, "", "")
    return Done(done.returncode, done.stdout, done.stderr)


def check(command: str, folder: Path, *names: str, option: str | None = None) -> None:
    """A command that is given something bad ends with one error, which says one of the names of it, and writes nothing.

    Lines of progress and warnings may stand before the error.
    """
    before = tree(folder)
    done = run(command, *([option] if option else []))
    errors = [line for line in re.split("[\r\n]+", done.errors) if line.startswith("error: ")]
    assert any(name in done.error for name in names), done.error
    assert len(errors) == 1, done.errors
    after = tree(folder)
    assert not {name for name in before.keys() | after.keys() if before.get(name, 0) != after.get(name, 0)}

"""What many test files do: run a command, save a small model with its tokenizer, and write and compare files."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch

from modeling_vanilla.training.tokenizer import train_tokenizer

ROOT = Path(__file__).parents[1]


class Done(NamedTuple):
    """How a command ended."""

    code: int
    output: str
    errors: str

    @property
    def error(self) -> str:
        """The line on stderr that says what was wrong, without its "error: "; what a progress bar wrote is skipped."""
        assert self.code == 2 and "Traceback" not in self.errors, self
        last = self.errors.rsplit("\r", 1)[-1].strip().splitlines()[-1]
        assert last.startswith("error: "), self
        return last.removeprefix("error: ")


def call(main: Callable, *arguments, stdin: bytes = b"") -> Done:
    """Run a command's main() with arguments in this process."""
    streams = {"stdin": io.BytesIO(stdin), "stdout": io.BytesIO(), "stderr": io.BytesIO()}
    wrapped = {name: io.TextIOWrapper(stream, "utf-8", newline="") for name, stream in streams.items()}
    code = 0
    with patch.multiple(sys, argv=[main.__module__, *map(str, arguments)], **wrapped):
        try:
            main()
        except SystemExit as end:
            code = end.code
        for name in ("stdout", "stderr"):
            wrapped[name].flush()
    return Done(code or 0, streams["stdout"].getvalue().decode(), streams["stderr"].getvalue().decode())


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Of a process that imports this tree, takes one thread, keeps its caches in `folder` and asks no network."""
    return {
        **os.environ,
        "HF_HOME": str(folder / "hf"),
        "HF_DATASETS_CACHE": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "examples"))),
        **variables,
    }


def run_python(*arguments, cwd: Path, **variables: str) -> Done:
    """Run the interpreter with arguments, such as a script and its options, in a process of its own in folder `cwd`."""
    process = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment(cwd, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Done(process.returncode, process.stdout, process.stderr)


def make_tokenizer(texts: Iterable[str], vocab_size: int = 280):
    """A tokenizer of a few texts, which holds their words whole."""
    return train_tokenizer([text for text in texts if text.strip()] * 5, vocab_size=vocab_size)


def save_folder(folder: Path, model, tokenizer) -> Path:
    """A model folder, as training writes it."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def as_lines(texts: Iterable[str]) -> bytes:
    """The texts as the lines of a file."""
    return "".join(f"{text}\n" for text in texts).encode()


def tree(folder: Path) -> dict[str, bytes | None]:
    """All below a folder: of each file its content, of each folder None."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def pad_right(rows: list[list[int]], width: int | None = None) -> torch.Tensor:
    """Token ids as one batch, padded with 0 to `width` or the longest row. (B, width)"""
    width = width or max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


def batch_of(sources: list[list[int]]) -> dict[str, torch.Tensor]:
    """The sources padded, and their mask; a 0 within a source is a token."""
    lengths, input_ids = torch.tensor([len(source) for source in sources]), pad_right(sources)
    return {"input_ids": input_ids, "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()}

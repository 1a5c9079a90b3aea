"""Blocks of a long input, which one process or many translate, and keep beside the output until all are done.

The folder OUTPUT.blocks holds settings.json, which says what is translated and how, and for each block that is done a
folder with its number: the lines of each output, and the digest of what was read. Processes share nothing else.
"""

import hashlib
import os
import shutil
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path

from tqdm import std

from ..files import delete_folder, locked, read_json, whole_folder, write_json
from ..inference.loading import model_folder
from ..progress import inform
from .streams import input_lines

Block = dict[str, list[str]]  # lines of each stream that is read, or of each output

PATIENCE = 60  # seconds that a process waits for the main one to begin

# What the blocks do not depend on, or what is told by their digests.
_NOT_COMPARED = {"input", "output", "reference", "prefix", "bleu_tokenize", "device", "inter_threads", "interactive"}
_NOT_COMPARED |= {"revision", "debug", "quiet"}


def process() -> tuple[int, int]:
    """The number of this process and how many there are, by the variables that torchrun and accelerate set."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def take_blocks(streams: dict[str, Path | None], size: int, bar: std.tqdm) -> Iterator[Block]:
    """At most `size` lines of each file at a time, "input" of stdin for None; the bar shows those that are done.

    Raises:
        ValueError: if one file ends before another.
    """
    lines = {name: iter(input_lines(path)) for name, path in streams.items() if path or name == "input"}
    read = 0
    while any((block := {name: list(islice(each, size)) for name, each in lines.items()}).values()):
        for name, each in block.items():
            if len(each) != len(block["input"]):
                theirs, ours = (read + len(block[one]) + sum(1 for _ in lines[one]) for one in (name, "input"))
                raise ValueError(f"{streams[name]} has {theirs} lines, the input {ours}")
        yield block
        read += len(block["input"])
        bar.update(read - bar.n)


def settings_of_blocks(options: Namespace) -> dict:
    """What the translations depend on but for the lines that are read: the options, and digests of models and terms."""
    given = {name: value for name, value in vars(options).items() if name not in _NOT_COMPARED}
    folders = [model_folder(name, options.revision) for name in options.model]
    read = [[path for path in folder.iterdir() if path.is_file() and path.suffix != ".md"] for folder in folders]
    given["model"] = [digest_of_files(paths) for paths in read]
    given["terms"] = digest_of_files([options.terms]) if options.terms else None
    return given | {name: bool(getattr(options, name)) for name in ("alignments", "reference", "prefix")}


def digest_of_files(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def digest_of_block(folder: Path, block: Block) -> str:
    """The digest of the lines of a block, and of the settings in the folder."""
    settings = (folder / "settings.json").read_text(encoding="utf-8")
    return hashlib.sha256("\n".join(map("\n".join, [[settings], *block.values()])).encode()).hexdigest()


@contextmanager
def kept_blocks(folder: Path, settings: dict, rank: int) -> Iterator[bool]:
    """Hold the folder of the blocks for the process of this number. The main process, 0, makes it.

    Yields:
        Whether the folder is there: the main process may have joined all blocks before another one begins.

    Raises:
        ValueError: if the folder has blocks of other settings, or another process of this number holds it.
    """
    file, patience = folder / "settings.json", PATIENCE if rank else 0
    while patience and not file.exists():
        time.sleep(1)
        patience -= 1
    if rank and not file.exists():
        inform(f"{folder}: is not there; the main process has joined all blocks, or has not begun")
        yield False
        return
    try:
        with hold(folder, rank):
            if rank == 0 and not file.exists():
                write_json(file, settings)
            kept = read_json(file)
            for name, value in settings.items():
                if kept.get(name) != value:
                    which = f"{folder}: its blocks are of another {name}"
                    raise ValueError(f"{which}; give that again, or delete this folder")
            try:
                yield True
            finally:
                if rank == 0 and not any(path.name.isdigit() for path in folder.iterdir()):
                    file.unlink()
    finally:
        with suppress(OSError):  # there is something in it, such as the lock of a process that still reads
            folder.rmdir()


@contextmanager
def hold(folder: Path, rank: int) -> Iterator[None]:
    """Hold the lock of the process of this number; ValueError if another process does."""
    with ExitStack() as stack:
        for _ in range(5 if rank else 0):  # the main process may hold it for a moment, to see who is running
            with suppress(ValueError):
                stack.enter_context(locked("output", folder / f"process-{rank}"))
                break
            time.sleep(0.2)
        else:
            stack.enter_context(locked("output", folder / f"process-{rank}"))
        yield


def is_running(folder: Path, rank: int) -> bool:
    """Whether the process of this number holds the folder."""
    try:
        with locked("output", folder / f"process-{rank}"):
            return False
    except ValueError:
        return True


def is_kept(folder: Path, number: int, block: Block) -> bool:
    """Whether a block is done; ValueError if it was another one."""
    digest = folder / str(number) / "digest"
    if not digest.exists():
        return False
    if digest.read_text() != digest_of_block(folder, block):
        raise ValueError(f"{folder}: its block {number} is of another input; give that again, or delete this folder")
    return True


def keep_block(folder: Path, number: int, block: Block, outputs: Block) -> None:
    """Write the lines of each output of a block."""
    with whole_folder(folder / str(number)) as part:
        for name, lines in outputs.items():
            (part / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
        (part / "digest").write_text(digest_of_block(folder, block))


def translate_missing(
    folder: Path, blocks: Callable[[], Iterator[Block]], outputs_of: Callable[[int, Block], Block]
) -> int:
    """Translate and keep the blocks of this process that are not kept yet; the main process waits for the others'.

    It translates those of a process that has ended, or never begun.

    Args:
        blocks: reads the input from its beginning. outputs_of: the lines of each output of a block.

    Returns:
        The number of all blocks.
    """
    rank, processes = process()
    count = 0
    for count, block in enumerate(blocks(), start=1):
        number = count - 1
        if not (folder / "settings.json").exists():
            break  # the main process has joined all blocks
        if number % processes == rank and not is_kept(folder, number, block):
            keep_block(folder, number, block, outputs_of(number, block))
    if rank == 0 and processes > 1:
        for number, block in enumerate(blocks()):
            while not is_kept(folder, number, block):
                if is_running(folder, number % processes):
                    time.sleep(0.5)
                elif not is_kept(folder, number, block):
                    keep_block(folder, number, block, outputs_of(number, block))
    return count


def read_blocks(folder: Path, count: int) -> Iterator[Block]:
    """The lines of each output of each block, in order."""
    for number in range(count):
        files = (folder / str(number)).iterdir()
        yield {path.name: path.read_bytes().decode().split("\n")[:-1] for path in files if path.name != "digest"}


def delete_blocks(folder: Path, count: int) -> None:
    """Delete what these functions wrote, and nothing else in the folder."""
    for number in range(count):
        delete_folder(folder / str(number))
    for path in folder.glob(".*.vanilla.tmp"):
        shutil.rmtree(path, ignore_errors=True)

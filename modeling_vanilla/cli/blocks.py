"""Blocks of a long input, which one process or many translate, and keep beside the output until all are done.

The folder OUTPUT.blocks holds settings.json, which says what is translated and how, and for each block that is done a
folder with its number: the lines of each output, and the digest of what was read. Processes share nothing else.
"""

import hashlib
import os
import shutil
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from tqdm import std

from ..files import delete_folder, json_text, locked, read_json, whole_folder, write_json
from ..inference.loading import model_folder
from ..progress import inform
from .streams import input_lines

Block = dict[str, list[str]]  # lines of each stream that is read, or of each output

PATIENCE = 60  # seconds without a sign of the main process until another one gives up

# What the blocks do not depend on, or what is told by their digests.
_NOT_COMPARED = {"input", "output", "reference", "prefix", "bleu_tokenize", "device", "inter_threads", "interactive"}
_NOT_COMPARED |= {"revision", "debug", "quiet"}


def process() -> tuple[int, int]:
    """The number of this process and how many there are, by the variables that torchrun and accelerate set.

    Raises:
        ValueError: if there is no such process.
    """
    rank, processes = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (rank.isdecimal() and processes.isdecimal() and int(rank) < int(processes)):
        raise ValueError(f"RANK={rank} WORLD_SIZE={processes}: the rank must be from 0 to the world size - 1")
    return int(rank), int(processes)


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


def settings_of_blocks(options: Namespace, terms: dict) -> dict:
    """What the translations depend on but for the lines that are read: the options, and digests of models and terms."""
    given = {name: value for name, value in vars(options).items() if name not in _NOT_COMPARED}
    given["model"] = [digest_of_folder(model_folder(name, options.revision)) for name in options.model]
    given["terms"] = hashlib.sha256(json_text(terms).encode()).hexdigest()
    return given | {name: bool(getattr(options, name)) for name in ("alignments", "reference", "prefix")}


def digest_of_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix != ".md":
            with path.open("rb") as file:
                digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def digest_of_block(settings: dict, block: Block) -> str:
    """The digest of the settings and of the lines that are read."""
    return hashlib.sha256("\n".join(map("\n".join, [[json_text(settings)], *block.values()])).encode()).hexdigest()


@contextmanager
def kept_blocks(folder: Path, settings: dict) -> Iterator[None]:
    """Make the folder of the blocks and hold it, as the main process, 0, does.

    Raises:
        ValueError: if the folder has blocks of other settings, or another run holds it.
    """
    file = folder / "settings.json"
    try:
        with locked("output", folder / "run"):
            if not file.exists():
                write_json(file, settings)
            check_settings(folder, settings)
            try:
                yield
            finally:
                if not any(path.name.isdigit() for path in folder.iterdir()):
                    file.unlink(missing_ok=True)
    finally:
        with suppress(OSError):  # there is something in it
            folder.rmdir()


def last_change(file: Path) -> int | None:
    return file.stat().st_mtime_ns if file.exists() else None


def help_main_process(folder: Path, settings: dict, output: Path, before: int | None, work: Callable[[], int]) -> None:
    """Do the work of another process than 0 when the folder is there, and wait until the main one has joined all.

    Args:
        before: the last change of the output before this process began.

    Raises:
        ValueError: if the folder has blocks of other settings, or the main process has ended or not begun.
    """
    end, is_done = time.monotonic() + PATIENCE, False
    while last_change(output) == before:
        if (folder / "settings.json").exists():
            if not is_done:
                check_settings(folder, settings)
                work()
                inform(f"{folder}: waits for the main process, of RANK 0")
            end, is_done = time.monotonic() + PATIENCE, True
        elif time.monotonic() > end:
            raise ValueError(f"{output}: is not written, as the main process, of RANK 0, has not begun or has failed")
        time.sleep(0.5)


def check_settings(folder: Path, settings: dict) -> None:
    """Raise ValueError if the folder has blocks of other settings."""
    kept = read_json(folder / "settings.json")
    for name, value in settings.items():
        if kept.get(name) != value:
            raise ValueError(f"{folder}: its blocks are of another {name}; give that again, or delete this folder")


def translate_missing(
    folder: Path, settings: dict, blocks: Iterator[Block], outputs_of: Callable[[int, Block], Block]
) -> int:
    """Translate and keep the blocks of this process that are not kept yet; the main process waits for the others'.

    Args:
        blocks: of the input. outputs_of: the lines of each output of a block.

    Returns:
        The number of all blocks.

    Raises:
        ValueError: if a block that is kept is of another input.
    """
    rank, processes = process()
    count = 0
    for count, block in enumerate(blocks, start=1):
        if rank and not (folder / "settings.json").exists():
            break  # the main process joins all blocks, and then deletes them
        number, digest = count - 1, digest_of_block(settings, block)
        kept, is_own = folder / str(number), number % processes == rank
        if kept.exists():
            if (is_own or rank == 0) and (kept / "digest").read_text().strip() != digest:
                raise ValueError(f"{kept}: is of another input or setting; give that again, or delete {folder}")
        elif is_own:
            outputs = outputs_of(number, block)
            with whole_folder(kept) as part:
                for name, lines in {**outputs, "digest": [digest]}.items():
                    (part / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    if rank == 0 and (missing := [number for number in range(count) if not (folder / str(number)).exists()]):
        inform(f"{folder}: waits for {len(missing)} blocks of other processes; start again what has ended")
        while not all((folder / str(number)).exists() for number in missing):
            time.sleep(0.5)
    return count


def read_blocks(folder: Path, count: int) -> Iterator[Block]:
    """The lines of each output of each block, in order."""
    for number in range(count):
        files = (folder / str(number)).iterdir()
        yield {path.name: path.read_bytes().decode().split("\n")[:-1] for path in files if path.name != "digest"}


def delete_blocks(folder: Path, count: int) -> None:
    """Delete what these functions wrote, and nothing else in the folder; settings.json first, as others look for it."""
    (folder / "settings.json").unlink()
    for number in range(count):
        delete_folder(folder / str(number))
    for path in folder.glob(".*.vanilla.tmp"):
        shutil.rmtree(path, ignore_errors=True)

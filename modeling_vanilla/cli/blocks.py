"""Blocks of a long input, which one process or many translate, and keep beside the output until all are done.

The folder OUTPUT.blocks holds for each block that is done a folder with its number: the lines of each output, and the
digest of what was read and how it is translated. Processes share nothing else: each translates its share, and waits
until all blocks are there and one of them has joined them.
"""

import hashlib
import os
import shutil
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from itertools import count, islice
from pathlib import Path

from filelock import FileLock
from tqdm import std

from ..files import delete_folder, disk_errors, json_text, read_lines, whole_folder
from ..loading import model_folder
from ..progress import inform
from .streams import input_lines

Block = dict[str, list[str]]  # lines of each stream that is read, or of each output

PATIENCE = 60  # seconds without a sign of other processes until this one gives up

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


def take_blocks(
    source: Path | None, prefix: Path | None, references: Mapping[Path, Sized], size: int, bar: std.tqdm
) -> Iterator[tuple[int, Block]]:
    """Number the blocks: each has at most `size` lines of "input", and of "prefix" if there is one.

    The bar shows the lines that are done.

    Raises:
        ValueError: if another file has more or fewer lines than the input.
    """
    lines = {"input": iter(input_lines(source))} | ({"prefix": iter(read_lines(prefix))} if prefix else {})
    read = 0
    for number in count():
        block = {name: list(islice(each, size)) for name, each in lines.items()}
        sizes = {name: read + len(each) for name, each in block.items()}
        if len({*sizes.values()}) > 1:
            theirs, ours = (sizes[name] + sum(1 for _ in lines[name]) for name in ("prefix", "input"))
            raise ValueError(f"{prefix} has {theirs} lines, the input {ours}")
        read, is_last = sizes["input"], len(block["input"]) < size
        for path, reference in references.items():
            if len(reference) < read or (is_last and len(reference) > read):
                raise ValueError(f"{path} has {len(reference)} lines, the input {read}{'' if is_last else ' or more'}")
        if block["input"]:
            yield number, block
        bar.update(read - bar.n)
        if is_last:
            break


def settings_of_blocks(options: Namespace, terms: list) -> dict:
    """What the translations depend on but for the lines that are read: options, terms, digests of the models."""
    given = {name: value for name, value in vars(options).items() if name not in _NOT_COMPARED}
    folders = [model_folder(name, options.revision) for name in options.model]
    read = [[path for path in folder.iterdir() if path.is_file() and path.suffix != ".md"] for folder in folders]
    given |= {"model": [digest_of_files(paths) for paths in read], "terms": terms}
    return given | {name: bool(getattr(options, name)) for name in ("alignments", "reference", "prefix")}


def digest_of_files(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def digest_of_block(settings: dict, block: Block) -> str:
    """The digest of the settings and of the lines that are read."""
    return hashlib.sha256("\n".join(map("\n".join, [[json_text(settings)], *block.values()])).encode()).hexdigest()


def is_kept(folder: Path, number: int, digest: str) -> bool:
    """Whether a block is done; ValueError if it is one of another input or other settings."""
    kept = folder / str(number) / "digest"
    if kept.exists() and kept.read_text().strip() != digest:
        raise ValueError(f"{kept.parent}: is of another input or setting; give that again, or delete {folder}")
    return kept.exists()


def keep_block(folder: Path, number: int, digest: str, outputs: Block) -> None:
    """Write the outputs of a block, whole or not at all."""
    with whole_folder(folder / str(number)) as part:
        for name, lines in {**outputs, "digest": [digest]}.items():
            (part / name).write_bytes("".join(f"{line}\n" for line in lines).encode())


def last_change(file: Path) -> int | None:
    return file.stat().st_mtime_ns if file.exists() else None


def join_blocks(
    folder: Path, total: int, output: Path, before: int | None, write: Callable[[Iterator[Block]], list[str]]
) -> list[str]:
    """Wait until all blocks are there and join them, unless another process has.

    What these functions wrote to the folder is deleted, and nothing else.

    Args:
        before: the last change of the output before this process began. write: writes it from the blocks in order.

    Returns:
        What `write` returns; nothing if another process has joined the blocks.

    Raises:
        ValueError: no other process has begun.
    """
    end, said = time.monotonic() + PATIENCE, False
    while last_change(output) == before:
        missing = sum(not (folder / str(number)).exists() for number in range(total))
        if not missing:
            folder.mkdir(exist_ok=True)
            with disk_errors(folder), FileLock(folder / "lock"):  # of those that find all at once, one joins them
                if last_change(output) != before:
                    break
                best = write(read_blocks(folder, total))
                delete_blocks(folder, total)
                return best
        if folder.exists():
            if not said:
                inform(f"{folder}: waits for {missing} blocks of other processes; start again what has ended")
            end, said = time.monotonic() + PATIENCE, True
        elif time.monotonic() > end:
            raise ValueError(f"{output}: is not written, as no other process has begun or all have failed")
        time.sleep(0.5)
    return []


def delete_blocks(folder: Path, total: int) -> None:
    for number in range(total):
        delete_folder(folder / str(number))
    for path in folder.glob(".*.vanilla.tmp"):
        shutil.rmtree(path, ignore_errors=True)
    (folder / "lock").unlink()
    with suppress(OSError):  # there is something else in it
        folder.rmdir()


def read_blocks(folder: Path, total: int) -> Iterator[Block]:
    """The lines of each output of each block, in order."""
    for number in range(total):
        files = (folder / str(number)).iterdir()
        yield {path.name: path.read_bytes().decode().split("\n")[:-1] for path in files if path.name != "digest"}

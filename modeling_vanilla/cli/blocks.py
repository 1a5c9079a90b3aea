"""Blocks of a long input, which are kept beside the output until all are done.

The folder OUTPUT.blocks holds for each block that is done a folder with its number: the lines of each output, and the
digest of what was read and how it is translated.
"""

import hashlib
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import TypeVar

from tqdm import std

from ..files import delete_folder, digest_of, json_text, locked, read_lines, whole_folder
from ..loading import model_folder
from .streams import input_lines

Written = TypeVar("Written")
Block = dict[str, list[str]]  # lines of each stream that is read, or of each output

# What the blocks do not depend on, or what the digests already cover.
_NOT_COMPARED = {"input", "output", "reference", "prefix", "bleu_tokenize", "device", "inter_threads"}
_NOT_COMPARED |= {"differing", "revision", "debug", "quiet"}


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
        bar.update(max(0, read - bar.n))
        if is_last:
            break


def record_of_blocks(options: Namespace, terms: list) -> dict:
    """What the translations depend on but for the lines that are read: options, terms, digests of the models."""
    given = {name: value for name, value in vars(options).items() if name not in _NOT_COMPARED}
    folders = [model_folder(name, options.revision) for name in options.model]
    read = [[path for path in folder.iterdir() if path.is_file() and path.suffix != ".md"] for folder in folders]
    given |= {"model": [{path.name: digest_of(path) for path in sorted(paths)} for paths in read], "terms": terms}
    return given | {name: bool(getattr(options, name)) for name in ("alignments", "reference", "prefix")}


def digest_of_block(record: dict, block: Block) -> str:
    """The digest of the record and of the lines that are read."""
    return hashlib.sha256("\n".join(map("\n".join, [[json_text(record)], *block.values()])).encode()).hexdigest()


def is_kept(folder: Path, number: int, digest: str) -> bool:
    """Whether a block is done; ValueError if it is one of another input or other options."""
    kept = folder / str(number)
    try:
        is_same = (kept / "digest").read_text().strip() == digest
    except FileNotFoundError:
        return False
    if not is_same:
        raise ValueError(f"{kept}: is of another input or setting; give that again, or delete {folder}")
    return True


def keep_block(folder: Path, number: int, digest: str, outputs: Block) -> None:
    """Write the outputs of a block, whole or not at all."""
    with whole_folder(folder / str(number)) as part:
        for name, lines in {**outputs, "digest": [digest]}.items():
            (part / name).write_bytes("".join(f"{line}\n" for line in lines).encode())


def keep_blocks(
    folder: Path,
    record: dict,
    blocks: Iterable[tuple[int, Block]],
    translate: Callable[[int, Block], Block],
    write: Callable[[Iterator[Block]], Written],
) -> Written:
    """Translate the blocks that are not kept yet, keep each, write all, and delete what was kept and nothing else.

    Args:
        translate: returns the outputs of a numbered block.
        write: writes the outputs from the blocks in order.

    Returns:
        What `write` returns.

    Raises:
        ValueError: another process holds the folder, or a block is one of another input or other options.
    """
    with locked("--output", folder):
        number = -1
        for number, block in blocks:
            digest = digest_of_block(record, block)
            if not is_kept(folder, number, digest):
                keep_block(folder, number, digest, translate(number, block))
        written = write(read_blocks(folder, number + 1))
        for digest_file in [*folder.glob("[0-9]*/digest")]:  # those of a longer input that was cut off before, too
            delete_folder(digest_file.parent)
        with suppress(OSError):  # there is something else in it
            folder.rmdir()
    return written


def read_blocks(folder: Path, total: int) -> Iterator[Block]:
    """The lines of each output of each block, in order."""
    for number in range(total):
        files = (folder / str(number)).iterdir()
        yield {path.name: path.read_bytes().decode().split("\n")[:-1] for path in files if path.name != "digest"}

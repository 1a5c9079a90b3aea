"""What `vanilla translate` and `vanilla score` share: their options, the lines they read, and what they write."""

import gzip
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import torch

from ..files import decode_lines, read_lines, whole_file
from ..inference import Translator
from .parser import CommandParser, add_loading, loading_of

OUTPUTS = ("output", "alignments", "differing")  # the options that write


def add_shared_options(parser: CommandParser) -> None:
    """Add options for the models, how they compute, the input, the output, and word alignments."""
    add = parser.add_argument
    add("model", nargs="+", metavar="MODEL", help="folder of a model, or its name on the Hub; several are an ensemble")
    source = "the sources, UTF-8 text, plain or .gz (default: -, stdin)"
    add("--input", type=path_or_stream, metavar="FILE", help=source)
    target = "plain or .gz, written when all is done (default: -, stdout)"
    add("--output", type=path_or_stream, metavar="FILE", help=target)
    add("--alignments", type=Path, metavar="FILE", help="write word alignments to FILE")
    add("--alignment_layer", type=int, default=0, metavar="N", help="decoder layer of the word alignments")
    size = "of a batch, with padding, times the beams of a search (default: 4096 on a CPU, 32768 on a GPU)"
    add("--tokens_per_batch", type=int, metavar="N", help=size)
    add("--bf16", action="store_true", help="compute in bfloat16, with the engine torch")
    add_loading(parser)


def path_or_stream(text: str) -> Path | None:
    """The path that an option names, or None for "-", the standard stream."""
    return None if text == "-" else Path(text)


def translator_of(options: Namespace, aligned: bool) -> Translator:
    """Load what the options name.

    Raises:
        ValueError: they cannot be loaded, or are to give word alignments and cannot.
    """
    given = loading_of(options) | ({"dtype": torch.bfloat16} if options.bf16 else {})
    translator = Translator.from_pretrained(*options.model, **given)
    if aligned:
        translator.check_alignable(options.alignment_layer)
    return translator


# Input


def input_lines(path: Path | None) -> Iterator[str]:
    """Read the lines of a file, or of stdin for None."""
    return read_lines(path) if path else decode_lines(sys.stdin.buffer, "stdin")


def count_lines(path: Path | None) -> int | None:
    """Count the lines of a text file without decoding it; None for a stream and a compressed file."""
    if path is None or not path.is_file() or path.suffix.lower() == ".gz":
        return None
    with path.open("rb") as file:
        return sum(1 for _ in file)


# Output


def check_outputs(options: Namespace, inputs: Sequence[tuple[str, Path | None]]) -> None:
    """Raise ValueError if one of OUTPUTS is a folder, two are one file, or one of them is an input.

    Args:
        inputs: the files that are read, each with its option.
    """
    others = [*inputs]
    for name, path in ((f"--{name}", getattr(options, name, None)) for name in OUTPUTS):
        if path and path.is_dir():
            raise ValueError(f"{name}: {path} is a folder, not a file")
        if path and not path.parent.is_dir():
            raise ValueError(f"{name}: {path} cannot be written, as there is no folder {path.parent}")
        for other, taken in others if path and is_file(path) else ():
            if taken and taken.resolve() == path.resolve():
                raise ValueError(f"{other} and {name} are both {path}")
        others.append((name, path))


def is_file(path: Path | None) -> bool:
    """Whether this is the name of a file, there or not yet, not a stream such as /dev/stdout or a named pipe."""
    streams = Path("/dev"), Path("/dev/fd")
    return path is not None and path.parent not in streams and (path.is_file() or not path.exists())


@contextmanager
def output_streams(options: Namespace) -> Iterator[dict[str, BinaryIO]]:
    """Open the streams of the options that write, each by its name; --output is always there."""
    paths = {name: getattr(options, name, None) for name in OUTPUTS}
    with ExitStack() as stack:
        yield {name: stack.enter_context(_stream(path)) for name, path in paths.items() if path or name == "output"}


@contextmanager
def _stream(path: Path | None) -> Iterator[BinaryIO]:
    """Open a stream to a file, which appears under its name when the block ends, or to stdout for None."""
    if path is None or path == Path("/dev/stdout"):
        yield sys.stdout.buffer
    elif not is_file(path):
        with path.open("ab") as stream:
            yield stream
    else:
        opened = gzip.open if path.suffix.lower() == ".gz" else open
        with whole_file(path) as part, opened(part, "wb") as stream:
            yield stream


def write_lines(lines: Iterable[str], stream: BinaryIO) -> None:
    """Write lines to a stream, at once."""
    stream.writelines(f"{line}\n".encode() for line in lines)
    stream.flush()

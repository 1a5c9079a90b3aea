"""What `vanilla translate` and `vanilla score` share: their options, the lines they read, and what they write."""

import gzip
import os
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import combinations
from pathlib import Path
from typing import BinaryIO

from ..files import decode_lines, disk_errors, is_gzip, read_lines, whole_file
from .parser import CommandParser, add_loading, standard_stream


def add_shared_options(parser: CommandParser) -> None:
    """The models, how they compute, the input, the output, and word alignments."""
    add = parser.add_argument
    add("model", nargs="+", metavar="MODEL", help="folder of a model, or its name on the Hub; several are an ensemble")
    add("--input", type=Path, metavar="FILE", help="the sources, UTF-8 text, plain or .gz (default: stdin)")
    add("--output", type=Path, metavar="FILE", help="plain or .gz, written when all is done (default: stdout)")
    add("--alignments", type=Path, metavar="FILE", help="write word alignments to FILE")
    add("--alignment_layer", type=int, default=0, metavar="N", help="decoder layer of the word alignments")
    add("--tokens_per_batch", type=int, default=4096, help="of a batch, with padding, times the beams of a search")
    add("--bf16", action="store_true", help="compute in bfloat16")
    add_loading(parser)


def load(options: Namespace, aligned: bool):
    """The model and the tokenizer; ValueError if they cannot be loaded, or are to give alignments and cannot."""
    import torch

    from ..inference import load_translator
    from ..inference.alignment import check_alignable

    dtype = torch.bfloat16 if options.bf16 else torch.float32
    model, tokenizer = load_translator(options.model, options.device, dtype, options.revision)
    if aligned:
        check_alignable(model, tokenizer, options.alignment_layer)
    return model, tokenizer


# Input


def input_lines(options: Namespace) -> Iterator[str]:
    return read_lines(options.input) if options.input else decode_lines(standard_stream("stdin"), "stdin")


def parallel_lines(path: Path, sources: Sequence[str]) -> list[str]:
    """The lines of a file; ValueError if there are more or fewer than sources."""
    lines = list(read_lines(path))
    if len(lines) != len(sources):
        raise ValueError(f"{path} has {len(lines)} lines, the input {len(sources)}")
    return lines


# Output

_OPEN_STREAM = re.compile("/dev/(?:stdout|stderr|fd/[0-9]+)")


def check_paths(options: Namespace, *inputs: str) -> None:
    """Raise ValueError if --output or --alignments is a folder, both are one file, or one of them is an input.

    inputs: the options that name files to be read.
    """
    outputs = ("--output", "--alignments")
    paths = {f"--{name}": path for name in (*inputs, "output", "alignments") if (path := getattr(options, name))}
    for name, path in paths.items():
        if name in outputs and path.is_dir():
            raise ValueError(f"{name}: {path} is a folder, not a file")
    for name, other in combinations(paths, 2):
        path = paths[other]
        if other in outputs and path.resolve() == paths[name].resolve() and (path.is_file() or not path.exists()):
            raise ValueError(f"{name} and {other} are both {path}")


@contextmanager
def output_streams(options: Namespace) -> Iterator[tuple[BinaryIO, BinaryIO | None]]:
    """The streams of --output and --alignments."""
    alignments = _stream(options.alignments) if options.alignments else nullcontext()
    with _stream(options.output) as output, alignments as aligned:
        yield output, aligned


@contextmanager
def _stream(path: Path | None) -> Iterator[BinaryIO]:
    """A stream to a file that appears under its name when all is written; stdout for None."""
    if path is None:
        yield standard_stream("stdout")
    elif _OPEN_STREAM.fullmatch(str(path)):
        descriptor = {"stdout": 1, "stderr": 2}.get(path.name) or int(path.name)
        # A file, such as a log, may be behind it to which others write, too, and which has to stay.
        with disk_errors(path), os.fdopen(os.dup(descriptor), "wb") as stream:
            yield stream
    elif path.exists() and not path.is_file():  # such as /dev/null or a named pipe
        with disk_errors(path), path.open("wb") as stream:
            yield stream
    else:
        opened = gzip.open if is_gzip(path) else open
        with whole_file(path) as part, opened(part, "wb") as stream:
            yield stream


def write(lines: Iterable[str], stream: BinaryIO, path: Path | None) -> None:
    """Write lines to the stream of a file or, for None, of stdout, which an error of the disk names."""
    try:
        with disk_errors(path or Path("stdout")):
            stream.writelines(f"{line}\n".encode() for line in lines)
            stream.flush()
    except OSError:
        if path is None:
            # The rest of the buffer goes nowhere, or Python would report it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise

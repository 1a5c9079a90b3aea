"""What all commands share: help that keeps the lines of its examples, bad usage in one line, --debug and --quiet.

Help and bad usage need no PyTorch, so no command's module imports it: its functions do, once the options are right.
"""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NoReturn

from transformers import HfArgumentParser

from ..errors import one_line_errors
from ..files import read_lines

EXAMPLES = 5


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The description line by line, and of each option one spelling, a short word for its value, and its default."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=34)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        # HfArgumentParser gives each option with an underscore a second spelling, with hyphens.
        shown = copy(action)
        shown.option_strings = [name for name in action.option_strings if "-" not in name[2:]] or action.option_strings
        return super()._format_action_invocation(shown)

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        kind = getattr(action.type, "__name__", "")
        known = {"int": "N", "float": "X", "string_to_bool": "BOOL"}
        return known.get(kind.removesuffix(" or none"), action.dest.rpartition("_")[2].upper())

    def _get_help_string(self, action: argparse.Action) -> str:
        unset = not action.default and type(action.default) is not int
        return action.help if unset else super()._get_help_string(action)


class CommandParser(HfArgumentParser):
    """A parser of options and of dataclasses of options, which says in one line what is wrong with its arguments.

    Args:
        description: the docstring of the command's module, whose examples keep their lines.
        dataclass_types: whose fields become options, as HfArgumentParser has it.
    """

    def __init__(self, description: str, dataclass_types: Sequence[type] = ()):
        # The fields of the dataclasses are too many for a line of usage that could be read.
        usage = "%(prog)s [OPTION ...]" if dataclass_types else None
        super().__init__(
            dataclass_types, usage=usage, description=description, formatter_class=_Help, allow_abbrev=False
        )
        self.register("type", Path, _path)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace=None) -> tuple[argparse.Namespace, list]:
        for word in sys.argv[1:] if args is None else args:
            try:
                word.encode()
            except UnicodeEncodeError:
                self.error(f"{word!a} is not UTF-8")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {' '.join(message.split())}; see --help\n")


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the name of a file or folder is empty")
    return Path(text)


def add_examples(parser: CommandParser) -> None:
    """Give a command the option --examples, which `read_examples` reads."""
    parser.add_argument("--examples", type=Path, metavar="FILE", help=f"its first {EXAMPLES} lines are shown to try")


def read_examples(path: Path | None) -> list[str]:
    return [] if path is None else list(islice(read_lines(path), EXAMPLES))


def add_revision(parser: argparse.ArgumentParser) -> None:
    """Add --revision, for commands that take names of models on the Hub."""
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit of a model on the Hub")


def add_loading(parser: argparse.ArgumentParser) -> None:
    """Add --revision and --device, as all commands have them that run a model; load_translator has the defaults."""
    add_revision(parser)
    parser.add_argument("--device", help='such as "cuda:1", "mps" or "cpu" (default: the GPU where there is one)')


def standard_stream(name: str) -> BinaryIO:
    """The bytes of `stdin` or `stdout`; ValueError if the process was started with it closed."""
    stream = getattr(sys, name)
    if stream is None:
        raise ValueError(f"{name} is closed")
    return stream.buffer


def warn(line: str) -> None:
    """A warning on stderr, which --quiet does not silence."""
    print(f"warning: {line}", file=sys.stderr, flush=True)


def _fill_closed_streams() -> None:
    """Give the null device the numbers of standard streams that are closed: the next files opened would get them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    if sys.stderr is None:  # print() would take stdout
        sys.stderr = os.fdopen(2, "w")


def _import_package() -> None:
    """Run the package's __init__, which vanilla_command has left out."""
    package = sys.modules["modeling_vanilla"]
    if not hasattr(package, "__version__"):
        # transformers imports torchao where it is installed, which then says what of it does not fit this machine.
        for name in ("torchao", "torch.utils._pytree"):
            logging.getLogger(name).setLevel(logging.ERROR)
        package.__spec__.loader.exec_module(package)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print what the package warns of as the command's warnings."""
    log, handler = logging.getLogger("modeling_vanilla"), logging.Handler()
    handler.emit = lambda record: warn(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def run_command(
    parser: CommandParser, command: Callable[[argparse.Namespace], None], arguments: Sequence[str] | None = None
) -> None:
    """Parse the arguments, by default those of the process, and call the command with them.

    Bad usage and what the command raises for bad input end the process with one line on stderr and exit code 2.
    """
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error, as VANILLA_DEBUG=1 does")
    parser.add_argument("--quiet", action="store_true", help="say nothing on stderr but warnings and errors")
    _fill_closed_streams()
    options = parser.parse_args(arguments)
    _import_package()
    from ..progress import set_quiet

    set_quiet(options.quiet)
    with one_line_errors(options.debug), _warnings_as_lines():
        command(options)

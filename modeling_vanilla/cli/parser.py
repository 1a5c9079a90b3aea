"""What all commands share: help that keeps the lines of its examples, bad usage in one line, --debug and --quiet."""

import argparse
import io
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from transformers import HfArgumentParser

from ..errors import one_line_errors
from ..files import read_lines
from ..inference.translator import ENGINES
from ..progress import set_quiet

EXAMPLES = 5
MOST = 2**31 - 1  # the largest number that all of torch, NumPy and CTranslate2 take


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The description line by line, and of each option one spelling and the default, if it has one."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        # HfArgumentParser gives each option with an underscore a second spelling, with hyphens.
        shown = copy(action)
        shown.option_strings = [name for name in action.option_strings if "-" not in name[2:]] or action.option_strings
        return super()._format_action_invocation(shown)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        unset = action.default in (None, False, "") and type(action.default) is not int
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
        self.register("type", int, whole_number)  # for the fields of dataclasses, too

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {' '.join(message.split())}; see --help\n")


def whole_number(text: str) -> int:
    """The number that an option of type int gives."""
    if abs(number := int(text)) > MOST:
        raise argparse.ArgumentTypeError(f"must be from {-MOST} to {MOST}, not {text}")
    return number


def add_examples(parser: CommandParser) -> None:
    """Add --examples, which `read_examples` reads."""
    parser.add_argument("--examples", type=Path, metavar="FILE", help=f"its first {EXAMPLES} lines are shown to try")


def read_examples(path: Path | None) -> list[str]:
    """Read the first lines of the file of --examples, if there is one."""
    return [] if path is None else list(islice(read_lines(path), EXAMPLES))


def add_revision(parser: CommandParser) -> None:
    """Add --revision, for commands that take names of models on the Hub."""
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit of a model on the Hub")


def add_loading(parser: CommandParser, has_engines: bool = True) -> None:
    """Add what `loading_of` gives to `Translator.from_pretrained`, which has the defaults."""
    add = parser.add_argument
    add_revision(parser)
    add("--device", help='such as "cuda:1", "mps" or "cpu" (default: the GPU where there is one)')
    if not has_engines:
        return
    add("--engine", choices=ENGINES, default=ENGINES[0], help="ctranslate2 is the faster one, torch the exact one")
    kinds = 'such as "int8", of ctranslate2 (default: float32 on a CPU, float16 on a GPU, or as an export has it)'
    add("--quantization", metavar="NAME", help=kinds)
    threads = "batches that ctranslate2 translates at the same time (default: one on each core or GPU)"
    add("--inter_threads", type=int, metavar="N", help=threads)


def loading_of(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Translator.from_pretrained` that the options of `add_loading` give."""
    names = ("revision", "device", "engine", "quantization", "inter_threads")
    return {name: value for name, value in vars(options).items() if name in names}


def warn(line: str) -> None:
    """Print a warning on stderr, which --quiet does not silence."""
    print(f"warning: {line}", file=sys.stderr, flush=True)


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
    options = parser.parse_args(arguments)
    set_quiet(options.quiet)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name need not be text; stderr does the same
    with one_line_errors(options.debug), _warnings_as_lines():
        command(options)

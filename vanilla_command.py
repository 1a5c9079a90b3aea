"""The command `vanilla`: a table of its commands, each of which is a module of modeling_vanilla.cli.

It stands beside the package because importing the package takes seconds, for PyTorch and transformers.
"""

import importlib
import os
import re
import sys
from difflib import get_close_matches
from importlib.metadata import requires, version

COMMANDS = {
    "check": "look at sentence pairs before training",
    "train": "train a translation model",
    "translate": "translate text, a line at a time",
    "score": "score given translations",
    "average": "average checkpoints into a model",
    "convert": "convert a MarianMT, FSMT or fairseq model",
    "export": "export a model to CTranslate2, ONNX, MarianMT or transformers.js",
    "attention": "draw the attention of a model",
    "demo": "try a model in the browser",
    "push": "publish a model on the Hugging Face Hub",
}
_PARTS = ("file", "source", "target")
_DATA = [f"{split}_{part}" for split in ("train", "validation", "test") for part in _PARTS]
_OLD = [f"{split}_{part}" for split in ("replay", "replay_validation") for part in _PARTS]
# The options of each command that name a file to read.
READ = {
    "check": _DATA,
    "train": ["config", *_DATA, *_OLD, "corrections_file"],
    "translate": ["input", "reference", "terms", "prefix"],
    "score": ["input", "target"],
    "demo": ["examples"],
    "push": ["examples"],
}


def main() -> None:
    """Run the command that the first argument names with the arguments behind it."""
    open_closed_streams()
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command in ("--help", "-h"):
        lines = [f"  {name:10} {what}" for name, what in COMMANDS.items()]
        print("\n".join(["usage: vanilla COMMAND ...", "", *lines, "", "vanilla COMMAND --help shows its options."]))
    elif command == "--version":
        print(f"vanilla {version('modeling-vanilla')}")
    elif command in COMMANDS:
        sys.argv[:2] = [f"vanilla {command}"]
        check_files(command, sys.argv[1:])
        run(command)
    else:
        close = "".join(f"did you mean {name!r}? " for name in get_close_matches(command, COMMANDS, 1))
        print(f"error: {command!a} is no command; {close}see vanilla --help", file=sys.stderr)
        sys.exit(2)


def open_closed_streams() -> None:
    """Make each closed standard stream /dev/null; a file that is opened later would take its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # gets the lowest free number, the stream's


def check_files(command: str, arguments: list[str]) -> None:
    """End with one line for a file that is not there, before PyTorch is imported."""
    for argument, following in zip(arguments, [*arguments[1:], "-"], strict=True):
        option, given, value = argument.partition("=")
        path = value if given else following
        name = option.removeprefix("--").replace("-", "_")
        if option.startswith("--") and name in READ.get(command, ()) and path != "-" and not os.path.exists(path):
            print(f"error: {name}: {path!a} does not exist", file=sys.stderr)
            sys.exit(2)


def run(command: str) -> None:
    """Import the module of a command, and run it; say in one line which package it lacks.

    torch's threads wait for each other many times a step. By default they spin 300000 times before they sleep, on cores
    that other programs need; asleep at once, they wake too late where the cores are quiet (benchmarks/cpu.py). torch
    reads this when it is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    # No command needs it; accelerate would import it where it is installed, and that prints warnings.
    sys.modules["torchao"] = None  # type: ignore[assignment]
    from modeling_vanilla.errors import one_line_errors

    with one_line_errors("--debug" in sys.argv):
        try:
            importlib.import_module(f"modeling_vanilla.cli.{command}").main()
        except ModuleNotFoundError as error:
            package = str(error.name).partition(".")[0]
            raise ValueError(f"vanilla {command} needs {package}: {how_to_install(package)}") from error


def how_to_install(package: str) -> str:
    """The command that installs a package: by the first of this package's extras that has it, if one does."""
    extras = (re.match(rf"{package}\W.*extra == \W(\w+)", line) for line in requires("modeling-vanilla") or [])
    extra = next((match[1] for match in extras if match), None)
    return f'pip install "modeling-vanilla[{extra}]"' if extra else f"pip install {package}"

"""The command `vanilla`: each of its commands is a module of modeling_vanilla.cli.

It stands beside the package because importing the package takes seconds, for PyTorch and transformers, which neither
help nor a bad option needs.
"""

import importlib
import sys
from difflib import get_close_matches
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec

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
    "env": "tell versions and machine, for a report of a fault",
}


def main() -> None:
    """Run the command that the first argument names with the arguments behind it."""
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command in ("--help", "-h"):
        lines = [f"  {name:10} {what}" for name, what in COMMANDS.items()]
        print("\n".join(["usage: vanilla COMMAND ...", "", *lines, "", "vanilla COMMAND --help shows its options."]))
    elif command == "--version":
        print(f"vanilla {version('modeling-vanilla')}")
    elif command in COMMANDS:
        sys.argv[:2] = [f"vanilla {command}"]
        _run(command)
    else:
        close = "".join(f"did you mean {name!r}? " for name in get_close_matches(command, COMMANDS, 1))
        print(f"error: {command!a} is no command; {close}see vanilla --help", file=sys.stderr)
        sys.exit(2)


def _run(command: str) -> None:
    if "modeling_vanilla" not in sys.modules:
        # A package that can be imported from; run_command has its __init__ run once the options are right.
        sys.modules["modeling_vanilla"] = module_from_spec(find_spec("modeling_vanilla"))
    from modeling_vanilla.errors import one_line_errors

    with one_line_errors("--debug" in sys.argv):
        try:
            importlib.import_module(f"modeling_vanilla.cli.{command}").main()
        except ModuleNotFoundError as error:
            raise ValueError(f"vanilla {command} needs {error.name}, which is not installed; see README") from error

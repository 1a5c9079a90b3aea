"""The command `vanilla`, also as `python -m modeling_vanilla`: each of its commands is a module of `cli`."""

import importlib
import sys

from .errors import one_line_errors

COMMANDS = {
    "check": "look at sentence pairs before training",
    "train": "train a translation model",
    "translate": "translate text, a line at a time",
    "score": "score given translations",
    "average": "average checkpoints into a model",
    "convert": "convert a MarianMT, FSMT or fairseq model",
    "export": "export a model to CTranslate2 or ONNX",
    "attention": "draw the attention of a model",
    "demo": "try a model in the browser",
    "push": "publish a model on the Hugging Face Hub",
}


def main() -> None:
    """Run the command that the first argument names with the arguments behind it."""
    if sys.argv[1:2] in ([], ["--help"], ["-h"]):
        lines = [f"  {name:10} {what}" for name, what in COMMANDS.items()]
        print("\n".join(["usage: vanilla COMMAND ...", "", *lines, "", "vanilla COMMAND --help shows its options."]))
        return
    command = sys.argv.pop(1)
    sys.argv[0] = f"vanilla {command}"
    with one_line_errors("--debug" in sys.argv):
        if command not in COMMANDS:
            raise ValueError(f"{command!r} is no command; see vanilla --help")
        try:
            importlib.import_module(f".cli.{command}", __package__).main()
        except ModuleNotFoundError as error:
            raise ValueError(f"vanilla {command} needs {error.name}, which is not installed; see README") from error


if __name__ == "__main__":
    main()

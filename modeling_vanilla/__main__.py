"""The command `vanilla`, also as `python -m modeling_vanilla`: each of its commands is a module of `cli`."""

import importlib
import sys

COMMANDS = {
    "train": "train a translation model",
    "translate": "translate or score text, a line at a time",
    "average": "average checkpoints into a model",
    "convert": "convert a MarianMT, FSMT or fairseq model",
    "export": "export a model to CTranslate2 or ONNX",
    "attention": "draw the attention of a model",
    "push": "publish a model on the Hugging Face Hub",
}


def main() -> None:
    """Run the command that the first argument names with the arguments behind it."""
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        wanted = sys.argv[1:2] in ([], ["--help"], ["-h"])
        lines = [f"  {name:10} {what}" for name, what in COMMANDS.items()]
        usage = "\n".join(["usage: vanilla COMMAND ...", "", *lines, "", "vanilla COMMAND --help shows its options."])
        if wanted:
            print(usage)
            return
        print(f"error: {sys.argv[1]!r} is no command; see vanilla --help", file=sys.stderr)
        sys.exit(2)
    command = sys.argv.pop(1)
    sys.argv[0] = f"vanilla {command}"
    try:
        importlib.import_module(f"modeling_vanilla.cli.{command}").main()
    except ModuleNotFoundError as error:
        print(f"error: vanilla {command} needs {error.name}, which is not installed; see README", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

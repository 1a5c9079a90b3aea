"""Convert a model of another library, with its tokenizer, to a folder that this package loads.

    python examples/convert_checkpoint.py --from marian Helsinki-NLP/opus-mt-en-de runs/opus-mt-en-de

SRC is a folder or a name on the Hub. DST, which must not exist yet, appears only once it is complete: a folder that
from_pretrained and pipeline("translation") load. The tokenizer of opus-mt models needs the package sentencepiece.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from modeling_vanilla.command_line import one_line_errors
from modeling_vanilla.interop import from_marian, marian_tokenizer


def convert(source: str, destination: Path) -> None:
    """Write the MarianMT model `source` and its tokenizer to the new folder `destination`.

    Raises:
        ValueError: if `destination` exists, `source` cannot be converted, or its tokenizer does not fit it.
    """
    if destination.exists():
        raise ValueError(f"{destination}: exists already")
    model, tokenizer = from_marian(source), marian_tokenizer(source)
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(f"{source}: the tokenizer has {len(tokenizer)} tokens, the model {model.config.vocab_size}")
    destination.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f"{destination.name}.part-", dir=destination.parent) as part:
        folder = Path(part, "model")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        folder.rename(destination)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="library", choices=("marian",), required=True, help="the library SRC is of")
    parser.add_argument("source", metavar="SRC", help="a folder, or a name on the Hub")
    parser.add_argument("destination", metavar="DST", type=Path, help="the folder to write, which must not exist")
    options = parser.parse_args(arguments)
    with one_line_errors():
        convert(options.source, options.destination)
        print(f"{options.destination} is written")


if __name__ == "__main__":
    main()

"""Export a model to CTranslate2 (pip install ctranslate2), in 32-bit floats or with weights of 8 bits.

    python examples/export_ctranslate2.py runs/mine/model runs/mine/ct2 --quantization int8

SRC is a model folder with its tokenizer. DST, which must not exist yet, appears only once it is complete; it holds the
tokenizer, too:

    import ctranslate2
    from transformers import AutoTokenizer
    from ..interop.ctranslate2 import translate

    tokenizer, translator = AutoTokenizer.from_pretrained("runs/mine/ct2"), ctranslate2.Translator("runs/mine/ct2")
    translate(translator, tokenizer, ["A sentence."])  # beam 4, GNMT's alpha 0.6, input + 50 tokens

CTranslate2 itself divides log P by length^length_penalty; with a beam of 1 its search and this package's are the same.
"""

import argparse
from pathlib import Path

from ..inference import load_translator
from ..io import check_unused, one_line_errors, whole_folder


def export(source: Path, destination: Path, **options) -> None:
    """Write the model and the tokenizer of the folder `source` to the new folder `destination`.

    Raises:
        ValueError: if `destination` exists, `source` cannot be loaded, ctranslate2 is not installed, or as
            to_ctranslate2 does.
    """
    try:
        from ..interop.ctranslate2 import to_ctranslate2
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is not installed: pip install ctranslate2") from error
    check_unused("destination", destination)
    with whole_folder(destination) as folder:
        to_ctranslate2(*load_translator([source]), folder, **options)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SRC", type=Path, help="a model folder")
    parser.add_argument("destination", metavar="DST", type=Path, help="the folder to write, which must not exist")
    parser.add_argument("--quantization", default="float32", help="float32 (the default) or int8")
    parser.add_argument("--positions", type=int, default=1024, help="longest sequence in tokens (default: %(default)s)")
    options = parser.parse_args(arguments)
    with one_line_errors():
        export(options.source, options.destination, quantization=options.quantization, positions=options.positions)
        print(f"{options.destination} is written")


if __name__ == "__main__":
    main()

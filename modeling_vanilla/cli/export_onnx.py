"""Export a model to ONNX (pip install onnx onnxscript): an encoder, and a decoder with its cache.

    python examples/export_onnx.py runs/mine/model runs/mine/onnx

SRC is a model folder with its tokenizer. DST, which must not exist yet, appears only once it is complete; it holds
encoder.onnx, decoder.onnx and the tokenizer. modeling_vanilla/interop/onnx.py says what goes in and out of the two.
"""

import argparse
from pathlib import Path

from ..inference import load_translator
from ..io import check_unused, one_line_errors, whole_folder


def export(source: Path, destination: Path) -> None:
    """Write the model and the tokenizer of the folder `source` to the new folder `destination`.

    Raises:
        ValueError: if `destination` exists, `source` cannot be loaded, or a library is not installed.
    """
    try:
        from ..interop.onnx import to_onnx
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is not installed: pip install onnx onnxscript") from error
    check_unused("destination", destination)
    with whole_folder(destination) as folder:
        model, tokenizer = load_translator([source])
        to_onnx(model, folder, show_progress=True)
        tokenizer.save_pretrained(folder)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SRC", type=Path, help="a model folder")
    parser.add_argument("destination", metavar="DST", type=Path, help="the folder to write, which must not exist")
    options = parser.parse_args(arguments)
    with one_line_errors():
        export(options.source, options.destination)
        print(f"{options.destination} is written")


if __name__ == "__main__":
    main()

"""Convert a model of another library, with its tokenizer, to a folder that this package loads.

    vanilla convert --from marian Helsinki-NLP/opus-mt-en-de runs/opus-mt-en-de
    vanilla convert --from fsmt facebook/wmt19-en-de runs/wmt19-en-de
    vanilla convert --from fairseq wmt14.en-fr.joined-dict.transformer runs/wmt14-en-fr

SRC is a folder or a name on the Hub; for fairseq model.pt, or the folder with it, beside bpecodes and both
dict.LANG.txt. DST, which must be new or empty, appears only once it is complete: a folder that from_pretrained and
pipeline("translation") load.
If a MarianMT has its weights in a pickle, pytorch_model.bin, that you trust, load and save it by transformers first.
The tokenizer of opus-mt models needs the package sentencepiece, the others' sacremoses.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from ..interop.folders import LIBRARIES, convert
from .parser import CommandParser, run_command


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("--from", dest="library", choices=LIBRARIES, required=True, help="the library of SRC")
    parser.add_argument("source", metavar="SRC", help="a folder, or a name on the Hub")
    parser.add_argument("destination", metavar="DST", type=Path, help="the folder to write, which must be new or empty")
    run_command(parser, convert_folder, arguments)


def convert_folder(options: Namespace) -> None:
    convert(options.library, options.source, options.destination)
    print(f"{options.destination} is written")

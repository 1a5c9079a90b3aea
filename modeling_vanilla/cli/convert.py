"""Convert a model of another library, with its tokenizer, to a folder that this package loads.

    python examples/convert_checkpoint.py --from marian Helsinki-NLP/opus-mt-en-de runs/opus-mt-en-de
    python examples/convert_checkpoint.py --from fsmt facebook/wmt19-en-de runs/wmt19-en-de
    python examples/convert_checkpoint.py --from fairseq wmt14.en-fr.joined-dict.transformer runs/wmt14-en-fr

SRC is a folder or a name on the Hub; for fairseq the folder with model.pt, bpecodes and both dict.LANG.txt. DST, which
must not exist yet, appears only once it is complete: a folder that from_pretrained and pipeline("translation") load.
The tokenizer of opus-mt models needs the package sentencepiece, the others' sacremoses.
"""

import argparse
from pathlib import Path

from ..interop import (
    fairseq_tokenizer,
    from_fairseq,
    from_fsmt,
    from_marian,
    fsmt_tokenizer,
    marian_tokenizer,
)
from ..io import check_unused, one_line_errors, whole_folder

LIBRARIES = {
    "marian": (from_marian, marian_tokenizer),
    "fsmt": (from_fsmt, fsmt_tokenizer),
    "fairseq": (from_fairseq, fairseq_tokenizer),
}


def convert(library: str, source: str, destination: Path) -> None:
    """Write the model `source` of one of LIBRARIES and its tokenizer to the new folder `destination`.

    Raises:
        ValueError: if `destination` exists, `source` cannot be converted, or its tokenizer does not fit it.
    """
    load_model, load_tokenizer = LIBRARIES[library]
    check_unused("destination", destination)
    with whole_folder(destination) as folder:
        model, tokenizer = load_model(source), load_tokenizer(source)
        if len(tokenizer) > model.config.vocab_size:
            raise ValueError(
                f"{source}: the tokenizer has {len(tokenizer)} tokens, the model {model.config.vocab_size}"
            )
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="library", choices=LIBRARIES, required=True, help="the library SRC is of")
    parser.add_argument("source", metavar="SRC", help="a folder, or a name on the Hub")
    parser.add_argument("destination", metavar="DST", type=Path, help="the folder to write, which must not exist")
    options = parser.parse_args(arguments)
    with one_line_errors():
        convert(options.library, options.source, options.destination)
        print(f"{options.destination} is written")


if __name__ == "__main__":
    main()

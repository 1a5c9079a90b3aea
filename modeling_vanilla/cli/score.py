"""Score given translations by a model: log P of each pair of a source and a target line, without translating.

    vanilla score runs/mine/model --input test.en --target test.de
    vanilla score runs/mine/model --target test.de --alignments test.align < test.en

MODEL is a folder with a model and its tokenizer, or their name on the Hub; several are an ensemble, as for `vanilla
translate`. For each pair it writes, separated by tabs: log P (natural logarithm), the perplexity per token and the
number of tokens, EOS included. The figures of all pairs together go to stderr.

--alignments FILE writes the word alignment of each pair, as `vanilla translate` does of its translations.

Exit code: 0; 2 for bad input, with one line that says what is wrong; 130 after Ctrl-C; 141 if nobody reads the output.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from ..files import read_lines
from ..inference import pharaoh
from ..inference.scoring import PairScore
from ..progress import inform
from .parser import CommandParser, run_command
from .streams import add_shared_options, check_outputs, input_lines, output_streams, translator_of, write_lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__)
    add = parser.add_argument
    add_shared_options(parser)
    add("--target", type=Path, metavar="FILE", required=True, help="their translations, line by line")
    run_command(parser, score, arguments)


def score(options: Namespace) -> None:
    check_outputs(options, [("--input", options.input), ("--target", options.target)])
    sources = list(input_lines(options.input))
    targets = list(read_lines(options.target))
    translator = translator_of(options, aligned=bool(options.alignments))
    size = options.tokens_per_batch
    with output_streams(options) as streams:
        scores = translator.score(sources, targets, tokens_per_batch=size, show_progress=True)
        if "alignments" in streams:
            links = translator.align(sources, targets, layer=options.alignment_layer, tokens_per_batch=size)
            write_lines(map(pharaoh, links), streams["alignments"])
        lines = (f"{pair.log_prob:.6f}\t{pair.perplexity:.6g}\t{pair.tokens}" for pair in scores)
        write_lines(lines, streams["output"])
    if scores:
        total = PairScore(sum(pair.log_prob for pair in scores), sum(pair.tokens for pair in scores))
        inform(f"log P {total.log_prob:.6f}, perplexity {total.perplexity:.6g}, {total.tokens} tokens")

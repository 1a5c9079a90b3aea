"""What the score of a translation is worth: BLEU over the share of sentences that are kept, the best scores first.

    vanilla translate MODEL --json --input test.en --output test.json
    python benchmarks/confidence.py test.json test.de --plot confidence.png

Beside the score: the mean log-probability of the tokens, and how good a choice could be at best (by the BLEU of each
sentence).
"""

import json
import statistics
from argparse import Namespace
from pathlib import Path

import sacrebleu
from common import add_bleu_tokenize, bleu
from matplotlib.figure import Figure

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import read_lines

SHARES = [tenths / 10 for tenths in range(1, 11)]


def bleu_by_share(texts: list[str], references: list[str], keys: list[float], tokenize: str) -> list[float]:
    """BLEU of each share of the sentences, those of the largest keys."""
    order = sorted(range(len(texts)), key=lambda row: -keys[row])
    kept = [order[: max(1, round(share * len(order)))] for share in SHARES]
    return [bleu([texts[row] for row in rows], [references[row] for row in rows], tokenize) for rows in kept]


def compare(options: Namespace) -> None:
    lines = [json.loads(line) for line in read_lines(options.translations)]
    references = list(read_lines(options.reference))
    texts, tokenize = [line["translation"] for line in lines], options.bleu_tokenize
    as_pairs = ((text, [reference]) for text, reference in zip(texts, references, strict=True))
    keys = {
        "score": [line["score"] for line in lines],
        "mean log P of a token": [statistics.fmean(line["log_probs"] or [0.0]) for line in lines],
        "BLEU of the sentence": [sacrebleu.sentence_bleu(*pair, tokenize=tokenize).score for pair in as_pairs],
    }
    figure = Figure()
    axes = figure.subplots()
    print("kept".ljust(24), *(f"{share:6.0%}" for share in SHARES))
    for name, of_sentences in keys.items():
        curve = bleu_by_share(texts, references, of_sentences, tokenize)
        print(name.ljust(24), *(f"{value:6.2f}" for value in curve))
        axes.plot(SHARES, curve, marker="o", label=name)
    axes.set(xlabel="share of sentences kept", ylabel="BLEU")
    axes.legend()
    figure.savefig(options.plot)


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("translations", type=Path, help="lines of `vanilla translate --json`")
    parser.add_argument("reference", type=Path, help="their references, line by line")
    parser.add_argument("--plot", type=Path, required=True, help="the picture to write")
    add_bleu_tokenize(parser)
    run_command(parser, compare)

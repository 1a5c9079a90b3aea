"""What the score of a translation is worth: BLEU over the share of sentences that are kept, the best scores first.

    vanilla translate MODEL --json --input test.en --output test.json
    python benchmarks/confidence.py test.json test.de --plot confidence.png

Beside the score: the mean log-probability of the tokens, and how good a choice could be at best (by the BLEU of each
sentence).
"""

import argparse
import json
import statistics
from pathlib import Path

import matplotlib
import sacrebleu

from modeling_vanilla.files import read_lines

matplotlib.use("agg")
from matplotlib import pyplot

SHARES = [tenths / 10 for tenths in range(1, 11)]


def bleu_by_share(lines: list[dict], references: list[str], keys: list[float], tokenize: str) -> list[float]:
    """BLEU of each share of the sentences, those of the largest keys."""
    order = sorted(range(len(lines)), key=lambda row: -keys[row])
    kept = [order[: max(1, round(share * len(order)))] for share in SHARES]
    return [
        sacrebleu.corpus_bleu(
            [lines[row]["translation"] for row in rows],
            [[references[row] for row in rows]],
            tokenize=tokenize,
            force=True,
        ).score
        for rows in kept
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("translations", type=Path, help="lines of `vanilla translate --json`")
    parser.add_argument("reference", type=Path)
    parser.add_argument("--plot", type=Path, required=True, help="the picture to write")
    parser.add_argument("--bleu_tokenize", default="13a")
    options = parser.parse_args()
    lines, references = (
        list(map(json.loads, read_lines(options.translations))),
        list(read_lines(options.reference)),
    )
    pairs = zip((line["translation"] for line in lines), references, strict=True)
    keys = {
        "score": [line["score"] for line in lines],
        "mean log P of a token": [statistics.fmean(line["log_probs"] or [0.0]) for line in lines],
        "BLEU of the sentence": [sacrebleu.sentence_bleu(text, [reference]).score for text, reference in pairs],
    }
    curves = {name: bleu_by_share(lines, references, values, options.bleu_tokenize) for name, values in keys.items()}
    print("kept".ljust(24), *(f"{share:6.0%}" for share in SHARES))
    figure, axes = pyplot.subplots()
    for name, values in curves.items():
        print(name.ljust(24), *(f"{value:6.2f}" for value in values))
        axes.plot(SHARES, values, marker="o", label=name)
    axes.set(xlabel="share of sentences kept", ylabel="BLEU")
    axes.legend()
    figure.savefig(options.plot)


if __name__ == "__main__":
    main()

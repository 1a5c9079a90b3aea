r"""What terms cost and change: seconds, share of terms met and BLEU, of translations with and without them.

    python benchmarks/terms.py MODEL --source test.en --reference test.de \
        --train_source train.en --train_target train.de

MODEL is a folder of this package, or of MarianMT with its tokenizer.json. Two kinds of terms:

list       what a list of terms does: of the words of the training pairs that occur 5 to 500 times, those whose best
           translation by the Dice coefficient has 0.6 or more
reference  what constraints can do at best (Post & Vilar 2018): so many random words of each reference

The paper's search, 64 sentences of similar length a batch; the ratio of processor times is the median of three rounds,
which have all kinds in turn, after one that is not counted. BLEU is of the text as it is (tokenize="none").
"""

import random
import time
from argparse import Namespace
from collections import Counter
from functools import partial
from itertools import product
from pathlib import Path

import torch
from common import add_bleu_tokenize, bleu, load, median_ratio, take_turns, timed

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import read_lines
from modeling_vanilla.terminology_vanilla import Terminology

SEARCH = {"length_penalty_type": "gnmt", "length_penalty": 0.6}
COUNTS, DICE = range(5, 501), 0.6  # how often a word of the list occurs, and the least coefficient of its translation


def dice_terms(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The words that occur in so many of the pairs, each with its best translation."""
    sources, targets, both = Counter(), Counter(), Counter()
    for source, target in pairs:
        left, right = set(source.split()), set(target.split())
        sources.update(left)
        targets.update(right)
        both.update(product(left, right))
    best = {}
    for (source, target), count in both.items():
        dice = 2 * count / (sources[source] + targets[target])
        if sources[source] in COUNTS and source.isalpha() and target.isalpha():
            best[source] = max(best.get(source, (DICE, "")), (dice, target))
    return [(source, target) for source, (_, target) in best.items() if target]


def reference_phrases(tokenizer, references: list[str], words: int) -> list[list[list[list[int]]]]:
    """So many random words of each reference, as force_words_ids."""
    rng = random.Random(0)
    picked = [rng.sample(text.split(), min(words, len(text.split()))) for text in references]
    ids = [tokenizer(text_target=words, add_special_tokens=False).input_ids for words in picked]
    return [[[tokens] for tokens in phrases] for phrases in ids]


def translate(model, tokenizer, sources: list[str], beams: int, phrases: list) -> list[list[int]]:
    """The tokens of each translation."""
    ids, outputs = tokenizer(sources).input_ids, {}
    order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
    for first in range(0, len(order), 64):
        rows = order[first : first + 64]
        inputs = tokenizer.pad({"input_ids": [ids[row] for row in rows]}, return_tensors="pt")
        batch = [phrases[row] for row in rows]
        output = model.generate(**inputs, **SEARCH, num_beams=beams, force_words_ids=batch if any(batch) else None)
        outputs |= dict(zip(rows, output.tolist(), strict=True))
    return [outputs[row] for row in range(len(ids))]


def share_met(outputs: list[list[int]], phrases: list) -> float:
    """Of all terms, those that one of their phrases stands for in the output."""
    met = [
        any(tokens[start : start + len(phrase)] == phrase for phrase in term for start in range(len(tokens)))
        for tokens, terms in zip(outputs, phrases, strict=True)
        for term in terms
    ]
    return sum(met) / max(1, len(met))


def measure(options: Namespace) -> None:
    model, tokenizer = load(options.model)
    sources, references = (list(read_lines(path)) for path in (options.source, options.reference))
    pairs = list(zip(read_lines(options.train_source), read_lines(options.train_target), strict=True))
    terms = Terminology(dice_terms(pairs), tokenizer)
    kinds = {"none": [[]] * len(sources), "list": [terms.phrases(source) for source in sources]}
    kinds |= {f"{words} of the reference": reference_phrases(tokenizer, references, words) for words in options.words}
    search = partial(translate, model, tokenizer, sources, options.beams)
    turns = {kind: partial(timed, partial(search, phrases), time.process_time) for kind, phrases in kinds.items()}
    with torch.inference_mode():
        measured = take_turns(turns, 3)
    seconds = {kind: [taken for taken, _ in rounds] for kind, rounds in measured.items()}
    outputs = {kind: rounds[-1][1] for kind, rounds in measured.items()}
    print(f"{len(terms.targets)} terms; {sum(map(any, kinds['list']))} of {len(sources)} sentences have some")
    for kind, phrases in kinds.items():
        texts = tokenizer.batch_decode(outputs[kind], skip_special_tokens=True)
        print(
            f"{kind}: {sum(map(len, phrases))} phrases, met {share_met(outputs[kind], phrases):.2%}, without them "
            f"{share_met(outputs['none'], phrases):.2%}; BLEU {bleu(texts, references, options.bleu_tokenize):.2f}; "
            f"{median_ratio(seconds[kind], seconds['none']):.2f} times the seconds without"
        )


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("model", type=Path, help="folder of a model and its tokenizer")
    parser.add_argument("--source", type=Path, required=True, help="sentences to translate")
    parser.add_argument("--reference", type=Path, required=True, help="their translations")
    parser.add_argument("--train_source", type=Path, required=True, help="sentences to find terms in")
    parser.add_argument("--train_target", type=Path, required=True, help="their translations")
    add_bleu_tokenize(parser)
    parser.add_argument("--beams", type=int, default=4, help="beam size")
    parser.add_argument("--words", type=int, nargs="*", default=(1, 2, 3, 4), help="how many of each reference")
    run_command(parser, measure)

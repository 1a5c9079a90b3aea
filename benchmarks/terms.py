r"""What terms cost and change: seconds, share of terms met and BLEU, of translations with and without them.

    python benchmarks/terms.py MODEL --source test.en --reference test.de \
        --train_source train.en --train_target train.de

MODEL is a folder of this package, or of MarianMT with its tokenizer.json. Two kinds of terms:

list       what a list of terms does: of the words of the training pairs that occur --count times, those whose best
           translation by the Dice coefficient has --dice or more
reference  what constraints can do at best (Post & Vilar 2018): so many random words of each reference

The paper's search, 64 sentences of similar length a batch; the ratio of processor times is the median of the rounds,
which have all kinds in turn.
"""

import argparse
import random
import statistics
import time
from collections import Counter
from itertools import product
from pathlib import Path

import sacrebleu
import torch

from modeling_vanilla.files import read_json, read_lines
from modeling_vanilla.inference import load_translator
from modeling_vanilla.interop import from_marian, marian_tokenizer
from modeling_vanilla.terminology_vanilla import Terminology

SEARCH = {"length_penalty_type": "gnmt", "length_penalty": 0.6}


def dice_terms(pairs: list[tuple[str, str]], counts: tuple[int, int], least: float) -> list[tuple[str, str]]:
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
        if counts[0] <= sources[source] <= counts[1] and source.isalpha() and target.isalpha():
            best[source] = max(best.get(source, (least, "")), (dice, target))
    return [(source, target) for source, (_, target) in best.items() if target]


def reference_phrases(tokenizer, references: list[str], words: int) -> list[list[list[list[int]]]]:
    """So many random words of each reference, as force_words_ids."""
    rng = random.Random(0)
    picked = [rng.sample(text.split(), min(words, len(text.split()))) for text in references]
    ids = [tokenizer(text_target=words, add_special_tokens=False).input_ids for words in picked]
    return [[[tokens] for tokens in phrases] for phrases in ids]


def translate(model, tokenizer, sources: list[str], phrases: list, beams: int) -> tuple[float, list[list[int]]]:
    """Processor seconds, and the tokens of each translation."""
    ids = tokenizer(sources).input_ids
    order, outputs = sorted(range(len(ids)), key=lambda row: -len(ids[row])), [[]] * len(ids)
    start = time.process_time()
    for first in range(0, len(order), 64):
        rows = order[first : first + 64]
        inputs = tokenizer.pad({"input_ids": [ids[row] for row in rows]}, return_tensors="pt")
        batch = [phrases[row] for row in rows]
        output = model.generate(**inputs, **SEARCH, num_beams=beams, force_words_ids=batch if any(batch) else None)
        for row, tokens in zip(rows, output.tolist(), strict=True):
            outputs[row] = tokens
    return time.process_time() - start, outputs


def contains(tokens: list[int], phrase: list[int]) -> bool:
    return any(tokens[start : start + len(phrase)] == phrase for start in range(len(tokens)))


def share_met(outputs: list[list[int]], phrases: list) -> float:
    pairs = [(tokens, term) for tokens, terms in zip(outputs, phrases, strict=True) for term in terms]
    return sum(any(contains(tokens, phrase) for phrase in term) for tokens, term in pairs) / max(1, len(pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    for name in ("source", "reference", "train_source", "train_target"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--count", type=int, nargs=2, default=(5, 500))
    parser.add_argument("--dice", type=float, default=0.6)
    parser.add_argument("--words", type=int, nargs="*", default=(1, 2, 3, 4))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bleu_tokenize", default="none")
    options = parser.parse_args()
    if read_json(options.model / "config.json")["model_type"] == "marian":
        model, tokenizer = from_marian(options.model), marian_tokenizer(options.model)
    else:
        model, tokenizer = load_translator([options.model])
    sources, references = (list(read_lines(path)) for path in (options.source, options.reference))
    pairs = list(zip(read_lines(options.train_source), read_lines(options.train_target), strict=True))
    terms = Terminology(dice_terms(pairs, tuple(options.count), options.dice), tokenizer)
    kinds = {"none": [[]] * len(sources), "list": [terms.phrases(source) for source in sources]}
    kinds |= {f"{words} of the reference": reference_phrases(tokenizer, references, words) for words in options.words}
    seconds, outputs = {kind: [] for kind in kinds}, {}
    for _ in range(options.rounds):
        for kind, phrases in kinds.items():
            taken, outputs[kind] = translate(model, tokenizer, sources, phrases, options.beams)
            seconds[kind].append(taken)
    print(f"{len(terms.targets)} terms; {sum(map(any, kinds['list']))} of {len(sources)} sentences have some")
    for kind, phrases in kinds.items():
        ratio = statistics.median(map(float.__truediv__, seconds[kind], seconds["none"]))
        texts = tokenizer.batch_decode(outputs[kind], skip_special_tokens=True)
        bleu = sacrebleu.corpus_bleu(texts, [references], tokenize=options.bleu_tokenize, force=True).score
        print(
            f"{kind}: {sum(map(len, phrases))} phrases, met {share_met(outputs[kind], phrases):.2%}, without them "
            f"{share_met(outputs['none'], phrases):.2%}; BLEU {bleu:.2f}; {ratio:.2f} times the seconds without",
            flush=True,
        )


if __name__ == "__main__":
    with torch.inference_mode():
        main()

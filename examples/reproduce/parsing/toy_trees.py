"""Trees from a small grammar, in the form of the Penn Treebank: for a trial run without a treebank.

The sentences are often silly and have a vocabulary of about a hundred words. That a model parses them shows that every
step works, and says nothing about real text.
"""

import random
import tomllib
from pathlib import Path

from nltk import Tree

from .linear import linearise
from .trees import bracketed, clean

_MAX_TOKENS = 80  # of the linear form: some trees of a recursive grammar are very long

_GRAMMAR = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def toy_treebank(files: int = 100, sentences: int = 12, seed: int = 0) -> list[list[Tree]]:
    """`files` lists of `sentences` cleaned trees each, all different."""
    rng = random.Random(seed)
    trees: dict[str, Tree] = {}
    while len(trees) < files * sentences:
        tree = clean(_expand("ROOT", rng))
        if len(linearise(tree)) <= _MAX_TOKENS:
            trees.setdefault(bracketed(tree), tree)
    drawn = list(trees.values())
    return [drawn[start : start + sentences] for start in range(0, len(drawn), sentences)]


def _expand(symbol: str, rng: random.Random) -> Tree:
    """A random tree below a symbol; NP-SBJ is expanded as NP is."""
    rules, words = _GRAMMAR["rules"], _GRAMMAR["words"]
    name = symbol if symbol in rules else symbol.split("-")[0]
    label = _GRAMMAR["labels"].get(symbol, symbol)
    if name not in rules:
        return Tree(label, [rng.choice(words.get(symbol, symbol).split())])
    (chosen,) = rng.choices(list(rules[name]), weights=rules[name].values())
    return Tree(label, [_expand(part, rng) for part in chosen.split()])

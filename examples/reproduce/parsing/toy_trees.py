"""Trees from a small grammar, in the form of the Penn Treebank: for a trial run without a treebank.

The sentences are often silly and have a vocabulary of about a hundred words. That a model parses them shows that every
step works, and says nothing about real text.
"""

import random

from nltk import Tree

from .linear import linearise
from .trees import bracketed, clean

_MAX_TOKENS = 80  # of the linear form: some trees of a recursive grammar are very long

# The right-hand sides of each symbol with their weights. A symbol that is not here is a tag, its words in _LEXICON.
_GRAMMAR = {
    "ROOT": {"S": 8, "SQ": 1},
    "S": {"NP-SBJ VP .": 6, "PP , NP-SBJ VP .": 2, "CLAUSE CC CLAUSE .": 1, "`` CLAUSE , '' NP-SBJ SAY .": 1},
    "SQ": {"MD NP-SBJ VB-VP ?": 1},
    "CLAUSE": {"NP-SBJ VP": 1},
    "NP": {"DT NN": 6, "DT JJ NN": 3, "NNP": 3, "PRP": 2, "NP-BASE PP": 2, "NP-BASE SBAR": 1, "CD NNS": 1},
    "NP-BASE": {"DT NN": 2, "DT JJ NN": 1},
    "VP": {"VBD NP": 5, "VBD": 2, "VBD NP PP-LOC": 3, "VBD ADVP": 2, "MD VB-VP": 2, "VBD SBAR-THAT": 2, "PHRASAL": 1},
    "VB-VP": {"VB NP": 3, "VB": 1, "VB PP": 1},
    "PHRASAL": {"VBD PRT NP": 1},
    "SAY": {"VBD": 1, "VBD ADVP": 1},
    "PP": {"IN NP": 1},
    "ADVP": {"RB": 3, "RB RB": 1},
    "PRT": {"RP": 1},
    "SBAR": {"WHNP-1 GAP": 1},
    "WHNP-1": {"WP": 1},
    "GAP": {"TRACE VP": 1},
    "TRACE": {"*T*-1": 1},
    "SBAR-THAT": {"THAT CLAUSE": 1},
}
# Symbols whose label is not their name.
_LABELS = {
    "ROOT": "",
    "CLAUSE": "S",
    "NP-BASE": "NP",
    "VB-VP": "VP",
    "PHRASAL": "VP",
    "SAY": "VP",
    "GAP": "S",
    "TRACE": "NP-SBJ",
    "SBAR-THAT": "SBAR",
    "THAT": "IN",
    "*T*-1": "-NONE-",
    "?": ".",
}
_LEXICON = {
    "DT": "the a every this that no",
    "NN": "dog cat baker teacher tree house river garden letter bridge king queen ship stone song horse bank plan",
    "NNS": "dogs cats letters stones songs horses years people",
    "NNP": "Mary John Paris Rome Anna Peter",
    "PRP": "she he it they",
    "JJ": "old small green quiet famous happy tall strange",
    "CD": "two three seven ten",
    "VBD": "saw painted found crossed wrote heard liked sold followed knew said built",
    "VB": "see paint find cross write hear sell follow know build",
    "MD": "will can must may",
    "IN": "in near behind with over under from",
    "THAT": "that because while",
    "WP": "who",
    "RB": "slowly often today badly never again",
    "RP": "up off away",
    "CC": "and but or",
}


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
    name = symbol if symbol in _GRAMMAR else symbol.split("-")[0]
    label = _LABELS.get(symbol, symbol)
    if name in _GRAMMAR:
        rules = _GRAMMAR[name]
        (chosen,) = rng.choices(list(rules), weights=rules.values())
        return Tree(label, [_expand(part, rng) for part in chosen.split()])
    return Tree(label, [rng.choice(_LEXICON.get(symbol, symbol).split())])

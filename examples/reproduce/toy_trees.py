"""Trees from a small grammar, in the form of the Penn Treebank: for a trial run where there is no treebank.

The sentences are often silly, and about a hundred words are all there are. That a model parses them shows that
everything works, and nothing about real text.
"""

import random

from trees import Node, Word, clean, linearise

_LONGEST = 80  # tokens of the linear form: now and then the grammar goes on and on

# What each symbol may become, and how often. A symbol in capitals that is not here is a tag, its word in _LEXICON.
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
# Symbols that are written otherwise than they are named.
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


def toy_treebank(files: int = 100, sentences: int = 12, seed: int = 0) -> list[list[Node]]:
    """`files` lists of `sentences` cleaned trees each; no sentence comes twice."""
    rng = random.Random(seed)
    seen: dict[Node, None] = {}
    while len(seen) < files * sentences:
        tree = clean(_grow("ROOT", rng))
        if len(linearise(tree)) <= _LONGEST:
            seen.setdefault(tree)
    trees = list(seen)
    return [trees[start : start + sentences] for start in range(0, len(trees), sentences)]


def _grow(symbol: str, rng: random.Random) -> Node | Word:
    kind = symbol if symbol in _GRAMMAR else symbol.split("-")[0]
    if kind in _GRAMMAR:
        rules = _GRAMMAR[kind]
        (chosen,) = rng.choices(list(rules), weights=rules.values())
        return Node(_LABELS.get(symbol, symbol), tuple(_grow(part, rng) for part in chosen.split()))
    return Word(_LABELS.get(symbol, symbol), rng.choice(_LEXICON.get(symbol, symbol).split()))

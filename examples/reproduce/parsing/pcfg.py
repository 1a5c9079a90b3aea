"""A plain probabilistic context-free grammar as a yardstick: counted on the training trees, parsed by CKY.

Rules have their relative frequency as probability. Before they are counted, chains of unary rules become one label (S
over VP: "S+VP") and longer rules are cut in two from the right, the remainder keeping the last two labels it has
passed (markovisation of order 2; Klein & Manning 2003). Words are read as the model reads them, unknown ones as their
signatures.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from nltk import Tree

from .trees import is_preterminal
from .words import Lexicon

ORDER = 2
# What is added to a label where a rule is cut, where a chain is one label, and (not here) for a parent: white space,
# which no label of a treebank holds.
NEW, UNARY, PARENT = " ", "\t", "\n"


class Grammar:
    """Rules over N symbols, of which some are tags, counted on trees. Probabilities are natural logarithms.

    symbols: their names. roots (N,): of a tree's root. parents, lefts, rights, rules (R,): parent -> left right, and
    its probability. tags (N,): of each symbol among all tags, for a word that was never seen. words: of each word given
    each tag, (N,).
    """

    def __init__(self, training: Sequence[Tree], lexicon: Lexicon):
        roots, binary, lexical, totals = Counter(), Counter(), Counter(), Counter()
        for tree in map(_binarised, training):
            tokens = iter(lexicon.read(tree.leaves()))
            roots[tree.label()] += 1
            for part in tree.subtrees():
                totals[part.label()] += 1
                if is_preterminal(part):
                    lexical[part.label(), next(tokens)] += 1
                else:
                    binary[part.label(), part[0].label(), part[1].label()] += 1
        self.lexicon, self.symbols = lexicon, sorted(totals)
        number = {symbol: index for index, symbol in enumerate(self.symbols)}
        rules = sorted(binary, reverse=True)
        numbers = [[number[symbol] for symbol in rule] for rule in rules]
        self.parents, self.lefts, self.rights = np.array(numbers, dtype=int).reshape(-1, 3).T
        self.rules = np.array([math.log(binary[rule] / totals[rule[0]]) for rule in rules], dtype=np.float32)
        self.roots, self.words, tags = self._nothing(), {}, np.zeros(len(self.symbols))
        for root, count in roots.items():
            self.roots[number[root]] = math.log(count / roots.total())
        for (tag, word), count in lexical.items():
            self.words.setdefault(word, self._nothing())[number[tag]] = math.log(count / totals[tag])
            tags[number[tag]] += count
        with np.errstate(divide="ignore"):
            self.tags = np.log(tags / tags.sum()).astype(np.float32)

    def _nothing(self) -> np.ndarray:
        return np.full(len(self.symbols), -np.inf, dtype=np.float32)

    def parse(self, sentence: Sequence[str]) -> Tree | None:
        """The most probable tree (CKY); None if the grammar has none."""
        n = len(sentence)
        chart = np.full((n, n + 1, len(self.symbols)), -np.inf, dtype=np.float32)
        for start, token in enumerate(self.lexicon.read(sentence)):
            chart[start, start + 1] = self.words.get(token, self.tags)
        for length in range(2, n + 1):
            for start in range(n - length + 1):
                end = start + length
                rules = self._possible(chart, start, end)
                best = self._scores(chart, start, end, rules).max(axis=1)
                np.maximum.at(chart[start, end], self.parents[rules], best)
        total = chart[0, n] + self.roots
        if total.max() == -np.inf:
            return None
        tree = Tree("", [self._tree(chart, sentence, 0, n, total.argmax())])
        tree.un_chomsky_normal_form(childChar=NEW, unaryChar=UNARY, parentChar=PARENT)
        return tree[0]

    def _possible(self, chart: np.ndarray, start: int, end: int) -> np.ndarray:
        """The rules whose left side begins and whose right side ends some words between start and end."""
        left, right = chart[start, start + 1 : end], chart[start + 1 : end, end]
        return (left.max(axis=0)[self.lefts] + right.max(axis=0)[self.rights] > -np.inf).nonzero()[0]

    def _scores(self, chart: np.ndarray, start: int, end: int, rules: np.ndarray) -> np.ndarray:
        """The best probability of each rule over the words from start to end, by the split: (rules, splits)"""
        left, right = chart[start, start + 1 : end], chart[start + 1 : end, end]
        return (left[:, self.lefts[rules]] + right[:, self.rights[rules]] + self.rules[rules]).T

    def _tree(self, chart: np.ndarray, sentence: Sequence[str], start: int, end: int, symbol: int) -> Tree:
        """The best tree of a symbol over these words: that of the rule and the split that gave its score."""
        if end == start + 1:
            return Tree(self.symbols[symbol], [sentence[start]])
        rules = (self.parents == symbol).nonzero()[0]
        scores = self._scores(chart, start, end, rules)
        rule, split = np.unravel_index(scores.argmax(), scores.shape)
        left = self._tree(chart, sentence, start, start + 1 + split, self.lefts[rules[rule]])
        right = self._tree(chart, sentence, start + 1 + split, end, self.rights[rules[rule]])
        return Tree(self.symbols[symbol], [left, right])


def _binarised(tree: Tree) -> Tree:
    """A copy with rules of two symbols or a word alone."""
    tree = tree.copy(deep=True)
    tree.collapse_unary(collapsePOS=True, collapseRoot=True, joinChar=UNARY)
    tree.chomsky_normal_form(horzMarkov=ORDER, childChar=NEW)
    return tree

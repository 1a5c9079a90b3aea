"""A plain probabilistic context-free grammar as a yardstick: counted on the training trees, parsed by CKY.

Rules have their relative frequency as probability. Before they are counted, chains of unary rules become one label (S
over VP: "S+VP") and longer rules are cut in two from the right, the remainder keeping the last two labels it has
passed (markovisation of order 2; Klein & Manning 2003). Words are read as the model reads them, unknown ones as their
signatures.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from nltk import Tree

from .trees import is_preterminal
from .words import Lexicon

ORDER = 2
NEW = " "  # begins what is added to a label where a rule is cut: no label of a treebank holds it


@dataclass(frozen=True)
class Grammar:
    """Rules over N symbols, of which some are tags. Probabilities are natural logarithms.

    symbols: their names. roots (N,): of a tree's root. parents, lefts, rights, rules (R,): parent -> left right, sorted
    by parent, and its probability. tags (N,): of each symbol among all tags, for a word that was never seen. words: of
    each word given each tag, (N,).
    """

    lexicon: Lexicon
    symbols: list[str]
    roots: np.ndarray
    parents: np.ndarray
    lefts: np.ndarray
    rights: np.ndarray
    rules: np.ndarray
    tags: np.ndarray
    words: dict[str, np.ndarray]

    @classmethod
    def from_trees(cls, training: Sequence[Tree], lexicon: Lexicon) -> "Grammar":
        """Count the rules of the trees."""
        roots, binary, lexical = Counter(), Counter(), Counter()
        for tree in training:
            tree = _binarised(tree)
            tokens = iter(lexicon.read(tree.leaves()))
            roots[tree.label()] += 1
            for part in tree.subtrees():
                if is_preterminal(part):
                    lexical[part.label(), next(tokens)] += 1
                else:
                    binary[part.label(), part[0].label(), part[1].label()] += 1
        totals = Counter()
        for counts in (binary, lexical):
            for (parent, *_), count in counts.items():
                totals[parent] += count
        symbols = sorted(totals)
        number = {symbol: index for index, symbol in enumerate(symbols)}
        rules = sorted((*map(number.get, rule), math.log(count / totals[rule[0]])) for rule, count in binary.items())
        parents, lefts, rights, scores = map(np.array, zip(*rules, strict=True)) if rules else [np.zeros(0, int)] * 4
        words: dict[str, np.ndarray] = {}
        tags = np.zeros(len(symbols))
        for (tag, word), count in lexical.items():
            words.setdefault(word, _nothing(symbols))[number[tag]] = math.log(count / totals[tag])
            tags[number[tag]] += count
        root_scores = _nothing(symbols)
        for root, count in roots.items():
            root_scores[number[root]] = math.log(count / roots.total())
        with np.errstate(divide="ignore"):
            tags = np.log(tags / tags.sum()).astype(np.float32)
        return cls(lexicon, symbols, root_scores, parents, lefts, rights, scores.astype(np.float32), tags, words)

    def parse(self, sentence: Sequence[str]) -> Tree | None:
        """The most probable tree (CKY); None if the grammar has none."""
        n = len(sentence)
        chart = np.full((n, n + 1, len(self.symbols)), -np.inf, dtype=np.float32)
        backpointers: dict[
            tuple[int, int], tuple[np.ndarray, np.ndarray]
        ] = {}  # the best rule and split of each symbol
        for start, token in enumerate(self.lexicon.read(sentence)):
            chart[start, start + 1] = self.words.get(token, self.tags)
        for length in range(2, n + 1):
            for start in range(n - length + 1):
                backpointers[start, start + length] = self._fill(chart, start, start + length)
        total = chart[0, n] + self.roots
        best = int(total.argmax())
        if total[best] == -np.inf:
            return None
        tree = Tree("", [self._tree(backpointers, sentence, 0, n, best)])
        tree.un_chomsky_normal_form(childChar=NEW, unaryChar="+")
        return tree[0]

    def _fill(self, chart: np.ndarray, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Score all symbols over the words from start to end; the rule and the split that are best for each."""
        left, right = chart[start, start + 1 : end], chart[start + 1 : end, end]
        possible = (left > -np.inf).any(axis=0)[self.lefts] & (right > -np.inf).any(axis=0)[self.rights]
        rules = possible.nonzero()[0]
        best, split = np.zeros(len(self.symbols), dtype=int), np.zeros(len(self.symbols), dtype=int)
        if not len(rules):
            return best, split
        scores = left[:, self.lefts[rules]] + right[:, self.rights[rules]] + self.rules[rules]
        splits = scores.argmax(axis=0)
        scores = scores[splits, np.arange(len(rules))]
        order = np.lexsort((scores, self.parents[rules]))  # of each parent the best rule comes last
        parents = self.parents[rules][order]
        last = order[np.append(parents[1:] != parents[:-1], True)]
        symbols = self.parents[rules][last]
        chart[start, end, symbols] = scores[last]
        best[symbols], split[symbols] = rules[last], start + 1 + splits[last]
        return best, split

    def _tree(self, backpointers: dict, sentence: Sequence[str], start: int, end: int, symbol: int) -> Tree:
        if end == start + 1:
            return Tree(self.symbols[symbol], [sentence[start]])
        rules, splits = backpointers[start, end]
        rule, split = rules[symbol], splits[symbol]
        left = self._tree(backpointers, sentence, start, split, self.lefts[rule])
        right = self._tree(backpointers, sentence, split, end, self.rights[rule])
        return Tree(self.symbols[symbol], [left, right])


def _binarised(tree: Tree) -> Tree:
    """A copy with rules of two symbols or a word alone."""
    tree = tree.copy(deep=True)
    tree.collapse_unary(collapsePOS=True, collapseRoot=True, joinChar="+")
    tree.chomsky_normal_form(horzMarkov=ORDER, childChar=NEW)
    return tree


def _nothing(symbols: Sequence[str]) -> np.ndarray:
    return np.full(len(symbols), -np.inf, dtype=np.float32)

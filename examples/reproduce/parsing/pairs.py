"""Sentence pairs out of trees: the words of a sentence to the linear form of its tree, and their vocabulary."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from nltk import Tree
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase

from modeling_vanilla.corpus.tokenizer import SPECIAL_TOKENS, UNK, for_transformers

from .linear import is_bracket, linearise
from .trees import is_preterminal
from .words import Lexicon

LONGEST = 8  # words of a constituent that is a pair of its own


def split_files(files: Sequence[list[Tree]]) -> dict[str, list[Tree]]:
    """Split the trees by file into "train", "validation" and "test", about 8 : 1 : 1 of the sentences.

    A file is an article, so no article is in two splits. The files keep their order, as the sections of the treebank do
    in the usual split. Whatever their sizes, each split has at least one file.

    Raises:
        ValueError: if there are fewer than three files.
    """
    if len(files) < 3:
        raise ValueError(f"trees: {len(files)} files of trees cannot be split into three (a blank line begins a file)")
    sizes = np.array([len(trees) for trees in files])
    middles = (sizes.cumsum() - sizes / 2) / sizes.sum()
    validation = np.clip(np.searchsorted(middles, 0.8), 1, len(files) - 2)
    test = np.clip(np.searchsorted(middles, 0.9), validation + 1, len(files) - 1)
    splits = {"train": files[:validation], "validation": files[validation:test], "test": files[test:]}
    return {split: list(chain.from_iterable(trees)) for split, trees in splits.items()}


def training_pairs(
    trees: Sequence[Tree], lexicon: Lexicon, copies: int, constituents: float, substitution: float
) -> Iterator[dict]:
    """Pairs of source ("en") and target ("tree"): each tree `copies` times, changed anew each time.

    A small treebank is memorised otherwise. (The paper does not do so.) In each copy words become signatures
    (`Lexicon.read`); in all but the first, constituents are replaced with probability `substitution` (`substitute`).
    Each constituent of a copy that has two to LONGEST words is with probability `constituents` a pair of its own: short
    pairs teach sooner which word of the source the decoder has come to.
    """
    rng = random.Random(0)
    pool = defaultdict(list)
    for tree in trees:
        for place, child in _places(tree):
            pool[place].append(child)
    for copy in range(copies):
        for tree in trees:
            changed = substitute(tree, pool, substitution, rng) if copy else tree
            inside = [child for _, child in _places(changed) if 1 < len(child.leaves()) <= LONGEST]
            for part in [changed, *(child for child in inside if rng.random() < constituents)]:
                tokens = lexicon.read(part.leaves(), rng)
                yield {"en": " ".join(tokens), "tree": target(part, tokens)}


def substitute(tree: Tree, pool: dict[tuple[str, str], list[Tree]], rate: float, rng: random.Random) -> Tree:
    """The tree, each of its constituents replaced with probability `rate` by another one (Shi et al. 2021).

    Args:
        pool: constituents by their parent's label and their own, which are those of the one that is replaced.
    """
    children = []
    for child in tree:
        if isinstance(child, Tree) and not is_preterminal(child):
            if rng.random() < rate:
                child = rng.choice(pool[tree.label(), child.label()])
            else:
                child = substitute(child, pool, rate, rng)
        children.append(child)
    return Tree(tree.label(), children)


def _places(tree: Tree) -> Iterator[tuple[tuple[str, str], Tree]]:
    """Each constituent below the root, with the labels of its parent and its own."""
    for part in tree.subtrees(lambda part: not is_preterminal(part)):
        for child in part:
            if not is_preterminal(child):
                yield (part.label(), child.label()), child


def target(tree: Tree, tokens: Sequence[str]) -> str:
    """The linear form as the model writes it, with these tokens for its words."""
    words = iter(tokens)
    return " ".join(token if is_bracket(token) else next(words) for token in linearise(tree))


def parsing_vocabulary(training: Sequence[Tree], vocab_size: int) -> tuple[Lexicon, PreTrainedTokenizerBase]:
    """The known words, and one vocabulary for words and linear forms, in which each known word, signature and labelled
    bracket is a token.

    Raises:
        ValueError: if vocab_size is too small for the brackets and the signatures.
    """
    brackets = sorted({token for tree in training for token in linearise(tree) if is_bracket(token)})
    lexicon = Lexicon([tree.leaves() for tree in training], vocab_size - len(SPECIAL_TOKENS) - len(brackets))
    tokens = [*SPECIAL_TOKENS, *brackets, *sorted({*lexicon.counts, *lexicon.signatures})]
    if len(tokens) > vocab_size:
        raise ValueError(
            f"vocab_size must be at least {len(tokens)}, not {vocab_size}: there are {len(brackets)} labelled brackets "
            f"and {len(lexicon.signatures)} signatures of words"
        )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return lexicon, for_transformers(tokenizer)

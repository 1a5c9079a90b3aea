"""Sentence pairs out of trees: the words of a sentence to the linear form of its tree, and their vocabulary."""

from collections.abc import Iterator, Sequence

from linear import is_bracket, linearise
from nltk import Tree
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase
from trees import is_preterminal

from modeling_vanilla.training.tokenizer import MIN_VOCAB_SIZE, train_tokenizer


def split_files(files: Sequence[list[Tree]]) -> dict[str, list[Tree]]:
    """Split the trees by file into "train", "validation" and "test", about 8 : 1 : 1 of the sentences.

    A file is an article, so no article is in two splits. The files keep their order, as the sections of the treebank do
    in the usual split. Whatever their sizes, each split has at least one file.

    Raises:
        ValueError: if there are fewer than three files.
    """
    if len(files) < 3:
        raise ValueError(f"trees: {len(files)} files of trees cannot be split into three (a blank line begins a file)")
    total, before = sum(map(len, files)), 0
    splits: dict[str, list[Tree]] = {"train": [], "validation": [], "test": []}
    for index, trees in enumerate(files):
        middle = (before + len(trees) / 2) / total
        before += len(trees)
        if index == 0 or (middle < 0.8 and index < len(files) - 2):
            splits["train"] += trees
        elif index < len(files) - 1 and (middle < 0.9 or not splits["validation"]):
            splits["validation"] += trees
        else:
            splits["test"] += trees
    return splits


def training_pairs(trees: Sequence[Tree], constituents: bool) -> Iterator[dict[str, str]]:
    """A pair of source ("en") and target ("tree") for each tree.

    With `constituents`, each constituent of at least two words follows its tree, equal ones once. That gives about ten
    times as many pairs, most of them short, and shows each phrase at many positions: a small treebank is memorised
    otherwise. (The paper does not do so.)
    """
    seen = set()
    for tree in trees:
        for part in tree.subtrees(lambda part: not is_preterminal(part)) if constituents else [tree]:
            pair = source(part), target(part)
            if part is tree or (len(part.leaves()) > 1 and pair not in seen):
                yield {"en": pair[0], "tree": pair[1]}
            seen.add(pair)


def source(tree: Tree) -> str:
    """The sentence as the model reads it."""
    return " ".join(tree.leaves())


def target(tree: Tree) -> str:
    """The linear form as the model writes it.

    The blank before a bracket is part of its token; the tokenizer puts one before a word that follows a bracket.
    """
    return "".join(f" {token}" if is_bracket(token) else token for token in linearise(tree))


def parsing_tokenizer(training: Sequence[Tree], vocab_size: int) -> PreTrainedTokenizerBase:
    """One vocabulary for words and linear forms: BPE trained on the sentences, and a token for each labelled bracket.

    Raises:
        ValueError: if vocab_size is too small for the bytes and the brackets.
    """
    brackets = sorted({token for tree in training for token in linearise(tree) if is_bracket(token)})
    least = MIN_VOCAB_SIZE + len(brackets)
    if vocab_size < least:
        raise ValueError(
            f"vocab_size must be at least {least}, not {vocab_size}: there are {len(brackets)} labelled brackets"
        )
    tokenizer = train_tokenizer(map(source, training), vocab_size=vocab_size - len(brackets))
    tokenizer.add_tokens([AddedToken(f" {token}", normalized=False, special=False) for token in brackets])
    return tokenizer

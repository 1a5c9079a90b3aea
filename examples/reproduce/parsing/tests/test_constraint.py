"""The constraint of section 6.3's search: always trees, and the best of all trees, which brute force finds."""

import functools
import itertools
import random

import pytest
import torch
from nltk import Tree

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.search_vanilla import length_penalty

from ..constraint import MAX_OPENINGS, TreeConstraint
from ..linear import delinearise, is_bracket
from ..pairs import parsing_vocabulary
from ..toy_trees import toy_treebank
from .test_trees import is_linear_form

TREES = [tree for trees in toy_treebank(files=8) for tree in trees]
TOKENIZER = parsing_vocabulary(TREES, 1000)[1]
GRAMMAR = parsing_vocabulary([Tree.fromstring("(A (X a) (B (X b)))"), Tree.fromstring("(A (X b) (X a))")], 1000)[1]


def random_model(vocab_size, seed=0):
    """A small model, every parameter moved off its initial value."""
    sizes = {"d_model": 24, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    torch.manual_seed(seed)
    model = VanillaForConditionalGeneration(VanillaConfig(vocab_size=vocab_size, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def encode(tokenizer, sentences):
    return tokenizer(list(map(" ".join, sentences)), padding=True, return_tensors="pt")


def generate(model, tokenizer, sentences, extra, **settings):
    """What the model writes about the sentences: a list of tokens each."""
    inputs = encode(tokenizer, sentences)
    constraint = TreeConstraint(inputs.input_ids, tokenizer, extra)
    settings |= {"length_penalty": 0.3, "max_extra_tokens": extra, "logits_processor": [constraint]}
    output = model.generate(**inputs, **settings)
    assert ((output == tokenizer.eos_token_id).sum(dim=1) == 1).all()  # all end within the limit
    return [text.split() for text in tokenizer.batch_decode(output, skip_special_tokens=True)]


@pytest.mark.parametrize("settings", [{"num_beams": 21}, {"num_beams": 1}, {"num_beams": 1, "do_sample": True}])
def test_random_models_write_trees_over_the_words_alone(settings):
    rng, words = random.Random(0), [token for token in TOKENIZER.get_vocab() if token.isalpha()]
    for seed, extra in itertools.product(range(3), (40, 300)):
        # As sharp as a model of strong habits, so that some never close a bracket and others never open one.
        model = random_model(len(TOKENIZER), seed)
        with torch.no_grad():
            model.lm_head.weight *= 3
        sentences = [rng.choices(words, k=length) for length in (1, 2, 9, 30, rng.randint(3, 30))]
        torch.manual_seed(seed)
        for sentence, tokens in zip(sentences, generate(model, TOKENIZER, sentences, extra, **settings), strict=True):
            assert delinearise(tokens, sentence) is not None
            assert [token for token in tokens if not is_bracket(token)] == sentence
            assert len(tokens) <= len(sentence) + extra
            opens = [token.startswith("(") and not token.endswith(")") for token in tokens]
            assert max(len(list(run)) for opening, run in itertools.groupby(opens) if opening) <= MAX_OPENINGS


@functools.cache
def all_trees(words, most):
    """The linear forms, of at most so many tokens, of all trees of GRAMMAR's labels over the words, by trying all."""
    symbols = ("(A", "(B", ")A", ")B", "(X)")
    found = set()
    for label, size in itertools.product("AB", range(1, most - len(words) - 1)):
        for inside in itertools.product(symbols, repeat=size):
            brackets = (f"({label}", *inside, f"){label}")
            if is_linear_form(brackets, len(words)):
                rest = iter(words[1:])
                pairs = ((one, next(rest, "")) if one == "(X)" else (one,) for one in brackets)
                found.add(tuple(filter(None, itertools.chain(words[:1], *pairs))))
    return found


@pytest.mark.parametrize("sentence, extra", [("a", 6), ("a b", 8), ("b a b", 7)])
@pytest.mark.parametrize("seed", range(3))
def test_the_search_finds_the_best_of_all_trees(sentence, extra, seed):
    """Probabilities renormalised over the tokens with which some tree goes on, as the list of them says."""
    words, model = sentence.split(), random_model(len(GRAMMAR), seed)
    trees = all_trees(tuple(words), len(words) + extra)
    follow = {}
    for tree in trees:
        for end, token in enumerate([*tree, "</s>"]):
            follow.setdefault(tree[:end], set()).add(token)
    inputs = encode(GRAMMAR, [words])

    def score(tree):
        written = [*tree, "</s>"]
        ids = torch.tensor([GRAMMAR.convert_tokens_to_ids(["<s>", *tree])])
        with torch.no_grad():
            logits = model(**inputs, decoder_input_ids=ids).logits[0]
        total = 0.0
        for step, (row, token) in enumerate(zip(logits, written, strict=True)):
            allowed = GRAMMAR.convert_tokens_to_ids(sorted(follow[tree[:step]]))
            total += float(row[GRAMMAR.convert_tokens_to_ids(token)] - row[allowed].logsumexp(dim=0))
        return total / length_penalty(len(written), 0.3)

    assert len(trees) > 3
    best = max(trees, key=score)
    assert generate(model, GRAMMAR, [words], extra, num_beams=200) == [list(best)]


@pytest.mark.parametrize("sentence, extra, says", [("", 9, "without words"), ("a b a", 4, "max_extra_tokens 4: .* 5")])
def test_what_no_tree_can_be_made_of_is_refused(sentence, extra, says):
    with pytest.raises(ValueError, match=says):
        TreeConstraint(encode(GRAMMAR, [sentence.split()]).input_ids, GRAMMAR, extra)

"""Phrases that an output has to contain, and prefixes: the search equals brute force over what has them."""

import functools
import re

import pytest
import torch
from helpers import as_lines, batch_of, call, make_tiny, make_tokenizer, pad_right, save_folder
from plain_search import assert_finds, by_score, every_output, meets, penalty, random_model, random_sources

from modeling_vanilla import Translator
from modeling_vanilla.cli import translate as command
from modeling_vanilla.inference.constraints import constrained
from modeling_vanilla.inference.prefixes import ForcedPrefix

WORDS = 4  # tokens 0, 1, 3 and EOS: 3^4 beams hold every sequence of at most 4 tokens


def draw(seed: int, *lengths: int, vocabulary=(0, 1, 3)) -> list[list[int]]:
    """Random phrases."""
    generator = torch.Generator().manual_seed(seed)
    drawn = (torch.randint(len(vocabulary), (length,), generator=generator).tolist() for length in lengths)
    return [[vocabulary[index] for index in phrase] for phrase in drawn]


@pytest.mark.parametrize("rule", ("gnmt", "length"))
@pytest.mark.parametrize("seed", range(8))
def test_a_wide_beam_equals_brute_force(seed, rule):
    """Each sentence with its own phrases: several, none, overlapping."""
    model, sources = random_model(seed, vocab_size=WORDS), random_sources(seed, (1, 2, 2, 2), vocab_size=WORDS)
    short, pair, other, another = draw(seed, 1, 2, 1, 2)
    phrases = [[short, other], [], [another], [pair, other]]
    expected = []
    for source, words in zip(sources, phrases, strict=True):
        outputs = every_output(len(source) + 2, unfinished=rule == "length")
        found = [y for y in outputs if meets(y, words)]
        expected += by_score(model, source, found, rule={"gnmt": penalty, "length": pow}[rule])[:1]
    settings = {"num_beams": 3**4, "length_penalty": 0.6, "length_penalty_type": rule, "early_stopping": "never"}
    settings |= {"max_extra_tokens": 2, "search": constrained(phrases)}
    assert_finds(model, sources, expected, **settings)


@functools.cache
def larger_model(seed: int):
    model = random_model(seed, vocab_size=20, sharpness=0.5)
    model.generation_config.max_extra_tokens = 10
    return model


@pytest.mark.parametrize(("beams", "returned"), [(2, 1), (4, 4)])
def test_few_beams_meet_what_takes_more_and_batch_mates_change_nothing(beams, returned):
    """Of four sentences: six tokens in three phrases, none, one phrase, two."""
    settings = {"num_beams": beams, "num_return_sequences": returned}
    for seed in range(6):
        model, sources = larger_model(seed), random_sources(seed, (4, 9, 3, 6), vocab_size=20)
        p, q, r, s, t, u = draw(seed, 1, 2, 3, 4, 2, 1, vocabulary=range(3, 20))
        phrases = [[p, q, r], [], [s], [t, u]]
        alone = []
        for source, words in zip(sources, phrases, strict=True):
            words = {"search": constrained([words])} if words else {}
            alone += model.generate(**batch_of([source]), **settings, **words).tolist()
        output = model.generate(**batch_of(sources), **settings, search=constrained(phrases)).tolist()
        assert output == pad_right(alone).tolist(), f"seed {seed}"
        assert all(map(meets, output[::returned], phrases)), f"seed {seed}"


def test_phrases_beyond_the_limit_are_left_out():
    model, sources = larger_model(1), random_sources(1, (4, 4), vocab_size=20)

    def generate(*phrases):
        search = {"search": constrained([[*phrases]] * 2)} if phrases else {}
        return model.generate(**batch_of(sources), max_new_tokens=4, **search).tolist()

    fitting = generate([5, 6, 7])
    assert generate([5] * 5) == generate()
    assert generate([5, 6, 7], [8, 9]) == fitting and meets(fitting[0], [[5, 6, 7]])


def test_what_another_rule_forbids_is_not_met_and_the_search_ends():
    model, source = larger_model(3), random_sources(3, (3,), vocab_size=20)
    search = constrained([[[5, 6], [7]]])
    output = model.generate(**batch_of(source), search=search, bad_words_ids=[[6]])[0].tolist()
    assert meets(output, [[7]]) and len(output) == 1 + 3 + 10


# Prefixes

SENTENCES = ["the old man has a dog", "", "a dog", "a man. a dog sees the old man."]
PREFIXES = ["der Hund", "ein", "", "der Mann"]


@pytest.mark.parametrize("seed", range(6))
def test_a_wide_beam_equals_brute_force_given_the_prefix(seed):
    """Each sentence with its own prefix: of two tokens, none, one that its limit alone leaves room for."""
    model, sources = random_model(seed, vocab_size=WORDS), random_sources(seed, (2, 2, 1), vocab_size=WORDS)
    prefixes = draw(seed, 2, 0, 3)
    expected = []
    for source, prefix in zip(sources, prefixes, strict=True):
        limit = len(source) + 2
        outputs = every_output(limit) + [prefix] * (len(prefix) == limit)
        expected += by_score(model, source, [y for y in outputs if y[: len(prefix)] == prefix])[:1]
    settings = {"num_beams": 3**4, "max_extra_tokens": 2, "logits_processor": [ForcedPrefix(prefixes)]}
    assert_finds(model, sources, expected, **settings)


# Text


def test_a_translation_begins_with_its_prefix_and_has_its_terms(tmp_path):
    tokenizer = make_tokenizer([*SENTENCES, *PREFIXES], vocab_size=320)
    model = make_tiny(len(tokenizer))
    model.generation_config.max_extra_tokens = 8
    (both,) = Translator(model, tokenizer).translate(SENTENCES[2:3], prefix="der Mann", terms=[("dog", "Hund")])
    assert both.startswith("der Mann") and "Hund" in both
    translations = Translator(model, tokenizer).translate(SENTENCES, prefix=PREFIXES)
    assert all(map(str.startswith, translations, [PREFIXES[0], "", *PREFIXES[2:]]))
    # The command has a prefix for each line; one that is wrong is named by its file and line.
    arguments = (save_folder(tmp_path / "model", model, tokenizer), "--prefix", tmp_path / "prefixes")
    for prefix, message in (
        ("Hund " * 40, r"a prefix of \d+ tokens cannot begin its output, by its limit or another rule"),
        ("der </s>", "the prefix 'der </s>' contains the end-of-sentence token </s>"),
    ):
        (tmp_path / "prefixes").write_bytes(as_lines([*PREFIXES[:3], prefix]))
        done = call(command.main, *arguments, stdin=as_lines(SENTENCES))
        assert re.fullmatch(f"{tmp_path}/prefixes, line 4: {message}", done.error) and done.output == ""

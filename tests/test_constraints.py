"""Phrases that an output has to contain: the search equals brute force over what contains them."""

import functools
import re

import pytest
import torch
from helpers import batch_of, pad_right
from plain_search import BOS, EOS, assert_finds, by_score, every_output, meets, penalty, random_model, random_sources
from transformers import GenerationConfig

WORDS = 4  # tokens 0, 1, 3 and EOS: 3^4 beams hold every sequence of at most 4 tokens


def draw(seed: int, *lengths: int, vocabulary=(0, 1, 3)) -> list[list[int]]:
    """Random phrases."""
    generator = torch.Generator().manual_seed(seed)
    drawn = (torch.randint(len(vocabulary), (length,), generator=generator).tolist() for length in lengths)
    return [[vocabulary[index] for index in phrase] for phrase in drawn]


@pytest.mark.parametrize("rule", ("gnmt", "length"))
@pytest.mark.parametrize("seed", range(8))
def test_a_wide_beam_equals_brute_force(seed, rule):
    """Each sentence with its own phrases: several, one with alternatives, overlapping, none."""
    model, sources = random_model(seed, vocab_size=WORDS), random_sources(seed, (1, 2, 2, 2), vocab_size=WORDS)
    short, pair, other, another = draw(seed, 1, 2, 1, 2)
    phrases = [[[short], [pair, other]], [], [[another]], [[pair], [other]]]
    expected = []
    for source, words in zip(sources, phrases, strict=True):
        outputs = every_output(len(source) + 2, unfinished=rule == "length")
        found = [y for y in outputs if meets(y, words)]
        expected += by_score(model, source, found, rule={"gnmt": penalty, "length": pow}[rule])[:1]
    settings = {"num_beams": 3**4, "length_penalty": 0.6, "length_penalty_type": rule, "early_stopping": "never"}
    settings |= {"max_extra_tokens": 2, "force_words_ids": phrases}
    assert_finds(model, sources, expected, **settings)


@functools.cache
def larger_model(seed: int):
    model = random_model(seed, vocab_size=20, sharpness=0.5)
    model.generation_config.max_extra_tokens = 10
    return model


@pytest.mark.parametrize(("beams", "returned"), [(2, 1), (4, 1), (2, 2), (4, 4)])
def test_few_beams_meet_what_takes_more_and_batch_mates_change_nothing(beams, returned):
    """Of four sentences: six tokens in three phrases, none, one phrase, alternatives."""
    settings = {"num_beams": beams, "num_return_sequences": returned}
    for seed in range(6):
        model, sources = larger_model(seed), random_sources(seed, (4, 9, 3, 6), vocab_size=20)
        p, q, r, s, t, u = draw(seed, 1, 2, 3, 4, 2, 1, vocabulary=range(3, 20))
        phrases = [[[p], [q], [r]], [], [[s]], [[t, u], [q]]]
        alone = []
        for source, words in zip(sources, phrases, strict=True):
            words = {"force_words_ids": [words]} if words else {}
            alone += model.generate(**batch_of([source]), **settings, **words).tolist()
        output = model.generate(**batch_of(sources), **settings, force_words_ids=phrases).tolist()
        assert output == pad_right(alone).tolist(), f"seed {seed}"
        assert all(map(meets, output[::returned], phrases)), f"seed {seed}"


def test_words_for_all_sentences_as_transformers_had_them():
    """In a call or in a configuration; what one sentence is given by itself is what the batch is given."""
    model, sources = larger_model(0), random_sources(0, (4, 6), vocab_size=20)
    for words, phrases in (([[5], [6, 7]], [[[5]], [[6, 7]]]), ([[[5], [6]], [7, 8]], [[[5], [6]], [[7, 8]]])):
        expected = model.generate(**batch_of(sources), force_words_ids=[phrases] * 2).tolist()
        assert all(meets(tokens, phrases) for tokens in expected)
        assert model.generate(**batch_of(sources), force_words_ids=words).tolist() == expected
        config = GenerationConfig(force_words_ids=words)
        assert model.generate(**batch_of(sources), generation_config=config).tolist() == expected
    assert model.generation_config.force_words_ids is None


def test_phrases_beyond_the_limit_are_left_out():
    model, sources = larger_model(1), random_sources(1, (4, 4), vocab_size=20)
    settings = {**batch_of(sources), "max_new_tokens": 4}
    without, fitting = model.generate(**settings), model.generate(**settings, force_words_ids=[[5, 6, 7]])
    assert model.generate(**settings, force_words_ids=[[5] * 5]).tolist() == without.tolist()
    assert model.generate(**settings, force_words_ids=[[5, 6, 7], [8, 9]]).tolist() == fitting.tolist()
    assert meets(fitting[0].tolist(), [[[5, 6, 7]]])


def test_a_phrase_may_begin_in_the_prompt():
    model, source = larger_model(2), random_sources(2, (5,), vocab_size=20)
    given = {**batch_of(source), "decoder_input_ids": torch.tensor([[BOS, 5, 6]])}
    assert model.generate(**given, force_words_ids=[[5, 6]]).tolist() == model.generate(**given).tolist()
    assert meets(model.generate(**given, force_words_ids=[[6, 7, 8]])[0].tolist(), [[[6, 7, 8]]])


def test_what_another_rule_forbids_is_not_met_and_the_search_ends():
    model, source = larger_model(3), random_sources(3, (3,), vocab_size=20)
    output = model.generate(**batch_of(source), force_words_ids=[[5, 6], [7]], bad_words_ids=[[6]])[0].tolist()
    assert meets(output, [[[7]]]) and len(output) == 1 + 3 + 10


NO_PHRASES = [
    ([], "force_words_ids must be phrases, which are lists of token ids, not []"),
    ([5], "force_words_ids must be phrases, which are lists of token ids, not [5]"),
    ([[[[[5]]]]], "force_words_ids must be phrases, which are lists of token ids, not [[[[[5]]]]]"),
    ([[5], []], "force_words_ids has a phrase without tokens: []"),
    ([[5, EOS]], "force_words_ids must not contain the end-of-sentence token 2: [5, 2]"),
    ([["Hund"]], "force_words_ids must hold tokens from 0 to 19, not 'Hund'"),
    ([[20]], "force_words_ids must hold tokens from 0 to 19, not 20"),
    ([[[[5]]]] * 3, "force_words_ids are of 3 sentences, the batch has 1"),
]


@pytest.mark.parametrize(("words", "message"), NO_PHRASES)
def test_what_is_no_phrase_is_refused(words, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        larger_model(0).generate(torch.tensor([[4, EOS]]), force_words_ids=words)


@pytest.mark.parametrize("given", ({"num_beams": 1}, {"do_sample": True}))
def test_another_search_has_no_constraints(given):
    with pytest.raises(ValueError, match=r"^force_words_ids need .* num_beams .* do_sample"):
        larger_model(0).generate(torch.tensor([[4, EOS]]), force_words_ids=[[5]], **given)

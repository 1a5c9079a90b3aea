"""A forced prefix: the search equals brute force over what begins with it, from functions, pipeline and command."""

import itertools
import re

import pytest
import torch
from helpers import as_lines, batch_of, call, make_tiny, make_tokenizer, pad_right, save_folder
from test_constraints import WORDS, draw, larger_model
from test_generation import BOS, EOS, SCORED, assert_close, log_prob_of, penalty, random_model, random_sources
from test_generation import search as plain_search

from modeling_vanilla.cli import translate as command
from modeling_vanilla.constraints_vanilla import ForcedPrefix
from modeling_vanilla.inference import translate

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
        starts = itertools.chain(*(itertools.product((0, 1, 3), repeat=length) for length in range(limit)))
        every = [[*start, EOS] for start in starts] + ([prefix] if len(prefix) == limit else [])
        every = [y for y in every if y[: len(prefix)] == prefix]
        expected.append(max((log_prob_of(model, source, y) / penalty(len(y), 0.6), y) for y in every))
    settings = {"num_beams": 3**4, "max_extra_tokens": 2, "logits_processor": [ForcedPrefix(prefixes)]}
    output = model.generate(**batch_of(sources), **settings, **SCORED)
    assert output.sequences.tolist() == pad_right([[BOS, *y] for _, y in expected]).tolist()
    assert_close(output.sequences_scores, torch.tensor([score for score, _ in expected]))


@pytest.mark.parametrize("beams", (1, 4))
def test_the_search_goes_on_behind_it_as_if_it_had_found_it_itself(beams):
    """The prefixes are beginnings of what is found without them; batch mates, done sooner, change nothing."""
    for seed in range(4):
        model, sources = larger_model(seed), random_sources(seed, (4, 12, 1, 6), vocab_size=20)
        inputs, free = batch_of(sources), []
        for source in sources:
            free += model.generate(**batch_of([source]), num_beams=beams).tolist()
        prefixes = [tokens[1 : 1 + length] for tokens, length in zip(free, (3, 0, 1, 4), strict=True)]
        settings = {"num_beams": beams, "logits_processor": [ForcedPrefix(prefixes)]}
        assert model.generate(**inputs, **settings).tolist() == pad_right(free).tolist()
        with_scores = model.generate(**inputs, **settings, **SCORED)  # no sentence leaves the batch
        assert with_scores.sequences.tolist() == pad_right(free).tolist()


def test_sampling_begins_with_it():
    settings = {"num_beams": 1, "do_sample": True, "num_return_sequences": 3}
    prefixes = ForcedPrefix([[7, 8], [9]])
    output = larger_model(0).generate(**batch_of([[4, EOS], [5, EOS]]), **settings, logits_processor=[prefixes])
    assert output[:3, 1:3].tolist() == [[7, 8]] * 3 and output[3:, 1].tolist() == [9] * 3


def test_it_is_the_plain_search_whose_first_tokens_are_given():
    """Narrow beams, against the list-based reference, which forbids all other tokens."""
    for seed in range(6):
        model, source, prefix = random_model(seed), random_sources(seed)[1], [5, 3]
        forbidden = lambda y, prefix=prefix: [t for t in range(7) if len(y) <= 2 and t != prefix[len(y) - 1]]  # noqa: E731
        (score, tokens), *_ = plain_search(model, source, 3, 0.6, len(source) + 4, forbidden=forbidden)[0]
        processors = [ForcedPrefix([prefix])]
        output = model.generate(**batch_of([source]), num_beams=3, logits_processor=processors, **SCORED)
        assert output.sequences[0].tolist() == tokens
        assert_close(output.sequences_scores, torch.tensor([score]))


# Text


def test_a_translation_begins_with_its_prefix_and_has_its_terms(tmp_path):
    tokenizer = make_tokenizer([*SENTENCES, *PREFIXES], vocab_size=320)
    model = make_tiny(len(tokenizer))
    model.generation_config.max_extra_tokens = 8
    (both,) = translate(model, tokenizer, SENTENCES[2:3], prefix="der Mann", terms=[("dog", "Hund")])
    assert both.startswith("der Mann") and "Hund" in both
    # The command has a prefix for each line; one that is wrong is named by its file and line.
    (tmp_path / "prefixes").write_bytes(as_lines(PREFIXES))
    arguments = (save_folder(tmp_path / "model", model, tokenizer), "--prefix", tmp_path / "prefixes")
    done = call(command.main, *arguments, stdin=as_lines(SENTENCES))
    assert done.output == as_lines(translate(model, tokenizer, SENTENCES, prefix=PREFIXES)).decode()
    assert all(map(str.startswith, done.output.splitlines(), PREFIXES))
    for prefix, message in (
        ("Hund " * 40, r"a prefix of \d+ tokens is longer than the limit of its output"),
        ("der </s>", "the prefix 'der </s>' contains the end-of-sentence token </s>"),
    ):
        (tmp_path / "prefixes").write_bytes(as_lines([*PREFIXES[:3], prefix]))
        done = call(command.main, *arguments, stdin=as_lines(SENTENCES))
        assert re.fullmatch(f"{tmp_path}/prefixes, line 4: {message}", done.error) and done.output == ""

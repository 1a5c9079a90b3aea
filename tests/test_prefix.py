"""A forced prefix: the search equals brute force over what begins with it, from functions, pipeline and command."""

import re

import pytest
from helpers import as_lines, batch_of, call, make_tiny, make_tokenizer, save_folder
from plain_search import EOS, assert_finds, by_score, every_output, random_model, random_sources
from test_constraints import WORDS, draw, larger_model

from modeling_vanilla import Translator
from modeling_vanilla.cli import translate as command
from modeling_vanilla.inference.terms import ForcedPrefix

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


def test_sampling_begins_with_it():
    settings = {"num_beams": 1, "do_sample": True, "num_return_sequences": 3}
    prefixes = ForcedPrefix([[7, 8], [9]])
    output = larger_model(0).generate(**batch_of([[4, EOS], [5, EOS]]), **settings, logits_processor=[prefixes])
    assert output[:3, 1:3].tolist() == [[7, 8]] * 3 and output[3:, 1].tolist() == [9] * 3


# Text


def test_a_translation_begins_with_its_prefix_and_has_its_terms(tmp_path):
    tokenizer = make_tokenizer([*SENTENCES, *PREFIXES], vocab_size=320)
    model = make_tiny(len(tokenizer))
    model.generation_config.max_extra_tokens = 8
    (both,) = Translator(model, tokenizer).translate(SENTENCES[2:3], prefix="der Mann", terms=[("dog", "Hund")])
    assert both.startswith("der Mann") and "Hund" in both
    translations = Translator(model, tokenizer).translate(SENTENCES, prefix=PREFIXES)
    assert translations[1] == ""  # of a blank sentence
    # The first piece that is not blank has the prefix, the others do not.
    blank, first, second = Translator(model, tokenizer).translate(["\na dog\na dog"], prefix="der Mann")[0].split("\n")
    assert (blank, second) == ("", *Translator(model, tokenizer).translate(["a dog"])) and first.startswith("der Mann")
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

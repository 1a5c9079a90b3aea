"""The toy corpora: correct German, no sentence twice, and held-out combinations that stay held out."""

import re

import pytest
import toy_corpus as toy


@pytest.fixture(scope="module")
def corpus():
    return toy.toy_corpus()


# Checked by hand, word by word.
SENTENCES = {
    # verb second after an adverbial, the separable verb, perfect with haben and sein, questions
    "Today a young sister calls the child.": "Heute ruft eine junge Schwester das Kind an.",
    "Did I follow a man?": "Bin ich einem Mann gefolgt?",
    # subordinate clauses: verb last, the separable verb in one word; the pronoun that agrees with its noun
    "They ate a cake because it was fresh.": "Sie haben einen Kuchen gegessen, weil er frisch war.",
    # after the article, a word like "ein" and nothing, in nominative, accusative and dative
    "Can you thank the beautiful boy?": "Kannst du dem schönen Jungen danken?",
    "I hear a bear because it is big.": "Ich höre einen Bären, weil er groß ist.",
    "Red bags are new.": "Rote Taschen sind neu.",
    "A white bird sleeps in our garden.": "Ein weißer Vogel schläft in unserem Garten.",
}


def test_sentences_translated_by_hand(corpus):
    translations = dict(corpus["train"])
    assert {english: translations[english] for english in SENTENCES} == SENTENCES


def test_no_sentence_occurs_twice(corpus):
    assert {name: len(pairs) for name, pairs in corpus.items()} == {"train": 20_000, "validation": 500, "test": 1_000}
    for side in (0, 1):
        held = [{pair[side] for pair in pairs} for pairs in corpus.values()]
        assert len(set.union(*held)) == sum(map(len, held))


@pytest.mark.parametrize("domain", toy.DOMAINS)
def test_the_seed_decides_the_corpus_and_the_size_of_training_not_the_evaluation(domain):
    small, large = (toy.toy_corpus(size, 20, 30, seed=3, domain=domain) for size in (50, 1_000))
    assert small == large | {"train": large["train"][:50]}
    assert small != toy.toy_corpus(50, 20, 30, seed=4, domain=domain)


def combinations(english: str, domain: str) -> set[toy.Pair]:
    """Every (verb or adjective, noun) that stands anywhere in the sentence, found from its text alone."""
    grammar = toy.grammar(domain)
    nouns = {form: noun.english for noun in grammar.nouns for form in (noun.english, noun.english_plural)}
    others = {adjective.english: adjective.english for adjective in grammar.adjectives}
    for verb in grammar.verbs:
        others |= {form: verb.base for tense in ("present", "past") for form in verb.english[tense][1]}
    text = f" {re.sub('[.,?]', '', english)} "
    text = {text, text.replace(text[:2], text[:2].lower())}
    found = [{base for form, base in table.items() if any(f" {form} " in t for t in text)} for table in (others, nouns)]
    return {(word, noun) for word in found[0] for noun in found[1]}


@pytest.mark.parametrize("domain", toy.DOMAINS)
def test_held_out_combinations_are_in_every_evaluation_sentence_and_never_in_training(domain):
    corpus = toy.toy_corpus(2_000, 150, 150, seed=7, domain=domain)
    held_out = set(toy.held_out_pairs(7, domain))
    for name, pairs in corpus.items():
        for english, _ in pairs:
            assert bool(combinations(english, domain) & held_out) == (name != "train"), english

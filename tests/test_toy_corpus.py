"""The toy corpora: correct German, one translation for each sentence, and held-out combinations that stay held out.

The German here was checked by hand, word by word.
"""

import json
import random
import re

import pytest
import toy_corpus as toy
from helpers import run_python, tree

EVERYDAY = toy.grammar("everyday")


@pytest.fixture(scope="module")
def corpus():
    return toy.toy_corpus()


# ------------------------------------------------------------------------------------------ sentences written by hand


SENTENCES = {
    # verb second after an adverbial, the separable verb, perfect with haben and sein, questions
    "In summer a sick aunt opens the window.": "Im Sommer macht eine kranke Tante das Fenster auf.",
    "They called the teacher last year.": "Sie haben letztes Jahr den Lehrer angerufen.",
    "A mouse fell asleep.": "Eine Maus ist eingeschlafen.",
    "Did I follow the small cat?": "Bin ich der kleinen Katze gefolgt?",
    # negation: kein, nicht, and must not
    "You do not hear a pig.": "Du hörst kein Schwein.",
    "We do not write books.": "Wir schreiben keine Bücher.",
    "I must not love you.": "Ich darf dich nicht lieben.",
    # subordinate clauses: verb last, the separable verb in one word; pronouns that agree with their noun
    "If he calls me, I get up.": "Wenn er mich anruft, stehe ich auf.",
    "She believes that she will invite a brother.": "Sie glaubt, dass sie einen Bruder einladen wird.",
    "She saw the shop because it was small.": "Sie hat den Laden gesehen, weil er klein war.",
    "The teachers whom I help trust her doctors.": "Die Lehrer, denen ich helfe, vertrauen ihren Ärzten.",
    "They know the dirty house that she must tidy.": "Sie kennen das schmutzige Haus, das sie aufräumen muss.",
    # a der-word, an ein-word and no article (or a number), in nominative, accusative and dative
    "The happy man is sick.": "Der glückliche Mann ist krank.",
    "Can you visit the famous boy?": "Kannst du den berühmten Jungen besuchen?",
    "Does your baker help the clever dog?": "Hilft dein Bäcker dem klugen Hund?",
    "A black dog is friendly.": "Ein schwarzer Hund ist freundlich.",
    "Why will every waitress see a dirty dog?": "Warum wird jede Kellnerin einen schmutzigen Hund sehen?",
    "Do you trust a big dog?": "Vertraust du einem großen Hund?",
    "An old book was as old as my bag.": "Ein altes Buch war so alt wie meine Tasche.",
    "The beautiful book is as dark as the bag.": "Das schöne Buch ist so dunkel wie die Tasche.",
    "This brother gives her tired sister the white mouse.": "Dieser Bruder gibt ihrer müden Schwester die weiße Maus.",
    "Black bicycles please the brave boy.": "Schwarze Fahrräder gefallen dem mutigen Jungen.",
    "I drank tea with good wine.": "Ich habe Tee mit gutem Wein getrunken.",
    "What do his brothers eat without sweet water?": "Was essen seine Brüder ohne süßes Wasser?",
    "The aunt needs three black letters.": "Die Tante braucht drei schwarze Briefe.",
    "You will trust two beautiful birds.": "Du wirst zwei schönen Vögeln vertrauen.",
    "You follow the tired uncles.": "Du folgst den müden Onkeln.",
    # the present tense
    "I forget her card.": "Ich vergesse ihre Karte.",
    "You forget our key.": "Du vergisst unseren Schlüssel.",
    "You find the dresses.": "Du findest die Kleider.",
    "A girl finds her.": "Ein Mädchen findet sie.",
    "You run into this park.": "Du läufst in diesen Park.",
    "We run out of the garden.": "Wir laufen aus dem Garten.",
    "I am not sad.": "Ich bin nicht traurig.",
    "You are very old.": "Du bist sehr alt.",
}


def test_sentences_translated_by_hand(corpus):
    translations = dict(corpus["train"])
    assert {english: translations[english] for english in SENTENCES} == SENTENCES


# ------------------------------------------------------------------------------------------------------- the corpora


def test_no_sentence_occurs_twice_or_has_two_translations(corpus):
    assert {name: len(pairs) for name, pairs in corpus.items()} == {"train": 20_000, "validation": 500, "test": 1_000}
    for side in (0, 1):
        held = [{pair[side] for pair in pairs} for pairs in corpus.values()]
        assert len(set.union(*held)) == sum(map(len, held))
    sampler = toy.Sampler(EVERYDAY, random.Random(1))
    translation = {}
    for _ in range(30_000):
        english, german = sampler.draw()
        assert translation.setdefault(english, german) == german
    assert len(translation) > 27_500


@pytest.mark.parametrize("domain", toy.DOMAINS)
def test_the_seed_decides_the_corpus_and_the_size_of_training_not_the_evaluation(domain):
    small, large = (toy.toy_corpus(size, 20, 30, seed=3, domain=domain) for size in (50, 1_000))
    assert small == large | {"train": large["train"][:50]}
    assert small != toy.toy_corpus(50, 20, 30, seed=4, domain=domain)


def combinations(english: str, domain: str) -> set[toy.Pair]:
    """Every (verb or adjective, noun) that stands anywhere in the sentence, found from its text alone."""
    grammar = toy.grammar(domain)
    nouns = {form: noun.english for noun in grammar.nouns for form in (noun.english, noun.english_plural) if form}
    others = {adjective.word: adjective.word for adjective in grammar.adjectives}
    for verb in grammar.verbs[1:]:
        others |= {form: verb.base for tense in ("present", "past") for form in verb.english[tense][1]}
    text = f" {re.sub('[.,?]', '', english)} "
    text = {text, text.replace(text[:2], text[:2].lower())}
    found = [{base for form, base in table.items() if any(f" {form} " in t for t in text)} for table in (others, nouns)]
    return {(word, noun) for word in found[0] for noun in found[1]}


@pytest.mark.parametrize(("domain", "seed"), [("everyday", 0), ("everyday", 7), ("travel", 0)])
def test_held_out_combinations_are_in_every_evaluation_sentence_and_never_in_training(domain, seed):
    corpus = toy.toy_corpus(2_000, 150, 150, seed, domain)
    held_out = set(toy.held_out_pairs(seed, domain))
    for name, pairs in corpus.items():
        for english, _ in pairs:
            assert bool(combinations(english, domain) & held_out) == (name != "train"), english


def test_sentences_are_varied_and_well_formed(corpus):
    lengths = [len(english.split()) for english, _ in corpus["train"]]
    assert (min(lengths), max(lengths) >= 18, max(lengths) <= 20) == (4, True, True)
    german_nouns = {form.lower() for noun in EVERYDAY.nouns for form in (noun.german, noun.german_plural)}
    lower_cased = german_nouns - {"junge", "jungen", "laden"}  # also other words
    for english, german in (pair for pairs in corpus.values() for pair in pairs):
        for text in (english, german):
            assert re.fullmatch(r"[A-ZÄÖÜ]\w*(,? \w+)*[.?]", text), text
        assert english[-1] == german[-1]
        assert not re.search(r"\b(a [aeiou]|an [^aeiou])", english.lower()), english
        assert not lower_cased & set(re.findall(r"\w+", german)[1:]), german


# ----------------------------------------------------------------------------------------------------- command line


def test_command_line_writes_the_corpus_whatever_the_hash_seed(tmp_path):
    options = "--train 30 --validation 4 --test 5 --seed 2 --domain travel --output_dir new/toy"
    assert run_python(toy.__file__, *options.split(), cwd=tmp_path, PYTHONHASHSEED="5").code == 0
    files = tree(tmp_path / "new" / "toy")
    assert len(files) == 3
    for name, pairs in toy.toy_corpus(30, 4, 5, seed=2, domain="travel").items():
        expected = [{"translation": {"en": english, "de": german}} for english, german in pairs]
        assert [json.loads(line) for line in files[f"{name}.jsonl"].splitlines()] == expected
    again = run_python(toy.__file__, "--output_dir", "new/toy", cwd=tmp_path)
    assert again.error == "output_dir: new/toy/train.jsonl is there already; choose another folder"
    assert tree(tmp_path / "new" / "toy") == files

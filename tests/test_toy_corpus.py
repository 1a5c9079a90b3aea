"""The toy corpora: correct German, one translation for each sentence, and held-out combinations that stay held out.

The German here is written by hand; none of it was copied from the generator's output.
"""

import json
import random
import re

import pytest
import toy_corpus as toy
from helpers import run_python, tree

EVERYDAY = toy.grammar("everyday")
NOUNS = {noun.english: noun for noun in EVERYDAY.nouns}
ADJECTIVES = {adjective.word: adjective for adjective in EVERYDAY.adjectives}
VERBS = {verb.base: verb for verb in EVERYDAY.verbs}
FORMS = {form for entry in toy._load("everyday")["phrases"]["sentence"] for form in entry["forms"]}


@pytest.fixture(scope="module")
def corpus():
    return toy.toy_corpus()


# ------------------------------------------------------------------------------------------ sentences written by hand


def nominal(text: str):
    """A pronoun, or a phrase: determiner ("-": none), perhaps an adjective, and the noun's singular, "+" for plural."""
    if text in toy._PRONOUNS:
        return toy._PRONOUNS[text]
    determiner, *adjective, noun = text.removesuffix("+").split()
    adjective = ADJECTIVES[adjective[0]] if adjective else None
    return toy.NounPhrase(determiner.strip("-"), NOUNS[noun], adjective, text.endswith("+"))


def clause(subject, verb: str, *objects, gap=None, **parts) -> toy.Clause:
    """A clause from words or phrases; of two objects the first is in the dative."""
    subject, *objects = (nominal(part) if isinstance(part, str) else part for part in (subject, *objects))
    last = "dative" if VERBS[verb].case == "dative" else "accusative"
    cased = list(zip(objects, ("dative", last)[-len(objects) :], strict=True)) if objects else []
    return toy.Clause(subject, VERBS[verb], objects=cased, gap=[(gap, last)] if gap else [], **parts)


def it(text: str, method: str = "it"):
    return getattr(toy.Sampler(EVERYDAY, random.Random(0)), method)("head", {"head": nominal(text)})


def write(form: str, **roles) -> toy.Pair:
    """A sentence of this form, which everyday.toml must have."""
    assert form in FORMS
    sampler = toy.Sampler(EVERYDAY, random.Random(0))
    sampler._choose = lambda rules: toy._rules([form], **roles)[0]
    sampler._role = lambda role, roles: role
    return sampler.draw()


PLAIN, YES_NO = "{a}. | {a}.", "{a:question}? | {a:inverted}?"
BECAUSE = "{a} because {b}. | {a}, weil {b:final}."
TIRED = ("tired", "müde")
SENTENCES = [
    # verb second after an adverbial, the separable verb, perfect with haben and sein
    ("Today the man invites the dog.", "Heute lädt der Mann den Hund ein.", "{a:time_first}. | {a:time_first}.",
     clause("the man", "invite", "the dog", time=("today", "heute"))),
    ("She called her aunt yesterday.", "Sie hat gestern ihre Tante angerufen.", PLAIN,
     clause("she", "call", "her aunt", tense="past", time=("yesterday", "gestern"))),
    ("An old lamp fell asleep.", "Eine alte Lampe ist eingeschlafen.", PLAIN,
     clause("a old lamp", "fall asleep", tense="past")),
    # negation: kein, nicht, and must not
    ("My brother does not buy expensive books.", "Mein Bruder kauft keine teuren Bücher.", PLAIN,
     clause("my brother", "buy", "- expensive book+", negated=True)),
    ("The princess must not open this box.", "Die Prinzessin darf diese Kiste nicht aufmachen.", PLAIN,
     clause("the princess", "open", "this box", tense="must", negated=True)),
    # subordinate clauses: verb last, the separable verb in one word; pronouns that agree with their noun
    ("If you are tired, we cook a potato.", "Wenn du müde bist, kochen wir eine Kartoffel.",
     "if {b}, {a}. | wenn {b:final}, {a:inverted}.", clause("we", "cook", "a potato"),
     clause("you", "be", place=TIRED)),
    ("The aunt said that he will tidy the room.", "Die Tante hat gesagt, dass er das Zimmer aufräumen wird.",
     "{a} that {b}. | {a}, dass {b:final}.", clause("the aunt", "say", tense="past"),
     clause("he", "tidy", "the room", tense="will")),
    ("The boy sells the clock because it is tired.", "Der Junge verkauft die Uhr, weil sie müde ist.", BECAUSE,
     clause("the boy", "sell", "the clock"), clause(it("the clock"), "be", place=TIRED)),
    ("I see the children whom you thank.", "Ich sehe die Kinder, denen du dankst.", "{a} {b}. | {a}, {b:final}.",
     clause("I", "see", "the child+"), clause("you", "thank", gap=it("the child+", "relative"))),
    # questions
    ("Did the lions follow two small birds?", "Sind die Löwen zwei kleinen Vögeln gefolgt?", YES_NO,
     clause("the lion+", "follow", "two small bird+", tense="past")),
]  # fmt: skip


@pytest.mark.parametrize(("english", "german", "form", "clauses"), [(*row[:3], row[3:]) for row in SENTENCES])
def test_sentences_translated_by_hand(english, german, form, clauses):
    assert write(form, **dict(zip("ab", clauses, strict=False))) == (english, german)


# A der-word, an ein-word and no article (or a number), in nominative, accusative and dative: the school-book tables.
PARADIGMS = {
    "the old dog": "der alte Hund, den alten Hund, dem alten Hund",
    "this old cat": "diese alte Katze, diese alte Katze, dieser alten Katze",
    "the old book+": "die alten Bücher, die alten Bücher, den alten Büchern",
    "a old dog": "ein alter Hund, einen alten Hund, einem alten Hund",
    "- hot coffee": "heißer Kaffee, heißen Kaffee, heißem Kaffee",
    "- fresh milk": "frische Milch, frische Milch, frischer Milch",
    "two tired uncle+": "zwei müde Onkel, zwei müde Onkel, zwei müden Onkeln",
    "the young boy": "der junge Junge, den jungen Jungen, dem jungen Jungen",
}


def test_noun_phrases_follow_the_declension_tables():
    cases = ("nominative", "accusative", "dative")
    assert {text: ", ".join(map(nominal(text).german, cases)) for text in PARADIGMS} == PARADIGMS


PRESENT = {"forget": "vergesse vergisst vergisst vergessen", "find": "finde findest findet finden"}
PRESENT |= {"run": "laufe läufst läuft laufen", "be": "bin bist ist sind"}


def test_present_tense():
    forms = {verb: [clause(who, verb).german().split()[1] for who in ("I", "you", "he", "we")] for verb in PRESENT}
    assert forms == {verb: row.split() for verb, row in PRESENT.items()}


# ------------------------------------------------------------------------------------------------------- the corpora

ARTICLES = {
    "der|den|dem": "Mann Junge König Arzt Hund Vogel Löwe Tisch Brief Hut Mantel Apfel Käse Wein Garten Park",
    "die|der": "Frau Königin Schwester Katze Maus Lampe Tasche Uhr Birne Suppe Milch Küche Stadt Schule",
    "das|dem": "Kind Pferd Schwein Bett Buch Kleid Ei Brot Wasser Haus Dorf Schloss",
}


@pytest.fixture(scope="module")
def german(corpus):
    return " ".join(german for _, german in corpus["train"])


@pytest.mark.parametrize(("articles", "nouns"), ARTICLES.items())
def test_articles_agree_with_the_gender_of_the_noun(german, articles, nouns):
    before = re.compile(rf"(?<!, )\b(der|die|das|dem|den) (?:[a-zäöüß]+ )?(?:{nouns.replace(' ', '|')})\b")
    assert {*before.findall(german)} == {*articles.split("|")}


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
    german_nouns = {form.lower() for noun in NOUNS.values() for form in (noun.german, noun.german_plural)}
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

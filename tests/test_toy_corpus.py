"""The embedded corpus: correct German, one translation for each sentence, and held-out combinations that stay held out.

The German here is written by hand; none of it was copied from the generator's output.
"""

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import toy_corpus as toy
from toy_corpus import PRONOUNS, Clause, Copula, NounPhrase, prepositional_phrase

SCRIPT = Path(toy.__file__)
SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="module")
def corpus():
    return toy.toy_corpus()


# ------------------------------------------------------------------------------------------ sentences written by hand


def np(text: str, plural: bool = False, relative: tuple[str, str] = ("", "")) -> NounPhrase:
    """The phrase that `text` names: determiner ("-": none), perhaps an adjective, singular noun."""
    determiner, *adjective, noun = text.split()
    adjective = toy.ADJECTIVES[adjective[0]] if adjective else None
    return NounPhrase("" if determiner == "-" else determiner, toy.NOUNS[noun], adjective, plural, relative)


def clause(subject, verb: str, **parts) -> Clause:
    """A clause from words; subject and objects may be pronouns by name."""
    parts = {name: PRONOUNS.get(part, part) if isinstance(part, str) else part for name, part in parts.items()}
    verb = {**toy.VERBS, **toy.CLAUSE_VERBS}[verb]
    return Clause(PRONOUNS[subject] if isinstance(subject, str) else subject, verb, **parts)


def be(subject, complement: tuple[str, str], tense: str = "present", negated: bool = False) -> Clause:
    return Clause(PRONOUNS[subject] if isinstance(subject, str) else subject, Copula(complement), tense, negated)


def it(phrase: NounPhrase):
    return toy.pronoun_for(phrase)


pp = prepositional_phrase
tired, big_as_bear = ("tired", "müde"), ("as big as the bear", "so groß wie der Bär")

HAND_WRITTEN = {
    # verb second, and inversion after an adverbial
    "Today the old man sees the dog.": (
        "Heute sieht der alte Mann den Hund.",
        lambda: toy.statement(clause(np("the old man"), "see", accusative=np("the dog")), ("today", "heute")),
    ),
    "In the dark forest a white horse runs through the village.": (
        "Im dunklen Wald läuft ein weißes Pferd durch das Dorf.",
        lambda: toy.statement(
            clause(np("a white horse"), "run", place=pp("through", np("the village"))), pp("in", np("the dark forest"))
        ),
    ),
    "Every young doctor works for the queen every day.": (
        "Jeder junge Arzt arbeitet jeden Tag für die Königin.",
        lambda: toy.statement(
            clause(np("every young doctor"), "work", place=pp("for", np("the queen")), time=("every day", "jeden Tag"))
        ),
    ),
    "The mice run into the house.": (
        "Die Mäuse laufen ins Haus.",
        lambda: toy.statement(clause(np("the mouse", True), "run", place=pp("into", np("the house")))),
    ),
    # perfect with haben and sein, separable and inseparable verbs
    "The woman gave a poor child her apple.": (
        "Die Frau hat einem armen Kind ihren Apfel gegeben.",
        lambda: toy.statement(
            clause(np("the woman"), "give", tense="past", dative=np("a poor child"), accusative=np("her apple"))
        ),
    ),
    "She called her aunt yesterday.": (
        "Sie hat gestern ihre Tante angerufen.",
        lambda: toy.statement(
            clause("she", "call", tense="past", accusative=np("her aunt"), time=("yesterday", "gestern"))
        ),
    ),
    "Our neighbour went out of the school.": (
        "Unser Nachbar ist aus der Schule gegangen.",
        lambda: toy.statement(clause(np("our neighbour"), "go", tense="past", place=pp("out of", np("the school")))),
    ),
    "The doctor invites the boy.": (
        "Der Arzt lädt den Jungen ein.",
        lambda: toy.statement(clause(np("the doctor"), "invite", accusative=np("the boy"))),
    ),
    "An old lamp lay under three chairs.": (
        "Eine alte Lampe hat unter drei Stühlen gelegen.",
        lambda: toy.statement(
            clause(np("a old lamp"), "lie", tense="past", place=pp("under", np("three chair", True)))
        ),
    ),
    # negation: kein, nicht, and must not
    "My brother does not buy expensive books.": (
        "Mein Bruder kauft keine teuren Bücher.",
        lambda: toy.statement(clause(np("my brother"), "buy", negated=True, accusative=np("- expensive book", True))),
    ),
    "The king does not know the farmer.": (
        "Der König kennt den Bauern nicht.",
        lambda: toy.statement(clause(np("the king"), "know", negated=True, accusative=np("the farmer"))),
    ),
    "The princess must not open this box.": (
        "Die Prinzessin darf diese Kiste nicht aufmachen.",
        lambda: toy.statement(
            clause(np("the princess"), "open", tense="must", negated=True, accusative=np("this box"))
        ),
    ),
    "The bear did not help a friendly lion.": (
        "Der Bär hat keinem freundlichen Löwen geholfen.",
        lambda: toy.statement(clause(np("the bear"), "help", tense="past", negated=True, dative=np("a friendly lion"))),
    ),
    "I cannot find him.": (
        "Ich kann ihn nicht finden.",
        lambda: toy.statement(clause("I", "find", tense="can", negated=True, accusative="he")),
    ),
    "The boys do not work in this kitchen.": (
        "Die Jungen arbeiten nicht in dieser Küche.",
        lambda: toy.statement(clause(np("the boy", True), "work", negated=True, place=pp("in", np("this kitchen")))),
    ),
    # strong endings with no article
    "I drink hot tea with cold milk.": (
        "Ich trinke heißen Tee mit kalter Milch.",
        lambda: toy.statement(clause("I", "drink", accusative=np("- hot tea"), place=pp("with", np("- cold milk")))),
    ),
    "We eat fresh bread with good cheese.": (
        "Wir essen frisches Brot mit gutem Käse.",
        lambda: toy.statement(
            clause("we", "eat", accusative=np("- fresh bread"), place=pp("with", np("- good cheese")))
        ),
    ),
    # modal and future: infinitive last
    "The boys can repair your bicycles next week.": (
        "Die Jungen können nächste Woche deine Fahrräder reparieren.",
        lambda: toy.statement(
            clause(
                np("the boy", True),
                "repair",
                tense="can",
                accusative=np("your bicycle", True),
                time=("next week", "nächste Woche"),
            )
        ),
    ),
    "The teacher said that the aunt will tidy the room.": (
        "Der Lehrer hat gesagt, dass die Tante das Zimmer aufräumen wird.",
        lambda: toy.subordinate_last(
            clause(np("the teacher"), "say", tense="past"),
            ("that", "dass"),
            clause(np("the aunt"), "tidy", tense="will", accusative=np("the room")),
        ),
    ),
    # subordinate clauses: verb last, the separable verb in one word
    "The girl sleeps because she calls you.": (
        "Das Mädchen schläft, weil sie dich anruft.",
        lambda: toy.subordinate_last(
            clause(np("the girl"), "sleep"), ("because", "weil"), clause("she", "call", accusative="you")
        ),
    ),
    "If you are tired, we cook a potato.": (
        "Wenn du müde bist, kochen wir eine Kartoffel.",
        lambda: toy.subordinate_first(
            clause("we", "cook", accusative=np("a potato")), ("if", "wenn"), be("you", tired)
        ),
    ),
    "When the rabbit fell asleep, the wine was on the table.": (
        "Als das Kaninchen eingeschlafen ist, war der Wein auf dem Tisch.",
        lambda: toy.subordinate_first(
            be(np("the wine"), pp("on", np("the table")), "past"),
            ("when", "als"),
            clause(np("the rabbit"), "fall asleep", tense="past"),
        ),
    ),
    "They ask whether the coat belongs to the baker.": (
        "Sie fragen, ob der Mantel dem Bäcker gehört.",
        lambda: toy.subordinate_last(
            clause("they", "ask"), ("whether", "ob"), clause(np("the coat"), "belong to", dative=np("the baker"))
        ),
    ),
    # pronouns that agree with their noun, relative clauses in three cases
    "The grandmother sells the clock because it is heavy.": (
        "Die Großmutter verkauft die Uhr, weil sie schwer ist.",
        lambda: toy.subordinate_last(
            clause(np("the grandmother"), "sell", accusative=np("the clock")),
            ("because", "weil"),
            be(it(np("the clock")), ("heavy", "schwer")),
        ),
    ),
    "He looks for his hat, but he does not find it.": (
        "Er sucht seinen Hut, aber er findet ihn nicht.",
        lambda: toy.coordinate(
            clause("he", "look for", accusative=np("his hat")),
            ("but", "aber"),
            clause("he", "find", negated=True, accusative=it(np("his hat"))),
        ),
    ),
    "The woman bought the dress, and she washed it.": (
        "Die Frau hat das Kleid gekauft und sie hat es gewaschen.",
        lambda: toy.coordinate(
            clause(np("the woman"), "buy", tense="past", accusative=np("the dress")),
            ("and", "und"),
            clause(it(np("the woman")), "wash", tense="past", accusative=it(np("the dress"))),
        ),
    ),
    "The man who helps the children is not tired.": (
        "Der Mann, der den Kindern hilft, ist nicht müde.",
        lambda: toy.statement(
            be(np("the man", relative=("who helps the children", ", der den Kindern hilft,")), tired, negated=True)
        ),
    ),
    # questions
    "Which beautiful dress do you want to buy?": (
        "Welches schöne Kleid willst du kaufen?",
        lambda: toy.question(
            clause("you", "buy", tense="want"),
            (np("which beautiful dress").english(), np("which beautiful dress").german("accusative")),
        ),
    ),
    "Did the lions follow two small birds?": (
        "Sind die Löwen zwei kleinen Vögeln gefolgt?",
        lambda: toy.question(clause(np("the lion", True), "follow", tense="past", dative=np("two small bird", True))),
    ),
    "Where do your sisters live?": (
        "Wo wohnen deine Schwestern?",
        lambda: toy.question(clause(np("your sister", True), "live"), ("where", "wo")),
    ),
    "Why did the cats not sleep?": (
        "Warum haben die Katzen nicht geschlafen?",
        lambda: toy.question(clause(np("the cat", True), "sleep", tense="past", negated=True), ("why", "warum")),
    ),
    "Is the horse as big as the bear?": (
        "Ist das Pferd so groß wie der Bär?",
        lambda: toy.question(be(np("the horse"), big_as_bear)),
    ),
}


@pytest.mark.parametrize("english", HAND_WRITTEN)
def test_sentences_translated_by_hand(english):
    german, build = HAND_WRITTEN[english]
    assert build() == (english, german)


@pytest.mark.parametrize(
    ("head", "plural", "inner", "case", "expected"),
    [
        ("the man", False, None, "nominative", ("who laughs", ", der lacht")),
        ("the child", True, None, "nominative", ("who laugh", ", die lachen")),
        ("the girl", False, "invite", "accusative", ("whom I invite", ", das ich einlade")),
        ("the dog", False, "find", "accusative", ("that I find", ", den ich finde")),
        ("the aunt", False, "thank", "dative", ("whom I thank", ", der ich danke")),
        ("the child", True, "thank", "dative", ("whom I thank", ", denen ich danke")),
    ],
)
def test_relative_clauses(head, plural, inner, case, expected):
    pronoun = toy.relative_pronoun(np(head, plural))
    if inner:
        assert toy.relative_clause(clause("I", inner), pronoun, case) == expected
    else:
        assert toy.relative_clause(clause(pronoun, "laugh")) == expected


# A der-word, an ein-word and no article (or a number), in nominative, accusative and dative: the school-book tables.
PARADIGMS = {
    ("the old dog", False): ("der alte Hund", "den alten Hund", "dem alten Hund"),
    ("this old cat", False): ("diese alte Katze", "diese alte Katze", "dieser alten Katze"),
    ("every old book", False): ("jedes alte Buch", "jedes alte Buch", "jedem alten Buch"),
    ("the old book", True): ("die alten Bücher", "die alten Bücher", "den alten Büchern"),
    ("this old dog", True): ("diese alten Hunde", "diese alten Hunde", "diesen alten Hunden"),
    ("a old dog", False): ("ein alter Hund", "einen alten Hund", "einem alten Hund"),
    ("my old cat", False): ("meine alte Katze", "meine alte Katze", "meiner alten Katze"),
    ("our old book", False): ("unser altes Buch", "unser altes Buch", "unserem alten Buch"),
    ("her old cat", True): ("ihre alten Katzen", "ihre alten Katzen", "ihren alten Katzen"),
    ("- hot coffee", False): ("heißer Kaffee", "heißen Kaffee", "heißem Kaffee"),
    ("- fresh milk", False): ("frische Milch", "frische Milch", "frischer Milch"),
    ("- cold water", False): ("kaltes Wasser", "kaltes Wasser", "kaltem Wasser"),
    ("- old shoe", True): ("alte Schuhe", "alte Schuhe", "alten Schuhen"),
    ("two tired uncle", True): ("zwei müde Onkel", "zwei müde Onkel", "zwei müden Onkeln"),
    ("the young boy", False): ("der junge Junge", "den jungen Jungen", "dem jungen Jungen"),
    ("the dark park", True): ("die dunklen Parks", "die dunklen Parks", "den dunklen Parks"),
}


@pytest.mark.parametrize(("text", "plural"), PARADIGMS)
def test_noun_phrases_follow_the_declension_tables(text, plural):
    cases = ("nominative", "accusative", "dative")
    assert tuple(np(text, plural).german(case) for case in cases) == PARADIGMS[text, plural]


@pytest.mark.parametrize(
    ("verb", "forms"),
    {
        "see": ("sehe", "siehst", "sieht", "sehen"),
        "meet": ("treffe", "triffst", "trifft", "treffen"),
        "forget": ("vergesse", "vergisst", "vergisst", "vergessen"),
        "dance": ("tanze", "tanzt", "tanzt", "tanzen"),
        "find": ("finde", "findest", "findet", "finden"),
        "wash": ("wasche", "wäschst", "wäscht", "waschen"),
        "invite": ("lade", "lädst", "lädt", "laden"),
        "run": ("laufe", "läufst", "läuft", "laufen"),
        "eat": ("esse", "isst", "isst", "essen"),
        "sit": ("sitze", "sitzt", "sitzt", "sitzen"),
    }.items(),
)
def test_present_tense(verb, forms):
    assert toy.VERBS[verb].present == forms


# ------------------------------------------------------------------------------------------------------- the corpus


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def test_sizes_and_splits_share_no_sentence(corpus):
    assert {name: len(pairs) for name, pairs in corpus.items()} == {"train": 20_000, "validation": 500, "test": 1_000}
    for side in (0, 1):
        held = [{pair[side] for pair in corpus[name]} for name in SPLITS]
        assert not (held[0] & held[1] or held[0] & held[2] or held[1] & held[2])
    english = [pair[0] for name in SPLITS for pair in corpus[name]]
    assert len(set(english)) == len(english)


def test_each_english_sentence_has_one_translation():
    sampler = toy.Sampler(random.Random(1))
    translation = {}
    for _ in range(60_000):
        english, german = sampler.draw()
        assert translation.setdefault(english, german) == german
    assert len(translation) > 55_000


def test_same_seed_same_corpus_another_seed_another():
    first = toy.toy_corpus(200, 20, 20, seed=3)
    assert first == toy.toy_corpus(200, 20, 20, seed=3)
    assert first != toy.toy_corpus(200, 20, 20, seed=4)


def test_evaluation_does_not_depend_on_the_size_of_training():
    small, large = toy.toy_corpus(50, 20, 30), toy.toy_corpus(2_000, 20, 30)
    assert small["validation"] == large["validation"]
    assert small["test"] == large["test"]
    assert small["train"] == large["train"][:50]


def test_corpus_does_not_depend_on_the_hash_seed():
    code = "import toy_corpus, json; print(json.dumps(toy_corpus.toy_corpus(300, 30, 30)))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=SCRIPT.parent,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def combinations(english: str) -> set[tuple[str, str]]:
    """Every (verb or adjective, noun) that stands anywhere in the sentence, found from its text alone."""
    found = [LEMMAS[form] for form in FORMS.findall(english.lower())]
    nouns = [lemma for lemma in found if lemma in toy.NOUNS]
    return {(lemma, noun) for lemma in found if lemma not in toy.NOUNS for noun in nouns}


LEMMAS = {adjective: adjective for adjective in toy.ADJECTIVES}
LEMMAS |= {form: verb.base for verb in toy.VERBS.values() for form in (verb.base, verb.third, verb.past)}
LEMMAS |= {
    form: noun.english
    for noun in toy.NOUNS.values()
    for form in (noun.english, noun.english_plural)
    if form is not None
}
FORMS = re.compile(r"\b(?:" + "|".join(sorted(LEMMAS, key=len, reverse=True)) + r")\b")


@pytest.mark.parametrize("seed", [0, 7])
def test_held_out_combinations_are_absent_from_training_and_present_in_every_evaluation_sentence(seed):
    corpus = toy.toy_corpus(5_000, 300, 300, seed)
    held_out = set(toy.held_out_pairs(seed))
    assert len(held_out) > 100
    for english, _ in corpus["train"]:
        assert not combinations(english) & held_out, english
    for name in ("validation", "test"):
        for english, _ in corpus[name]:
            assert combinations(english) & held_out, english


def test_every_word_of_the_evaluation_splits_is_frequent_in_training(corpus):
    for side in (0, 1):
        seen = Counter(word for pair in corpus["train"] for word in words(pair[side]))
        tested = {word for name in ("validation", "test") for pair in corpus[name] for word in words(pair[side])}
        assert {word: seen[word] for word in tested if seen[word] < 10} == {}


def test_sentences_are_varied_and_well_formed(corpus):
    lengths = [len(english.split()) for english, _ in corpus["train"]]
    assert min(lengths) == 4
    assert 18 <= max(lengths) <= 20
    german_nouns = {form for noun in toy.NOUNS.values() for form in (noun.german, noun.german_plural) if form}
    lower_cased = {noun.lower() for noun in german_nouns} - {"junge", "jungen", "laden"}  # also other words
    for english, german in (pair for name in SPLITS for pair in corpus[name]):
        for text in (english, german):
            assert text[0].isupper()
            assert re.fullmatch(r"[\w ,]+[.?]", text), text
            assert not re.search(r"  | ,|,\w", text), text
        assert english[-1] == german[-1]
        assert not re.search(r"\b(a [aeiou]|an [^aeiou])", english.lower()), english
        assert not lower_cased & set(re.findall(r"\w+", german)[1:]), german
    text = " ".join(german for _, german in corpus["test"])
    assert all(letter in text for letter in "äöüßÄ")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 5, 5), "train must be at least 1, got 0"),
        ((5, -1, 5), "validation must be at least 1, got -1"),
        ((5, 5, 0), "test must be at least 1, got 0"),
        ((1_000_000, 1, 1), "at most 1000000 sentences, got 1000002"),
    ],
)
def test_impossible_sizes_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        toy.toy_corpus(*sizes)


# ----------------------------------------------------------------------------------------------------- command line


def run(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True)


def test_command_line_writes_the_corpus(tmp_path):
    folder = tmp_path / "new" / "toy"
    done = run("--output_dir", folder, "--train", 30, "--validation", 4, "--test", 5, "--seed", 2)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.rsplit(": ", 1)[1] for line in done.stdout.splitlines()] == ["30 pairs", "4 pairs", "5 pairs"]
    assert sorted(path.name for path in folder.iterdir()) == ["test.jsonl", "train.jsonl", "validation.jsonl"]
    for name, pairs in toy.toy_corpus(30, 4, 5, seed=2).items():
        lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        expected = [{"translation": {"en": english, "de": german}} for english, german in pairs]
        assert [json.loads(line) for line in lines] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train", 0], "train must be at least 1, got 0"),
        (["--test", "many"], "invalid int value: 'many'"),
        (["--size", 3], "unrecognized arguments"),
    ],
)
def test_bad_arguments_are_one_line_and_write_nothing(tmp_path, arguments, message):
    done = run("--output_dir", tmp_path / "toy", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_is_a_file_is_refused(tmp_path):
    path = tmp_path / "toy"
    path.write_text("mine")
    done = run("--output_dir", path, "--train", 5, "--validation", 1, "--test", 1)
    assert done.returncode == 2
    assert str(path) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert path.read_text() == "mine"

"""The toy corpora: correct German, one translation for each sentence, and held-out combinations that stay held out.

The German here is written by hand; none of it was copied from the generator's output.
"""

import json
import random
import re
from collections import Counter

import pytest
import toy_corpus as toy
from helpers import call, run_python, tree

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


PLAIN, YES_NO, WHERE = "{a}. | {a}.", "{a:question}? | {a:inverted}?", "where {a:question}? | wo {a:inverted}?"
BECAUSE = "{a} because {b}. | {a}, weil {b:final}."
TIRED = ("tired", "müde")
SENTENCES = [
    # verb second, and inversion after an adverbial
    ("Today the old man sees the dog.", "Heute sieht der alte Mann den Hund.", "{a:time_first}. | {a:time_first}.",
     clause("the old man", "see", "the dog", time=("today", "heute"))),
    ("In the forest a white horse runs.", "Im Wald läuft ein weißes Pferd.", "{a:place_first}. | {a:place_first}.",
     clause("a white horse", "run", place=("in the forest", "in dem Wald"))),
    ("The mice run into the house.", "Die Mäuse laufen ins Haus.", PLAIN,
     clause("the mouse+", "run", place=("into the house", "in das Haus"))),
    ("Every young doctor works for you every day.", "Jeder junge Arzt arbeitet jeden Tag für dich.", PLAIN,
     clause("every young doctor", "work", place=("for you", "für dich"), time=("every day", "jeden Tag"))),
    # perfect with haben and sein, separable and inseparable verbs
    ("The woman gave a poor child her apple.", "Die Frau hat einem armen Kind ihren Apfel gegeben.", PLAIN,
     clause("the woman", "give", "a poor child", "her apple", tense="past")),
    ("She called her aunt yesterday.", "Sie hat gestern ihre Tante angerufen.", PLAIN,
     clause("she", "call", "her aunt", tense="past", time=("yesterday", "gestern"))),
    ("The doctor invites the boy.", "Der Arzt lädt den Jungen ein.", PLAIN, clause("the doctor", "invite", "the boy")),
    ("An old lamp fell asleep.", "Eine alte Lampe ist eingeschlafen.", PLAIN,
     clause("a old lamp", "fall asleep", tense="past")),
    # negation: kein, nicht, and must not
    ("My brother does not buy expensive books.", "Mein Bruder kauft keine teuren Bücher.", PLAIN,
     clause("my brother", "buy", "- expensive book+", negated=True)),
    ("The king does not know the farmer.", "Der König kennt den Bauern nicht.", PLAIN,
     clause("the king", "know", "the farmer", negated=True)),
    ("The princess must not open this box.", "Die Prinzessin darf diese Kiste nicht aufmachen.", PLAIN,
     clause("the princess", "open", "this box", tense="must", negated=True)),
    ("The bear did not help a friendly lion.", "Der Bär hat keinem freundlichen Löwen geholfen.", PLAIN,
     clause("the bear", "help", "a friendly lion", tense="past", negated=True)),
    ("I cannot find him.", "Ich kann ihn nicht finden.", PLAIN, clause("I", "find", "he", tense="can", negated=True)),
    ("The boys do not work in this room.", "Die Jungen arbeiten nicht in diesem Zimmer.", PLAIN,
     clause("the boy+", "work", negated=True, place=("in this room", "in diesem Zimmer"))),
    # subordinate clauses: verb last, the separable verb in one word
    ("The girl sleeps because she calls you.", "Das Mädchen schläft, weil sie dich anruft.", BECAUSE,
     clause("the girl", "sleep"), clause("she", "call", "you")),
    ("If you are tired, we cook a potato.", "Wenn du müde bist, kochen wir eine Kartoffel.",
     "if {b}, {a}. | wenn {b:final}, {a:inverted}.", clause("we", "cook", "a potato"),
     clause("you", "be", place=TIRED)),
    ("When I slept, the wine was tired.", "Als ich geschlafen habe, war der Wein müde.",
     "when {b}, {a}. | als {b:final}, {a:inverted}.", clause("the wine", "be", tense="past", place=TIRED),
     clause("I", "sleep", tense="past")),
    ("The aunt said that he will tidy the room.", "Die Tante hat gesagt, dass er das Zimmer aufräumen wird.",
     "{a} that {b}. | {a}, dass {b:final}.", clause("the aunt", "say", tense="past"),
     clause("he", "tidy", "the room", tense="will")),
    # pronouns that agree with their noun, relative clauses
    ("The boy sells the clock because it is tired.", "Der Junge verkauft die Uhr, weil sie müde ist.", BECAUSE,
     clause("the boy", "sell", "the clock"), clause(it("the clock"), "be", place=TIRED)),
    ("He looks for his hat, but he does not find it.", "Er sucht seinen Hut, aber er findet ihn nicht.",
     "{a}, but {b}. | {a}, aber {b}.", clause("he", "look for", "his hat"),
     clause("he", "find", it("his hat"), negated=True)),
    ("The woman bought the dress, and she washed it.", "Die Frau hat das Kleid gekauft und sie hat es gewaschen.",
     "{a}, and {b}. | {a} und {b}.", clause("the woman", "buy", "the dress", tense="past"),
     clause(it("the woman"), "wash", it("the dress"), tense="past")),
    ("I see the man who helps the children.", "Ich sehe den Mann, der den Kindern hilft.", "{a} {b}. | {a}, {b:final}.",
     clause("I", "see", "the man"), clause(it("the man", "relative"), "help", "the child+")),
    ("I see the children whom you thank.", "Ich sehe die Kinder, denen du dankst.", "{a} {b}. | {a}, {b:final}.",
     clause("I", "see", "the child+"), clause("you", "thank", gap=it("the child+", "relative"))),
    # questions
    ("Which beautiful dress do you want to buy?", "Welches schöne Kleid willst du kaufen?", YES_NO,
     clause("you", "buy", tense="want", gap=nominal("which beautiful dress"))),
    ("Did the lions follow two small birds?", "Sind die Löwen zwei kleinen Vögeln gefolgt?", YES_NO,
     clause("the lion+", "follow", "two small bird+", tense="past")),
    ("Where do your sisters live?", "Wo wohnen deine Schwestern?", WHERE, clause("your sister+", "live")),
]  # fmt: skip


@pytest.mark.parametrize(("english", "german", "form", "clauses"), [(*row[:3], row[3:]) for row in SENTENCES])
def test_sentences_translated_by_hand(english, german, form, clauses):
    assert write(form, **dict(zip("ab", clauses, strict=False))) == (english, german)


# A der-word, an ein-word and no article (or a number), in nominative, accusative and dative: the school-book tables.
PARADIGMS = {
    "the old dog": "der alte Hund, den alten Hund, dem alten Hund",
    "this old cat": "diese alte Katze, diese alte Katze, dieser alten Katze",
    "every old book": "jedes alte Buch, jedes alte Buch, jedem alten Buch",
    "the old book+": "die alten Bücher, die alten Bücher, den alten Büchern",
    "this old dog+": "diese alten Hunde, diese alten Hunde, diesen alten Hunden",
    "a old dog": "ein alter Hund, einen alten Hund, einem alten Hund",
    "my old cat": "meine alte Katze, meine alte Katze, meiner alten Katze",
    "our old book": "unser altes Buch, unser altes Buch, unserem alten Buch",
    "her old cat+": "ihre alten Katzen, ihre alten Katzen, ihren alten Katzen",
    "- hot coffee": "heißer Kaffee, heißen Kaffee, heißem Kaffee",
    "- fresh milk": "frische Milch, frische Milch, frischer Milch",
    "- cold water": "kaltes Wasser, kaltes Wasser, kaltem Wasser",
    "- old shoe+": "alte Schuhe, alte Schuhe, alten Schuhen",
    "two tired uncle+": "zwei müde Onkel, zwei müde Onkel, zwei müden Onkeln",
    "the young boy": "der junge Junge, den jungen Jungen, dem jungen Jungen",
    "the dark park+": "die dunklen Parks, die dunklen Parks, den dunklen Parks",
}


@pytest.mark.parametrize("text", PARADIGMS)
def test_noun_phrases_follow_the_declension_tables(text):
    cases = ("nominative", "accusative", "dative")
    assert [nominal(text).german(case) for case in cases] == PARADIGMS[text].split(", ")


PRESENT = {
    "see": "sehe siehst sieht sehen",
    "meet": "treffe triffst trifft treffen",
    "forget": "vergesse vergisst vergisst vergessen",
    "dance": "tanze tanzt tanzt tanzen",
    "find": "finde findest findet finden",
    "wash": "wasche wäschst wäscht waschen",
    "invite": "lade lädst lädt laden",
    "run": "laufe läufst läuft laufen",
    "eat": "esse isst isst essen",
    "be": "bin bist ist sind",
}


@pytest.mark.parametrize("verb", PRESENT)
def test_present_tense(verb):
    found = [clause(person, verb).german().split()[1] for person in ("I", "you", "he", "we")]
    assert found == PRESENT[verb].split()


# ------------------------------------------------------------------------------------------------------- the corpora

ARTICLES = {
    "der|den|dem": "Mann Junge König Arzt Hund Vogel Löwe Tisch Brief Hut Mantel Apfel Käse Wein Garten Park",
    "die|der": "Frau Königin Schwester Katze Maus Lampe Tasche Uhr Birne Suppe Milch Küche Stadt Schule",
    "das|dem": "Kind Pferd Schwein Bett Buch Kleid Ei Brot Wasser Haus Dorf Schloss",
}
GOVERNMENT = {"hinter|vor|neben|auf|unter|mit|aus": r"\w*(em|er|en)", "durch|ohne|für": r"(?!dem|der)\w*(?<!em|er)"}


@pytest.fixture(scope="module")
def german(corpus):
    return " ".join(german for _, german in corpus["train"])


@pytest.mark.parametrize(("articles", "nouns"), ARTICLES.items())
def test_articles_agree_with_the_gender_of_the_noun(german, articles, nouns):
    before = re.compile(rf"(?<!, )\b(der|die|das|dem|den) (?:[a-zäöüß]+ )?(?:{nouns.replace(' ', '|')})\b")
    assert {*before.findall(german)} == {*articles.split("|")}


@pytest.mark.parametrize(("prepositions", "forms"), GOVERNMENT.items())
def test_prepositions_govern_their_case(german, prepositions, forms):
    following = {*re.findall(rf"\b(?:{prepositions}) (?!zwei|drei|unser |und )([a-zäöüß]+) [\w]", german)}
    assert len(following) > 15
    assert {word for word in following if not re.fullmatch(forms, word)} <= {"dieser"}


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


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


def test_every_word_of_the_evaluation_splits_is_frequent_in_training(corpus):
    for side in (0, 1):
        seen = Counter(word for pair in corpus["train"] for word in words(pair[side]))
        tested = {word for name in ("validation", "test") for pair in corpus[name] for word in words(pair[side])}
        assert {word: seen[word] for word in tested if seen[word] < 10} == {}


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


def test_the_domains_share_few_words():
    everyday, travel = (
        {word for _, german in toy.toy_corpus(2_000, 10, 10, domain=name)["train"] for word in words(german)}
        for name in toy.DOMAINS
    )
    assert len(travel & everyday) < 0.15 * len(travel)


def test_more_sentences_than_a_grammar_gives_are_refused():
    with pytest.raises(ValueError, match="at most 200000 sentences, got 1000002"):
        toy.toy_corpus(10**6, 1, 1)


# ----------------------------------------------------------------------------------------------------- command line


def test_command_line_writes_the_corpus_whatever_the_hash_seed(tmp_path):
    options = "--train 30 --validation 4 --test 5 --seed 2 --domain travel --output_dir new/toy"
    assert run_python(toy.__file__, *options.split(), cwd=tmp_path, PYTHONHASHSEED="5").code == 0
    found = tree(tmp_path / "new" / "toy")
    assert len(found) == 3
    for name, pairs in toy.toy_corpus(30, 4, 5, seed=2, domain="travel").items():
        expected = [{"translation": {"en": english, "de": german}} for english, german in pairs]
        assert [json.loads(line) for line in found[f"{name}.jsonl"].splitlines()] == expected


def test_bad_arguments_are_one_line_and_write_nothing(tmp_path):
    done = call(toy.main, "--output_dir", tmp_path / "toy", "--train", 0)
    assert done.error == "train must be at least 1, got 0"
    assert not tree(tmp_path)

"""Synthetic English-German corpora from a small grammar: nothing to download, the same on every machine.

The German is correct and has what makes German hard for a translator: three genders, three cases, three sets of
adjective endings, the verb in second place and at the end, separable verbs, perfects with haben and sein, and an "it"
that has the gender of its noun. The vocabulary is about a hundred words, each English sentence has exactly one
translation ("you" is du, the simple past is the perfect), and the contents are often silly.

What it can show: that a model, its training and its search work, in minutes on a laptop; and whether the model has
learnt rules, because validation and test hold combinations of words that training never shows (`held_out_pairs`).
What it cannot show: how well anything translates real text. A BLEU score on this corpus must never be compared with
one on a real test set.

    python examples/toy_corpus.py --output_dir data/toy
    python examples/toy_corpus.py --output_dir data/travel --domain travel --train 2000

write train.jsonl, validation.jsonl and test.jsonl, a line each like {"translation": {"en": "...", "de": "..."}}. The
words are in toy_grammar/: german.toml for every domain, and a file for each. The second domain is for fine-tuning: it
has the rules of the first and none of its nouns, adjectives and verbs.
"""

import json
import random
import tomllib
from argparse import Namespace
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import check_unused, write_text

Pair = tuple[str, str]  # (English, German)

DOMAINS = ("everyday", "travel")
SPLITS = ("train", "validation", "test")
HELD_OUT_SHARE = 10  # of each verb's objects and each adjective's nouns, one in so many is held out
MIN_WORDS, MAX_WORDS = 3, 16  # of an English sentence
MAX_SENTENCES = 200_000  # in all splits together


def load(name: str) -> dict:
    return tomllib.loads((Path(__file__).parent / "toy_grammar" / f"{name}.toml").read_text(encoding="utf-8"))


GERMAN = load("german")
FINITE, MODALS = ({name: forms.split() for name, forms in GERMAN[table].items()} for table in ("finite", "modals"))
CONJUNCTIONS = GERMAN["conjunctions"]
GENDERS, CASES = ("m", "f", "n", "plural"), ("nominative", "accusative", "dative")
FORMS = (*["statement"] * 8, *["time first"] * 2, *["question"] * 3, *CONJUNCTIONS, "because")
DETERMINERS = (*["the"] * 3, *["a"] * 3, "my", "your", "his", "her", "our")


def spaced(*words: str) -> str:
    return " ".join(filter(None, words))


def sentence(text: str) -> str:
    """The text with its contractions and a capital."""
    text = f" {text}"
    for full, contracted in GERMAN["contractions"].items():
        text = text.replace(full, contracted)
    return text[1].upper() + text[2:]


# ------------------------------------------------------------------------------------------------------ the words


class Noun(NamedTuple):
    english: str
    english_plural: str
    gender: str
    german: str
    german_plural: str
    kind: str
    is_weak: bool = False

    def declined(self, case: str, gender: str) -> str:
        if gender == "plural":
            return self.german_plural + "n" * (case == "dative" and self.german_plural[-1] not in "ns")
        return self.german_plural if self.is_weak and case != "nominative" else self.german


class Adjective(NamedTuple):
    english: str
    german: str
    kinds: list[str]


class Verb(NamedTuple):
    base: str
    english: dict[str, tuple]  # by tense: auxiliary by person, verb by person without one, verb after one
    german: dict[str, tuple]  # by tense: finite verb by person, and the particle, participle or infinitive
    subjects: list[str]  # the kinds of nouns that it may have
    case: str = ""
    objects: Sequence[str] = ()
    flag: str = ""


def make_verb(english: str, german: str, subjects: str, object: str, flag: str = "") -> Verb:
    """A verb from its row; the present tense and the perfect follow from three forms."""
    base, third, past = english.split(", ")
    infinitive, er_form, perfect = german.split(", ")
    er_form, _, particle = er_form.partition(" ")
    auxiliary, participle = perfect.split()
    plural = infinitive.removeprefix(particle)
    du_form = er_form if er_form[-2] in "szß" else er_form[:-1] + "st"
    english_forms = {name: ((name,) * 4, (), base) for name in MODALS}
    english_forms["present"] = FINITE["do"], (base, base, third, base), base
    english_forms["past"] = FINITE["did"], (past,) * 4, base
    german_forms = {name: (forms, infinitive) for name, forms in MODALS.items()}
    german_forms["present"] = (plural[:-1], du_form, er_form, plural), particle
    german_forms["past"] = FINITE[auxiliary], participle
    case, *objects = object.split()
    return Verb(base, english_forms, german_forms, subjects.split(), case, objects, flag)


TO_BE = Verb(
    "be",
    {"present": (FINITE["am"], (), ""), "past": (FINITE["was"], (), "")},
    {"present": (FINITE["ist"], ""), "past": (FINITE["war"], "")},
    ["person", "animal", "food", "thing", "place"],
)


class Grammar:
    """The words of a domain."""

    def __init__(self, domain: str):
        nouns, adjectives, verbs = (
            [[field.strip() for field in line.split(";")] for line in table.strip().splitlines()]
            for table in load(domain).values()
        )
        self.nouns = [Noun(*" ".join(row).split()) for row in nouns]
        self.adjectives = [Adjective(english, german, kinds.split()) for english, german, kinds in adjectives]
        self.verbs = [make_verb(*row) for row in verbs]

    def nouns_of(self, kinds: Sequence[str]) -> list[Noun]:
        return [noun for noun in self.nouns if noun.kind in kinds]


grammar = cache(Grammar)


# -------------------------------------------------------------------------------------------------- the sentences


class Phrase(NamedTuple):
    """A pronoun, or a determiner ("": none), perhaps an adjective, and a noun."""

    english: str
    german: dict[str, str]  # by case
    person: int
    gender: str = ""
    noun: Noun | None = None
    with_kein: dict[str, str] = {}  # what an indefinite phrase is in a negated clause


def pronoun(english: str, german: str, person: int) -> Phrase:
    return Phrase(english, {"nominative": german}, person)


def noun_phrase(determiner: str, adjective: Adjective | None, noun: Noun, is_plural: bool) -> Phrase:
    gender = "plural" if is_plural else noun.gender
    column = GENDERS.index(gender)

    def german(determiner: str) -> dict[str, str]:
        words = {}
        for case in CASES:
            family = determiner and ("the" if determiner == "the" else "a")
            endings = GERMAN[case][f"adjective_after_{family}" if family else "adjective_alone"]
            own = GERMAN[case][family].split()[column].strip("-") if family else ""
            described = adjective.german.removesuffix("e") + endings.split()[column] if adjective else ""
            words[case] = spaced(GERMAN["stems"].get(determiner, "") + own, described, noun.declined(case, gender))
        return words

    english = spaced(
        determiner, adjective.english if adjective else "", noun.english_plural if is_plural else noun.english
    )
    with_kein = german("no") if determiner in ("a", "") else {}
    return Phrase(english, german(determiner), 2 + is_plural, gender, noun, with_kein)


class Clause(NamedTuple):
    """Who does what, and where or what somebody is, and when."""

    subject: Phrase
    verb: Verb
    tense: str
    negated: bool = False
    object: Phrase | None = None
    rest: Pair = ("", "")
    time: Pair = ("", "")

    def english(self, order: str = "statement") -> str:
        auxiliaries, finite, verb = self.verb.english[self.tense]
        auxiliary = auxiliaries[self.subject.person]
        if finite and not (self.negated or order == "question"):
            auxiliary, verb = "", finite[self.subject.person]
        first, second = (auxiliary, self.subject.english)[:: 1 if order == "question" else -1]
        middle = first, second, "not" if self.negated else "", verb, self.object.english if self.object else ""
        if order == "time first":
            return spaced(self.time[0], *middle, self.rest[0])
        return spaced(*middle, self.rest[0], self.time[0])

    def german(self, order: str = "statement") -> str:
        finite, closing = self.verb.german[self.tense]
        finite, subject, time = finite[self.subject.person], self.subject.german["nominative"], self.time[1]
        kein = self.object.with_kein if self.object and self.negated else {}
        object = (kein or self.object.german)[self.verb.case] if self.object else ""
        middle = object, "nicht" if self.negated and not kein else "", self.rest[1]
        if order == "question":
            return spaced(finite, subject, time, *middle, closing)
        if order == "time first":
            return spaced(time, finite, subject, *middle, closing)
        if order == "final":  # a separable verb is one word there: "anruft"
            joint = "" if self.tense == "present" else " "
            return spaced(subject, time, *middle, f"{closing}{joint}{finite}".strip())
        return spaced(subject, finite, time, *middle, closing)


class Sampler:
    """Draws sentences.

    After each, `nouns` holds its nouns, and `pairs` each of its verbs and adjectives with the noun it belongs to: a
    verb's object, or None.
    """

    def __init__(self, grammar: Grammar, rng: random.Random):
        self.grammar, self.choose, self.random = grammar, rng.choice, rng.random

    def draw(self) -> Pair:
        self.nouns: set[str] = set()
        self.pairs: list[tuple[str, str | None]] = []
        form = self.choose(FORMS)
        if form not in CONJUNCTIONS:
            clause = self.clause(self.choose(("present", "present", "past", *MODALS)), needs_time=form == "time first")
            end = "?" if form == "question" else "."
            return sentence(clause.english(form) + end), sentence(clause.german(form) + end)
        tense = self.choose(("present", "past"))
        main = self.clause(tense, flags=("that",)) if form == "that" else self.clause(tense)
        thing = main.object.noun if main.object and main.object.noun.kind != "person" else None
        if form == "because" and thing and self.random() < 0.5:  # the man buys a table because it is cheap
            it = pronoun(*GERMAN["pronouns"][main.object.gender])
            other = Clause(it, TO_BE, tense, rest=self.quality(thing))
        else:
            other = self.clause(tense)
        english = f"{main.english()} {form} {other.english()}."
        return sentence(english), sentence(f"{main.german()}, {CONJUNCTIONS[form]} {other.german('final')}.")

    def clause(self, tense: str, flags: Sequence[str] = ("", "moves"), needs_time: bool = False) -> Clause:
        """A clause with a verb of these flags, or with "to be"."""
        verb = self.choose([verb for verb in self.grammar.verbs if verb.flag in flags])
        if tense not in MODALS and "" in flags and self.random() < 0.2:
            verb = TO_BE
        negated = not needs_time and self.random() < 0.2
        if "person" in verb.subjects and self.random() < 0.4:
            subject = pronoun(*self.choose(GERMAN["pronouns"]["subjects"]))
        else:
            subject = self.noun_phrase(verb.subjects)
        object = self.noun_phrase(verb.objects) if verb.objects else None
        rest, time = ("", ""), ("", "")
        if verb is TO_BE:
            rest = self.quality(subject.noun)
        elif not (negated and object) and self.random() < 0.3:
            preposition, german, case = self.choose(GERMAN["places"]["moves" if verb.flag == "moves" else "rests"])
            place = self.noun_phrase(["place"])
            rest = f"{preposition} {place.english}", f"{german} {place.german[case]}"
        self.pairs.append((verb.base, object and object.noun.english))
        if needs_time or (not negated and self.random() < 0.15):
            time = self.choose(GERMAN["times"]["modal" if tense in MODALS else tense])
        return Clause(subject, verb, tense, negated, object, rest, time)

    def noun_phrase(self, kinds: Sequence[str]) -> Phrase:
        noun = self.choose([noun for noun in self.grammar.nouns_of(kinds) if noun.english not in self.nouns])
        self.nouns.add(noun.english)
        is_plural = noun.kind != "place" and self.random() < 0.25
        determiner, adjective = self.choose(DETERMINERS), self.adjective(noun) if self.random() < 0.5 else None
        return noun_phrase("" if is_plural and determiner == "a" else determiner, adjective, noun, is_plural)

    def adjective(self, noun: Noun | None) -> Adjective:
        """An adjective for a noun, or for a person."""
        kind = noun.kind if noun else "person"
        chosen = self.choose([adjective for adjective in self.grammar.adjectives if kind in adjective.kinds])
        self.pairs.append((chosen.english, noun and noun.english))
        return chosen

    def quality(self, noun: Noun | None) -> Pair:
        return self.adjective(noun)[:2]


# ----------------------------------------------------------------------------------------------------- the corpus


def held_out_pairs(seed: int = 0, domain: str = "everyday") -> list[Pair]:
    """The combinations that training never shows: (verb, noun it has as its object) and (adjective, noun).

    Verbs are in their base form, nouns in the singular, all English. A training sentence never contains both words of
    such a pair, in whatever roles; a validation or test sentence has at least one pair in just these roles.
    """
    words, rng = grammar(domain), random.Random(seed)
    partners = [(verb.base, words.nouns_of(verb.objects)) for verb in words.verbs if verb.objects]
    partners += [(adjective.english, words.nouns_of(adjective.kinds)) for adjective in words.adjectives]
    return [
        (word, noun.english)
        for word, nouns in partners
        for noun in rng.sample(nouns, max(1, len(nouns) // HELD_OUT_SHARE))
    ]


def toy_corpus(
    train: int = 20_000, validation: int = 500, test: int = 1_000, seed: int = 0, domain: str = "everyday"
) -> dict[str, list[Pair]]:
    """Draw a corpus: {"train": [(english, german), ...], "validation": [...], "test": [...]}.

    No sentence occurs twice, within a split or in two. The same arguments give the same corpus everywhere.

    Raises:
        ValueError: for more sentences in all than MAX_SENTENCES.
    """
    sizes = dict(zip(SPLITS, (train, validation, test), strict=True))
    if sum(sizes.values()) > MAX_SENTENCES:
        raise ValueError(f"a toy grammar gives at most {MAX_SENTENCES} sentences, got {sum(sizes.values())}: {sizes}")
    held_out = set(held_out_pairs(seed, domain))
    sampler = Sampler(grammar(domain), random.Random(seed))
    seen: set[str] = set()
    corpus: dict[str, list[Pair]] = {name: [] for name in sizes}
    while any(len(corpus[name]) < size for name, size in sizes.items()):
        english, german = sampler.draw()
        if english in seen or not MIN_WORDS <= english.count(" ") + 1 <= MAX_WORDS:
            continue
        if not held_out.isdisjoint(sampler.pairs):
            split = "validation" if len(corpus["validation"]) < validation else "test"
        elif any((word, noun) in held_out for word, _ in sampler.pairs for noun in sampler.nouns):
            continue
        else:
            split = "train"
        if len(corpus[split]) < sizes[split]:
            seen.add(english)
            corpus[split].append((english, german))
    return corpus


def write_corpus(corpus: dict[str, list[Pair]], output_dir: Path) -> list[Path]:
    """Write one JSON lines file per split."""
    output_dir.mkdir(parents=True, exist_ok=True)
    for split, pairs in corpus.items():
        rows = [{"translation": {"en": english, "de": german}} for english, german in pairs]
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        write_text(output_dir / f"{split}.jsonl", "".join(lines))
    return [output_dir / f"{split}.jsonl" for split in corpus]


def write(options: Namespace) -> None:
    check_unused("output_dir", options.output_dir)
    corpus = toy_corpus(options.train, options.validation, options.test, options.seed, options.domain)
    for path in write_corpus(corpus, options.output_dir):
        print(f"{path}: {len(corpus[path.stem])} pairs")


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for train, validation and test.jsonl")
    parser.add_argument("--domain", choices=DOMAINS, default="everyday", help="whose words")
    for name, size in zip(SPLITS, toy_corpus.__defaults__, strict=False):
        parser.add_argument(f"--{name}", type=int, default=size, help=f"{name} pairs")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another corpus")
    run_command(parser, write)

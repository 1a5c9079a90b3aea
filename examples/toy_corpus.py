"""Synthetic English-German corpora from a small grammar: nothing to download, the same on every machine.

Every pair is written by the grammar, none by a person. The German is correct and has what makes German hard for a
translator: three genders, three cases, weak, mixed and strong adjective endings, the verb in second place and at the
end, separable verbs, perfects with haben and sein, pronouns that agree with their noun. The vocabulary is about 250
words, each English sentence has exactly one translation, and the contents are often silly.

What it can show: that a model, its training and its search work, in minutes on a laptop; and whether the model has
learnt rules, because validation and test hold combinations of words that training never shows (`held_out_pairs`).
What it cannot show: how well anything translates real text. There is no ambiguity here, no idiom, no rare word, no
noise and no choice of words; a BLEU score on this corpus must never be compared with one on a real test set.

Conventions that make the translation a function of the English: "you" is always du; a teacher or a doctor is always
der Lehrer, der Arzt; the simple past is always the German perfect, save for "was", which is war; an adverbial that
stands first in English stands first in German.

    python examples/toy_corpus.py --output_dir data/toy
    python examples/toy_corpus.py --output_dir data/travel --domain travel --train 2000

write train.jsonl, validation.jsonl and test.jsonl, a line each like {"translation": {"en": "...", "de": "..."}}. The
second domain, announcements of a travel agency, is for fine-tuning: it shares almost no word with the first.

The words and the rules are in toy_grammar/: german.toml for every domain, and one file for each. A rule there has forms
"English | German", in which a slot like {head:nominative} names a role and the form that it takes. Each role is drawn
by the method of `Sampler` that its specification names, in the order of the file, and may refer to those before it:

    head.noun = {kinds = "person", determiners = "the"}
    b.clause = {subject = {relative = "head"}}
"""

import json
import random
import re
import tomllib
from argparse import Namespace
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import write_files

Pair = tuple[str, str]  # (English, German)
Forms = tuple[str, ...]

DOMAINS = ("everyday", "travel")
SPLITS = ("train", "validation", "test")
HELD_OUT_SHARE = 12  # of each verb's objects and each adjective's nouns, one in so many is held out
MIN_WORDS, MAX_WORDS = 4, 20  # of an English sentence
MAX_SENTENCES = 200_000  # in all splits together


def _load(name: str) -> dict:
    return tomllib.loads((Path(__file__).parent / "toy_grammar" / f"{name}.toml").read_text(encoding="utf-8"))


def _words(text: str) -> Forms:
    return tuple("" if word == "-" else word for word in text.split())


def _split(table: dict[str, str]) -> dict[str, Forms]:
    return {name: _words(text) for name, text in table.items()}


_GERMAN = _load("german")
_CHOICES, _FINITE, _PRONOUNS = (_split(_GERMAN[table]) for table in ("choices", "finite", "pronouns"))
_ORDERS = {language: _split(orders) for language, orders in _GERMAN["orders"].items()}
_CASES, _GENDERS = ("nominative", "accusative", "dative"), ("m", "f", "n", "plural")
_MODALS = ("can", "must", "should", "will")
_SLOT = re.compile(r"{(\w+):?(\w*)}")  # the name of a role, and the form that it takes


# ---------------------------------------------------------------------------------------------------------- words


class Noun(NamedTuple):
    english: str
    english_plural: str  # "": none
    gender: str
    german: str
    german_plural: str
    kinds: Forms

    def inflect(self, case: str, plural: bool) -> str:
        """The German form."""
        if plural:
            return self.german_plural + "n" * (case == "dative" and self.german_plural[-1] not in "ns")
        return self.german_plural if "weak" in self.kinds and case != "nominative" else self.german


class Adjective(NamedTuple):
    word: str
    predicate: str
    stem: str
    kinds: Forms


class Verb(NamedTuple):
    base: str
    english: dict[str, tuple[Forms, Forms, str]]  # by tense: auxiliary, finite verb without one, verb after one
    german: dict[str, tuple[Forms, str]]  # by tense: finite verb, and the particle, participle or infinitive
    case: str
    objects: str  # the kinds of nouns that it may have
    subjects: str
    places: Forms  # the phrases that may follow
    flags: str


def _verb(english: str, german: str, case: str, objects: str, subjects: str, places: str, flags: str) -> Verb:
    """A verb from its row; the present tense and the perfect follow from three forms."""
    base, third, past = english.split(", ")
    infinitive, er_form, perfect = german.split(", ")
    er_form, _, particle = er_form.partition(" ")
    auxiliary, participle = perfect.split()
    plural = infinitive.removeprefix(particle)
    du_form = er_form if er_form[-2] in "szß" else er_form[:-1] + "st"
    want = f"want to {base}"
    english_forms = {name: ((name,) * 4, (), base) for name in _MODALS}
    english_forms["present"] = _FINITE["do"], (base, base, third, base), base
    english_forms["past"] = _FINITE["did"], (past,) * 4, base
    english_forms["want"] = _FINITE["do"], (want, want, f"wants to {base}", want), want
    german_forms = {name: (_FINITE[name], infinitive) for name in (*_MODALS, "must not", "want")}
    german_forms["present"] = (plural[:-1], du_form, er_form, plural), particle
    german_forms["past"] = _FINITE["sein" if auxiliary == "ist" else "haben"], participle
    return Verb(base, english_forms, german_forms, case, objects, subjects, tuple(places.split()), flags)


def _to_be(subjects: str) -> Verb:
    """To be, which needs no other auxiliary."""
    english = {"present": (_FINITE["am"], (), ""), "past": (_FINITE["was"], (), "")}
    german = {"present": (_FINITE["sein"], ""), "past": (_FINITE["war"], "")}
    return Verb("be", english, german, "be", "", subjects, ("quality",), "! stative")


# ---------------------------------------------------------------------------------------------------------- rules


def _rules(forms: list[str], weight: int = 1, **roles: dict | list) -> list[tuple[list[str], dict]]:
    """The English and the German pattern of each form, as often as it weighs, and the specification of each role.

    A form without German is the same in both languages.
    """
    return [(form.split(" | "), roles) for form in forms for _ in range(weight)]


def _rows(table: str) -> list[list[str]]:
    return [[field.strip() for field in line.split(";")] for line in table.strip().splitlines()]


class Grammar:
    """The words and the rules of a domain."""

    def __init__(self, domain: str):
        data = _load(domain)
        self.nouns_of, self.verbs_for = cache(self._nouns_of), cache(self._verbs_for)
        self.nouns = [Noun(*_words(row[0]), *_words(row[1]), _words(row[2])) for row in _rows(data["nouns"])]
        self.adjectives = [Adjective(*row[:3], _words(row[3])) for row in _rows(data["adjectives"])]
        self.qualities = {noun: [adj for adj in self.adjectives if noun.kinds[0] in adj.kinds] for noun in self.nouns}
        self.person = next((noun for noun in self.nouns if "person" in noun.kinds), None)  # stands for "I", "who" ...
        kinds = " ".join(noun.kinds[0] for noun in self.nouns)
        self.verbs = [_to_be(kinds), *(_verb(*row) for row in _rows(data["verbs"]))]
        self.rules = {
            name: [rule for entry in entries for rule in _rules(**entry)] for name, entries in data["phrases"].items()
        }

    def _nouns_of(self, kinds: str) -> tuple[Noun, ...]:
        """The nouns of any of the kinds, in the order of the file."""
        return tuple(noun for noun in self.nouns if set(kinds.split()) & set(noun.kinds))

    def _verbs_for(self, names: str, subject: Noun | None, object: Noun | None) -> list[Verb]:
        """The verbs of these bases or cases that may have this subject and this object; if there is none, "to be"."""
        verbs = [verb for verb in self.verbs if {verb.base, verb.case} & set(names.split())]
        verbs = [verb for verb in verbs if subject is None or subject in self.nouns_of(verb.subjects)]
        return [verb for verb in verbs if object is None or object in self.nouns_of(verb.objects)] or self.verbs[:1]


grammar = cache(Grammar)


# -------------------------------------------------------------------------------------------------------- phrases


def _spaced(*words: str) -> str:
    return " ".join([word for word in words if word])


@cache
def german_determiner(determiner: str, case: str, gender: str) -> Pair:
    """The German determiner with its ending, and the ending of an adjective after it."""
    family = next(family for family in _GERMAN["determiners"].values() if determiner in family["stems"])
    own, adjective = (_words(family[case][part])[_GENDERS.index(gender)] for part in ("own", "adjective"))
    return family["stems"][determiner] + own, adjective


class Nominal(NamedTuple):
    """A determiner ("": none), perhaps an adjective, and a noun; or a pronoun, perhaps with the noun that it takes up.

    Of a pronoun the forms are the English subject and object, the three German cases, and the person: 0 ich, 1 du,
    2 er, 3 wir and sie.
    """

    noun: Noun | None
    determiner: str = ""
    adjective: Adjective | None = None
    plural: bool = False
    pronoun: Forms = ()

    @property
    def gender(self) -> str:
        return "plural" if self.plural else self.noun.gender

    @property
    def person(self) -> int:
        return int(self.pronoun[-1]) if self.pronoun else 2 + self.plural

    @property
    def is_indefinite(self) -> bool:
        return not self.pronoun and self.determiner in ("a", "")

    def english(self, case: str = "nominative") -> str:
        if self.pronoun:
            return self.pronoun[case != "nominative"]
        determiner = "these" if self.plural and self.determiner == "this" else self.determiner
        adjective = self.adjective.word if self.adjective else ""
        return _spaced(determiner, adjective, self.noun.english_plural if self.plural else self.noun.english)

    def german(self, case: str = "nominative", negated: bool = False) -> str:
        """The words in `case`. In a negated clause an indefinite phrase takes kein."""
        if self.pronoun:
            return self.pronoun[2 + _CASES.index(case)]
        determiner = "no" if negated and self.is_indefinite else self.determiner
        determiner, ending = german_determiner(determiner, case, self.gender)
        adjective = self.adjective.stem + ending if self.adjective else ""
        return _spaced(determiner, adjective, self.noun.inflect(case, self.plural))


def pronoun(name: str) -> Nominal:
    """A personal or interrogative pronoun by its English form."""
    return Nominal(None, pronoun=_PRONOUNS[name])


class Clause(NamedTuple):
    """Who does what to whom, when and where; `english` and `german` put it into an order of german.toml."""

    subject: Nominal
    verb: Verb
    tense: str = "present"
    negated: bool = False
    object: Nominal | None = None
    gap: Sequence[tuple[Nominal, str]] = ()  # the object with its case, if it stands before the subject
    objects: Sequence[tuple[Nominal, str]] = ()  # those behind the verb
    place: Pair = ("", "")
    time: Pair = ("", "")

    def english(self, order: str = "statement") -> str:
        auxiliaries, finite, verb = self.verb.english[self.tense]
        auxiliary = auxiliaries[self.subject.person]
        if finite and not (self.negated or order == "question"):
            auxiliary, verb = "", finite[self.subject.person]
        parts = {
            "gap": _spaced(*[phrase.english("accusative") for phrase, _ in self.gap]),
            "subject": self.subject.english(),
            "auxiliary": auxiliary,
            "not": "not" if self.negated else "",
            "verb": verb,
            "objects": _spaced(*[phrase.english("accusative") for phrase, _ in self.objects]),
            "place": self.place[0],
            "time": self.time[0],
        }
        return _spaced(*[parts[name] for name in _ORDERS["english"][order]])

    def german(self, order: str = "second") -> str:
        finite, closing = self.verb.german["must not" if self.negated and self.tense == "must" else self.tense]
        finite = finite[self.subject.person]
        # A separable verb is written as one word when it comes to stand together: "anruft".
        joint = "" if self.tense == "present" else " "
        kein = self.negated and any(phrase.is_indefinite for phrase, _ in self.objects)
        pronouns = [phrase.german(case) for phrase, case in self.objects if phrase.pronoun]
        nouns = [phrase.german(case, self.negated) for phrase, case in self.objects if not phrase.pronoun]
        parts = {
            "gap": _spaced(*[phrase.german(case) for phrase, case in self.gap]),
            "subject": self.subject.german(),
            "finite": finite,
            "pronouns": _spaced(*pronouns),
            "time": self.time[1],
            "objects": _spaced(*nouns),
            "not": "nicht" if self.negated and not kein else "",
            "place": self.place[1],
            "closing": closing,
            "verbs": f"{closing}{joint}{finite}".strip(),
        }
        return _spaced(*[parts[name] for name in _ORDERS["german"][order]])


Role = Nominal | Clause | Pair


def fill(pattern: str, language: str, roles: dict[str, Role]) -> str:
    """The pattern with each of its slots filled in, "english" or "german"."""

    def write(slot: re.Match) -> str:
        role, form = roles[slot[1]], slot[2]
        if type(role) is tuple:
            return role[language == "german"]
        return getattr(role, language)(*[form] * bool(form))

    return _SLOT.sub(write, pattern)


def sentence(text: str) -> str:
    """The text with its contractions and a capital."""
    text = " " + text
    for full, contracted in _GERMAN["contractions"].items():
        text = text.replace(full, contracted)
    return text[1].upper() + text[2:]


# ------------------------------------------------------------------------------------------------------- sampling


class Sampler:
    """Draws sentences.

    After each, `nouns` holds its nouns, and `pairs` each of its verbs and adjectives with the noun it belongs to: a
    verb's object, or None. The methods from `clause` on draw a role by its specification; `roles` are those drawn
    before it, and "order" is the German form of this one.
    """

    def __init__(self, grammar: Grammar, rng: random.Random):
        self.grammar, self.random = grammar, rng.random

    def draw(self) -> Pair:
        self.nouns: list[str] = []
        self.pairs: list[tuple[str, str | None]] = []
        english, german = self.phrase("sentence", {})
        return sentence(english), sentence(german)

    def _choose(self, items: Sequence):
        return items[int(self.random() * len(items))]  # thrice as fast as random.choice

    def _role(self, spec: dict | list, roles: dict) -> Role:
        """Draw a role by its specification, or by one of a list."""
        [(method, told)] = (self._choose(spec) if isinstance(spec, list) else spec).items()
        return getattr(self, method)(told, roles)

    def _noun_phrase(
        self, kinds: str, determiners: str = "singular", adjective: float = 0.5, plural: float = 0.3
    ) -> Nominal:
        noun = self._choose(self.grammar.nouns_of(kinds))
        while noun.english in self.nouns:  # no noun twice in a sentence: what "it" stands for must be plain
            noun = self._choose(self.grammar.nouns_of(kinds))
        self.nouns.append(noun.english)
        is_plural = noun.english_plural != "" and self.random() < plural
        if determiners in ("singular", "singular_subject") and (is_plural or "mass" in noun.kinds):
            determiners = "plural" if is_plural else "mass"
        chosen = self._adjective(noun) if self.random() < adjective else None
        return Nominal(noun, self._choose(_CHOICES[determiners]), chosen, is_plural)

    def _adjective(self, noun: Noun | None) -> Adjective:
        adjective = self._choose(self.grammar.qualities[noun or self.grammar.person])
        self.pairs.append((adjective.word, noun and noun.english))
        return adjective

    def _subject(self, verb: Verb, negated: bool, order: str) -> Nominal:
        if "person" in verb.subjects and self.random() < 0.45:
            # "anrufst" and its like would be too rare to learn.
            third = order == "final" and verb.german["present"][1]
            return pronoun(self._choose(_CHOICES["third" if third else "subject"]))
        # "every man does not" is ambiguous.
        return self._noun_phrase(verb.subjects, "definite" if negated else "singular_subject")

    def _object(self, kinds: str, subject: Nominal, negated: bool, order: str) -> Nominal:
        # Unless a noun subject begins the clause, German may put an object pronoun on either side of it: left out.
        allowed = subject.pronoun or order in ("", "second", "predicate")
        if allowed and "person" in kinds and self.random() < 0.2:
            return pronoun(self._choose(_CHOICES.get(f"object_{subject.english()}", _CHOICES["object"])))
        phrase = self._noun_phrase(kinds, "definite" if negated and self.random() < 0.4 else "singular")
        if negated and phrase.determiner in ("two", "three"):  # "does not see two dogs" may be said of one who sees one
            return phrase._replace(determiner="")
        return phrase

    def clause(self, spec: dict, roles: dict) -> Clause:
        """A clause. What the specification leaves open is drawn to fit the verb."""
        order, adverbs = roles["order"], spec.get("adverbs", True)
        negated = self.random() < spec.get("negated", 0.2)
        subject = self._role(spec["subject"], roles) if "subject" in spec else None
        given = spec.get("gap") or spec.get("object")
        object = self._role(given, roles) if given else None
        verb = self._verb(spec, roles, subject, object)
        subject = subject or self._subject(verb, negated, order)
        objects = []
        if verb.case == "both":
            objects = [(self._object("person animal", subject, negated, order), "dative")]
        if verb.objects:
            object = object or self._object(verb.objects, subject, negated, order)
            objects.append((object, "dative" if verb.case == "dative" else "accusative"))
        gap = [objects.pop()] if "gap" in spec else []
        self.pairs.append((verb.base, object.noun.english if object and object.noun else None))
        tense = roles[spec["tense_of"]].tense if "tense_of" in spec else self._tense(spec, verb, subject)
        place = time = ("", "")
        where = spec.get("place") or (self._choose(verb.places) if verb.places else "none")
        # The place of nicht among objects and adverbials is a matter of emphasis: not both.
        free = adverbs and not (negated and verb.objects) and self.random() < 0.35
        if where != "none" and ("place" in spec or "!" in verb.flags or free):
            place = self.phrase(where, {"subject": subject})
        often = spec.get("time", 0.15 * adverbs)
        if often == 1 or (not negated and self.random() < often):
            time = self.phrase(f"time_{tense if tense in ('present', 'past') else 'modal'}", {})
        return Clause(subject, verb, tense, negated, object, gap, objects, place, time)

    def _verb(self, spec: dict, roles: dict, subject: Nominal | None, object: Nominal | None) -> Verb:
        """A verb that fits what is given."""
        names = spec.get("verbs", "none accusative dative both")
        if not object and self.random() < spec.get("copula", 0):
            names = "be"
        who = subject and (subject.noun or self.grammar.person)
        verbs = self.grammar.verbs_for(names, who, object and object.noun)
        verb = self._choose(verbs)
        while "not_verb_of" in spec and verb is roles[spec["not_verb_of"]].verb:
            verb = self._choose(verbs)
        return verb

    def _tense(self, spec: dict, verb: Verb, subject: Nominal) -> str:
        tense = self._choose(spec["tenses"].split() if "tenses" in spec else _CHOICES["tense"])
        limited = "stative" in verb.flags or (subject.noun and subject.noun.kinds[0] == "thing")
        return "present" if limited and tense != "past" else tense

    def noun(self, spec: dict, roles: dict) -> Nominal:
        return self._noun_phrase(**spec)

    def adjective(self, name: str, roles: dict) -> Pair:
        """An adjective for the noun of a role, which stands apart from it."""
        adjective = self._adjective(self.same(name, roles).noun)
        return adjective.word, adjective.predicate

    def pronoun(self, names: str, roles: dict) -> Nominal:
        return pronoun(self._choose(names.split()))

    def same(self, name: str, roles: dict) -> Nominal:
        """The role `name` of the sentence, or the part of one: "a", "a.object"."""
        role, _, part = name.partition(".")
        return getattr(roles[role], part) if part else roles[role]

    def it(self, name: str, roles: dict, table: str = "it") -> Nominal:
        """The personal pronoun that takes up a role again: in German it has the gender of the noun."""
        phrase = self.same(name, roles)
        if phrase.pronoun:
            return phrase
        kind = "person" if "person" in phrase.noun.kinds else "thing"
        return Nominal(phrase.noun, pronoun=_words(_GERMAN[table][kind][phrase.gender]))

    def relative(self, name: str, roles: dict) -> Nominal:
        return self.it(name, roles, "relative")

    def phrase(self, name: str, roles: dict) -> Pair:
        """Words by one of the rules of that name."""
        patterns, specs = self._choose(self.grammar.rules[name])
        orders, roles = dict(_SLOT.findall(patterns[-1])), dict(roles)
        for role, spec in specs.items():
            roles["order"] = orders.get(role)
            roles[role] = self._role(spec, roles)
        return fill(patterns[0], "english", roles), fill(patterns[-1], "german", roles)


# --------------------------------------------------------------------------------------------------------- corpus


def held_out_pairs(seed: int = 0, domain: str = "everyday") -> list[Pair]:
    """The combinations that training never shows: (verb, noun it has as its object) and (adjective, noun).

    Verbs are in their base form, nouns in the singular, all English. A training sentence never contains both words of
    such a pair, in whatever roles; a validation or test sentence has at least one pair in just these roles.
    """
    rules, rng = grammar(domain), random.Random(seed)
    partners = [(verb.base, rules.nouns_of(verb.objects)) for verb in rules.verbs if verb.objects]
    partners += [(one.word, [noun for noun in rules.nouns if noun.kinds[0] in one.kinds]) for one in rules.adjectives]
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
        ValueError: if a split has no sentence, or all together more than MAX_SENTENCES.
    """
    sizes = dict(zip(SPLITS, (train, validation, test), strict=True))
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
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
    """Write one JSON lines file per split; each appears only when all of them are complete."""
    contents = {}
    for split, pairs in corpus.items():
        rows = [{"translation": {"en": english, "de": german}} for english, german in pairs]
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        contents[f"{split}.jsonl"] = "".join(lines).encode()
    write_files(output_dir, contents)
    return [output_dir / name for name in contents]


def write(options: Namespace) -> None:
    for split in SPLITS:
        if (path := options.output_dir / f"{split}.jsonl").exists():
            raise ValueError(f"output_dir: {path} is there already; choose another folder")
    corpus = toy_corpus(options.train, options.validation, options.test, options.seed, options.domain)
    for path in write_corpus(corpus, options.output_dir):
        print(f"{path}: {len(corpus[path.stem])} pairs")


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for train, validation and test.jsonl")
    parser.add_argument("--domain", choices=DOMAINS, default="everyday", help="words and rules")
    for name, size in zip(SPLITS, toy_corpus.__defaults__, strict=False):
        parser.add_argument(f"--{name}", type=int, default=size, help=f"{name} pairs")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another corpus")
    run_command(parser, write)

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
    python examples/toy_corpus.py --output_dir data/travel --domain travel

write train.jsonl, validation.jsonl and test.jsonl, a line each like {"translation": {"en": "...", "de": "..."}}. The
second domain, announcements of a travel agency, is for fine-tuning: it shares almost no word with the first.

The words and the rules are in toy_grammar/: german.toml for every domain, and one file for each. A rule there has forms
"English | German", in which a slot like {head:nominative} names a role and the form that it takes. Each role is drawn
by the method of `Sampler` that its specification names, in the order of the file, and may refer to those before it:

    head.noun = {kinds = "person", determiners = "the"}
    b.clause = {subject = {relative = "head"}}
"""

import argparse
import json
import random
import re
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from string import Formatter

from modeling_vanilla.io import one_line_errors, whole_file

Pair = tuple[str, str]  # (English, German)

DOMAINS = ("everyday", "travel")
HELD_OUT_SHARE = 12  # of each verb's objects and each adjective's nouns, one in so many is held out
MIN_WORDS, MAX_WORDS = 4, 20  # of an English sentence
SPLITS = ("train", "validation", "test")


def _load(name: str) -> dict:
    return tomllib.loads((Path(__file__).parent / "toy_grammar" / f"{name}.toml").read_text(encoding="utf-8"))


_GERMAN = _load("german")
_CASES = tuple(_GERMAN["strong"])
_CHOICES = {name: tuple(words.split()) for name, words in _GERMAN["choices"].items()}
_FINITE = {name: tuple(forms.split()) for name, forms in _GERMAN["finite"].items()}
_ORDERS = {
    language: {name: order.split() for name, order in orders.items()} for language, orders in _GERMAN["orders"].items()
}
_BARE = (("nominative", "m"), ("nominative", "n"), ("accusative", "n"))  # where an ein-word has no ending


# ---------------------------------------------------------------------------------------------------------- words


@dataclass(frozen=True, eq=False)
class Noun:
    english: str
    english_plural: str  # "-": none
    gender: str
    german: str
    german_plural: str
    kinds: tuple[str, ...]

    def inflect(self, case: str, plural: bool) -> str:
        """The German form."""
        if plural:
            needs_n = case == "dative" and self.german_plural[-1] not in "ns"
            return self.german_plural + "n" * needs_n
        return self.german_plural if "weak" in self.kinds and case != "nominative" else self.german


@dataclass(frozen=True, eq=False)
class Adjective:
    word: str
    predicate: str
    stem: str
    kinds: tuple[str, ...]

    def english(self, form: str = "") -> str:
        return self.word

    def german(self, ending: str = "") -> str:
        """The form before a noun, or without an ending the one after "to be"."""
        return self.stem + ending if ending else self.predicate


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb. Forms by tense and person; modals take the base and the infinitive."""

    base: str
    english_forms: dict[str, tuple[str, ...]]
    infinitive: str
    german_forms: dict[str, tuple[str, ...]]  # of the finite verb: in the past that of haben or sein
    particle: str  # of a separable verb: "an" in "ruft ... an"
    participle: str
    case: str
    objects: tuple[Noun, ...]
    subjects: tuple[Noun, ...]
    tags: tuple[str, ...]  # the phrases that may follow, "!", "stative"

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(tag for tag in self.tags if tag not in ("!", "stative", "-"))

    def english(self, tense: str, person: int, support: bool) -> Pair:
        """The English auxiliary ("" if there is none) and main verb; `support` asks for do, does or did."""
        if tense not in self.english_forms:
            return tense, self.base
        form = self.english_forms[tense][person]
        if self.base == "be":
            return form, ""
        if not support:
            return "", form
        if tense == "past":
            return "did", self.base
        return "does" if person == 2 else "do", self.english_forms[tense][0]

    def german(self, tense: str, person: int) -> Pair:
        """The finite verb and what closes the clause: a particle, a participle, an infinitive or nothing."""
        if tense in self.german_forms:
            return self.german_forms[tense][person], self.participle if tense == "past" else self.particle
        return _FINITE[tense][person], self.infinitive


def _rows(table: str) -> list[list[str]]:
    return [[field.strip() for field in line.split(";")] for line in table.strip().splitlines()]


@dataclass(frozen=True)
class Rule:
    """A pair of patterns, as string.Formatter parses them, and the specifications of each role."""

    english: list[tuple]
    german: list[tuple]
    roles: dict[str, list[dict]]


class Grammar:
    """The words and the rules of a domain."""

    def __init__(self, domain: str):
        data = _load(domain)
        self.sizes, self.max_sentences = data["sizes"], data["max_sentences"]
        self.nouns = [
            Noun(*english.split(), *german.split(), tuple(kinds.split()))
            for english, german, kinds in _rows(data["nouns"])
        ]
        self.adjectives = [
            Adjective(english, german.split()[0], german.split()[-1], tuple(kinds.split()))
            for english, german, kinds in _rows(data["adjectives"])
        ]
        self.person = next((noun for noun in self.nouns if "person" in noun.kinds), None)  # stands for "I", "who" ...
        self.nouns_of, self.adjectives_of, self.verbs_for = map(cache, (self._nouns, self._adjectives, self._verbs))
        self.be = Verb(
            "be",
            {"present": _FINITE["am"], "past": _FINITE["was"]},
            "sein",
            {"present": _FINITE["sein"], "past": _FINITE["war"]},
            *("", "", "be", ()),
            tuple(self.nouns),
            ("quality", "!", "stative"),
        )
        self.verbs = [self.be, *(self._verb(*row) for row in _rows(data["verbs"]))]
        self.rules = {
            name: [rule for entry in entries for rule in _rules(**entry)] for name, entries in data["phrases"].items()
        }

    def _verb(self, english: str, german: str, case: str, objects: str, subjects: str, tags: str) -> Verb:
        base, third, past = english.split(", ")
        infinitive, er_form, perfect = german.split(", ")
        er_form, _, particle = er_form.partition(" ")
        auxiliary, participle = perfect.split()
        plural = infinitive.removeprefix(particle)
        du_form = er_form if er_form[-2] in "szß" else er_form[:-1] + "st"
        want = f"want to {base}"
        english_forms = {
            "present": (base, base, third, base),
            "past": (past,) * 4,
            "want": (want, want, f"wants to {base}", want),
        }
        german_forms = {
            "present": (plural[:-1], du_form, er_form, plural),
            "past": _FINITE["sein" if auxiliary == "ist" else "haben"],
        }
        nouns = self.nouns_of(objects), self.nouns_of(subjects)
        return Verb(
            base, english_forms, infinitive, german_forms, particle, participle, case, *nouns, tuple(tags.split())
        )

    def _nouns(self, kinds: str) -> tuple[Noun, ...]:
        """The nouns of any of the kinds, in the order of the file."""
        return tuple(noun for noun in self.nouns if set(kinds.split()) & set(noun.kinds))

    def _adjectives(self, noun: Noun) -> tuple[Adjective, ...]:
        return tuple(adjective for adjective in self.adjectives if noun.kinds[0] in adjective.kinds)

    def _verbs(self, names: str, subject: Noun | None, theme: Noun | None) -> tuple[Verb, ...]:
        """The verbs of these bases or cases that may have this subject and this object."""
        return tuple(
            verb
            for verb in self.verbs
            if (verb.base in names.split() or verb.case in names.split())
            and (subject is None or subject in verb.subjects)
            and (theme is None or theme in verb.objects)
        )

    def partners(self) -> list[tuple[str, tuple[Noun, ...]]]:
        """Each verb with the nouns that may be its object, each adjective with those that it may go with."""
        verbs = [(verb.base, verb.objects) for verb in self.verbs if verb.objects]
        return verbs + [
            (adjective.word, tuple(noun for noun in self.nouns if noun.kinds[0] in adjective.kinds))
            for adjective in self.adjectives
        ]


grammar = cache(Grammar)


def _rules(forms: list[str], weight: int = 1, **roles: dict | list) -> list[Rule]:
    """A rule for each form, as often as it weighs; a clause is told the order of words that its German slot names."""
    rules = []
    for form in forms:
        english, _, german = form.partition(" | ")
        patterns = [list(Formatter().parse(text)) for text in (english, german or english)]
        orders = {role: order for _, role, order, _ in patterns[1] if role}
        told = {
            role: [
                {kind: {"order": orders.get(role), **spec} if kind == "clause" else spec}
                for alternative in (specs if isinstance(specs, list) else [specs])
                for kind, spec in alternative.items()
            ]
            for role, specs in roles.items()
        }
        rules += [Rule(*patterns, told)] * weight
    return rules


# -------------------------------------------------------------------------------------------------------- phrases


def definite_article(case: str, gender: str) -> str:
    """der, die, das ...; the plural counts as a fourth gender."""
    ending = _GERMAN["strong"][case][gender]
    return {"e": "die", "es": "das"}.get(ending, "d" + ending)


@cache
def german_determiner(determiner: str, case: str, gender: str) -> Pair:
    """The German determiner, and the ending that an adjective after it takes.

    The strong ending is shown once: by the determiner if it has one, and then the adjective is weak, else by the
    adjective. Der-words always have it; ein-words lack it in three places; numbers and a missing article have none.
    """
    family = next(name for name, words in _GERMAN["determiners"].items() if determiner in words)
    stem, strong = _GERMAN["determiners"][family][determiner], _GERMAN["strong"][case][gender]
    if family == "bare" or (family == "ein" and (case, gender) in _BARE):
        return stem, strong
    weak = "e" if (gender in "fn" and case != "dative") or (case, gender) == ("nominative", "m") else "en"
    return definite_article(case, gender) if determiner == "the" else stem + strong, weak


@dataclass(frozen=True, eq=False)
class Pronoun:
    """A personal, relative or interrogative pronoun, for `noun` if it takes up one; methods as in NounPhrase."""

    subject_form: str
    object_form: str
    german_forms: tuple[str, ...]  # by case
    person: int  # 0 ich, 1 du, 2 er/sie/es, 3 wir and sie
    noun: Noun | None = None
    is_pronoun = True
    is_indefinite = False

    def english(self, form: str = "nominative") -> str:
        return self.subject_form if form == "nominative" else self.object_form

    def german(self, case: str = "nominative") -> str:
        return self.german_forms[_CASES.index(case)]


_PRONOUNS = {
    name: Pronoun(subject, other, tuple(forms), int(person))
    for name, (subject, other, *forms, person) in ((name, row.split()) for name, row in _GERMAN["pronouns"].items())
}


@dataclass(frozen=True, eq=False)
class NounPhrase:
    """A determiner ("-": none), perhaps an adjective, and a noun."""

    determiner: str
    noun: Noun
    adjective: Adjective | None = None
    plural: bool = False
    is_pronoun = False

    @property
    def gender(self) -> str:
        return "plural" if self.plural else self.noun.gender

    @property
    def is_indefinite(self) -> bool:
        return self.determiner in ("a", "-")

    @property
    def person(self) -> int:
        return 3 if self.plural else 2

    def english(self, form: str = "") -> str:
        determiner = "these" if self.plural and self.determiner == "this" else self.determiner.strip("-")
        adjective = self.adjective.english() if self.adjective else ""
        return f"{determiner} {adjective} {self.noun.english_plural if self.plural else self.noun.english}"

    def german(self, case: str = "nominative") -> str:
        determiner, ending = german_determiner(self.determiner, case, self.gender)
        adjective = self.adjective.german(ending) if self.adjective else ""
        return f"{determiner} {adjective} {self.noun.inflect(case, self.plural)}"


Nominal = NounPhrase | Pronoun


def pronoun_for(phrase: Nominal) -> Pronoun:
    """The personal pronoun that takes up `phrase` again: in German it has the gender of the noun."""
    if phrase.is_pronoun:
        return phrase
    if phrase.plural:
        name = "they"
    elif "person" in phrase.noun.kinds and phrase.gender != "n":
        name = "he" if phrase.gender == "m" else "she"
    else:
        name = f"it_{phrase.gender}"
    return replace(_PRONOUNS[name], noun=phrase.noun)


def relative_pronoun(phrase: NounPhrase) -> Pronoun:
    """who, whom or that; der, die, das in the gender and number of `phrase`."""
    forms = [definite_article(case, phrase.gender) for case in _CASES]
    if phrase.plural:
        forms[-1] = "denen"
    english = ("who", "whom") if "person" in phrase.noun.kinds else ("that", "that")
    return Pronoun(*english, tuple(forms), phrase.person, phrase.noun)


@dataclass(frozen=True, eq=False)
class Phrase:
    """A rule whose roles are filled."""

    rule: Rule
    roles: dict

    def english(self, form: str = "") -> str:
        return self._fill(self.rule.english, "english")

    def german(self, form: str = "") -> str:
        return self._fill(self.rule.german, "german")

    def _fill(self, pattern: list[tuple], language: str) -> str:
        text = ""
        for literal, role, form, _ in pattern:
            text += literal
            if role:
                expression = getattr(self.roles[role], language)
                text += expression(form) if form else expression()
        return text


@dataclass(frozen=True, eq=False)
class Clause:
    """Who does what to whom, when and where; `english` and `german` put it into an order of german.toml."""

    subject: Nominal
    verb: Verb
    tense: str = "present"
    negated: bool = False
    recipient: NounPhrase | None = None  # in the dative, beside an object in the accusative
    object: Nominal | None = None
    gap: bool = False  # the object stands first, in a question or a relative clause
    place: Phrase | None = None
    time: Phrase | None = None

    @property
    def objects(self) -> list[tuple[Nominal, str]]:
        """The objects in their places, with their cases."""
        pairs = ((self.recipient, "dative"), (None if self.gap else self.object, self.object_case))
        return [pair for pair in pairs if pair[0]]

    @property
    def object_case(self) -> str:
        return "dative" if self.verb.case == "dative" else "accusative"

    def english(self, order: str = "statement") -> str:
        person = self.subject.person
        auxiliary, verb = self.verb.english(self.tense, person, order == "question" or self.negated)
        parts = {
            "gap": self.object.english("accusative") if self.gap else "",
            "subject": self.subject.english("nominative"),
            "auxiliary": auxiliary,
            "not": "not" if self.negated else "",
            "verb": verb,
            "objects": " ".join(phrase.english("accusative") for phrase, _ in self.objects),
            "place": self.place.english() if self.place else "",
            "time": self.time.english() if self.time else "",
        }
        return " ".join([parts[name] for name in _ORDERS["english"][order]])

    def german(self, order: str = "second") -> str:
        tense = "must not" if self.tense == "must" and self.negated else self.tense
        finite, closing = self.verb.german(tense, self.subject.person)
        # A separable verb is written as one word when it comes to stand together: "anruft".
        joint = "" if tense == "present" and self.verb.particle else " "
        nouns = [(phrase, case) for phrase, case in self.objects if not phrase.is_pronoun]
        kein = self.negated and any(phrase.is_indefinite for phrase, _ in nouns)
        if kein:
            nouns = [(replace(np, determiner="no") if np.is_indefinite else np, case) for np, case in nouns]
        parts = {
            "gap": self.object.german(self.object_case) if self.gap else "",
            "subject": self.subject.german(),
            "finite": finite,
            "pronouns": " ".join([phrase.german(case) for phrase, case in self.objects if phrase.is_pronoun]),
            "time": self.time.german() if self.time else "",
            "objects": " ".join([phrase.german(case) for phrase, case in nouns]),
            "not": "nicht" if self.negated and not kein else "",
            "place": self.place.german() if self.place else "",
            "closing": closing,
            "verbs": closing + joint + finite,
        }
        return " ".join([parts[name] for name in _ORDERS["german"][order]])


def sentence(text: str) -> str:
    """The text with single spaces, contractions and a capital."""
    text = f" {' '.join(text.split())}".replace(" ,", ",").replace(" .", ".").replace(" ?", "?")
    for full, contracted in _GERMAN["contractions"].items():
        text = text.replace(f" {full} ", f" {contracted} ")
    return text[1].upper() + text[2:]


# ------------------------------------------------------------------------------------------------------- sampling


class Sampler:
    """Draws sentences.

    After each, `nouns` and `words` (verbs, adjectives) hold what it is made of, and `pairs` which of them belong
    together: (verb, its object) and (adjective, its noun). The methods from `clause` on draw a role by its
    specification; `roles` are those drawn before it.
    """

    def __init__(self, grammar: Grammar, rng: random.Random):
        self.grammar, self.rng = grammar, rng

    def draw(self) -> Pair:
        self.nouns: list[str] = []
        self.words: list[str] = []
        self.pairs: list[Pair] = []
        drawn = self.phrase("sentence", {})
        english = re.sub(r"\ba(?= +[aeiou])", "an", drawn.english())
        return sentence(english), sentence(drawn.german())

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _pair(self, word: str, noun: Noun | None) -> None:
        self.words.append(word)
        if noun:
            self.pairs.append((word, noun.english))

    def _role(self, spec: dict | list, roles: dict) -> Nominal | Adjective | Phrase | Clause:
        if isinstance(spec, list):
            spec = self.rng.choice(spec)
        ((kind, spec),) = spec.items()
        return getattr(self, kind)(spec, roles)

    def _noun_phrase(
        self, nouns: Sequence[Noun], determiners: str = "", adjective: float = 0.5, plural: float = 0.3
    ) -> NounPhrase:
        noun = self.rng.choice(nouns)
        while noun.english in self.nouns:  # no noun twice in a sentence: what "it" stands for must be plain
            noun = self.rng.choice(nouns)
        self.nouns.append(noun.english)
        is_plural = noun.english_plural != "-" and self._chance(plural)
        if determiners in ("", "singular_subject") and (is_plural or "mass" in noun.kinds):
            determiners = "plural" if is_plural else "mass"
        determiner = self.rng.choice(_CHOICES[determiners or "singular"])
        return NounPhrase(determiner, noun, self._adjective(noun) if self._chance(adjective) else None, is_plural)

    def _adjective(self, noun: Noun | None) -> Adjective:
        adjective = self.rng.choice(self.grammar.adjectives_of(noun or self.grammar.person))
        self._pair(adjective.word, noun)
        return adjective

    def _subject(self, verb: Verb, negated: bool, order: str) -> Nominal:
        if self.grammar.person in verb.subjects and self._chance(0.45):
            # "anrufst" and its like would be too rare to learn.
            third = order == "final" and verb.particle
            return _PRONOUNS[self.rng.choice(_CHOICES["third_pronoun" if third else "subject_pronoun"])]
        # "every man does not" is ambiguous.
        return self._noun_phrase(verb.subjects, "definite" if negated else "singular_subject")

    def _object(self, nouns: Sequence[Noun], subject: Nominal, negated: bool, order: str) -> Nominal:
        # Unless a noun subject begins the clause, German may put an object pronoun on either side of it: left out.
        allowed = subject.is_pronoun or order in ("", "second", "predicate")
        if allowed and self.grammar.person in nouns and self._chance(0.2):
            names = _CHOICES[f"object_pronoun_{subject.person}"]  # "I see us", "you see you" are not said
            return _PRONOUNS[self.rng.choice(names)]
        phrase = self._noun_phrase(nouns, "definite" if negated and self._chance(0.4) else "")
        if negated and phrase.determiner in ("two", "three"):  # "does not see two dogs" may be said of one who sees one
            return replace(phrase, determiner="-")
        return phrase

    def clause(self, spec: dict, roles: dict) -> Clause:
        """A clause. Of what the specification leaves open, all fits the verb."""
        order, adverbs = spec["order"], spec.get("adverbs", True)
        negated = self._chance(spec.get("negated", 0.2))
        subject = self._role(spec["subject"], roles) if "subject" in spec else None
        given = spec.get("gap") or spec.get("object")
        object = self._role(given, roles) if given else None
        verb = self._verb(spec, roles, subject, object)
        subject = subject or self._subject(verb, negated, order)
        recipient = None
        if verb.case == "both":
            nouns = self.grammar.nouns_of("person animal")
            recipient = self._object(nouns, subject, negated, order)
        if verb.objects and not object:
            object = self._object(verb.objects, subject, negated, order)
        self._pair(verb.base, object.noun if object else None)
        tense = roles[spec["tense_of"]].tense if "tense_of" in spec else self._tense(spec, verb, subject)
        place = time = None
        where = spec.get("place") or (self.rng.choice(verb.places) if verb.places else "none")
        # The place of nicht among objects and adverbials is a matter of emphasis: not both.
        free = adverbs and not (negated and verb.objects) and self._chance(0.35)
        if where != "none" and ("place" in spec or "!" in verb.tags or free):
            place = self.phrase(where, {"subject": subject})
        often = spec.get("time", 0.15 * adverbs)
        if often == 1 or (not negated and self._chance(often)):
            time = self.phrase(f"time_{tense if tense in ('present', 'past') else 'modal'}", {})
        return Clause(subject, verb, tense, negated, recipient, object, "gap" in spec, place, time)

    def _verb(self, spec: dict, roles: dict, subject: Nominal | None, object: Nominal | None) -> Verb:
        """A verb that fits what is given; "to be" where there is none."""
        names = spec.get("verbs", "none accusative dative both" if not object else "accusative dative both")
        if not object and self._chance(spec.get("copula", 0)):
            names = "be"
        who = subject and (subject.noun or self.grammar.person)
        verbs = self.grammar.verbs_for(names, who, object.noun if object else None)
        if "not_verb_of" in spec:
            verbs = [verb for verb in verbs if verb is not roles[spec["not_verb_of"]].verb]
        return self.rng.choice(verbs or (self.grammar.be,))

    def _tense(self, spec: dict, verb: Verb, subject: Nominal) -> str:
        tense = self.rng.choice(spec["tenses"].split() if "tenses" in spec else _CHOICES["tense"])
        limited = "stative" in verb.tags or (subject.noun and subject.noun.kinds[0] == "thing")
        return "present" if limited and tense != "past" else tense

    def noun(self, spec: dict, roles: dict) -> NounPhrase:
        spec = dict(spec)
        like = roles[spec.pop("kinds_of")].noun or self.grammar.person if "kinds_of" in spec else None
        kinds = like.kinds[0] if like else spec.pop("kinds")
        return self._noun_phrase(self.grammar.nouns_of(kinds), **spec)

    def adjective(self, name: str, roles: dict) -> Adjective:
        """An adjective for the noun of the role `name`, which stands apart from it."""
        return self._adjective(roles[name].noun)

    def pronoun(self, names: str, roles: dict) -> Pronoun:
        return _PRONOUNS[self.rng.choice(names.split())]

    def same(self, name: str, roles: dict) -> Nominal:
        """The role `name` of the sentence, or the part of one: "a", "a.object"."""
        role, _, part = name.partition(".")
        return getattr(roles[role], part) if part else roles[role]

    def it(self, name: str, roles: dict) -> Pronoun:
        return pronoun_for(self.same(name, roles))

    def relative(self, name: str, roles: dict) -> Pronoun:
        return relative_pronoun(self.same(name, roles))

    def phrase(self, name: str, roles: dict) -> Phrase:
        """A phrase by one of the rules of that name."""
        rule = self.rng.choice(self.grammar.rules[name])
        roles = dict(roles)
        for role, specs in rule.roles.items():
            roles[role] = self._role(specs, roles)
        return Phrase(rule, roles)


# --------------------------------------------------------------------------------------------------------- corpus


def held_out_pairs(seed: int = 0, domain: str = "everyday") -> list[Pair]:
    """The combinations that training never shows: (verb, noun it has as its object) and (adjective, noun).

    Verbs are in their base form, nouns in the singular, all English. A training sentence never contains both words of
    such a pair, in whatever roles; a validation or test sentence has at least one pair in just these roles.
    """
    rng = random.Random(seed)
    return [
        (word, noun.english)
        for word, nouns in grammar(domain).partners()
        for noun in rng.sample(nouns, max(1, len(nouns) // HELD_OUT_SHARE))
    ]


def toy_corpus(
    train: int | None = None,
    validation: int | None = None,
    test: int | None = None,
    seed: int = 0,
    domain: str = "everyday",
) -> dict[str, list[Pair]]:
    """Draw a corpus: {"train": [(english, german), ...], "validation": [...], "test": [...]}.

    No sentence occurs twice, within a split or in two. The same arguments give the same corpus everywhere. A size that
    is not given is the domain's: 20000, 500 and 1000 everyday pairs, 2000, 200 and 500 of travel.

    Raises:
        ValueError: if a split has no sentence, or all together more than the grammar is good for.
    """
    rules = grammar(domain)
    given = dict(zip(SPLITS, (train, validation, test), strict=True))
    sizes = {name: rules.sizes[name] if size is None else size for name, size in given.items()}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    if sum(sizes.values()) > rules.max_sentences:
        total = sum(sizes.values())
        raise ValueError(f"the {domain} grammar gives at most {rules.max_sentences} sentences, got {total}: {sizes}")
    held_out = set(held_out_pairs(seed, domain))
    sampler = Sampler(rules, random.Random(seed))
    seen: set[str] = set()
    corpus: dict[str, list[Pair]] = {name: [] for name in sizes}
    while any(len(corpus[name]) < size for name, size in sizes.items()):
        english, german = sampler.draw()
        if english in seen or not MIN_WORDS <= english.count(" ") + 1 <= MAX_WORDS:
            continue
        if not held_out.isdisjoint(sampler.pairs):
            split = "validation" if len(corpus["validation"]) < sizes["validation"] else "test"
        elif any((word, noun) in held_out for word in sampler.words for noun in sampler.nouns):
            continue
        else:
            split = "train"
        if len(corpus[split]) < sizes[split]:
            seen.add(english)
            corpus[split].append((english, german))
    return corpus


def write_corpus(corpus: dict[str, list[Pair]], output_dir: Path) -> list[Path]:
    """Write one JSON lines file per split; each appears only when all of them are complete."""
    output_dir.mkdir(parents=True, exist_ok=True)
    paths = [output_dir / f"{split}.jsonl" for split in corpus]
    with ExitStack() as stack:
        parts = [stack.enter_context(whole_file(path)) for path in paths]
        for part, pairs in zip(parts, corpus.values(), strict=True):
            rows = [{"translation": {"en": english, "de": german}} for english, german in pairs]
            part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for train, validation and test.jsonl")
    parser.add_argument("--domain", choices=DOMAINS, default="everyday", help="default: %(default)s")
    for name in SPLITS:
        default = " or ".join(f"{_load(domain)['sizes'][name]} ({domain})" for domain in DOMAINS)
        parser.add_argument(f"--{name}", type=int, help=f"{name} pairs (default: {default})")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another corpus (default: %(default)s)")
    options = parser.parse_args()
    with one_line_errors():
        corpus = toy_corpus(options.train, options.validation, options.test, options.seed, options.domain)
        for path, pairs in zip(write_corpus(corpus, options.output_dir), corpus.values(), strict=True):
            print(f"{path}: {len(pairs)} pairs")


if __name__ == "__main__":
    main()

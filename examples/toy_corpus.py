"""A synthetic English-German corpus from a small grammar: nothing to download, the same on every machine.

Every pair is written by the grammar below, none by a person. The German is correct and has what makes German hard for
a translator: three genders, three cases, weak, mixed and strong adjective endings, the verb in second place and at the
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

writes train.jsonl, validation.jsonl and test.jsonl, a line each like {"translation": {"en": "...", "de": "..."}}.
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

Pair = tuple[str, str]  # (English, German)

# One word a line. The lexicon decides what may be said of what, so that sentences stay halfway sensible.

# English singular and plural ("-": no plural); gender, German singular and plural; kinds, the first being what
# adjectives go by. "weak" nouns (n-declension) take their plural form in the accusative and dative singular too.
_NOUNS = """
man men; m Mann Männer; person
woman women; f Frau Frauen; person
child children; n Kind Kinder; person
girl girls; n Mädchen Mädchen; person
boy boys; m Junge Jungen; person weak
king kings; m König Könige; person
queen queens; f Königin Königinnen; person
father -; m Vater -; person
mother -; f Mutter -; person
brother brothers; m Bruder Brüder; person
sister sisters; f Schwester Schwestern; person
uncle uncles; m Onkel Onkel; person
aunt aunts; f Tante Tanten; person
teacher teachers; m Lehrer Lehrer; person
doctor doctors; m Arzt Ärzte; person
farmer farmers; m Bauer Bauern; person weak
baker bakers; m Bäcker Bäcker; person
neighbour neighbours; m Nachbar Nachbarn; person weak
princess princesses; f Prinzessin Prinzessinnen; person
grandmother grandmothers; f Großmutter Großmütter; person
waitress waitresses; f Kellnerin Kellnerinnen; person
dog dogs; m Hund Hunde; animal
cat cats; f Katze Katzen; animal
horse horses; n Pferd Pferde; animal
bird birds; m Vogel Vögel; animal
mouse mice; f Maus Mäuse; animal
bear bears; m Bär Bären; animal weak
duck ducks; f Ente Enten; animal
pig pigs; n Schwein Schweine; animal
lion lions; m Löwe Löwen; animal weak
rabbit rabbits; n Kaninchen Kaninchen; animal
table tables; m Tisch Tische; thing furniture
chair chairs; m Stuhl Stühle; thing furniture repairable
bed beds; n Bett Betten; thing furniture repairable
sofa sofas; n Sofa Sofas; thing furniture
bench benches; f Bank Bänke; thing furniture repairable
lamp lamps; f Lampe Lampen; thing repairable
book books; n Buch Bücher; thing small text
letter letters; m Brief Briefe; thing small text
card cards; f Karte Karten; thing small text
list lists; f Liste Listen; thing small text
key keys; m Schlüssel Schlüssel; thing small
bag bags; f Tasche Taschen; thing small openable
cup cups; f Tasse Tassen; thing small washable
plate plates; m Teller Teller; thing small washable
picture pictures; n Bild Bilder; thing small
ring rings; m Ring Ringe; thing small
knife knives; n Messer Messer; thing small washable
hat hats; m Hut Hüte; thing small
coat coats; m Mantel Mäntel; thing small washable
dress dresses; n Kleid Kleider; thing small washable
shirt shirts; n Hemd Hemden; thing small washable
shoe shoes; m Schuh Schuhe; thing small
bottle bottles; f Flasche Flaschen; thing small openable
box boxes; f Kiste Kisten; thing openable
suitcase suitcases; m Koffer Koffer; thing openable
window windows; n Fenster Fenster; thing openable repairable
gift gifts; n Geschenk Geschenke; thing small openable
clock clocks; f Uhr Uhren; thing repairable
bicycle bicycles; n Fahrrad Fahrräder; thing repairable washable
car cars; n Auto Autos; thing repairable washable
umbrella umbrellas; m Regenschirm Regenschirme; thing small repairable
flower flowers; f Blume Blumen; thing small
apple apples; m Apfel Äpfel; food
egg eggs; n Ei Eier; food cookable
cake cakes; m Kuchen Kuchen; food
pear pears; f Birne Birnen; food
potato potatoes; f Kartoffel Kartoffeln; food cookable
soup soups; f Suppe Suppen; food cookable
bread -; n Brot -; food mass
cheese -; m Käse -; food mass
butter -; f Butter -; food mass
meat -; n Fleisch -; food mass cookable
water -; n Wasser -; drink mass
milk -; f Milch -; drink mass
tea -; m Tee -; drink mass
coffee -; m Kaffee -; drink mass
wine -; m Wein -; drink mass
juice -; m Saft -; drink mass
beer -; n Bier -; drink mass
garden gardens; m Garten Gärten; place
forest forests; m Wald Wälder; place
kitchen kitchens; f Küche Küchen; place room
house houses; n Haus Häuser; place room
city cities; f Stadt Städte; place
village villages; n Dorf Dörfer; place
school schools; f Schule Schulen; place
church churches; f Kirche Kirchen; place
park parks; m Park Parks; place
castle castles; n Schloss Schlösser; place
museum museums; n Museum Museen; place
tower towers; m Turm Türme; place
theatre theatres; n Theater Theater; place
room rooms; n Zimmer Zimmer; place room
cellar cellars; m Keller Keller; place room
shop shops; m Laden Läden; place room
"""

# English; German predicate form, then the stem that endings are added to where it differs; kinds of noun.
_ADJECTIVES = """
old; alt; person animal thing place
young; jung; person animal
new; neu; thing place
big; groß; animal thing place
small; klein; person animal thing place
beautiful; schön; person animal thing place
tired; müde müd; person animal
sad; traurig; person animal
happy; glücklich; person animal
hungry; hungrig; person animal
clever; klug; person animal
brave; mutig; person animal
strong; stark; person animal
friendly; freundlich; person animal
sick; krank; person animal
poor; arm; person animal
famous; berühmt; person place
red; rot; thing place
blue; blau; thing place
white; weiß; animal thing
black; schwarz; animal thing
heavy; schwer; thing
expensive; teuer teur; thing food drink
cheap; billig; thing food drink
dirty; schmutzig; animal thing place
clean; sauber; thing place
cold; kalt; food drink place
warm; warm; food drink place
hot; heiß; food drink
fresh; frisch; food drink
sweet; süß; food drink
good; gut; food drink
dark; dunkel dunkl; thing place
"""

# English base, third person and past; German infinitive, third person and perfect; case of the object ("both": dative
# and accusative); kinds of the (accusative, else dative) object; kinds of subject; adjuncts (see _ADJUNCTS, "!":
# never without one).
_VERBS = """
see, sees, saw; sehen, sieht, hat gesehen; accusative; person animal thing place; person animal; local
hear, hears, heard; hören, hört, hat gehört; accusative; person animal; person animal; local
love, loves, loved; lieben, liebt, hat geliebt; accusative; person animal place; person;
find, finds, found; finden, findet, hat gefunden; accusative; person animal thing; person animal; local
look for, looks for, looked for; suchen, sucht, hat gesucht; accusative; person animal thing; person animal; local
buy, buys, bought; kaufen, kauft, hat gekauft; accusative; animal thing food drink; person; local benefit
sell, sells, sold; verkaufen, verkauft, hat verkauft; accusative; animal thing food drink; person; local
carry, carries, carried; tragen, trägt, hat getragen; accusative; thing; person; motion
need, needs, needed; brauchen, braucht, hat gebraucht; accusative; thing food; person;
forget, forgets, forgot; vergessen, vergisst, hat vergessen; accusative; small; person;
paint, paints, painted; malen, malt, hat gemalt; accusative; person animal thing place; person; benefit
know, knows, knew; kennen, kennt, hat gekannt; accusative; person place; person;
meet, meets, met; treffen, trifft, hat getroffen; accusative; person; person; local
visit, visits, visited; besuchen, besucht, hat besucht; accusative; person place; person; company
ask, asks, asked; fragen, fragt, hat gefragt; accusative; person; person;
invite, invites, invited; einladen, lädt ein, hat eingeladen; accusative; person; person;
call, calls, called; anrufen, ruft an, hat angerufen; accusative; person; person;
open, opens, opened; aufmachen, macht auf, hat aufgemacht; accusative; openable; person;
tidy, tidies, tidied; aufräumen, räumt auf, hat aufgeräumt; accusative; room; person; company
wash, washes, washed; waschen, wäscht, hat gewaschen; accusative; washable animal; person; local
repair, repairs, repaired; reparieren, repariert, hat repariert; accusative; repairable; person; benefit local
write, writes, wrote; schreiben, schreibt, hat geschrieben; accusative; text; person; benefit local
lose, loses, lost; verlieren, verliert, hat verloren; accusative; small; person; local
eat, eats, ate; essen, isst, hat gegessen; accusative; food; person; side
drink, drinks, drank; trinken, trinkt, hat getrunken; accusative; drink; person; side
cook, cooks, cooked; kochen, kocht, hat gekocht; accusative; cookable; person; benefit
help, helps, helped; helfen, hilft, hat geholfen; dative; person animal; person; local
thank, thanks, thanked; danken, dankt, hat gedankt; dative; person; person;
follow, follows, followed; folgen, folgt, ist gefolgt; dative; person animal; person animal; motion
answer, answers, answered; antworten, antwortet, hat geantwortet; dative; person; person;
trust, trusts, trusted; vertrauen, vertraut, hat vertraut; dative; person animal; person;
belong to, belongs to, belonged to; gehören, gehört, hat gehört; dative; person; animal thing;
please, pleases, pleased; gefallen, gefällt, hat gefallen; dative; person; animal thing;
give, gives, gave; geben, gibt, hat gegeben; both; animal thing food; person;
show, shows, showed; zeigen, zeigt, hat gezeigt; both; animal thing place; person;
send, sends, sent; schicken, schickt, hat geschickt; both; small; person;
bring, brings, brought; bringen, bringt, hat gebracht; both; thing food drink; person;
lend, lends, lent; leihen, leiht, hat geliehen; both; thing; person;
sleep, sleeps, slept; schlafen, schläft, hat geschlafen; ; ; person animal; local
laugh, laughs, laughed; lachen, lacht, hat gelacht; ; ; person; local
sing, sings, sang; singen, singt, hat gesungen; ; ; person animal; local benefit company
dance, dances, danced; tanzen, tanzt, hat getanzt; ; ; person; local company
work, works, worked; arbeiten, arbeitet, hat gearbeitet; ; ; person; local benefit company
play, plays, played; spielen, spielt, hat gespielt; ; ; person animal; local company
wait, waits, waited; warten, wartet, hat gewartet; ; ; person animal; local
sit, sits, sat; sitzen, sitzt, hat gesessen; ; ; person animal; surface local !
live, lives, lived; wohnen, wohnt, hat gewohnt; ; ; person; local !
stay, stays, stayed; bleiben, bleibt, ist geblieben; ; ; person animal; local !
go, goes, went; gehen, geht, ist gegangen; ; ; person; motion !
run, runs, ran; laufen, läuft, ist gelaufen; ; ; person animal; motion !
come, comes, came; kommen, kommt, ist gekommen; ; ; person animal; motion company !
get up, gets up, got up; aufstehen, steht auf, ist aufgestanden; ; ; person animal;
fall asleep, falls asleep, fell asleep; einschlafen, schläft ein, ist eingeschlafen; ; ; person animal; local
lie, lies, lay; liegen, liegt, hat gelegen; ; ; small animal; surface !
"""

# Verbs followed by a clause.
_CLAUSE_VERBS = """
say, says, said; sagen, sagt, hat gesagt; ; ; person;
think, thinks, thought; denken, denkt, hat gedacht; ; ; person;
believe, believes, believed; glauben, glaubt, hat geglaubt; ; ; person;
hope, hopes, hoped; hoffen, hofft, hat gehofft; ; ; person;
"""

# German forms follow the person: ich, du, er/sie/es, and one for wir and sie.
_SEIN = ("bin", "bist", "ist", "sind")
_WAR = ("war", "warst", "war", "waren")
_HABEN = ("habe", "hast", "hat", "haben")
_MODALS = {
    "can": ("kann", "kannst", "kann", "können"),
    "must": ("muss", "musst", "muss", "müssen"),
    "must not": ("darf", "darfst", "darf", "dürfen"),
    "should": ("sollte", "solltest", "sollte", "sollten"),
    "want": ("will", "willst", "will", "wollen"),
    "will": ("werde", "wirst", "wird", "werden"),
}
TENSES = ("present", "past", "can", "must", "should", "want", "will")

# Strong endings (genitive left out): those of dieser, and of an adjective with nothing before it that shows them.
_STRONG = {
    "nominative": {"m": "er", "f": "e", "n": "es", "plural": "e"},
    "accusative": {"m": "en", "f": "e", "n": "es", "plural": "e"},
    "dative": {"m": "em", "f": "er", "n": "em", "plural": "en"},
}
_DETERMINERS = {
    "the": "d",
    "this": "dies",
    "every": "jed",
    "which": "welch",
    "a": "ein",
    "no": "kein",
    "my": "mein",
    "your": "dein",
    "his": "sein",
    "her": "ihr",
    "our": "unser",
    "two": "zwei",
    "three": "drei",
    "": "",
}
_DER_WORDS = ("the", "this", "every", "which")
_UNINFLECTED = ("two", "three", "")

_PREPOSITIONS = {
    "in": ("in", "dative"),
    "behind": ("hinter", "dative"),
    "in front of": ("vor", "dative"),
    "next to": ("neben", "dative"),
    "on": ("auf", "dative"),
    "under": ("unter", "dative"),
    "with": ("mit", "dative"),
    "out of": ("aus", "dative"),
    "into": ("in", "accusative"),
    "through": ("durch", "accusative"),
    "without": ("ohne", "accusative"),
    "for": ("für", "accusative"),
}
# What a verb may be followed by: prepositions and the kinds of noun they take.
_ADJUNCTS = {
    "local": (("in", "in", "behind", "in front of", "next to"), "place"),
    "motion": (("into", "through", "out of"), "place"),
    "surface": (("on", "under", "next to"), "furniture"),
    "company": (("with", "with", "without"), "person animal"),
    "benefit": (("for",), "person"),
    "side": (("with", "with", "without"), "mass"),
}

_TIMES = {
    "present": (
        ("today", "heute"),
        ("now", "jetzt"),
        ("sometimes", "manchmal"),
        ("every day", "jeden Tag"),
        ("every morning", "jeden Morgen"),
        ("in the evening", "am Abend"),
        ("in summer", "im Sommer"),
    ),
    "past": (
        ("today", "heute"),
        ("yesterday", "gestern"),
        ("last week", "letzte Woche"),
        ("last year", "letztes Jahr"),
        ("on Monday", "am Montag"),
    ),
    "modal": (
        ("today", "heute"),
        ("tomorrow", "morgen"),
        ("next week", "nächste Woche"),
        ("on Sunday", "am Sonntag"),
        ("in the evening", "am Abend"),
    ),
}

HELD_OUT_SHARE = 12  # of each verb's objects and each adjective's nouns, one in so many is held out
MAX_SENTENCES = 1_000_000  # in all splits together
MIN_WORDS, MAX_WORDS = 4, 20  # of an English sentence


# ---------------------------------------------------------------------------------------------------------- words


@dataclass(frozen=True, eq=False)
class Noun:
    english: str
    english_plural: str | None
    gender: str
    german: str
    german_plural: str | None
    kinds: tuple[str, ...]

    def inflect(self, case: str, plural: bool) -> str:
        """The German form."""
        if plural:
            needs_n = case == "dative" and self.german_plural[-1] not in "ns"
            return self.german_plural + "n" * needs_n
        return self.german_plural if "weak" in self.kinds and case != "nominative" else self.german


@dataclass(frozen=True, eq=False)
class Adjective:
    english: str
    german: str
    stem: str
    kinds: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Verb:
    base: str
    third: str
    past: str
    infinitive: str
    present: tuple[str, ...]
    particle: str  # of a separable verb: "an" in "ruft ... an"
    participle: str
    perfect: tuple[str, ...]  # the forms of haben or sein
    case: str
    objects: tuple[Noun, ...]
    subjects: tuple[Noun, ...]
    adjuncts: tuple[str, ...]
    needs_adjunct: bool

    def english(self, tense: str, person: int, auxiliary: bool) -> Pair:
        """The English auxiliary ("" if there is none) and main verb; `auxiliary` asks for do, does or did."""
        if tense in ("can", "must", "should", "will"):
            return tense, self.base
        base, third = self.base, self.third
        if tense == "want":
            base, third = f"want to {base}", f"wants to {base}"
        if auxiliary:
            return "did" if tense == "past" else ("does" if person == 2 else "do"), base
        return "", self.past if tense == "past" else (third if person == 2 else base)

    def german(self, tense: str, person: int) -> Pair:
        """The finite verb and what closes the clause: a particle, a participle, an infinitive or nothing."""
        if tense == "present":
            return self.present[person], self.particle
        if tense == "past":
            return self.perfect[person], self.participle
        return _MODALS[tense][person], self.infinitive


@dataclass(frozen=True, eq=False)
class Copula:
    """To be, and what follows it: tired, as tired as you, in the garden (English, German). Present or past only."""

    complement: Pair
    particle = ""

    def english(self, tense: str, person: int, auxiliary: bool) -> Pair:
        forms = ("was", "were", "was", "were") if tense == "past" else ("am", "are", "is", "are")
        return forms[person], self.complement[0]

    def german(self, tense: str, person: int) -> Pair:
        return (_WAR if tense == "past" else _SEIN)[person], self.complement[1]


def _rows(table: str) -> list[list[str]]:
    return [[field.strip() for field in line.split(";")] for line in table.strip().splitlines()]


def _noun(english: str, german: str, kinds: str) -> Noun:
    singular, plural = english.split()
    gender, german_singular, german_plural = german.split()
    has_plural = plural != "-"
    return Noun(
        singular,
        plural if has_plural else None,
        gender,
        german_singular,
        german_plural if has_plural else None,
        tuple(kinds.split()),
    )


def _adjective(english: str, german: str, kinds: str) -> Adjective:
    forms = german.split()
    return Adjective(english, forms[0], forms[-1], tuple(kinds.split()))


@cache
def nouns_of(kinds: str) -> tuple[Noun, ...]:
    """The nouns of any of the kinds, in the order of the lexicon."""
    wanted = kinds.split()
    return tuple(noun for noun in NOUNS.values() if any(kind in wanted for kind in noun.kinds))


def _verb(english: str, german: str, case: str, objects: str, subjects: str, adjuncts: str) -> Verb:
    base, third, past = english.split(", ")
    infinitive, german_third, perfect = german.split(", ")
    er_form, _, particle = german_third.partition(" ")
    auxiliary, participle = perfect.split()
    plural = infinitive.removeprefix(particle)
    du_form = er_form if er_form[-2] in "szß" else er_form[:-1] + "st"
    return Verb(
        base,
        third,
        past,
        infinitive,
        (plural[:-1], du_form, er_form, plural),
        particle,
        participle,
        _SEIN if auxiliary == "ist" else _HABEN,
        case,
        nouns_of(objects),
        nouns_of(subjects),
        tuple(adjunct for adjunct in adjuncts.split() if adjunct != "!"),
        "!" in adjuncts,
    )


NOUNS = {noun.english: noun for noun in (_noun(*row) for row in _rows(_NOUNS))}
ADJECTIVES = {adjective.english: adjective for adjective in (_adjective(*row) for row in _rows(_ADJECTIVES))}
VERBS = {verb.base: verb for verb in (_verb(*row) for row in _rows(_VERBS))}
CLAUSE_VERBS = {verb.base: verb for verb in (_verb(*row) for row in _rows(_CLAUSE_VERBS))}
_ADJECTIVES_OF = {
    kind: tuple(adjective for adjective in ADJECTIVES.values() if kind in adjective.kinds)
    for kind in ("person", "animal", "thing", "food", "drink", "place")
}


# -------------------------------------------------------------------------------------------------------- phrases


def definite_article(case: str, gender: str) -> str:
    """der, die, das ...; the plural counts as a fourth gender."""
    ending = _STRONG[case][gender]
    return {"e": "die", "es": "das"}.get(ending, "d" + ending)


@cache
def german_determiner(determiner: str, case: str, gender: str) -> Pair:
    """The German determiner, and the ending that an adjective after it takes.

    The strong ending is shown once: by the determiner if it has one, and then the adjective is weak, else by the
    adjective. Der-words always have it; ein-words lack it in three places; numbers and a missing article have none.
    """
    stem, strong = _DETERMINERS[determiner], _STRONG[case][gender]
    bare = (case, gender) in (("nominative", "m"), ("nominative", "n"), ("accusative", "n"))
    if determiner in _UNINFLECTED or (determiner not in _DER_WORDS and bare):
        return stem, strong
    weak = "e" if (gender in "fn" and case != "dative") or (case, gender) == ("nominative", "m") else "en"
    return definite_article(case, gender) if determiner == "the" else stem + strong, weak


@dataclass(frozen=True, eq=False)
class Pronoun:
    """A personal, relative or interrogative pronoun; it speaks the same two methods as a NounPhrase."""

    subject_form: str
    object_form: str
    german_forms: tuple[str, str, str]  # nominative, accusative, dative
    person: int  # 0 ich, 1 du, 2 er/sie/es, 3 wir and sie
    is_pronoun = True
    is_indefinite = False

    def english(self, case: str) -> str:
        return self.subject_form if case == "nominative" else self.object_form

    def german(self, case: str) -> str:
        return self.german_forms[("nominative", "accusative", "dative").index(case)]


_ER, _SIE, _ES = ("er", "ihn", "ihm"), ("sie", "sie", "ihr"), ("es", "es", "ihm")
PRONOUNS = {
    "I": Pronoun("I", "me", ("ich", "mich", "mir"), 0),
    "you": Pronoun("you", "you", ("du", "dich", "dir"), 1),
    "he": Pronoun("he", "him", _ER, 2),
    "she": Pronoun("she", "her", _SIE, 2),
    "we": Pronoun("we", "us", ("wir", "uns", "uns"), 3),
    "they": Pronoun("they", "them", ("sie", "sie", "ihnen"), 3),
    "who": Pronoun("who", "whom", ("wer", "wen", "wem"), 2),
}
_IT = {gender: Pronoun("it", "it", forms, 2) for gender, forms in (("m", _ER), ("f", _SIE), ("n", _ES))}


@dataclass(frozen=True, eq=False)
class NounPhrase:
    """A determiner (a key of _DETERMINERS), perhaps an adjective, a noun, perhaps a relative clause."""

    determiner: str
    noun: Noun
    adjective: Adjective | None = None
    plural: bool = False
    relative: Pair = ("", "")
    is_pronoun = False

    @property
    def gender(self) -> str:
        return "plural" if self.plural else self.noun.gender

    @property
    def is_indefinite(self) -> bool:
        return self.determiner in ("a", "")

    @property
    def person(self) -> int:
        return 3 if self.plural else 2

    def english(self, case: str = "nominative") -> str:
        noun = self.noun.english_plural if self.plural else self.noun.english
        words = f"{self.adjective.english} {noun}" if self.adjective else noun
        determiner = "these" if self.plural and self.determiner == "this" else self.determiner
        if determiner == "a" and words[0] in "aeiou":
            determiner = "an"
        return _join(determiner, words, self.relative[0])

    def german(self, case: str, negated: bool = False) -> str:
        """The phrase in `case`. In a negated clause an indefinite one takes kein."""
        determiner = "no" if negated and self.is_indefinite else self.determiner
        determiner, ending = german_determiner(determiner, case, self.gender)
        adjective = self.adjective.stem + ending if self.adjective else ""
        return _join(determiner, adjective, self.noun.inflect(case, self.plural)) + self.relative[1]


Phrase = NounPhrase | Pronoun


def pronoun_for(phrase: Phrase) -> Pronoun:
    """The personal pronoun that takes up `phrase` again: in German it has the gender of the noun."""
    if isinstance(phrase, Pronoun):
        return phrase
    if phrase.plural:
        return PRONOUNS["they"]
    if "person" in phrase.noun.kinds and phrase.noun.gender != "n":
        return PRONOUNS["he" if phrase.noun.gender == "m" else "she"]
    return _IT[phrase.noun.gender]


def relative_pronoun(phrase: NounPhrase) -> Pronoun:
    """who, whom or that; der, die, das in the gender and number of `phrase`."""
    dative = "denen" if phrase.plural else definite_article("dative", phrase.gender)
    forms = (definite_article("nominative", phrase.gender), definite_article("accusative", phrase.gender), dative)
    subject_form, object_form = ("who", "whom") if "person" in phrase.noun.kinds else ("that", "that")
    return Pronoun(subject_form, object_form, forms, phrase.person)


def prepositional_phrase(preposition: str, phrase: NounPhrase) -> Pair:
    """The phrase in the case that the preposition asks for; "in dem" and "in das" are written im and ins."""
    german, case = _PREPOSITIONS[preposition]
    text = f"{german} {phrase.german(case)}"
    for full, contracted in (("in dem ", "im "), ("in das ", "ins ")):
        text = contracted + text.removeprefix(full) if text.startswith(full) else text
    return f"{preposition} {phrase.english('accusative')}", text


# -------------------------------------------------------------------------------------------------------- clauses


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)


@dataclass(frozen=True, eq=False)
class Clause:
    """Who does what to whom, when and where; `english` and `german` put it into an order."""

    subject: Phrase
    verb: Verb | Copula
    tense: str = "present"
    negated: bool = False
    dative: Phrase | None = None
    accusative: Phrase | None = None
    time: Pair = ("", "")
    place: Pair = ("", "")

    def english(self, front: str = "", question: bool = False) -> str:
        """The clause after `front`; a question has its auxiliary before the subject."""
        person = self.subject.person
        auxiliary, verb = self.verb.english(self.tense, person, question or self.negated)
        subject, negation = self.subject.english("nominative"), "not" if self.negated else ""
        if question:
            start = (auxiliary, subject, negation)
        elif auxiliary == "can" and self.negated:
            start = (subject, "cannot")
        else:
            start = (subject, auxiliary, negation)
        objects = [phrase.english("accusative") for phrase in (self.dative, self.accusative) if phrase]
        return _join(front, *start, verb, *objects, self.place[0], self.time[0])

    def german(self, order: str = "second", front: str = "") -> str:
        """The clause with its finite verb "first", "second" or "final".

        `front` is what stands before it: in a verb-second clause it takes the subject's place there, in a verb-final
        one it is the word that opens the clause.
        """
        tense = "must not" if self.tense == "must" and self.negated else self.tense
        finite, closing = self.verb.german(tense, self.subject.person)
        subject = self.subject.german("nominative")
        middle = self._german_middle()
        if order == "final":
            # A separable verb is written as one word when it comes to stand together: "anruft".
            joint = "" if tense == "present" and self.verb.particle else " "
            return _join(front, subject, middle, f"{closing}{joint}{finite}".strip())
        if order == "first":
            return _join(finite, subject, middle, closing)
        if front:
            return _join(front, finite, subject, middle, closing)
        return _join(subject, finite, middle, closing)

    def _german_middle(self) -> str:
        """What stands between the verbs: pronouns, time, objects, nicht, place."""
        objects = [pair for pair in (("dative", self.dative), ("accusative", self.accusative)) if pair[1]]
        pronouns = [phrase.german(case) for case, phrase in objects if phrase.is_pronoun]
        nouns = [phrase.german(case, self.negated) for case, phrase in objects if not phrase.is_pronoun]
        kein = any(phrase.is_indefinite for _, phrase in objects)
        return _join(*pronouns, self.time[1], *nouns, "nicht" if self.negated and not kein else "", self.place[1])


def sentence(english: str, german: str, mark: str = ".") -> Pair:
    """Both sides with a capital and the closing mark."""
    return english[0].upper() + english[1:] + mark, german[0].upper() + german[1:] + mark


def statement(clause: Clause, front: Pair = ("", "")) -> Pair:
    """A main clause, which begins with `front` or its subject; in German the verb comes next."""
    return sentence(clause.english(front[0]), clause.german("second", front[1]))


def question(clause: Clause, front: Pair = ("", "")) -> Pair:
    """A question that begins with `front`, or one to be answered by yes or no."""
    order = "second" if front[1] else "first"
    return sentence(clause.english(front[0], question=True), clause.german(order, front[1]), "?")


def subordinate_last(main: Clause, conjunction: Pair, clause: Clause) -> Pair:
    """The German comma is always there, and the subordinate clause has its verb at the end."""
    english = f"{main.english()} {conjunction[0]} {clause.english()}"
    return sentence(english, f"{main.german()}, {clause.german('final', conjunction[1])}")


def subordinate_first(main: Clause, conjunction: Pair, clause: Clause) -> Pair:
    """The clause takes the first place of the German main clause, so that two verbs meet at the comma."""
    front = clause.english(conjunction[0]) + ",", clause.german("final", conjunction[1]) + ","
    return statement(main, front)


def coordinate(first: Clause, conjunction: Pair, second: Clause) -> Pair:
    """Two main clauses; und takes no comma."""
    comma = "" if conjunction[1] == "und" else ","
    english = f"{first.english()}, {second.english(conjunction[0])}"
    return sentence(english, f"{first.german()}{comma} {conjunction[1]} {second.german()}")


def relative_clause(clause: Clause, pronoun: Pronoun | None = None, case: str = "accusative") -> Pair:
    """A relative clause with its comma: its subject is the relative pronoun, or `pronoun` is its object in `case`."""
    front = (pronoun.english(case), pronoun.german(case)) if pronoun else ("", "")
    return clause.english(front[0]), ", " + clause.german("final", front[1])


# ------------------------------------------------------------------------------------------------------- sampling


_POSSESSIVE = ("my", "your", "his", "her", "our")
_DEFINITE = ("the", "the", "the", "the", "this", *_POSSESSIVE)
_ANY_SINGULAR = (*_DEFINITE, "a", "a", "a", "a")
_ANY_PLURAL = (*_DEFINITE, "", "two", "three")
_MASS = ("the", *_POSSESSIVE, "", "", "", "")
_TENSES_BY_WEIGHT = ("present",) * 20 + ("past",) * 6 + ("must", *TENSES[2:])
_PERSONAL = ("I", "you", "he", "she", "we", "they")
_SUBJECT_PRONOUNS = (*_PERSONAL, *("I", "you") * 4)  # more often, for no noun takes their German verb forms
_NOT_I_OR_YOU = ("he", "she", "we", "they")
_STATIVE = ("need", "know", "belong to", "please")  # "wants to need" is not said
_SAME_GROUP = {"I": ("I", "we"), "we": ("I", "we"), "you": ("you",)}  # "I see us", "you see you" are not said

_AFTER = {
    "present": (("because", "weil"), ("although", "obwohl"), ("while", "während"), ("before", "bevor")),
    "past": (("because", "weil"), ("although", "obwohl"), ("when", "als"), ("before", "bevor")),
}
_BEFORE = {
    "present": (("if", "wenn"), ("because", "weil"), ("while", "während")),
    "past": (("when", "als"), ("because", "weil"), ("although", "obwohl")),
}

_ALL_NOUNS = tuple(NOUNS.values())
_PERSONS = nouns_of("person")
_LIVING = nouns_of("person animal")
_ADULTS = tuple(noun for noun in _PERSONS if noun.gender != "n")  # those that he or she takes up again in German too
_VERB_LIST = tuple(VERBS.values())
_CLAUSE_VERB_LIST = tuple(CLAUSE_VERBS.values())
_PERSON_VERBS = tuple(verb for verb in _VERB_LIST if NOUNS["man"] in verb.subjects)
_OBJECT_VERBS = tuple(verb for verb in _VERB_LIST if verb.objects)
_THING_VERBS = tuple(verb for verb in _VERB_LIST if verb.case == "accusative" and verb.objects[-1] not in _PERSONS)
_LOCAL_VERBS = tuple(verb for verb in _VERB_LIST if not verb.objects and "local" in verb.adjuncts)
_SOLO_VERBS = tuple(verb for verb in _VERB_LIST if not verb.objects and verb in _PERSON_VERBS)


@cache
def _verbs_taking(noun: str) -> tuple[Verb, ...]:
    return tuple(verb for verb in _OBJECT_VERBS if NOUNS[noun] in verb.objects)


class Sampler:
    """Draws sentences.

    After each, `nouns` and `words` (verbs that take an object, adjectives) hold what it is made of, and `pairs` which
    of them belong together: (verb, its object) and (adjective, its noun).
    """

    def __init__(self, rng: random.Random):
        self.rng = rng
        self._templates = [
            template
            for template, weight in (
                (self._statement, 20),
                (self._fronted, 12),
                (self._copula, 7),
                (self._comparison, 3),
                (self._whereabouts, 14),
                (self._yes_no, 9),
                (self._open_question, 8),
                (self._subordinate_last, 8),
                (self._subordinate_first, 6),
                (self._reported, 7),
                (self._relative_on_subject, 4),
                (self._relative_on_object, 4),
                (self._reason_with_object, 4),
                (self._reason_with_subject, 3),
                (self._coordinated, 5),
                (self._meal, 5),
            )
            for _ in range(weight)
        ]

    def draw(self) -> Pair:
        self.nouns: list[str] = []
        self.words: list[str] = []
        self.pairs: list[Pair] = []
        return self.rng.choice(self._templates)()

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    # Phrases

    def _pair(self, word: str, noun: Noun) -> None:
        self.words.append(word)
        self.pairs.append((word, noun.english))

    def _noun_phrase(
        self, nouns: Sequence[Noun], *, definite: bool = False, adjective: float = 0.5, plural: float = 0.3
    ) -> NounPhrase:
        noun = self.rng.choice(nouns)
        while noun.english in self.nouns:  # no noun twice in a sentence: what "it" stands for must be plain
            noun = self.rng.choice(nouns)
        self.nouns.append(noun.english)
        is_plural = noun.english_plural is not None and self._chance(plural)
        if definite:
            determiners = _DEFINITE
        elif "mass" in noun.kinds:
            determiners = _MASS
        else:
            determiners = _ANY_PLURAL if is_plural else _ANY_SINGULAR
        chosen = self._adjective(noun) if self._chance(adjective) else None
        return NounPhrase(self.rng.choice(determiners), noun, chosen, is_plural)

    def _adjective(self, noun: Noun) -> Adjective:
        adjective = self.rng.choice(_ADJECTIVES_OF[noun.kinds[0]])
        self._pair(adjective.english, noun)
        return adjective

    def _subject(
        self, nouns: Sequence[Noun], definite: bool = False, pronouns: Sequence[str] = _SUBJECT_PRONOUNS
    ) -> Phrase:
        if nouns[0] is NOUNS["man"] and self._chance(0.45):
            return PRONOUNS[self.rng.choice(pronouns)]
        phrase = self._noun_phrase(nouns, definite=definite)
        if not phrase.plural and not definite and self._chance(0.08):
            return replace(phrase, determiner="every")
        return phrase

    def _object(
        self, nouns: Sequence[Noun], subject: Phrase, order: str, *, definite: bool = False, negated: bool = False
    ) -> Phrase:
        # Unless a noun subject begins the clause, German may put an object pronoun on either side of it: left out.
        allowed = subject.is_pronoun or order == "second"
        if allowed and nouns[0] is NOUNS["man"] and self._chance(0.2):
            barred = _SAME_GROUP.get(subject.english("nominative"), ())
            return PRONOUNS[self.rng.choice([name for name in _PERSONAL if name not in barred])]
        phrase = self._noun_phrase(nouns, definite=definite)
        if negated and phrase.determiner in ("two", "three"):  # "does not see two dogs" may be said of one who sees one
            return replace(phrase, determiner="")
        return phrase

    def _adjunct(self, name: str) -> Pair:
        prepositions, kinds = _ADJUNCTS[name]
        phrase = self._noun_phrase(nouns_of(kinds), plural=0.5 if name == "company" else 0)
        return prepositional_phrase(self.rng.choice(prepositions), phrase)

    def _time(self, tense: str) -> Pair:
        return self.rng.choice(_TIMES.get(tense, _TIMES["modal"]))

    # Clauses

    def _clause(
        self,
        *,
        verb: Verb | None = None,
        subject: Phrase | None = None,
        tense: str = "",
        order: str = "second",
        without: str = "",
        adverbials: bool = True,
        negated: float = 0.2,
    ) -> Clause:
        """A clause with a verb other than to be, and without the object in the case `without` or without "place"."""
        verb = verb or self.rng.choice(_VERB_LIST)
        tense = tense or self.rng.choice(_TENSES_BY_WEIGHT)
        negate = self._chance(negated)
        # "anrufst" and its like would be too rare to learn; "every man does not" is ambiguous.
        pronouns = _NOT_I_OR_YOU if order == "final" and verb.particle else _SUBJECT_PRONOUNS
        subject = subject or self._subject(verb.subjects, negate, pronouns)
        thing = not subject.is_pronoun and subject.noun.kinds[0] == "thing"
        if (thing or verb.base in _STATIVE) and tense != "past":
            tense = "present"
        dative = accusative = None
        if verb.case in ("dative", "both") and without != "dative":
            recipients = verb.objects if verb.case == "dative" else _LIVING
            dative = self._object(recipients, subject, order, definite=negate)
        if verb.case in ("accusative", "both") and without != "accusative":
            definite = negate and self._chance(0.4)
            accusative = self._object(verb.objects, subject, order, definite=definite, negated=negate)
        if verb.objects:
            self.words.append(verb.base)
            theme = dative if verb.case == "dative" else accusative
            if theme and not theme.is_pronoun:
                self.pairs.append((verb.base, theme.noun.english))
        # The place of nicht among objects and adverbials is a matter of emphasis: not both.
        free = adverbials and not (negate and verb.objects)
        place = ("", "")
        if without != "place" and (verb.needs_adjunct or (free and verb.adjuncts and self._chance(0.35))):
            place = self._adjunct(self.rng.choice(verb.adjuncts))
        time = self._time(tense) if free and not negate and self._chance(0.15) else ("", "")
        return Clause(subject, verb, tense, negate, dative, accusative, time, place)

    def _copula_clause(self, tense: str = "", subject: Phrase | None = None, noun: Noun | None = None) -> Clause:
        subject = subject or self._noun_phrase(_ALL_NOUNS, definite=True, adjective=0.3)
        adjective = self._adjective(noun or subject.noun)
        very = self._chance(0.25)
        complement = _join("very" * very, adjective.english), _join("sehr" * very, adjective.german)
        tense = tense or self.rng.choice(("present", "past"))
        return Clause(subject, Copula(complement), tense, not very and self._chance(0.15))

    def _short_clause(self, tense: str = "", negated: float = 0.2) -> Clause:
        """A clause that follows a conjunction."""
        if self._chance(0.2):
            return self._copula_clause(tense)
        return self._clause(tense=tense, order="final", adverbials=False, negated=negated)

    # Sentences

    def _statement(self) -> Pair:
        return statement(self._clause())

    def _fronted(self) -> Pair:
        clause = self._clause(order="inverted")
        if clause.place[0] and clause.verb.adjuncts[0] in ("local", "surface") and self._chance(0.4):
            return statement(replace(clause, place=("", "")), clause.place)
        return statement(replace(clause, time=("", "")), self._time(clause.tense))

    def _copula(self) -> Pair:
        clause = self._copula_clause()
        timed = not clause.negated and self._chance(0.3)
        if self._chance(0.25):
            return question(clause)
        return statement(replace(clause, time=self._time(clause.tense)) if timed else clause)

    def _comparison(self) -> Pair:
        kind = self.rng.choice(("person", "animal", "thing", "food", "place"))
        subject, other = (self._noun_phrase(nouns_of(kind), definite=True, adjective=0.3) for _ in range(2))
        adjective = self._adjective(subject.noun)
        self._pair(adjective.english, other.noun)
        english = f"as {adjective.english} as {other.english()}"
        german = f"so {adjective.german} wie {other.german('nominative')}"
        return statement(Clause(subject, Copula((english, german)), self.rng.choice(("present", "past"))))

    def _whereabouts(self) -> Pair:
        """Where is her old hat? A place for things in the nominative, after words that leave the ending to them."""
        kind = self.rng.choice(("person", "animal", "thing", "thing", "thing", "food", "drink", "place", "place"))
        phrase = self._noun_phrase(nouns_of(kind), adjective=0.8)
        phrase = replace(phrase, determiner=self.rng.choice(_POSSESSIVE))
        tense = self.rng.choice(("present", "past"))
        if self._chance(0.4):
            return question(Clause(phrase, Copula(("", "")), tense), ("where", "wo"))
        adjunct = "surface" if any(kind in ("small", "animal", "food") for kind in phrase.noun.kinds) else "local"
        return statement(Clause(phrase, Copula(self._adjunct(adjunct)), tense, self._chance(0.2)))

    def _yes_no(self) -> Pair:
        return question(self._clause(order="inverted", negated=0))

    def _open_question(self) -> Pair:
        kind = self.rng.choice(("who", "what", "which", "where", "why", "when"))
        if kind == "who":
            clause = self._clause(verb=self.rng.choice(_PERSON_VERBS), subject=PRONOUNS["who"], negated=0)
            return sentence(clause.english(), clause.german(), "?")
        if kind == "what":
            verb = self.rng.choice(_THING_VERBS)
            return question(self._clause(verb=verb, order="inverted", without="accusative", negated=0), ("what", "was"))
        if kind == "which":
            verb = self.rng.choice(_OBJECT_VERBS)
            phrase = replace(self._noun_phrase(verb.objects, definite=True), determiner="which")
            self._pair(verb.base, phrase.noun)
            case = "dative" if verb.case == "dative" else "accusative"
            clause = self._clause(verb=verb, order="inverted", without=case, negated=0)
            return question(clause, (phrase.english(case), phrase.german(case)))
        if kind == "where":
            verb = self.rng.choice(_LOCAL_VERBS)
            return question(self._clause(verb=verb, order="inverted", without="place", negated=0), ("where", "wo"))
        clause = self._clause(order="inverted", negated=0.3 if kind == "why" else 0)
        if kind == "why":
            return question(clause, ("why", "warum"))
        return question(replace(clause, time=("", "")), ("when", "wann"))

    def _subordinate_last(self) -> Pair:
        tense = self.rng.choice(("present", "past"))
        conjunction = self.rng.choice(_AFTER[tense])
        main = self._clause(tense=tense, adverbials=False)
        clause = self._short_clause(tense, negated=0 if conjunction[0] == "before" else 0.2)
        return subordinate_last(main, conjunction, clause)

    def _subordinate_first(self) -> Pair:
        tense = self.rng.choice(("present", "past"))
        conjunction = self.rng.choice(_BEFORE[tense])
        clause = self._short_clause(tense)
        main_tense = self.rng.choice(("present", *TENSES[2:])) if conjunction[0] == "if" else tense
        main = self._clause(tense=main_tense, order="inverted", adverbials=False)
        return subordinate_first(main, conjunction, clause)

    def _reported(self) -> Pair:
        tense = self.rng.choice(("present", "past"))
        whether = self._chance(0.2)
        verb = VERBS["ask"] if whether else self.rng.choice(_CLAUSE_VERB_LIST)
        if whether:
            self.words.append(verb.base)
        main = Clause(self._subject(_PERSONS), verb, tense)
        conjunction = ("whether", "ob") if whether else ("that", "dass")
        return subordinate_last(main, conjunction, self._short_clause("past" if tense == "past" else ""))

    def _relative(self, phrase: NounPhrase) -> Pair:
        """A relative clause on `phrase`, which is its subject or, if its verb takes such an object, its object."""
        pronoun = relative_pronoun(phrase)
        if self._chance(0.5):
            verb = self.rng.choice(_verbs_taking(phrase.noun.english))
            self._pair(verb.base, phrase.noun)
            case = "dative" if verb.case == "dative" else "accusative"
            clause = self._clause(verb=verb, order="final", without=case, adverbials=False)
            return relative_clause(clause, pronoun, case)
        if "person" in phrase.noun.kinds:
            return relative_clause(self._clause(verb=self.rng.choice(_PERSON_VERBS), subject=pronoun, adverbials=False))
        return relative_clause(self._copula_clause(subject=pronoun, noun=phrase.noun))

    def _relative_on_subject(self) -> Pair:
        verb = self.rng.choice(_PERSON_VERBS)
        phrase = self._noun_phrase(verb.subjects, definite=True)
        english, german = self._relative(phrase)
        subject = replace(phrase, determiner="the", relative=(english, german + ","))
        return statement(self._clause(verb=verb, subject=subject, adverbials=False))

    def _relative_on_object(self) -> Pair:
        verb = self.rng.choice(_OBJECT_VERBS)
        clause = self._clause(verb=verb, adverbials=False, negated=0)
        case = "dative" if verb.case == "dative" else "accusative"
        phrase = getattr(clause, case)
        if phrase.is_pronoun:
            return statement(clause)
        clause = replace(clause, **{case: replace(phrase, determiner="the")})
        # The relative clause follows the verb that closes the main clause.
        english, german = self._relative(phrase)
        return sentence(f"{clause.english()} {english}", clause.german() + german)

    def _reason_with_object(self) -> Pair:
        """The man buys the table because it is cheap: er, not es."""
        main = self._with_thing()
        thing = main.accusative
        if self._chance(0.5):
            reason = self._copula_clause(main.tense, pronoun_for(thing), thing.noun)
        else:
            verb = self._other_verb(main)
            subject = self._subject(verb.subjects, True, _NOT_I_OR_YOU)
            clause = self._clause(verb=verb, subject=subject, tense=main.tense, without="accusative", adverbials=False)
            reason = replace(clause, accusative=pronoun_for(thing))
        return subordinate_last(main, ("because", "weil"), reason)

    def _with_thing(self) -> Clause:
        """He, she or a person does something to a thing or an animal, which "it" or "they" can only stand for."""
        verb = self.rng.choice(_THING_VERBS)
        tense = self.rng.choice(("present", "past"))
        if self._chance(0.3):
            subject = PRONOUNS[self.rng.choice(("he", "she"))]
        else:
            subject = self._noun_phrase(_ADULTS, plural=0)
        thing = self._noun_phrase(tuple(noun for noun in verb.objects if noun.kinds[0] != "person"), definite=True)
        self._pair(verb.base, thing.noun)
        return Clause(subject, verb, tense, accusative=thing)

    def _other_verb(self, clause: Clause) -> Verb:
        """Another verb for what is the accusative object of `clause`."""
        noun = clause.accusative.noun
        verbs = [verb for verb in _verbs_taking(noun.english) if verb.case == "accusative" and verb is not clause.verb]
        verb = self.rng.choice(verbs)
        self._pair(verb.base, noun)
        return verb

    def _reason_with_subject(self) -> Pair:
        """The old woman sings because she is happy."""
        tense = self.rng.choice(("present", "past"))
        subject = self._noun_phrase(_ADULTS, definite=True)
        main = self._clause(verb=self.rng.choice(_SOLO_VERBS), subject=subject, tense=tense, adverbials=False)
        reason = self._copula_clause(tense, pronoun_for(subject), subject.noun)
        return subordinate_last(main, ("because", "weil"), reason)

    def _coordinated(self) -> Pair:
        """The man looks for the key, but he does not find it."""
        first = self._with_thing()
        thing = first.accusative
        verb = self._other_verb(first)
        negated = self._chance(0.6)
        second = Clause(pronoun_for(first.subject), verb, first.tense, negated, accusative=pronoun_for(thing))
        return coordinate(first, ("but", "aber") if negated else ("and", "und"), second)

    def _meal(self) -> Pair:
        """The king drinks hot tea with cold milk: strong endings without an article."""
        verb = VERBS[self.rng.choice(("eat", "drink"))]
        clause = self._clause(verb=verb, adverbials=False, negated=0)
        side = replace(self._noun_phrase(nouns_of("mass"), adjective=0.8), determiner="")
        return statement(replace(clause, place=prepositional_phrase(self.rng.choice(("with", "without")), side)))


# --------------------------------------------------------------------------------------------------------- corpus


def held_out_pairs(seed: int = 0) -> list[Pair]:
    """The combinations that training never shows: (verb, noun it has as its object) and (adjective, noun).

    Verbs are in their base form, nouns in the singular, all English. A training sentence never contains both words of
    such a pair, in whatever roles; a validation or test sentence has at least one pair in just these roles.
    """
    rng = random.Random(seed)
    partners = [(verb.base, verb.objects) for verb in _OBJECT_VERBS]
    for adjective in ADJECTIVES.values():
        nouns = tuple(noun for noun in _ALL_NOUNS if noun.kinds[0] in adjective.kinds)
        partners.append((adjective.english, nouns))
    return [
        (word, noun.english)
        for word, nouns in partners
        for noun in rng.sample(nouns, max(1, len(nouns) // HELD_OUT_SHARE))
    ]


def toy_corpus(train: int = 20_000, validation: int = 500, test: int = 1_000, seed: int = 0) -> dict[str, list[Pair]]:
    """Draw a corpus: {"train": [(english, german), ...], "validation": [...], "test": [...]}.

    No sentence occurs twice, within a split or in two. The same arguments give the same corpus everywhere.

    Raises:
        ValueError: if a split has no sentence, or all together more than MAX_SENTENCES.
    """
    sizes = {"train": train, "validation": validation, "test": test}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    if sum(sizes.values()) > MAX_SENTENCES:
        raise ValueError(f"the toy grammar gives at most {MAX_SENTENCES} sentences, got {sum(sizes.values())}: {sizes}")
    held_out = set(held_out_pairs(seed))
    sampler = Sampler(random.Random(seed))
    seen: set[str] = set()
    corpus: dict[str, list[Pair]] = {name: [] for name in sizes}
    while any(len(corpus[name]) < size for name, size in sizes.items()):
        english, german = sampler.draw()
        if english in seen or not MIN_WORDS <= english.count(" ") + 1 <= MAX_WORDS:
            continue
        if any(pair in held_out for pair in sampler.pairs):
            split = "validation" if len(corpus["validation"]) < validation else "test"
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
    parts = [path.with_suffix(".jsonl.part") for path in paths]
    try:
        for part, pairs in zip(parts, corpus.values(), strict=True):
            with part.open("w", encoding="utf-8", newline="\n") as file:
                for english, german in pairs:
                    file.write(json.dumps({"translation": {"en": english, "de": german}}, ensure_ascii=False) + "\n")
        for part, path in zip(parts, paths, strict=True):
            part.replace(path)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return paths


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _Parser(description="Write the synthetic English-German corpus as JSON lines.")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for train, validation and test.jsonl")
    parser.add_argument("--train", type=int, default=20_000, help="training pairs (default: %(default)s)")
    parser.add_argument("--validation", type=int, default=500, help="validation pairs (default: %(default)s)")
    parser.add_argument("--test", type=int, default=1_000, help="test pairs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another corpus (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        corpus = toy_corpus(options.train, options.validation, options.test, options.seed)
        paths = write_corpus(corpus, options.output_dir)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    for path, pairs in zip(paths, corpus.values(), strict=True):
        print(f"{path}: {len(pairs)} pairs")


if __name__ == "__main__":
    main()

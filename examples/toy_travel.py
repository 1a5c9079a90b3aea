"""A second synthetic English-German corpus, of another domain than toy_corpus.py: announcements of a travel agency.

For fine-tuning: almost none of its words, and none of its numbers, clock times and place names, are in the first one,
so that a model trained there fails here, and its vocabulary spells them in pieces. Like the first, it is written by a
grammar, each English sentence has exactly one translation, and a score on it says nothing about real text.

    python examples/toy_travel.py --output_dir data/travel

writes train.jsonl, validation.jsonl and test.jsonl; no sentence is in two of them.
"""

import argparse
import random
from pathlib import Path

from toy_corpus import Pair, write_corpus

from modeling_vanilla.io import one_line_errors

# English; German with its article in the nominative and in the accusative; verb and prefix of leaving.
_VEHICLES = (
    ("train", "Der Zug", "den Zug", "fährt", "ab"),
    ("bus", "Der Bus", "den Bus", "fährt", "ab"),
    ("tram", "Die Straßenbahn", "die Straßenbahn", "fährt", "ab"),
    ("ferry", "Die Fähre", "die Fähre", "legt", "ab"),
    ("ship", "Das Schiff", "das Schiff", "legt", "ab"),
    ("plane", "Das Flugzeug", "das Flugzeug", "fliegt", "ab"),
)
_CITIES = (
    ("Munich", "München"),
    ("Cologne", "Köln"),
    ("Vienna", "Wien"),
    ("Hamburg", "Hamburg"),
    ("Zurich", "Zürich"),
    ("Nuremberg", "Nürnberg"),
    ("Hanover", "Hannover"),
    ("Geneva", "Genf"),
    ("Prague", "Prag"),
    ("Brunswick", "Braunschweig"),
)
_DAYS = (
    ("Monday", "Montag"),
    ("Tuesday", "Dienstag"),
    ("Wednesday", "Mittwoch"),
    ("Thursday", "Donnerstag"),
    ("Friday", "Freitag"),
    ("Saturday", "Samstag"),
    ("Sunday", "Sonntag"),
)
_REASONS = (
    ("because of snow", "wegen Schnees"),
    ("because of fog", "wegen Nebels"),
    ("because of a strike", "wegen eines Streiks"),
    ("because of a storm", "wegen eines Sturms"),
    ("because of an accident", "wegen eines Unfalls"),
)


def travel_pair(rng: random.Random) -> Pair:
    """One sentence and its translation."""
    vehicle, subject, accusative, leaves, prefix = rng.choice(_VEHICLES)
    (here, hier), (there, dort) = rng.sample(_CITIES, 2)
    day, tag = rng.choice(_DAYS)
    reason, grund = rng.choice(_REASONS)
    time = f"{rng.randint(1, 23)}:{rng.randint(0, 59):02d}"
    number = rng.randint(2, 99)
    article, noun = subject.split()
    return rng.choice(
        (
            (
                f"The {vehicle} to {there} leaves on {day} at {time}.",
                f"{subject} nach {dort} {leaves} am {tag} um {time} Uhr {prefix}.",
            ),
            (
                f"The {vehicle} from {here} is {number} minutes late {reason}.",
                f"{subject} aus {hier} hat {grund} {number} Minuten Verspätung.",
            ),
            (
                f"The {vehicle} to {there} is cancelled on {day} {reason}.",
                f"{subject} nach {dort} fällt am {tag} {grund} aus.",
            ),
            (
                f"A ticket from {here} to {there} costs {number} euros.",
                f"Eine Fahrkarte von {hier} nach {dort} kostet {number} Euro.",
            ),
            (
                f"When does the {vehicle} from {here} arrive on {day}?",
                f"Wann kommt {article.lower()} {noun} aus {hier} am {tag} an?",
            ),
            (
                f"Please change in {here} to the {vehicle} to {there}.",
                f"Bitte steigen Sie in {hier} in {accusative} nach {dort} um.",
            ),
        )
    )


def travel_corpus(train: int = 2000, validation: int = 200, test: int = 500, seed: int = 0) -> dict[str, list[Pair]]:
    """Pairs of each split, no sentence twice.

    Raises:
        ValueError: if more are asked for than the grammar is good for.
    """
    sizes = {"train": train, "validation": validation, "test": test}
    if min(sizes.values()) < 1 or sum(sizes.values()) > 10_000:
        raise ValueError(f"sizes must be at least 1 each and at most 10000 together, not {sizes}")
    rng = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < sum(sizes.values()):
        english, german = travel_pair(rng)
        found[english] = german
    pairs = iter(found.items())
    return {split: [next(pairs) for _ in range(size)] for split, size in sizes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for train, validation and test.jsonl")
    parser.add_argument("--train", type=int, default=2000, help="training pairs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another corpus (default: %(default)s)")
    options = parser.parse_args()
    with one_line_errors():
        for path in write_corpus(travel_corpus(options.train, seed=options.seed), options.output_dir):
            print(path)


if __name__ == "__main__":
    main()

"""The look at a corpus: every fault found where it is and nowhere else, and the clean corpus without them."""

import random

import pytest
from datasets import Dataset, DatasetDict
from helpers import as_lines, call

from modeling_vanilla.__main__ import main as vanilla
from modeling_vanilla.corpus import checks
from modeling_vanilla.corpus.checks import FAULTS, find_faults
from modeling_vanilla.corpus.data import load_pairs
from modeling_vanilla.training import DataOptions


def good_pairs(numbers):
    """Pairs that differ in letters, too: the digits of each number as consonants."""
    names = [f"{n}".translate(dict(zip(b"0123456789", "bdfgklmnrs", strict=True))) for n in numbers]
    return [(f"The city of {name} is good.", f"Die Stadt {name} ist gut, finden wir.") for name in names]


GOOD = good_pairs(range(100, 150))


def as_rows(pairs):
    return Dataset.from_dict(dict(zip(("source", "target"), map(list, zip(*pairs, strict=True)), strict=True)))


def faults_of(train, **options):
    """The rows of each fault of the training pairs."""
    faults = find_faults(DatasetDict(train=as_rows(train)), **options)["train"]
    return {fault: found.tolist() for fault, found in faults.items()}


FAULTY = [
    (("\u200b\u2060", " \t\u3000"), "empty"),
    (("Der Hund schla\u0308ft.", "Der Hund schläft."), "equal"),  # as canonically equivalent text is the same text
    (("Microsoft Word (/usr/bin/word), 100%", "Microsoft Word (/usr/bin/word), 100%"), ""),
    (GOOD[5], "duplicate"),
    (tuple(f"{side[:-1]} 17!" for side in GOOD[5]), ""),
    (tuple(f"{side[:-1]}, 17." for side in GOOD[5]), "near"),
    (("Price: € 5", "Preis: € 7"), "number"),
    (("About 1,234.50 m and 2,500 men in 1990", "Etwa 1234,50 m und 2 500 Mann 1990"), ""),
    (("From 3/12/1990 at 2:30 on", "Vom 12.3.1990 um 2.30 Uhr an (1)"), ""),
    (("About 20,000 men", "Etwa 2만 Mann"), ""),
    (("About ٣٤ of twenty and a hundred", "Etwa 34 von 20 und 100"), ""),
    (("In the year", "Im Jahr 1984"), "number"),
    (("At 2:30 pm in the late 1990s", "Um 14:30 Uhr in den späten 90ern"), ""),
    (("War of 1914-18 and twenty-one dead", "Krieg von 1914-1918 und 21 Tote"), ""),
    (("After 10 miles at 68 °F", "Nach 16 km bei 20 °C"), ""),
    (("After 10 km", "Nach 16 km"), "number"),
    (("Just 1/4 of it", "Bloß 25 % davon"), ""),
    (("Don&#8217;t", "Nicht"), ""),
    (("See our page", "Siehe www.example.org"), "address"),
    (("See http://example.org/en", "Siehe https://example.org/de"), ""),
    (("The dog sleeps in the garden.", "Le chien dort dans le jardin."), "language"),
    (("Il fait beau aujourd'hui, dit-elle.", "Das Wetter ist heute schön."), "language"),
    (("A dog.", "Ein Hund, der " * 5), "length"),
    (("Это предложение.", "Das ist ein Satz."), "script"),
    (("This sentence is long enough.", f"Это предложение{' длинно' * 9}: Dr."), "script language"),
    (("A dog.", "Ein\tHund."), "broken"),
    (("For you.", "FÃ¼r dich."), "broken"),
    (("A “dogâ€œ.", "Ein Hund."), "broken"),
    (("Three dogs.", "São três cães, NÃO: “â” à l’âme, «MAÇû."), ""),
    (("A new sign: \U0001fae9.", "Ein neues Zeichen: \U0001fae9."), ""),
]


def test_each_fault_is_found_where_it_is():
    """In a corpus of several batches, of which these pairs are evenly spread."""
    corpus = good_pairs(range(100, 12000))
    expected = {}
    for number, (pair, fault) in enumerate(FAULTY, start=1):
        corpus.insert(400 * number, pair)
        for each in fault.split():
            expected.setdefault(each, []).append(400 * number)
    assert faults_of(corpus) == expected


@pytest.mark.parametrize(
    ("usual", "right", "wrong"),
    [
        ("이것은 문장입니다", "Microsoft Word 개체", "漢字"),
        ("これは文です", "ロボット (Robot)", "강아지"),
        ("Это предложение", "Файл HTML", "Datei"),
    ],
)
def test_a_side_may_mix_scripts_but_needs_one_letter_of_its_own(usual, right, wrong):
    corpus = [(source, f"{usual} {source.split()[3]}") for source, _ in GOOD]
    assert faults_of([*corpus, ("An object.", right), ("A name.", wrong), ("SQL", "SQL")]) == {"script": [51]}
    assert faults_of([*GOOD, ("A name.", usual)]) == {"script": [50]}


def test_pairs_that_differ_in_digits_alone_stay_up_to_a_bound():
    numbered = [(f"Order part {number}.", f"Bestellen Sie Teil {number}.") for number in range(200)]
    repeated = [("Order_ part 7", "Bestellen Sie Teil 7:")]
    assert faults_of([*numbered, *repeated, *GOOD], digit_variants=1) == {"near": [*range(1, 201)]}
    assert faults_of([*numbered, *repeated, *GOOD], digit_variants=150) == {"near": [*range(150, 201)]}


def test_a_language_may_be_written_in_two_scripts():
    serbian = [(source, "Град је леп." if row % 4 else "Grad je lep.") for row, (source, _) in enumerate(GOOD)]
    assert faults_of([*serbian, ("The cat sleeps.", "Γάτα")]) == {"script": [len(GOOD)]}


def test_without_the_library_no_language_is_told(monkeypatch):
    monkeypatch.setattr(checks, "detect", None)
    assert faults_of([*GOOD, *(pair for pair, fault in FAULTY if fault == "language")]) == {}


def test_a_language_that_is_written_shorter_is_no_fault():
    chinese = [(f"{source} It has a park.", f"第{chr(0x4E00 + row)}句") for row, (source, _) in enumerate(GOOD)]
    long = "It goes on and on and on and on and on and on and on, sixty characters."
    assert faults_of([*chinese, ("Yes.", "是的" * 20), (long * 6, "是")]) == {"length": [50, 51]}


def test_repetitions_and_what_is_shared_as_by_brute_force():
    drawn, letters = random.Random(0), "abcdefghijklmnopqrstuvwxyzäöüß"
    sizes = {"train": 60, "test": 9, "validation": 5}
    splits = {name: [tuple(5 * drawn.choice(letters) for _ in "ab") for _ in range(sizes[name])] for name in sizes}
    faults = find_faults(DatasetDict({name: as_rows(pairs) for name, pairs in splits.items()}))
    for split, pairs in splits.items():
        others = splits["test"] + splits["validation"] if split == "train" else splits["train"]
        others = [set(side) for side in zip(*others, strict=True)]
        repeated = [row for row, pair in enumerate(pairs) if pair in pairs[:row]]
        shared = [row for row, pair in enumerate(pairs) if pair[0] in others[0] or pair[1] in others[1]]
        assert [*faults[split].get("duplicate", [])] == repeated
        assert [*faults[split]["shared"]] == shared


def test_the_command_shows_and_writes(tmp_path, own_cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [*GOOD, ("A dog.\x07", "Ein Hund. " * 20)]
    (tmp_path / "a.tsv").write_bytes(as_lines(map("\t".join, lines)))
    done = call(vanilla, "check", "--train_file", "a.tsv", "--output_dir", "clean")
    shown = f"    pair 51: 'A dog.\\x07' ||| '{'Ein Hund. ' * 7}Ein Hund."
    said = ["train: 51 pairs", f"  1 {FAULTS['length']}", shown, f"  1 {FAULTS['broken']}", shown]
    assert done.succeeded.output.splitlines() == [*said, "clean is written: 50 of 51 training pairs"]
    clean = load_pairs(DataOptions(train_source="clean/train.en", train_target="clean/train.de"))["train"]
    assert list(zip(clean["source"], clean["target"], strict=True)) == GOOD

"""The look at a corpus: every fault found where it is and nowhere else, and the clean corpus without them."""

import random

import pytest
from datasets import Dataset, DatasetDict
from helpers import as_lines, call

from modeling_vanilla.__main__ import main as vanilla
from modeling_vanilla.training import DataOptions
from modeling_vanilla.training.checks import FAULTS, find_faults
from modeling_vanilla.training.data import load_pairs


def good_pairs(numbers):
    return [(f"Number {n} is a good sentence.", f"Nummer {n} ist ein guter Satz über {n}.") for n in numbers]


GOOD = good_pairs(range(100, 150))


def as_rows(pairs):
    return Dataset.from_dict(dict(zip(("source", "target"), map(list, zip(*pairs, strict=True)), strict=True)))


def faults_of(train):
    """The rows of each fault of the training pairs."""
    faults = find_faults(DatasetDict(train=as_rows(train)))["train"]
    return {fault: found.tolist() for fault, found in faults.items()}


FAULTY = [
    (("\u200b\u2060", " \t\u3000"), "empty"),
    (("Der Hund schläft.", "Der Hund schläft."), "equal"),
    (("Microsoft Word (/usr/bin/word), 100%", "Microsoft Word (/usr/bin/word), 100%"), None),
    (GOOD[5], "duplicate"),
    (("A dog.", "Ein Hund, der " * 5), "length"),
    (("Это предложение.", "Das ist ein Satz."), "script"),
    (("This is a sentence.", "Α Β Γ Δ"), "script"),
    (("It is called Это предложение in Russian.", "Es heißt Это предложение."), None),
    (("This sentence is long enough.", f"Это предложение{' длинно' * 9}: Dr."), "script"),
    (("A dog.", "Ein\tHund."), "broken"),
    (("For you.", "FÃ¼r dich."), "broken"),
    (("A “dogâ€œ.", "Ein Hund."), "broken"),
    (("5 µm", "5 mm"), None),
    (("1ª", "1."), None),
    (("Three dogs.", "São três cães, NÃO: “â” à l’âme."), None),
]


def test_each_fault_is_found_where_it_is():
    """In a corpus of several batches, of which these pairs are evenly spread."""
    corpus = good_pairs(range(100, 12000))
    expected = {}
    for number, (pair, fault) in enumerate(FAULTY, start=1):
        corpus.insert(700 * number, pair)
        expected.setdefault(fault, []).append(700 * number)
    del expected[None]
    assert faults_of(corpus) == expected


@pytest.mark.parametrize(
    ("usual", "right", "wrong"),
    [
        ("이것은 문장입니다", "Microsoft Word 개체", "漢字"),
        ("これは文です", "ロボット (Robot)", "강아지"),
        ("东京是首都", "XML 文件", "Новый документ"),
        ("Это предложение", "Файл HTML", "Datei"),
    ],
)
def test_a_side_may_mix_scripts_but_needs_one_letter_of_its_own(usual, right, wrong):
    corpus = [(source, f"{usual} {row}") for row, (source, _) in enumerate(GOOD)]
    assert faults_of([*corpus, ("An object.", right), ("A name.", wrong), ("SQL", "SQL")]) == {"script": [51]}
    assert faults_of([*GOOD, ("A name.", usual)]) == {"script": [50]}


def test_a_language_that_is_written_shorter_is_no_fault():
    chinese = [(f"The sentence with the number {n} is a quite long one in English.", f"第{n}句") for n in range(60)]
    long = "It goes on and on and on and on and on and on and on, sixty characters."
    assert faults_of([*chinese, ("Yes.", "是的" * 20), (long * 6, "是")]) == {"length": [60, 61]}


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

"""Reading pairs, tokens and batches: every kind of broken input, and the promises of section 5.1's batching."""

import gzip
import json
import os

import datasets
import numpy as np
import pytest
import torch
from datasets import Dataset, IterableDataset
from modeling_vanilla.training.data import (
    DataOptions,
    collate,
    load_pairs,
    pair_lengths,
    stored,
    token_batches,
    tokenize_pairs,
    tokenize_training_pairs,
    update_batches,
)
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import HfArgumentParser, PreTrainedTokenizerFast

PAIRS = [("a cat", "eine Katze"), ("the dog barks", "der Hund bellt"), ("yes", "ja")]


pytestmark = pytest.mark.usefixtures("own_cache")


def write(path, text, encoding="utf-8"):
    data = text if isinstance(text, bytes) else text.encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def json_lines(pairs):
    lines = [json.dumps({"translation": {"en": en, "de": de}}, ensure_ascii=False) for en, de in pairs]
    return "".join(line + "\n" for line in lines)


def rows(dataset):
    return list(zip(dataset["source"], dataset["target"], strict=True))


def one_line(raised, *parts):
    message = str(raised.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


# Reading


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_json_lines_plain_and_compressed(tmp_path, suffix):
    train = write(tmp_path / f"train.json{suffix}", json_lines(PAIRS))
    test = write(tmp_path / f"test.json{suffix}", json_lines(PAIRS[:1]))
    pairs = load_pairs(DataOptions(train_file=train, test_file=test))
    assert list(pairs) == ["train", "test"]
    assert rows(pairs["train"]) == PAIRS
    assert rows(pairs["test"]) == PAIRS[:1]
    assert pairs["train"].column_names == ["source", "target"]


def test_languages_choose_the_direction(tmp_path):
    train = write(tmp_path / "train.json", json_lines(PAIRS))
    pairs = load_pairs(DataOptions(train_file=train, source_lang="de", target_lang="en"))
    assert rows(pairs["train"]) == [(de, en) for en, de in PAIRS]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_text_files_plain_and_compressed(tmp_path, suffix):
    source = write(tmp_path / f"a.en{suffix}", "a cat\nthe dog barks\nyes\n")
    target = write(tmp_path / f"a.de{suffix}", "eine Katze\nder Hund bellt\nja")  # no end of line at the end
    assert rows(load_pairs(DataOptions(train_source=source, train_target=target))["train"]) == PAIRS


def test_lines_end_at_the_newline_alone(tmp_path):
    source = write(tmp_path / "a.en", "one\u2028still one\x85still\x0bone\rone\r\n\r\nthree\n")
    target = write(tmp_path / "a.de", "eins\nzwei\n\u2029drei\x1c\n")
    pairs = load_pairs(DataOptions(train_source=source, train_target=target))["train"]
    assert rows(pairs) == [
        ("one\u2028still one\x85still\x0bone\rone", "eins"),
        ("", "zwei"),
        ("three", "\u2029drei\x1c"),
    ]


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "train.json"
    options = DataOptions(train_file=write(path, json_lines(PAIRS)))
    assert rows(load_pairs(options)["train"]) == PAIRS
    before = path.stat()
    write(path, json_lines([("a dog", "eine Katze"), *PAIRS[1:]]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as long and as old as the one before
    assert path.stat().st_size == before.st_size
    assert rows(load_pairs(options)["train"])[0] == ("a dog", "eine Katze")


def test_an_unchanged_file_is_read_once(tmp_path):
    options = DataOptions(train_file=write(tmp_path / "train.json", json_lines(PAIRS)))
    first, second = load_pairs(options)["train"], load_pairs(options)["train"]
    assert first.cache_files == second.cache_files


def test_local_dataset_folder(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    write(folder / "train.jsonl", json_lines(PAIRS))
    write(folder / "validation.jsonl", json_lines(PAIRS[:2]))
    test = write(tmp_path / "test.json", json_lines(PAIRS[2:]))
    pairs = load_pairs(DataOptions(dataset_name=str(folder), test_file=test))
    assert {split: rows(pairs[split]) for split in pairs} == {
        "train": PAIRS,
        "validation": PAIRS[:2],
        "test": PAIRS[2:],
    }
    write(folder / "train.jsonl", json_lines(PAIRS[1:]))
    assert rows(load_pairs(DataOptions(dataset_name=str(folder)))["train"]) == PAIRS[1:]


def test_a_dataset_is_read_no_further_than_asked(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    write(folder / "train.jsonl", json_lines(PAIRS))
    write(folder / "validation.jsonl", json_lines(PAIRS))
    options = DataOptions(dataset_name=str(folder), max_train_pairs=2)
    pairs = load_pairs(options)
    assert (rows(pairs["train"]), rows(pairs["validation"])) == (PAIRS[:2], PAIRS)
    write(folder / "train.jsonl", json_lines(PAIRS[1:]))
    assert rows(load_pairs(options)["train"]) == PAIRS[1:]
    for wrong in ({"max_train_pairs": 0, "dataset_name": str(folder)}, {"max_train_pairs": 5}):
        with pytest.raises(ValueError) as raised:
            load_pairs(DataOptions(**wrong))
        one_line(raised, f"max_train_pairs: {wrong['max_train_pairs']} must be at least 1")


def test_a_stream_is_training_data():
    """Read once and no further than it is asked for, and then the same as the rows at hand."""
    words = [("a b", "c"), ("b", "d a"), ("", "a"), ("c", "b b")]
    read = []

    def generate():
        for source, target in words * 1000:
            read.append(source)
            yield {"source": source, "target": target}

    stream = IterableDataset.from_generator(generate).take(4)
    table = Dataset.from_dict({"source": [a for a, _ in words], "target": [b for _, b in words]})
    found, expected = (tokenize_training_pairs(pairs, word_tokenizer(), DataOptions()) for pairs in (stream, table))
    assert found[0].to_list() == expected[0].to_list()
    assert found[1] == expected[1]
    assert len(read) <= 5
    assert [len(side) for side in pair_lengths(found[0])] == [3, 3]


def test_a_stream_that_breaks_off_says_why():
    def generate():
        yield {"source": "a", "target": "b"}
        raise OSError("the line is dead")

    with pytest.raises(ValueError) as raised:
        stored(IterableDataset.from_generator(generate))
    one_line(raised, "train data cannot be read from the stream: the line is dead")


def test_broken_dataset_folders(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    name = str(folder)
    with pytest.raises(ValueError) as raised:
        load_pairs(DataOptions(dataset_name=str(tmp_path / "nowhere")))
    one_line(raised, "dataset_name", "nowhere")

    write(folder / "train.jsonl", '{"text": "hello"}\n')
    with pytest.raises(ValueError) as raised:
        load_pairs(DataOptions(dataset_name=name))
    one_line(raised, 'no column "translation"', "text")

    write(folder / "train.jsonl", json_lines(PAIRS))
    with pytest.raises(ValueError) as raised:
        load_pairs(DataOptions(dataset_name=name, target_lang="fr"))
    one_line(raised, 'no "fr"', "en, de", "train, row 1")

    with pytest.raises(ValueError) as raised:
        load_pairs(DataOptions(dataset_name=name, train_file=write(tmp_path / "a.json", json_lines(PAIRS))))
    one_line(raised, "train data is given twice", "corpus", "a.json")


def raises_for_json(tmp_path, content, *parts, name="train.json"):
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError) as raised:
        load_pairs(DataOptions(train_file=path))
    one_line(raised, path, *parts)


GOOD = json_lines(PAIRS[:2])


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (GOOD + '{"translation": {"en": "a"\n', ["line 3", "not JSON", "column 27"]),
        (GOOD + "\n", ["line 3", "not JSON"]),
        (GOOD + '{"text": "hello"}\n', ["line 3", 'no "translation"', "hello"]),
        (GOOD + '["translation"]\n', ["line 3", 'no "translation"']),
        (GOOD + '{"translation": {"en": "a", "fr": "b"}}\n', ["line 3", 'no "de"', "en, fr"]),
        (GOOD + '{"translation": {}}\n', ["line 3", 'no "en"', "none"]),
        (GOOD + '{"translation": "a"}\n', ["line 3", "'a'", "not an object"]),
        (GOOD + '{"translation": {"en": "a", "de": null}}\n', ["line 3", '"de" is None, not text']),
        (GOOD + '{"translation": {"en": "\\ud800", "de": "b"}}\n', ["line 3", '"en" is not Unicode', "ud800"]),
        (GOOD.encode() + b'{"translation": {"en": "\xff", "de": "b"}}\n', ["line 3", "not UTF-8", "0xff"]),
        ("", ["empty"]),
    ],
)
def test_broken_json_files(tmp_path, content, parts):
    raises_for_json(tmp_path, content, *parts)


def test_broken_gzip(tmp_path):
    path = tmp_path / "train.json.gz"
    whole = gzip.compress(json_lines([(os.urandom(20).hex(), "x") for _ in range(2000)]).encode())
    for content in (b"not gzip at all\n", whole[: len(whole) // 2], whole[:-8] + bytes(8)):
        path.write_bytes(content)
        with pytest.raises(ValueError) as raised:
            load_pairs(DataOptions(train_file=str(path)))
        one_line(raised, str(path), "cannot be read beyond line")
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(ValueError) as raised:
        load_pairs(DataOptions(train_file=str(path)))
    one_line(raised, str(path), "empty")


def test_text_that_is_not_utf8_names_file_and_line(tmp_path):
    source = write(tmp_path / "a.en", "one\ntwo\n")
    target = write(tmp_path / "a.de", "eins\nzwölf\n", encoding="latin-1")
    with pytest.raises(ValueError) as raised:
        load_pairs(DataOptions(train_source=source, train_target=target))
    one_line(raised, f"{target}, line 2", "not UTF-8", "0xf6", "position 2")


@pytest.mark.parametrize(("lengths"), [(5, 3), (3, 5), (4, 3)])
def test_files_of_unequal_length(tmp_path, lengths):
    source = write(tmp_path / "a.en", "x\n" * lengths[0])
    target = write(tmp_path / "a.de", "x\n" * lengths[1])
    with pytest.raises(ValueError) as raised:
        load_pairs(DataOptions(train_source=source, train_target=target))
    one_line(raised, f"{source} has {lengths[0]} lines", f"{target} has {lengths[1]}")


@pytest.mark.parametrize("empty", ["a.en", "a.de"])
def test_an_empty_text_file(tmp_path, empty):
    source, target = write(tmp_path / "a.en", "x\n"), write(tmp_path / "a.de", "x\n")
    write(tmp_path / empty, "")
    with pytest.raises(ValueError) as raised:
        load_pairs(DataOptions(train_source=source, train_target=target))
    one_line(raised, empty, "empty")


def test_what_is_given_wrongly(tmp_path):
    file = write(tmp_path / "train.json", json_lines(PAIRS))
    for options, parts in [
        ({}, ["no training data", "train_file"]),
        ({"validation_file": file}, ["no training data"]),
        ({"train_file": str(tmp_path / "none.json")}, ["train_file", "there is no file", "none.json"]),
        ({"train_file": str(tmp_path)}, ["train_file", str(tmp_path), "is a folder"]),
        ({"train_file": file, "test_file": str(tmp_path / "none.json")}, ["test_file", "none.json"]),
        ({"train_source": file}, ["train_source", file, "without train_target"]),
        ({"train_file": file, "test_target": file}, ["test_target", file, "without test_source"]),
        ({"train_file": file, "train_source": file}, ["train data is given twice", "train_file and by train_source"]),
        ({"train_file": file, "train_source": file, "train_target": file}, ["given twice"]),
    ]:
        with pytest.raises(ValueError) as raised:
            load_pairs(DataOptions(**options))
        one_line(raised, *parts)


def test_a_failed_read_leaves_no_data_behind(tmp_path):
    with pytest.raises(ValueError):
        load_pairs(DataOptions(train_file=write(tmp_path / "train.json", GOOD + "broken\n")))
    assert not list((tmp_path / "cache").rglob("*.arrow"))


def test_options_from_a_command_line():
    parser = HfArgumentParser(DataOptions)
    (options,) = parser.parse_args_into_dataclasses(["--train_file", "a.json", "--max_source_tokens", "100"])
    assert options == DataOptions(train_file="a.json", max_source_tokens=100)
    assert all(action.help for action in parser._actions)


# Tokens


def word_tokenizer(words="a b c d", eos=True):
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *words.split()])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    if eos:
        tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def dataset(*pairs, split="train"):
    sources, targets = zip(*pairs, strict=True)
    return datasets.Dataset.from_dict({"source": sources, "target": targets}, split=datasets.NamedSplit(split))


def test_tokenize_pairs_drops_nothing():
    pairs = dataset(("a b", "c"), ("", "d d d"), ("e", "   "))
    tokenized = tokenize_pairs(pairs, word_tokenizer())
    assert tokenized.column_names == ["input_ids", "labels"]
    assert tokenized[:] == {"input_ids": [[4, 5, 2], [2], [3, 2]], "labels": [[6, 2], [7, 7, 7, 2], [2]]}
    assert [lengths.tolist() for lengths in pair_lengths(tokenized)] == [[3, 1, 2], [2, 4, 1]]
    assert [lengths.tolist() for lengths in pair_lengths(tokenized.select([2, 0]))] == [[2, 3], [1, 2]]


def test_another_tokenizer_is_not_served_the_ids_of_the_first(tmp_path):
    pairs = load_pairs(DataOptions(train_file=write(tmp_path / "a.json", json_lines([("a b", "c")]))))["train"]
    assert tokenize_pairs(pairs, word_tokenizer("a b c d"))[0] == {"input_ids": [4, 5, 2], "labels": [6, 2]}
    assert tokenize_pairs(pairs, word_tokenizer("d c b a"))[0] == {"input_ids": [7, 6, 2], "labels": [5, 2]}


def test_a_tokenizer_without_end_of_sentence_is_refused():
    with pytest.raises(ValueError) as raised:
        tokenize_pairs(dataset(("a", "b")), word_tokenizer(eos=False))
    one_line(raised, "tokenizer", "</s>", "id 2")


def test_training_pairs_left_out_are_counted_and_named():
    pairs = dataset(
        ("a b", "c"),
        ("", "d"),
        ("a a a", "c"),  # 4 tokens with </s>: the most that is allowed
        ("a a a a", "c"),
        ("a", " \u2003"),
        ("a a a a a", "d d d d d d"),
        ("", ""),
        ("", "d d d d d d"),
        ("b", "c c c"),
    )
    options = DataOptions(max_source_tokens=4, max_target_tokens=3)
    tokenized, left_out = tokenize_training_pairs(pairs, word_tokenizer(), options)
    assert tokenized["input_ids"][:] == [[4, 5, 2], [4, 4, 4, 2]]
    assert left_out == {
        "empty": 4,
        "too_long": 3,
        "examples": [
            "train line 2: empty source",
            "train line 4: source of 5 tokens",
            "train line 5: empty target",
            "train line 6: source of 6 tokens, target of 7 tokens",
            "train line 7: empty source, empty target",
        ],
    }


def test_nothing_left_out_and_nothing_left():
    pairs = dataset(("a b", "c"), ("a", "d"))
    tokenized, left_out = tokenize_training_pairs(pairs, word_tokenizer(), DataOptions())
    assert len(tokenized) == 2
    assert left_out == {"empty": 0, "too_long": 0, "examples": []}
    with pytest.raises(ValueError) as raised:
        tokenize_training_pairs(pairs, word_tokenizer(), DataOptions(max_target_tokens=1))
    one_line(raised, "no training pair is left", "2 have more than 256 source or 1 target tokens", "train line 1")


# Batches


def corpus_lengths(pairs=20_000, seed=0):
    """Log-normal sentence lengths about 20, the target's about the source's: what real corpora look like."""
    rng = np.random.default_rng(seed)
    sources = np.clip(rng.lognormal(2.8, 0.5, pairs), 2, 200).astype(int)
    targets = np.clip(sources * rng.lognormal(0.0, 0.25, pairs), 2, 200).astype(int)
    return sources, targets


def padding(batches, sides):
    padded = sum(len(batch) * side[batch].max() for batch in batches for side in sides)
    return 1 - sum(side.sum() for side in sides) / padded


@pytest.mark.parametrize("tokens_per_batch", [200, 1024, 4096])
def test_batches_hold_every_pair_once_within_the_cap(tokens_per_batch):
    sides = corpus_lengths()
    batches = token_batches(*sides, tokens_per_batch, seed=1, epoch=0)
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(20_000))
    for batch in batches:
        for side in sides:
            assert len(batch) * side[batch].max() <= tokens_per_batch


def test_batches_have_little_padding():
    sides = corpus_lengths(100_000)
    batches = token_batches(*sides, 4096, seed=1, epoch=0)
    assert padding(batches, sides) < 0.06
    fill = [max(len(batch) * side[batch].max() for side in sides) / 4096 for batch in batches]
    assert np.mean(fill) > 0.95
    in_order = np.array_split(np.arange(100_000), len(batches))
    assert padding(in_order, sides) > 0.4  # what the lengths would cost unsorted


def test_batches_are_cut_only_where_the_next_pair_would_not_fit():
    sources, targets = np.array([2, 2, 2, 3, 3]), np.array([2, 3, 4, 4, 2])
    batches = token_batches(sources, targets, 8, seed=0, epoch=0)
    # Sorted up and down: (2,2) (2,3) (2,4) (3,4) (3,2). Three rows of 3 would already be 9 tokens.
    assert sorted(batch.tolist() for batch in batches) == [[0, 1], [2, 3], [4]]


def test_batches_depend_on_seed_and_epoch_alone():
    sides = corpus_lengths(5000)

    def batches(seed, epoch):
        return [batch.tolist() for batch in token_batches(*sides, 1024, seed, epoch)]

    first = batches(1, 0)
    np.random.seed(123)
    assert batches(1, 0) == first
    for other in (batches(1, 1), batches(2, 0)):
        assert other != first
        # Not the same batches in another order either: equal lengths are mixed anew.
        assert {tuple(sorted(batch)) for batch in other} != {tuple(sorted(batch)) for batch in first}


def test_batches_come_in_random_order():
    sources, _ = sides = corpus_lengths()
    means = [sources[batch].mean() for batch in token_batches(*sides, 1024, seed=0, epoch=0)]
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.2


def test_a_pair_beyond_the_cap_is_named():
    with pytest.raises(ValueError) as raised:
        token_batches(np.array([3, 4, 5]), np.array([3, 90, 5]), 80, seed=0, epoch=0)
    one_line(raised, "tokens_per_batch: 80", "pair 2", "4 source and 90 target")
    assert [b.tolist() for b in token_batches(np.array([80]), np.array([80]), 80, seed=0, epoch=0)] == [[0]]


@pytest.mark.parametrize(("tokens_per_batch", "tokens_per_update"), [(512, 4000), (1024, 25_000), (4096, 25_000)])
def test_updates_are_near_their_size(tokens_per_batch, tokens_per_update):
    sides = corpus_lengths(60_000)
    batches = token_batches(*sides, tokens_per_batch, seed=3, epoch=2)
    updates = update_batches(batches, *sides, tokens_per_update)
    assert [batch for update in updates for batch in update] == batches
    sizes = np.array([np.mean([side[np.concatenate(update)].sum() for side in sides]) for update in updates])
    assert abs(sizes.mean() / tokens_per_update - 1) < 0.04
    # Nearest to the target: never further off than half of a batch, but for the last, which takes what is left.
    assert np.abs(sizes[:-1] - tokens_per_update).max() <= tokens_per_batch / 2
    assert 0.5 <= sizes[-1] / tokens_per_update <= 1.5 + tokens_per_batch / tokens_per_update


def test_updates_by_hand():
    batches = [np.array([i]) for i in range(5)]
    updates = update_batches(batches, np.full(5, 12), np.full(5, 8), tokens_per_update=22)
    # 10 tokens each, the mean of 12 and 8: 20 is nearer to 22 than 30. The last 10 are less than half of 22.
    assert [[int(batch[0]) for batch in update] for update in updates] == [[0, 1], [2, 3, 4]]
    updates = update_batches(batches, np.full(5, 12), np.full(5, 8), tokens_per_update=20)
    assert [[int(batch[0]) for batch in update] for update in updates] == [[0, 1], [2, 3], [4]]
    updates = update_batches(batches, np.full(5, 12), np.full(5, 8), tokens_per_update=7)
    assert [len(update) for update in updates] == [1, 1, 1, 1, 1]


def test_an_update_that_the_data_cannot_fill():
    with pytest.raises(ValueError) as raised:
        update_batches([np.array([0, 1])], np.array([10, 10]), np.array([10, 10]), tokens_per_update=25_000)
    one_line(raised, "tokens_per_update: 25000", "20 a side")


def test_collate_pads_on_the_right():
    # Here a sentence holds the padding token itself: attention must still see it.
    batch = collate([{"input_ids": [5, 0, 2], "labels": [7, 2]}, {"input_ids": [2], "labels": [8, 9, 2]}], 0)
    assert batch["input_ids"].tolist() == [[5, 0, 2], [2, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[7, 2, -100], [8, 9, 2]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}

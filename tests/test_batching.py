"""Tokens, batches and updates: the promises of section 5.1's batching, by hand and on lengths like a real corpus's."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset, NamedSplit
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from modeling_vanilla.corpus.batches import collate, epoch_batches, join_batches, update_batches
from modeling_vanilla.corpus.tokenized import pair_lengths, tokenize_pairs, tokenize_training_pairs
from modeling_vanilla.training import DataOptions

pytestmark = pytest.mark.usefixtures("own_cache")


def word_tokenizer(words="a b c d", eos=True):
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *words.split()])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    if eos:
        tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def dataset(*pairs):
    sources, targets = zip(*pairs, strict=True)
    return Dataset.from_dict({"source": sources, "target": targets}, split=NamedSplit("train"))


def test_tokenize_pairs_keeps_every_row():
    pairs = dataset(("a b", "c"), ("", "d d d"), ("e", "   "))
    tokenized = tokenize_pairs(pairs, word_tokenizer())
    assert tokenized[:] == {"input_ids": [[4, 5, 2], [2], [3, 2]], "labels": [[6, 2], [7, 7, 7, 2], [2]]}
    assert [lengths.tolist() for lengths in pair_lengths(tokenized)] == [[3, 1, 2], [2, 4, 1]]
    assert [lengths.tolist() for lengths in pair_lengths(tokenized.select([2, 0]))] == [[2, 3], [1, 2]]
    # Another tokenizer does not get the ids of the first from the cache.
    assert tokenize_pairs(pairs, word_tokenizer("d c b a"))[0] == {"input_ids": [7, 6, 2], "labels": [5, 2]}


def test_a_tokenizer_without_end_of_sentence_is_refused():
    with pytest.raises(ValueError, match=r"^tokenizer: it encodes '' as \[\], .*'</s>', id 2"):
        tokenize_pairs(dataset(("a", "b")), word_tokenizer(eos=False))


def test_removed_training_pairs_are_counted():
    rows = [("", "d"), ("a a a", "c"), ("a", " \u2003\u200b"), ("a a a a", "c"), ("b", "c c c")]
    options = DataOptions(max_source_length=4, max_target_length=3)  # the second has 4 tokens with </s>
    corpus = tokenize_training_pairs(dataset(*rows), word_tokenizer(), options)
    assert corpus.rows[:] == {"input_ids": [[4, 4, 4, 2]], "labels": [[6, 2]]}
    assert [side.tolist() for side in corpus.lengths] == [[4], [2]] and corpus.sources == ["a a a"]
    assert corpus.removed == {"empty": 2, "too_long": 2}


def corpus_lengths(pairs=100_000):
    """Log-normal sentence lengths about 20, the target's about the source's: what real corpora look like."""
    rng = np.random.default_rng(0)
    sources = np.clip(rng.lognormal(2.8, 0.5, pairs), 2, 200).astype(int)
    targets = np.clip(sources * rng.lognormal(0.0, 0.25, pairs), 2, 200).astype(int)
    return sources, targets


@pytest.mark.parametrize(("tokens_per_batch", "most_padding"), [(200, 1), (4096, 0.06)])
def test_batches_hold_every_pair_once_within_the_limit_in_random_order(tokens_per_batch, most_padding):
    """With little padding where a batch has many sentences."""
    sides = corpus_lengths()
    batches = epoch_batches(*sides, tokens_per_batch, seed=1, epoch=0)
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(100_000))
    assert all(len(batch) * side[batch].max() <= tokens_per_batch for batch in batches for side in sides)
    means = [sides[0][batch].mean() for batch in batches]
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.2
    padded = sum(len(batch) * side[batch].max() for batch in batches for side in sides)
    assert 1 - sum(side.sum() for side in sides) / padded < most_padding


def test_batches_are_cut_only_where_the_next_pair_would_not_fit():
    sources, targets = np.array([2, 2, 2, 3, 3]), np.array([2, 3, 4, 4, 2])
    batches = epoch_batches(sources, targets, 8, seed=0, epoch=0)
    # Sorted up and down: (2,2) (2,3) (2,4) (3,4) (3,2). Three rows of 3 would already be 9 tokens.
    assert sorted(batch.tolist() for batch in batches) == [[0, 1], [2, 3], [4]]


def test_batches_depend_on_seed_and_epoch_alone():
    sides, drawn = corpus_lengths(5000), ((1, 0), (1, 0), (1, 1), (2, 0))
    found = [[batch.tolist() for batch in epoch_batches(*sides, 1024, *seed_and_epoch)] for seed_and_epoch in drawn]
    assert found[0] == found[1]
    # Not the same batches in another order either: equal lengths are mixed anew.
    assert len({frozenset(map(frozenset, batches)) for batches in found}) == 3


def test_a_pair_beyond_the_limit_is_a_batch_by_itself():
    batches = epoch_batches(np.array([3, 4, 90, 5]), np.array([3, 90, 80, 5]), 80, seed=0, epoch=0)
    assert sorted(batch.tolist() for batch in batches) == [[0], [1], [2], [3]]


# 10 tokens each, the mean of 12 and 8: 20 is nearer to 22 than 30. The last 10 are less than half of 22.
UPDATES = [(22, [[0, 1], [2, 3, 4]]), (20, [[0, 1], [2, 3], [4]]), (25_000, [[0, 1, 2, 3, 4]])]


@pytest.mark.parametrize(("tokens_per_update", "expected"), UPDATES)
def test_updates_by_hand(tokens_per_update, expected):
    updates = update_batches([np.array([i]) for i in range(5)], np.full(5, 12), np.full(5, 8), tokens_per_update)
    assert [[int(batch[0]) for batch in update] for update in updates] == expected


def test_batches_are_joined_where_their_lengths_are_near():
    """By hand: beside pairs of 100 tokens, 20 pairs of 2 would have 20 * 2 * 98 positions of padding."""
    lengths = np.array([2] * 20 + [100] * 5 + [2] * 20 + [4] * 10)
    batches = np.split(np.arange(55), [20, 25, 45])
    joined = join_batches(batches, lengths, lengths)
    assert [batch.tolist() for batch in joined] == [[*range(20), *range(25, 55)], [*range(20, 25)]]


def test_collate_pads_on_the_right():
    # Here a sentence holds the padding token itself: attention must still see it.
    batch = collate(pa.table({"input_ids": [[5, 0, 2], [2]], "labels": [[7, 2], [8, 9, 2]]}), 0)
    assert batch["input_ids"].tolist() == [[5, 0, 2], [2, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[7, 2, -100], [8, 9, 2]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}

"""translate(): order, empty lines, batch sizes, and what it refuses; n best, scores of pairs, long sources."""

import itertools
import math
import re
from types import SimpleNamespace

import pytest
import torch

from modeling_vanilla.inference.translation import (
    Hypothesis,
    join_nbest,
    score_pairs,
    split_long,
    translate,
    translate_nbest,
)
from modeling_vanilla.training.tokenizer import train_tokenizer

SENTENCES = [
    "a dog sees a cat",
    "a cat",
    "the old man gives the small child a red apple",
    "a dog",
    "Grüße, 안녕, 🙂!",
    "the man sees",
    "a",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SENTENCES * 3, vocab_size=320)


@pytest.fixture
def model(make_model, tokenizer):
    model = make_model(vocab_size=len(tokenizer))
    # Up to 12 tokens instead of the input's 50 more: an untrained model rarely ends a sentence by itself.
    model.generation_config.max_new_tokens = 12
    return model


def one_by_one(model, tokenizer, sentences, **generate_kwargs):
    """Each sentence by itself, without padding, straight through generate()."""
    texts = []
    for sentence in sentences:
        ids = torch.tensor([tokenizer(sentence).input_ids])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), **generate_kwargs)
        texts.append(tokenizer.decode(output[0], skip_special_tokens=True))
    return texts


@pytest.mark.parametrize("tokens_per_batch", [1, 40, 4096])
@pytest.mark.parametrize("beams", [1, 4])
def test_every_sentence_in_its_place_whatever_the_batch(model, tokenizer, tokens_per_batch, beams):
    expected = one_by_one(model, tokenizer, SENTENCES, num_beams=beams)
    assert len(set(expected)) > 1  # or no order could be told
    assert translate(model, tokenizer, SENTENCES, tokens_per_batch, num_beams=beams) == expected


def test_the_search_is_by_default_the_models(model, tokenizer):
    assert model.generation_config.num_beams == 4
    assert translate(model, tokenizer, SENTENCES) == one_by_one(model, tokenizer, SENTENCES, num_beams=4)


def test_empty_and_blank_lines_stay_empty(model, tokenizer):
    (alone,) = translate(model, tokenizer, ["a dog"])
    assert translate(model, tokenizer, ["", "a dog", "  \t", "a dog", "\u3000"]) == ["", alone, "", alone, ""]
    assert translate(model, tokenizer, ["", " "]) == ["", ""]
    assert translate(model, tokenizer, []) == []


def test_batches_hold_no_more_than_asked(model, tokenizer, monkeypatch):
    sizes, generate = [], model.generate

    def record(input_ids, **keywords):
        sizes.append(input_ids.shape)
        return generate(input_ids=input_ids, **keywords)

    monkeypatch.setattr(model, "generate", record)
    translate(model, tokenizer, SENTENCES, tokens_per_batch=60, num_beams=2)
    assert sum(rows for rows, _ in sizes) == len(SENTENCES)
    assert len(sizes) > 1
    assert all(rows == 1 or rows * length * 2 <= 60 for rows, length in sizes)
    assert [length for _, length in sizes] == sorted((length for _, length in sizes), reverse=True)


@pytest.mark.parametrize("tokens_per_batch", [0, -5])
def test_refuses_a_batch_of_nothing(model, tokenizer, tokens_per_batch):
    with pytest.raises(ValueError, match=rf"^tokens_per_batch must be at least 1, not {tokens_per_batch}$"):
        translate(model, tokenizer, ["a dog"], tokens_per_batch=tokens_per_batch)


# n best, scores


def test_nbest_are_the_searchs_with_its_scores(model, tokenizer):
    for alpha in (0.6, 1.0):
        found = translate_nbest(model, tokenizer, SENTENCES, 3, tokens_per_batch=100, length_penalty=alpha)
        for sentence, hypotheses in zip(SENTENCES, found, strict=True):
            output = model.generate(
                torch.tensor([tokenizer(sentence).input_ids]),
                num_return_sequences=3,
                length_penalty=alpha,
                return_dict_in_generate=True,
                output_scores=True,
            )
            assert [text for text, _ in hypotheses] == tokenizer.batch_decode(
                output.sequences, skip_special_tokens=True
            )
            assert [score for _, score in hypotheses] == pytest.approx(output.sequences_scores.tolist(), abs=1e-4)


def test_the_best_of_n_is_the_translation(model, tokenizer):
    best = [hypotheses[0].text for hypotheses in translate_nbest(model, tokenizer, ["", *SENTENCES], 2)]
    assert best == translate(model, tokenizer, ["", *SENTENCES])
    assert translate_nbest(model, tokenizer, [" "], 2) == [[("", 0.0)]]
    assert translate_nbest(model, tokenizer, [], 2) == []


@pytest.mark.parametrize("nbest", [0, 5])
def test_nbest_needs_as_many_beams(model, tokenizer, nbest):
    with pytest.raises(ValueError, match=rf"^nbest must be from 1 to the number of beams, 4, not {nbest}$"):
        translate_nbest(model, tokenizer, SENTENCES, nbest)


def test_pairs_are_scored_by_the_product_of_their_tokens(model, tokenizer):
    targets = [*reversed(SENTENCES)]
    found = score_pairs(model, tokenizer, SENTENCES, targets, tokens_per_batch=40)
    for source, target, pair in zip(SENTENCES, targets, found, strict=True):
        # By the plain product rule, a prefix at a time.
        ids, total = tokenizer(target).input_ids, 0.0
        for position, token in enumerate(ids):
            prefix = torch.tensor([[tokenizer.bos_token_id, *ids[:position]]])
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([tokenizer(source).input_ids]), decoder_input_ids=prefix).logits
            total += logits[0, -1].double().softmax(dim=-1)[token].log().item()
        assert ids[-1] == tokenizer.eos_token_id
        assert pair.tokens == len(ids)
        assert pair.log_prob == pytest.approx(total, abs=1e-3)
        assert pair.perplexity == pytest.approx(math.exp(-total / len(ids)), rel=1e-4)


def test_scores_know_no_label_smoothing(make_model, tokenizer):
    plain, smoothed = (make_model(vocab_size=len(tokenizer), label_smoothing=epsilon) for epsilon in (0.0, 0.3))
    pairs = (SENTENCES, SENTENCES)
    assert score_pairs(plain, tokenizer, *pairs) == score_pairs(smoothed, tokenizer, *pairs)


def test_pairs_must_be_pairs(model, tokenizer):
    with pytest.raises(ValueError, match=r"^there are 2 sources but 1 targets$"):
        score_pairs(model, tokenizer, ["a", "b"], ["c"])
    assert score_pairs(model, tokenizer, [], []) == []


def test_joined_hypotheses_are_the_best_combinations():
    first = [Hypothesis("a", -1.0), Hypothesis("b", -1.5), Hypothesis("c", -9.0)]
    second = [Hypothesis("x", -2.0), Hypothesis("y", -2.2), Hypothesis("z", -2.9)]
    third = [Hypothesis("", 0.0)]
    pieces = [first, second, third]
    combinations = [
        (" ".join(filter(None, (one.text for one in chosen))), sum(one.score for one in chosen))
        for chosen in itertools.product(*pieces)
    ]
    combinations.sort(key=lambda pair: -pair[1])
    assert join_nbest(pieces, 3) == combinations[:3]
    assert join_nbest([first], 2) == first[:2]


# Long sources


def lengths(tokenizer, texts):
    return [len(ids) for ids in tokenizer(texts).input_ids]


class OneTokenAWord:
    """Counts every word and mark as one token, and EOS, so that the pieces expected can be told by hand."""

    def __call__(self, texts, **kwargs):
        return SimpleNamespace(input_ids=[[*re.findall(r"\w+|[^\w\s]", text), "</s>"] for text in texts])


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("a b c d. e f g h! i j?", 15, ["a b c d. e f g h! i j?"]),
        ("a b c d. e f g h! i j?", 13, ["a b c d. e f g h! ", "i j?"]),
        ("a b c d. e f g h! i j?", 8, ["a b c d. ", "e f g h! ", "i j?"]),
        ('a b c d." E f g h. (I j k.) l m', 9, ['a b c d." ', "E f g h. ", "(I j k.) l m"]),
        ("a b c d . e f g h i . j k", 8, ["a b c d . ", "e f g h i . ", "j k"]),
        ("a b 3.5 c d. e f g", 9, ["a b 3.5 c d. ", "e f g"]),
        ("a b c, d e f, g h. i", 8, ["a b c, ", "d e f, g h. ", "i"]),
        ("a b c d e f g h i j. k", 8, ["a b c d e f g ", "h i j. k"]),
        ("a b c d e f。g h i j！k", 8, ["a b c d e f。", "g h i j！k"]),
    ],
)
def test_long_texts_are_cut_where_it_hurts_least(model, text, limit, expected):
    assert split_long(model, OneTokenAWord(), [text], limit) == [expected]


def test_no_piece_is_too_long_and_nothing_is_lost(model, tokenizer):
    texts = [
        "The dog sees a cat. " * 40,
        "a dog sees, a cat sees " * 40,
        "日本語の文です。次の文です。" * 20,
        "안녕" * 200,
        "Grüße🙂" * 100,
        "a\u2028dog \t " * 60,
        "short",
        "",
    ]
    for limit in (8, 20, 64):
        for text, pieces in zip(texts, split_long(model, tokenizer, texts, limit), strict=True):
            assert "".join(pieces) == text
            assert (len(pieces) > 1) == (lengths(tokenizer, [text])[0] > limit)
            assert max(lengths(tokenizer, [piece.strip() for piece in pieces])) <= limit


def test_learned_positions_bound_the_pieces(make_model, tokenizer):
    learned = make_model(vocab_size=len(tokenizer), position_embedding_type="learned", max_position_embeddings=30)
    (pieces,) = split_long(learned, tokenizer, ["a dog sees a cat. " * 20])
    assert max(lengths(tokenizer, pieces)) <= 30


def test_refuses_pieces_too_short_for_a_character(model, tokenizer):
    with pytest.raises(ValueError, match=r"^max_source_tokens must be at least 8, not 7$"):
        split_long(model, tokenizer, ["a dog"], 7)

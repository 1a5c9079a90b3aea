"""translate(): order, blank lines, batch sizes, and what it refuses; n best, scores of pairs, long sources."""

import itertools
import math
import re
from types import SimpleNamespace

import pytest
import torch
from helpers import make_tokenizer
from transformers import GenerationConfig, pipeline

from modeling_vanilla.inference import score_pairs, split_long, word_alignments
from modeling_vanilla.inference.translation import Hypothesis, join_nbest, translate, translate_nbest

LONGEST = "the old man gives the small child a red apple"
SENTENCES = ["a dog sees a cat", "a cat", LONGEST, "a dog", "Grüße, 안녕, 🙂!", "the man sees", "a"]


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(SENTENCES, vocab_size=320)


@pytest.fixture
def model(make_model, tokenizer):
    model = make_model(vocab_size=len(tokenizer))
    # Up to 12 tokens instead of the input's 50 more: an untrained model rarely ends a sentence by itself.
    model.generation_config.max_new_tokens = 12
    return model


def one_by_one(model, tokenizer, sentences, **settings):
    """Each sentence by itself, without padding, straight through generate()."""
    ids = [model.generate(**tokenizer(sentence, return_tensors="pt"), **settings)[0] for sentence in sentences]
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("tokens_per_batch", [1, 40, 4096])
@pytest.mark.parametrize("settings", [{"num_beams": 1}, {}])  # the model's own search has 4
def test_every_sentence_in_its_place_whatever_the_batch(model, tokenizer, tokens_per_batch, settings):
    expected = one_by_one(model, tokenizer, SENTENCES, **{"num_beams": 4, **settings})
    assert len(set(expected)) > 1  # or no order could be told
    assert translate(model, tokenizer, SENTENCES, tokens_per_batch, **settings) == expected


def test_empty_and_blank_lines_stay_empty(model, tokenizer):
    (alone,) = translate(model, tokenizer, ["a dog"])
    for texts in (["", "a dog", "  \t", "a dog", "\u3000"], ["", " "], []):
        assert translate(model, tokenizer, texts) == [alone if text.strip() else "" for text in texts]


def test_batches_hold_no_more_than_asked(model, tokenizer, monkeypatch):
    sizes, generate = [], model.generate

    def record(input_ids, **keywords):
        sizes.append(input_ids.shape)
        return generate(input_ids=input_ids, **keywords)

    monkeypatch.setattr(model, "generate", record)
    translate(model, tokenizer, SENTENCES, tokens_per_batch=60, num_beams=2)
    counts, widths = zip(*sizes, strict=True)
    assert sum(counts) == len(SENTENCES) and len(sizes) > 1
    assert all(rows == 1 or rows * length * 2 <= 60 for rows, length in sizes)
    assert [*widths] == sorted(widths, reverse=True)


@pytest.mark.parametrize(
    ("translate_with", "message"),
    [
        ({"tokens_per_batch": 0}, "tokens_per_batch must be at least 1, not 0"),
        ({"max_source_tokens": 7}, "max_source_tokens must be at least 8, not 7"),
        ({"sentences": "a dog"}, "a list of texts is needed, not one text: 'a dog'"),
        ({"nbest": 0}, "nbest must be from 1 to the number of beams, 4, not 0"),
        ({"nbest": 5}, "nbest must be from 1 to the number of beams, 4, not 5"),
        ({"nbest": "3"}, "nbest must be from 1 to the number of beams, 4, not '3'"),
        ({"sentences": ["a dog", None]}, "texts must be strings, not NoneType: None"),
        ({"num_return_sequences": 2}, "num_return_sequences and return_dict_in_generate are for translate_nbest.*"),
        ({"terms": [("cow", "dog")], "num_beams": 1}, "terms need num_beams of at least 2"),
    ],
)
def test_refuses_what_cannot_be_translated(model, tokenizer, translate_with, message):
    function = translate_nbest if "nbest" in translate_with else translate
    with pytest.raises(ValueError, match=f"^{message}$"):
        function(model, tokenizer, **{"sentences": ["a dog"], **translate_with})


def test_no_translation_is_made_of_nothing(model, tokenizer):
    """More beams than there are first tokens."""
    beams = model.config.vocab_size + 20
    (found,) = translate_nbest(model, tokenizer, ["a dog"], beams, num_beams=beams, max_new_tokens=1)
    assert 1 < len(found) <= model.config.vocab_size and found[-1].score > -math.inf


@pytest.mark.parametrize("function", [score_pairs, word_alignments])
@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ((["a", "b"], ["c"]), "there are 2 sources but 1 targets"),
        (("ab", ["c", "d"]), "sources must be a list of texts, not one text: 'ab'"),
        ((["c", "d"], "ab"), "targets must be a list of texts, not one text: 'ab'"),
    ],
)
def test_refuses_what_are_no_pairs(model, tokenizer, function, pairs, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        function(model, tokenizer, *pairs)


# n best, scores


def by_hand(model, tokenizer, source: str, ids: list[int]) -> list[float]:
    """log P of each token, given those before, by one forward pass."""
    target = torch.tensor([[tokenizer.bos_token_id, *ids[:-1]]])
    with torch.no_grad():
        logits = model(**tokenizer(source, return_tensors="pt"), decoder_input_ids=target).logits[0]
    return logits.log_softmax(dim=-1)[range(len(ids)), ids].tolist()


def test_a_greedy_translation_has_a_score_too(model, tokenizer):
    (found,) = translate_nbest(model, tokenizer, SENTENCES[:1], 1, num_beams=1)[0]
    ids = tokenizer.convert_tokens_to_ids(found.tokens)
    assert found.log_probs == pytest.approx(by_hand(model, tokenizer, SENTENCES[0], ids), abs=1e-4)
    assert found.score == pytest.approx(sum(found.log_probs) / ((5 + len(ids)) / 6) ** 0.6, abs=1e-4)


@pytest.mark.parametrize("alpha", (0.6, 1.0))
def test_nbest_are_the_searchs_with_its_scores(model, tokenizer, alpha):
    found = translate_nbest(model, tokenizer, SENTENCES, 3, tokens_per_batch=100, length_penalty=alpha)
    settings = {"num_return_sequences": 3, "return_dict_in_generate": True, "output_scores": True}
    for sentence, hypotheses in zip(SENTENCES, found, strict=True):
        inputs = tokenizer(sentence, return_tensors="pt")
        output = model.generate(**inputs, length_penalty=alpha, **settings)
        texts, scores, tokens, log_probs = zip(*hypotheses, strict=True)
        assert [*texts] == tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
        assert scores == pytest.approx(output.sequences_scores.tolist(), abs=1e-4)
        for row, ids in enumerate(map(tokenizer.convert_tokens_to_ids, tokens)):
            assert output.sequences[row, 1 : len(ids) + 1].tolist() == ids
            assert log_probs[row] == pytest.approx(by_hand(model, tokenizer, sentence, ids), abs=1e-4)
            assert sum(log_probs[row]) / ((5 + len(ids)) / 6) ** alpha == pytest.approx(scores[row], abs=1e-4)


@pytest.mark.parametrize("beams", (1, 3))
def test_a_configuration_of_the_call_says_how_to_search(model, tokenizer, beams):
    search = {"num_beams": beams, "length_penalty": 0.9}
    given = {"generation_config": GenerationConfig(**{**search, "length_penalty": 0.9 if beams > 1 else None})}
    if beams > 1:
        assert translate_nbest(model, tokenizer, SENTENCES, 3, **given) == translate_nbest(
            model, tokenizer, SENTENCES, 3, **search
        )
    assert translate(model, tokenizer, SENTENCES, **given) == translate(model, tokenizer, SENTENCES, **search)


def test_what_generate_returns_is_not_the_models_to_choose(model, tokenizer):
    expected = translate(model, tokenizer, SENTENCES)
    model.generation_config.update(num_return_sequences=2, return_dict_in_generate=True)
    assert translate(model, tokenizer, SENTENCES) == expected
    translator = pipeline("translation", model=model, tokenizer=tokenizer)
    assert [best["translation_text"] for best, _ in translator(SENTENCES)] == expected


def test_the_best_of_n_is_the_translation(model, tokenizer):
    best = [hypotheses[0].text for hypotheses in translate_nbest(model, tokenizer, ["", *SENTENCES], 2)]
    assert best == translate(model, tokenizer, ["", *SENTENCES])
    assert translate_nbest(model, tokenizer, [" "], 2) == [[Hypothesis("", 0.0)]]
    assert translate_nbest(model, tokenizer, [], 2) == []


def test_pairs_are_scored_by_the_product_of_their_tokens(model, tokenizer):
    targets = [*reversed(SENTENCES)]
    found = score_pairs(model, tokenizer, SENTENCES, targets, tokens_per_batch=40)
    assert score_pairs(model, tokenizer, [], []) == []
    assert model.config.label_smoothing > 0  # of which the scores know nothing
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


def test_joined_hypotheses_are_the_best_combinations():
    first = [Hypothesis("a", -1.0), Hypothesis("b", -1.5), Hypothesis("c", -9.0)]
    second = [Hypothesis("x", -2.0), Hypothesis("y", -2.2), Hypothesis("z", -2.9)]
    pieces = [first, second, [Hypothesis("", 0.0)]]
    combinations = [
        (" ".join(filter(None, texts)), sum(scores))
        for texts, scores, *_ in (zip(*chosen, strict=True) for chosen in itertools.product(*pieces))
    ]
    best = [hypothesis[:2] for hypothesis in join_nbest(pieces, 3)]
    assert best == sorted(combinations, key=lambda pair: -pair[1])[:3]
    assert join_nbest([first], 2) == first[:2]


# Long sources


def lengths(tokenizer, texts):
    return [len(ids) for ids in tokenizer(texts).input_ids]


def test_long_sentences_are_translated_in_pieces_with_a_warning(model, tokenizer, caplog):
    pieces = ["the man sees a dog.", "the old man sees a cat and a small child.", "a cat."]
    limit = max(lengths(tokenizer, pieces))
    short, *parts = one_by_one(model, tokenizer, ["a dog", *pieces])
    expected = [short, "", " ".join(filter(None, parts))]
    texts = ["a dog", " ", " ".join(pieces)]
    assert split_long(model, tokenizer, texts, limit) == [["a dog"], [" "], pieces]
    assert translate(model, tokenizer, texts, max_source_tokens=limit) == expected
    assert caplog.messages == [f"a text is too long and translated in 3 pieces: {texts[2][:60]!r}..."]
    found = translate_nbest(model, tokenizer, texts, 2, max_source_tokens=limit)
    assert [hypotheses[0].text for hypotheses in found] == expected
    assert found[2] == join_nbest(translate_nbest(model, tokenizer, pieces, 2), 2)


class OneTokenAWord:
    """Counts every word and mark as one token, and EOS, so that the pieces expected can be told by hand."""

    def __call__(self, text, **kwargs):
        return SimpleNamespace(input_ids=[[*re.findall(r"\w+|[^\w\s]", one), "</s>"] for one in text])


@pytest.mark.parametrize(
    ("limit", "pieces"),
    [
        (15, "a b c d. e f g h! i j?"),
        (13, "a b c d. e f g h!| i j?"),
        (8, "a b c d.| e f g h!| i j?"),
        (9, 'a b c d."| E f g h.| (I j k.) l m'),
        (8, "a b c d .| e f g h i .| j k"),
        (9, "a b 3.5 c d.| e f g"),
        (8, "a b c,| d e f, g h.| i"),
        (8, "a b c d e f g| h i j. k"),
        (8, "a b c d e f。|g h i j！k"),
    ],
)
def test_long_texts_are_cut_where_it_hurts_least(model, limit, pieces):
    expected = [piece.strip() for piece in pieces.split("|")]
    assert split_long(model, OneTokenAWord(), [pieces.replace("|", "")], limit) == [expected]


def test_no_piece_is_too_long_and_nothing_is_lost(model, tokenizer):
    parts = ("The dog sees a cat. ", "a dog sees, a cat sees ", "日本語の文です。次の文です。", "안녕", "Grüße🙂")
    texts = [*(part * 60 for part in parts), "a\u2028dog \t " * 60, "short", ""]
    for limit in (8, 20, 64):
        for text, pieces in zip(texts, split_long(model, tokenizer, texts, limit), strict=True):
            assert "".join("".join(pieces).split()) == "".join(text.split())
            assert (len(pieces) > 1) == (lengths(tokenizer, [text])[0] > limit)
            assert max(lengths(tokenizer, pieces)) <= limit


def test_learned_positions_bound_the_pieces(make_model, tokenizer):
    learned = make_model(vocab_size=len(tokenizer), position_embedding_type="learned", max_position_embeddings=30)
    (pieces,) = split_long(learned, tokenizer, ["a dog sees a cat. " * 20])
    assert max(lengths(tokenizer, pieces)) <= 30

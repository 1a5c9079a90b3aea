"""Translation: what is searched in which batch, scores, their order, and that all faces give the same."""

import math
from unittest.mock import Mock

import pytest
import torch
from helpers import as_lines, as_options, call, make_marian, make_tiny, one_by_one, pad_right, save_folder
from plain_search import log_probs_of
from transformers import AutoModelForSeq2SeqLM, M2M100Config, T5Config, pipeline

from modeling_vanilla import Translator
from modeling_vanilla.cli import translate as command
from modeling_vanilla.corpus.tokenizer import train_tokenizer
from modeling_vanilla.decoding_vanilla import (
    DecodingOptions,
    Hypothesis,
    cut_texts,
    join_hypotheses,
    make_batches,
)
from modeling_vanilla.inference.constraints import constrained
from modeling_vanilla.inference.prefixes import ForcedPrefix
from modeling_vanilla.inference.scoring import PairScore
from modeling_vanilla.inference.translator import token_texts
from modeling_vanilla.visualization import attention_maps

LONGEST = "the old man gives the small child a red apple"
SENTENCES = ["a dog sees a cat", "a cat", LONGEST, "a dog", "Grüße, 안녕, 🙂!", "the man sees", "a"]
FEW = ["a dog.", "the man sees.", "a cat sees, a dog."]


# All faces give the same


def by_function(model, tokenizer, folder, texts, **settings):
    return Translator(model, tokenizer).translate(texts, **settings)


def by_nbest(model, tokenizer, folder, texts, **settings):
    return [best.text for best, *_ in Translator(model, tokenizer).nbest(texts, 2, **settings)]


def by_pipeline(model, tokenizer, folder, texts, **settings):
    translator = pipeline("translation", model=model, tokenizer=tokenizer, batch_size=3)
    return [result["translation_text"] for result in translator(texts, **settings)]


def by_command(model, tokenizer, folder, texts, terms=(), prefix="", **settings):
    save_folder(folder / "model", model, tokenizer)
    (folder / "terms").write_bytes(as_lines(map("\t".join, terms)))
    (folder / "prefix").write_bytes(as_lines([prefix] * len(texts)))
    options = as_options({**settings, "terms": folder / "terms", "prefix": folder / "prefix"})
    return call(command.main, folder / "model", *options, stdin=as_lines(texts)).succeeded.output.split("\n")[:-1]


FACES = [by_function, by_nbest, by_pipeline]
WHOLE = " ".join(FEW)
NO_RECORD, SINGLE, SHORT = (None, None), (None, 1), (8, None)
CASES = [
    # what training has recorded, the texts, the pieces of each, the settings
    (NO_RECORD, [FEW[0], "", WHOLE, "\u3000\u200b\xad"], [FEW[:1], [], [WHOLE], []], {}),
    (SHORT, [WHOLE], [FEW], {}),
    (SINGLE, [WHOLE], [[WHOLE]], {"max_source_tokens": 100}),
    (SINGLE, [WHOLE], [[" ".join(FEW[:2]), FEW[2]]], {"max_source_tokens": 9}),
    (SINGLE, [WHOLE, "a dog"], [FEW, ["a dog"]], {"terms": [("dog", "Hund"), ("horse", "Pferd")]}),
    (SINGLE, [WHOLE, "a dog", "", " "], [FEW, ["a dog"], [], []], {"prefix": "der Mann "}),
]


@pytest.mark.parametrize("face", [*FACES, by_command])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_all_faces_translate_the_same_pieces_as_generate_does(tokenizer, tmp_path, face, case):
    (tokens, sentences), texts, pieces, settings = CASES[case]
    if face is by_pipeline and {"terms", "prefix"} & settings.keys():
        pytest.skip("it takes none")
    model = make_tiny(len(tokenizer), max_source_tokens=tokens, max_source_sentences=sentences)
    terms, prefix = settings.get("terms", ()), settings.get("prefix", "").strip()
    begin = tokenizer(text_target=prefix, add_special_tokens=False).input_ids
    dog = tokenizer(text_target="Hund", add_special_tokens=False).input_ids
    expected = []
    for text, parts in zip(texts, pieces, strict=True):
        translations = []
        for number, part in enumerate(parts):
            given = {"search": constrained([[dog]])} if terms and "dog" in part else {}
            given |= {"logits_processor": [ForcedPrefix([begin])]} if prefix and not number else {}
            translations += one_by_one(model, tokenizer, [part], **given)
        expected.append(" ".join(filter(None, translations)) if parts else text)
    assert face(model, tokenizer, tmp_path, texts, **settings) == expected


@pytest.mark.parametrize("face", FACES)
def test_lines_are_translated_apart_and_keep_their_layout(tokenizer, tmp_path, face):
    """Line ends, blanks at both ends, marks of lists, tables; what has no letters is copied."""
    model = make_tiny(len(tokenizer))
    dog, man = one_by_one(model, tokenizer, ["a dog.", "the man sees."])
    layouts = "{}\n{}\r\n\n{}\n", "\n", "  * {}\n\t- [ ] {}  {} \n", "## (a) {}\n| 2) > {} |  | {} |\t3\n--- 3.5\n1. "
    texts, expected = (
        [layout.format(*sides) for layout in layouts]
        for sides in (("a dog.", "the man sees.", "a dog."), (dog, man, dog))
    )
    assert face(model, tokenizer, tmp_path, texts) == expected


# Batches


def test_batches_hold_no_more_than_asked(model, tokenizer):
    model.generate = Mock(wraps=model.generate)
    Translator(model, tokenizer).translate(SENTENCES, tokens_per_batch=60, num_beams=2)
    sizes = [call.kwargs["input_ids"].shape for call in model.generate.call_args_list]
    assert sum(rows for rows, _ in sizes) == len(SENTENCES) and len(sizes) > 1
    assert all(rows == 1 or rows * width * 2 <= 60 for rows, width in sizes)
    assert sizes == sorted(sizes, key=lambda size: -size[1])


NOT_TRANSLATED = [
    ({"texts": "a dog"}, "texts must be a list of texts, not one text: 'a dog'"),
    ({"nbest": 0}, "nbest must be from 1 to the number of beams, 4, not 0"),
    ({"nbest": -1, "do_sample": True}, "nbest must be from 1 .*, not -1"),
    ({"temperature": math.inf}, "temperature must be finite, not inf"),
    ({"temperature": 1e-45, "do_sample": True}, "temperature must be at least 1e-06, not 1e-45"),
    ({"repetition_penalty": math.nan}, "repetition_penalty must be finite, not nan"),
    ({"terms": [("cow", "dog")], "num_beams": 1}, "terms need .* num_beams of at least 2 .*"),
    ({"terms": [("cow", "dog")], "do_sample": True}, "terms need .* no samples"),
    ({"prefix": ["der", "der"]}, "there are 1 sentences but 2 prefixes"),
    ({"texts": ["\ud83d!"]}, r"texts: '\\ud83d!' has half of a surrogate pair, which is no character"),
]


@pytest.mark.parametrize(("translate_with", "message"), NOT_TRANSLATED)
def test_refuses_what_cannot_be_translated(model, tokenizer, translate_with, message):
    translator = Translator(model, tokenizer)
    function = translator.nbest if "nbest" in translate_with else translator.translate
    with pytest.raises(ValueError, match=f"^{message}$"):
        function(**{"texts": ["a dog"], **translate_with})


def test_refuses_what_are_no_pairs(model, tokenizer):
    for function in (Translator.score, Translator.align):
        with pytest.raises(ValueError, match=r"^there are 2 sources but 1 targets$"):
            function(Translator(model, tokenizer), ["a", "b"], ["c"])


# n best, scores


@pytest.mark.parametrize("architecture", ["vanilla", "marian"])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("given", [{}, {"prefix": "der Mann"}, {"repetition_penalty": 3.0}])
def test_scores_are_the_models_own_in_every_search(model, tokenizer, architecture, beams, given):
    """Whatever prefixes and logits processors make of them, and by either length penalty."""
    if architecture == "marian":
        model = make_marian(len(tokenizer), init_std=0.5, forced_eos_token_id=None)
        model.generation_config.max_new_tokens = 8
    (best,) = Translator(model.eval(), tokenizer).nbest(SENTENCES[:1], 1, num_beams=beams, **given)[0]
    ids = list(best.ids[1:])
    assert best.log_probs == pytest.approx(log_probs_of(model, tokenizer(SENTENCES[0]).input_ids, ids), abs=1e-4)
    penalty = ((5 + len(ids)) / 6) ** 0.6 if architecture == "vanilla" else len(ids)
    assert best.score == pytest.approx(sum(best.log_probs) / penalty, abs=1e-4)


@pytest.mark.parametrize("alpha", (0.6, 1.0))
def test_nbest_are_the_searchs_with_its_scores(model, tokenizer, alpha):
    word = Translator(model, tokenizer).nbest(SENTENCES[:1], 1)[0][0].ids[2]
    model.generation_config.eos_token_id = ends = [tokenizer.eos_token_id, word]
    nbest = Translator(model, tokenizer).nbest(SENTENCES, 3, tokens_per_batch=100, length_penalty=alpha)
    settings = {"num_return_sequences": 3, "return_dict_in_generate": True, "output_scores": True}
    for sentence, hypotheses in zip(SENTENCES, nbest, strict=True):
        output = model.generate(**tokenizer(sentence, return_tensors="pt"), length_penalty=alpha, **settings)
        texts, scores, _, _, ids, finished, ranks, _ = zip(*hypotheses, strict=True)
        assert [*texts] == tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
        assert scores == pytest.approx(output.sequences_scores.tolist(), abs=1e-4) == ranks
        assert pad_right(ids).tolist() == output.sequences.tolist()
        assert [*finished] == [one[-1] in ends for one in ids]


def prefer_some(ids, scores):
    return scores + 20 * torch.arange(scores.shape[1]).sin()


def allow_one(row, ids):
    return [[5], [6], [7]][min(len(ids), 3) - 1]


@pytest.mark.parametrize("given", [{"logits_processor": [prefer_some]}, {"prefix_allowed_tokens_fn": allow_one}])
def test_nbest_of_marian_are_in_the_order_of_its_search(tokenizer, given):
    """Which is that of the probabilities that a processor leaves; the scores are the model's own."""
    model = make_marian(len(tokenizer), init_std=0.5, forced_eos_token_id=None)
    given = {"num_beams": 4, "max_new_tokens": 8, **given}
    for sentence, hypotheses in zip(SENTENCES, Translator(model, tokenizer).nbest(SENTENCES, 4, **given), strict=True):
        output = model.generate(**tokenizer(sentence, return_tensors="pt"), **given, num_return_sequences=4)
        rows = [[token for token in row if token != model.config.pad_token_id] for row in output.tolist()]
        found = [[*one.ids[1:]] for one in hypotheses]
        assert found == ([[5, 6, *[7] * 6]] if "prefix_allowed_tokens_fn" in given else rows)


def test_pairs_are_scored_by_the_product_of_their_tokens(model, tokenizer):
    targets = [*reversed(SENTENCES)]
    scores = Translator(model, tokenizer).score(SENTENCES, targets, tokens_per_batch=40)
    assert model.config.label_smoothing > 0  # of which the scores know nothing
    for source, target, pair in zip(SENTENCES, targets, scores, strict=True):
        ids = tokenizer(target).input_ids
        total = sum(log_probs_of(model, tokenizer(source).input_ids, ids))
        assert ids[-1] == tokenizer.eos_token_id and pair.tokens == len(ids)
        assert pair.log_prob == pytest.approx(total, abs=1e-3)
        assert pair.perplexity == pytest.approx(math.exp(-total / len(ids)), rel=1e-4)
    assert PairScore(-1000.0, 1).perplexity == math.inf  # of a model that has diverged


def tiny_model(config, tokenizer):
    """A model of another kind, with random weights."""
    ids = {"pad_token_id": 0, "eos_token_id": tokenizer.eos_token_id, "decoder_start_token_id": 0}
    sizes = {"num_layers": 1, "num_heads": 2, "d_kv": 8, "d_ff": 16} if config is T5Config else {}
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_layers": 1, f"{stack}_attention_heads": 2, f"{stack}_ffn_dim": 16}
    sizes |= {"vocab_size": len(tokenizer), "d_model": 16}
    return AutoModelForSeq2SeqLM.from_config(config(**sizes, **ids), attn_implementation="eager").eval()


@pytest.mark.parametrize("config", [T5Config, M2M100Config])
def test_pairs_are_scored_and_aligned_by_other_models(tokenizer, config):
    """T5 names its layers otherwise, and M2M100 and NLLB have no function that shifts the labels."""
    model = tiny_model(config, tokenizer)
    translator = Translator(model, tokenizer)
    (pair,) = translator.score(SENTENCES[:1], SENTENCES[1:2])
    loss = model(**tokenizer(SENTENCES[0], text_target=SENTENCES[1], return_tensors="pt")).loss.item()
    assert pair.log_prob == pytest.approx(-loss * pair.tokens, abs=1e-3)
    source, target = ([ids] for ids in tokenizer(SENTENCES[:2]).input_ids)
    ((_, weights),) = translator.engine.cross_attention(source, target, translator.engine.aligned_layers - 1)
    assert weights.shape == (len(target[0]), len(source[0])) and weights.sum(dim=-1).numpy() == pytest.approx(1)


def test_an_attention_without_weights_is_named(tokenizer):
    translator = Translator(tiny_model(M2M100Config, tokenizer), tokenizer)
    translator.engine.model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match='need attn_implementation="eager"'):
        translator.align(SENTENCES[:1], SENTENCES[1:2])


def test_training_mode_changes_nothing_and_is_not_changed(make_model, tokenizer):
    model = make_model(vocab_size=len(tokenizer), dropout=0.5)
    translator, pair = Translator(model, tokenizer), (SENTENCES[:2], SENTENCES[:2])

    def results():
        maps = attention_maps(translator, *SENTENCES[:2])
        found = translator.nbest(pair[0], 2), translator.score(*pair), translator.align(*pair)
        return *found, [one.weights.tolist() for one in maps.values()]

    expected = results()
    model.train().get_encoder().eval()
    assert results() == expected
    assert [model.training, model.get_encoder().dropout.training, model.lm_head.training] == [True, False, True]


@pytest.mark.parametrize("nbest", [1, 3])
def test_joined_hypotheses_are_the_best_combinations(model, tokenizer, nbest):
    """The fewer parts the limit cut, the better; then by rank. What is best does not depend on how many are asked."""
    first = [Hypothesis(text, rank, rank=rank) for text, rank in (("a", -1.0), ("b", -1.5), ("c", -9.0))]
    second = [Hypothesis("x", -2.0, rank=-2.0), Hypothesis("y", -0.1, finished=False, rank=-0.1)]
    parts = {"a.": first, "b.": second}
    settings = DecodingOptions(model, tokenizer, nbest=nbest)
    texts = cut_texts(tokenizer, ["a.\nb."], settings)
    found = ((keys, [parts[piece.text] for piece in pieces]) for keys, pieces in make_batches(texts, settings))
    ((_, found),) = join_hypotheses(texts, found, settings)
    products = [(y.finished, x.rank + y.rank, f"{x.text}\n{y.text}") for x in first for y in second]
    joined = [(best.finished, best.score, best.text) for best in found[0].hypotheses]
    assert joined == sorted(products, reverse=True)[:nbest]


def test_tokens_are_text_that_makes_up_the_translation(model, tokenizer):
    """A character in several tokens, one a byte, is the last one's."""
    for text in ["", "a dog", "Grüße,  안녕 🙂!", " a ", "\ufffd"]:
        ids = tokenizer(text).input_ids
        texts = token_texts(tokenizer, ids)
        assert len(texts) == len(ids) and "".join(texts) == f"{text}</s>"
    (best,) = Translator(model, tokenizer).nbest(SENTENCES[:1], 1)[0]
    assert "".join(best.tokens).removesuffix("</s>") == best.text


# One model, several languages


@pytest.fixture
def tagged(make_model):
    """A model and a tokenizer of two languages."""
    tokenizer = train_tokenizer([*FEW, *SENTENCES] * 5, vocab_size=400, tags=[">>de<<", ">>en<<"])
    model = make_model(vocab_size=len(tokenizer), max_source_sentences=1)
    model.generation_config.max_extra_tokens = 4
    return model, tokenizer


@pytest.mark.parametrize("face", [*FACES, by_command])
def test_a_tag_stands_at_the_head_of_every_piece(face, tagged, tmp_path):
    """It is an option, or stands in the line, which comes first; MarianMT's users write it there."""
    texts = [FEW[0], WHOLE, f">>en<< {WHOLE}", ">>en<< "]
    tags = ((">>de<<", FEW[:1]), (">>de<<", FEW), (">>en<<", FEW))
    expected = [" ".join(one_by_one(*tagged, [f"{tag} {piece}" for piece in pieces])) for tag, pieces in tags]
    assert face(*tagged, tmp_path, texts, tgt_lang="de") == [*expected, ""]
    assert len({*expected}) == 3


def test_a_tag_that_is_none(tagged, model, tokenizer):
    message = "^>>fr<< is no token of the tokenizer; its tags are: >>de<< >>en<<$"
    for texts, settings in ((["a dog"], {"tgt_lang": "fr"}), (["a dog", ">>fr<< a dog"], {})):
        with pytest.raises(ValueError, match=message):
            Translator(*tagged).translate(texts, **settings)
    as_text = one_by_one(model, tokenizer, [">>fr<< a dog"])
    assert Translator(model, tokenizer).translate([">>fr<< a dog"]) == as_text

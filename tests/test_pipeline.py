"""pipeline("translation"): every way to open it, every kind of input and argument, and other models behind it."""

import json
import math
import re
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers import ROOT, add_noise, make_marian, make_tiny, one_by_one, save_folder
from transformers import GenerationConfig, NllbTokenizer, pipeline
from transformers.models.t5 import T5Config, T5ForConditionalGeneration
from transformers.pipelines.pt_utils import KeyDataset

from modeling_vanilla import TranslationPipeline, Translator
from modeling_vanilla.corpus.tokenizer import train_tokenizer
from modeling_vanilla.spans_vanilla import differing

SENTENCES = ["a small house", "the dog runs", "a dog", "the green meadow runs across the small dog", "house", "run"]
LONG = "the dog runs across the green meadow. " * 239 + "the dog runs across the green meadow."


@pytest.fixture(scope="module")
def model(tokenizer):
    """Weights spread enough that the sentences get different translations."""
    return add_noise(make_tiny(len(tokenizer), tie_word_embeddings=False), 0.5)


@pytest.fixture(scope="module")
def folder(model, tokenizer, tmp_path_factory):
    return str(save_folder(tmp_path_factory.mktemp("pipeline") / "model", model, tokenizer))


@pytest.fixture(scope="module")
def translator(folder):
    return pipeline("translation", model=folder)


def texts_of(results: list[dict]) -> list[str]:
    return [result["translation_text"] for result in results]


@pytest.fixture(scope="module")
def expected(model, tokenizer):
    texts = one_by_one(model, tokenizer, SENTENCES)
    assert len(set(texts)) > 3  # or order and batching would not show
    loops = ({"differing": loop} if (loop := differing(*pair)) else {} for pair in zip(SENTENCES, texts, strict=True))
    return [{"translation_text": text, **loop} for text, loop in zip(texts, loops, strict=True)]


# Ways to open it


@pytest.mark.parametrize("way", ("folder", "trusted folder", "objects"))
def test_ways_to_open_it(folder, model, tokenizer, expected, way):
    """Nothing of a folder is run where the package is installed, whether it is trusted or not."""
    arguments = {"model": model, "tokenizer": tokenizer} if way == "objects" else {"model": folder}
    opened = pipeline("translation_en_to_de", **arguments, trust_remote_code=way == "trusted folder", batch_size=4)
    assert type(opened) is TranslationPipeline
    assert opened(SENTENCES) == expected


# Kinds of input


@pytest.mark.parametrize("kind", (list, np.array, lambda texts: Dataset.from_dict({"en": texts})["en"]))
def test_lists(translator, expected, kind):
    assert translator(kind(SENTENCES), batch_size=2) == expected
    assert translator(SENTENCES[0]) == expected[:1] and translator([]) == []


def test_a_stream_gives_a_stream_of_lists(translator, expected):
    for stream in (KeyDataset(Dataset.from_dict({"en": SENTENCES}), "en"), (text for text in SENTENCES)):
        assert list(translator(stream, batch_size=4)) == [[result] for result in expected]


@pytest.mark.parametrize("wrong", (7, ["a house", None], [["a house"]]), ids=repr)
def test_what_is_no_string_is_refused(translator, wrong):
    with pytest.raises(ValueError, match=r"texts must be strings, not (int|NoneType|list)"):
        translator(wrong)


def test_several_translations_are_the_best_and_of_a_text_in_pieces_the_best_combinations(translator, model, tokenizer):
    """As `Translator.nbest` joins them; a blank text has as many as the others."""
    texts, settings = [LONG, *SENTENCES], {"max_new_tokens": 4, "num_beams": 3}
    expected = Translator(model, tokenizer).nbest(texts, 2, **settings)
    settings["generation_config"] = GenerationConfig(num_beams=3, num_return_sequences=2)
    *found, blank = translator([*texts, ""], batch_size=3, **settings)
    assert texts_of(blank) == ["", ""]
    for results, hypotheses in zip(found, expected, strict=True):
        assert texts_of(results) == [best.text for best in hypotheses]
    for results, hypotheses in zip(translator(texts, return_tensors=True, **settings), expected, strict=True):
        assert [one["translation_token_ids"].tolist() for one in results] == [[*best.ids] for best in hypotheses]


# Arguments


def test_truncation_cuts_instead(translator, model, tokenizer, caplog):
    inputs = tokenizer(LONG, truncation=True, max_length=512, return_tensors="pt")
    (text,) = tokenizer.batch_decode(model.generate(**inputs, max_new_tokens=4), skip_special_tokens=True)
    assert translator(LONG, max_new_tokens=4, truncation=True) == [{"translation_text": text}]
    assert "pieces" not in caplog.text


def test_a_text_that_is_cut_leaves_room_for_its_tag(make_model):
    tokenizer = train_tokenizer([LONG], vocab_size=300, tags=[">>de<<"])
    positions = {"position_embedding_type": "learned", "max_position_embeddings": 64}
    model = make_model(vocab_size=len(tokenizer), **positions)
    translator = pipeline("translation", model=model, tokenizer=tokenizer, truncation=True, max_new_tokens=4)
    assert translator(LONG, tgt_lang="de") == translator(f">>de<< {LONG}")


def test_languages(translator, expected):
    """They choose the first token of a model of many languages; a model of one pair has no other target."""
    assert translator(SENTENCES, src_lang="en") == expected
    tokenizer = NllbTokenizer()
    many = pipeline("translation", model=make_marian(len(tokenizer)), tokenizer=tokenizer, max_new_tokens=3)
    languages = {"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}
    many.model.generate = Mock(wraps=many.model.generate)
    many(SENTENCES, **languages, batch_size=2)
    asked = {call.kwargs["forced_bos_token_id"] for call in many.model.generate.call_args_list}
    assert asked == {tokenizer.convert_tokens_to_ids("deu_Latn")}
    with pytest.raises(ValueError, match=r"requires a `src_lang` and a `tgt_lang`"):
        many(SENTENCES)
    for wrong in ({"src_lang": "en"}, {"tgt_lang": "de"}):
        with pytest.raises(ValueError, match=r" is no language of the tokenizer$"):
            many(SENTENCES, **{**languages, **wrong})


def test_another_sequence_to_sequence_model(tokenizer):
    """It reads its task before each line. An argument of a call goes before that of the construction."""
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": len(tokenizer)}
    ids = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
    model = add_noise(T5ForConditionalGeneration(T5Config(**sizes, **ids)))
    model.config.task_specific_params = {"translation_en_to_de": {"prefix": "the dog ", "max_length": 4}}
    translator = pipeline("translation_en_to_de", model=model, tokenizer=tokenizer, max_new_tokens=5)
    told = ["the dog " + sentence for sentence in SENTENCES]
    short, of_task, longer = (one_by_one(model, tokenizer, told, max_new_tokens=limit) for limit in (2, 3, 5))
    assert texts_of(pipeline("translation_en_to_de", model=model, tokenizer=tokenizer)(SENTENCES)) == of_task
    assert texts_of(translator(SENTENCES, max_new_tokens=2, batch_size=8)) == short
    assert texts_of(translator(SENTENCES, batch_size=8)) == longer != short
    assert texts_of(translator(["\n".join(SENTENCES), ""])) == ["\n".join(longer), ""]


@pytest.fixture(scope="module")
def handler(folder):
    from handler import EndpointHandler

    return EndpointHandler(folder)


@pytest.fixture(scope="module")
def service(folder):
    """The service that the page shows, with the engine torch."""
    testclient = pytest.importorskip("fastapi.testclient")
    page = (ROOT / "docs/howto/company.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(from fastapi import.*?)```", page, re.DOTALL)
    names = {"folder": folder}
    exec(re.sub(r"(?<=from_pretrained\().*(?=\))", "folder", code), names)
    return testclient.TestClient(names["app"])


def test_a_request_is_answered(handler, service, expected):
    request = {"inputs": SENTENCES, "parameters": {"length_penalty": 1}}
    assert handler(request) == expected
    assert handler({"inputs": SENTENCES[0], "parameters": {"src_lang": "en"}}) == expected[:1]
    assert service.post("/", json=request).json() == texts_of(expected)


HOSTILE = [[], {}, {"inputs": "a", "parameters": 7}, {"inputs": ["a", None]}, {"inputs": "a", "\ud800": 1}]
HOSTILE += [{"inputs": "\ud800"}, {"inputs": ["a" * 10_000] * 3}, {"inputs": "a\n" * 257}]
PARAMETERS = [{"custom_generate": "folder", "trust_remote_code": True}, {"num_beam": 2}, {"tgt_lang": "\ud800"}]
PARAMETERS += [{"num_beams": value} for value in (20_000, 0, True, "2", math.nan)]
PARAMETERS += [{"length_penalty": math.nan}, {"max_new_tokens": 10**6}, {"tgt_lang": "de"}]


@pytest.mark.parametrize("request_", [*HOSTILE, *({"inputs": "a", "parameters": one} for one in PARAMETERS)], ids=ascii)
def test_a_hostile_request_is_refused_in_one_line(handler, service, request_):
    with pytest.raises(ValueError, match=r"^[ -~]{20,250}\Z") as refused:
        handler(request_)
    reply = service.post("/", content=json.dumps(request_), headers={"Content-Type": "application/json"})
    assert (reply.status_code, reply.json()) == (400, {"detail": str(refused.value)})

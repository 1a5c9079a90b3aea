"""pipeline("translation"): every way to open it, every kind of input it takes, and other models behind it."""

import json
import os
import subprocess
import sys

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)
from transformers.pipelines.pt_utils import KeyDataset

from modeling_vanilla import TranslationPipeline, VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.training.tokenizer import train_tokenizer

CORPUS = ["a small house", "the dog runs across the green meadow", "ein kleines Haus", "der Hund läuft"]
SENTENCES = ["a small house", "the dog runs", "a dog", "the green meadow runs across the small dog", "house", "run"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(texts=CORPUS * 5, vocab_size=300)


@pytest.fixture(scope="module")
def model(tokenizer):
    """Weights spread enough that the sentences get different translations."""
    config = VanillaConfig(
        vocab_size=len(tokenizer),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        tie_word_embeddings=False,
    )
    model = VanillaForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=0.5, generator=generator)
    model.generation_config.max_extra_tokens = 3
    return model


@pytest.fixture(scope="module")
def folder(model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline") / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def translator(folder):
    return pipeline("translation", model=str(folder))


def by_hand(model, tokenizer, sentences: list[str], **kwargs) -> list[str]:
    outputs = [model.generate(**tokenizer(sentence, return_tensors="pt"), **kwargs) for sentence in sentences]
    return [text for output in outputs for text in tokenizer.batch_decode(output, skip_special_tokens=True)]


@pytest.fixture(scope="module")
def expected(model, tokenizer):
    texts = by_hand(model, tokenizer, SENTENCES)
    assert len(set(texts)) > 3  # or order and batching would not show
    return [{"translation_text": text} for text in texts]


# Ways to open it


def test_named_with_a_folder(translator, expected):
    assert type(translator) is TranslationPipeline
    assert translator(SENTENCES) == expected


def test_not_named_with_a_folder(folder, expected):
    translator = pipeline(model=str(folder))
    assert type(translator) is TranslationPipeline
    assert translator(SENTENCES) == expected


@pytest.mark.parametrize("task", ("translation", None))
def test_with_a_folder_and_trust(folder, expected, task):
    """Nothing of the folder is run where the package is installed."""
    assert pipeline(task, model=str(folder), trust_remote_code=True)(SENTENCES) == expected


def test_with_an_object(model, tokenizer, expected):
    assert pipeline("translation", model=model, tokenizer=tokenizer)(SENTENCES) == expected


def test_with_an_object_that_was_loaded(folder, expected):
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert pipeline("translation", model=model, tokenizer=tokenizer)(SENTENCES) == expected


def test_a_saved_pipeline_opens_again(translator, expected, tmp_path):
    translator.save_pretrained(tmp_path / "again")
    assert pipeline("translation", model=str(tmp_path / "again"))(SENTENCES) == expected


NOT_INSTALLED = """
import json
import sys

sys.modules["modeling_vanilla"] = None  # an import of the package fails, as where it is not installed
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

folder, sentences = sys.argv[1], json.loads(sys.argv[2])
results = {}
try:
    pipeline("translation", model=folder, trust_remote_code=False)
except (KeyError, ValueError) as error:
    results["not trusted"] = str(error)
order = ("translation", None) if sys.argv[3] == "named" else (None, "translation")
for task in order:
    results[str(task)] = pipeline(task, model=folder, trust_remote_code=True)(sentences)
    results[f"{task} in batches"] = pipeline(task, model=folder, trust_remote_code=True, batch_size=4)(sentences)
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
results["object"] = pipeline("translation", model=model, tokenizer=tokenizer)(sentences)
print(json.dumps(results))
"""


@pytest.mark.parametrize("first", ("named", "not named"))
def test_without_the_package(folder, expected, tmp_path, first):
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_MODULES_CACHE": str(tmp_path / "hf" / "modules"),
    }
    process = subprocess.run(
        [sys.executable, "-P", "-c", NOT_INSTALLED, str(folder), json.dumps(SENTENCES), first],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout.splitlines()[-1])
    assert "trust_remote_code" in results.pop("not trusted")
    assert set(results) == {"translation", "translation in batches", "None", "None in batches", "object"}
    for way, result in results.items():
        assert result == expected, way


# Kinds of input


def test_one_sentence(translator, expected):
    assert translator(SENTENCES[0]) == expected[:1]


def test_an_empty_list(translator):
    assert translator([]) == []


def test_a_list_of_one(translator, expected):
    assert translator(SENTENCES[:1]) == expected[:1]


def test_a_tuple(translator, expected):
    assert translator(tuple(SENTENCES)) == expected


def test_an_empty_sentence(translator):
    (result,) = translator("")
    assert isinstance(result["translation_text"], str)


def test_a_column_of_a_dataset(translator, expected):
    column = Dataset.from_dict({"en": SENTENCES})["en"]
    assert translator(column) == expected
    assert translator(column, batch_size=4) == expected


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return len(SENTENCES)

    def __getitem__(self, index):
        return SENTENCES[index]


@pytest.mark.parametrize(
    "stream",
    [
        lambda: KeyDataset(Dataset.from_dict({"en": SENTENCES}), "en"),
        Texts,
        lambda: (sentence for sentence in SENTENCES),
    ],
    ids=("KeyDataset", "torch Dataset", "generator"),
)
@pytest.mark.parametrize("batch_size", (1, 4))
def test_a_stream_gives_a_stream_of_lists(translator, expected, stream, batch_size):
    assert list(translator(stream(), batch_size=batch_size)) == [[result] for result in expected]


@pytest.mark.parametrize("wrong", (7, None, ["a house", 7], [["a house"]], {"text": "a house"}, b"a house"), ids=repr)
def test_what_is_no_string_is_refused(translator, wrong):
    with pytest.raises(ValueError, match=r"needs strings, not (int|NoneType|list|dict|bytes)"):
        translator(wrong)


@pytest.mark.parametrize("batch_size", (2, 8))
def test_batches_change_nothing(translator, expected, batch_size):
    assert translator(SENTENCES, batch_size=batch_size) == expected


def test_a_batch_size_for_all_calls(model, tokenizer, expected):
    assert pipeline("translation", model=model, tokenizer=tokenizer, batch_size=4)(SENTENCES) == expected


# Arguments


def test_generate_takes_arguments_from_the_call(translator, model, tokenizer):
    kwargs = {"num_beams": 1, "max_new_tokens": 2}
    results = translator(SENTENCES, **kwargs)
    assert [result["translation_text"] for result in results] == by_hand(model, tokenizer, SENTENCES, **kwargs)


def test_generate_takes_arguments_from_the_construction(model, tokenizer, expected):
    translator = pipeline("translation", model=model, tokenizer=tokenizer, num_beams=1, max_new_tokens=2)
    short = by_hand(model, tokenizer, SENTENCES, num_beams=1, max_new_tokens=2)
    longer = by_hand(model, tokenizer, SENTENCES, num_beams=1, max_new_tokens=5)
    assert short != longer
    assert [result["translation_text"] for result in translator(SENTENCES)] == short
    assert [result["translation_text"] for result in translator(SENTENCES, max_new_tokens=5)] == longer
    assert [result["translation_text"] for result in translator(SENTENCES)] == short
    assert pipeline("translation", model=model, tokenizer=tokenizer)(SENTENCES) == expected


def test_several_translations_of_each_sentence(translator, model, tokenizer):
    texts = by_hand(model, tokenizer, SENTENCES, num_return_sequences=3)
    expected = [[{"translation_text": text} for text in texts[row : row + 3]] for row in range(0, len(texts), 3)]
    for batch_size in (1, 4):
        assert translator(SENTENCES, num_return_sequences=3, batch_size=batch_size) == expected
    assert translator(SENTENCES[0], num_return_sequences=3) == expected[0]


def test_token_ids_instead_of_text(translator, model, tokenizer):
    (result,) = translator(SENTENCES[0], return_tensors=True)
    expected = model.generate(**tokenizer(SENTENCES[0], return_tensors="pt"))[0]
    assert result["translation_token_ids"].tolist() == expected.tolist()


def test_truncation_only_on_demand(translator, model, tokenizer):
    long = " ".join(SENTENCES * 20)
    cut = translator(long, tokenizer_kwargs={"truncation": True, "max_length": 5}, max_new_tokens=4)
    inputs = tokenizer(long, truncation=True, max_length=5, return_tensors="pt")
    assert inputs.input_ids.shape == (1, 5)
    ids = model.generate(**inputs, max_new_tokens=4)
    assert cut == [{"translation_text": tokenizer.decode(ids[0], skip_special_tokens=True)}]
    whole = model.generate(**tokenizer(long, return_tensors="pt"), max_new_tokens=4)
    assert translator(long, max_new_tokens=4) == [
        {"translation_text": tokenizer.decode(whole[0], skip_special_tokens=True)}
    ]


# Other models


@pytest.mark.parametrize("other", ("marian", "t5"))
def test_any_sequence_to_sequence_model(tokenizer, other):
    torch.manual_seed(0)
    ids = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0, "vocab_size": len(tokenizer)}
    if other == "marian":
        sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
        heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
        model = MarianMTModel(MarianConfig(**ids, **sizes, **heads, init_std=0.5, forced_eos_token_id=None))
    else:
        model = T5ForConditionalGeneration(T5Config(**ids, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2))
    translator = pipeline("translation", model=model.eval(), tokenizer=tokenizer)
    assert type(translator) is TranslationPipeline
    expected = by_hand(model, tokenizer, SENTENCES, max_new_tokens=5)
    for batch_size in (1, 8):
        results = translator(SENTENCES, max_new_tokens=5, batch_size=batch_size)
        assert [result["translation_text"] for result in results] == expected

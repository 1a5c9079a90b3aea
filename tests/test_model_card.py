"""The model card: what it says of a run, what it keeps to itself, and that no value is taken for markup."""

import copy
import json

import pytest
from helpers import call, make_marian, make_tiny, make_tokenizer, save_folder
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

import modeling_vanilla
from modeling_vanilla.cli import convert
from modeling_vanilla.hub.model_card import source_metadata, write_card_of_run, write_model_card

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
SCORES = {"bleu": 40.934, "bleu_compound_split": 40.91, "chrf": 61.2}
TRAINING = {"tokens_per_update": 4096, "warmup_steps": 400, "learning_rate_scale": 1.0, "seed": 0}
RESULTS = {
    "averaged_checkpoints": [900, 1000, 1300],  # of five that were asked for
    "settings": {
        "data": {"source_lang": None, "target_lang": None, "dataset_name": None, "train_file": "/secret/train.jsonl"},
        "training": {**TRAINING, "average_checkpoints": 5},
        "model": {"model": None},
    },
    "training_pairs": 29000, "steps": 1300, "tokens": 3250000, "train_seconds": 240.0, "processes": 1, "device": "cpu",
    "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
    "test_sentences": 1000, **SCORES, **{f"{name}_signature": SIGNATURE for name in SCORES},
}  # fmt: skip


def write_card(folder, data: dict, model=None, training: dict | None = None, dataset=None, **options):
    """The card of RESULTS with other settings: the parsed card, and the tokens of its Markdown."""
    results = {**copy.deepcopy(RESULTS), "dataset": dataset}
    results["settings"]["data"] |= data
    results["settings"]["training"] |= training or {}
    write_model_card(folder, model or make_tiny(), results, **options)
    parsed = ModelCard.load(folder / "README.md")
    return parsed, MarkdownIt().enable("table").parse(parsed.text)


def test_the_card_says_what_the_run_was(tmp_path):
    """A signature, which has the sign between cells in it, is one cell of its table."""
    languages = {"source_lang": "en", "target_lang": "de"}
    parsed, tokens = write_card(tmp_path, languages, dataset="wmt/wmt14", licence="cc-by-4.0", model_id="you/it")
    texts = ["".join(child.content for child in token.children) for token in tokens if token.type == "inline"]
    start = texts.index("sacreBLEU")
    assert texts[start : start + 3] == ["sacreBLEU", "40.93", SIGNATURE]
    assert (parsed.data.language, parsed.data.license) == (["en", "de"], "cc-by-4.0")
    said = ("29000 sentence pairs of wmt/wmt14,", "It translates en to de.", 'model="you/it"', "1000 test sentences")
    said += ("1300 updates of about 4096 tokens", "400 warm-up steps", "4.0 minutes on 1 cpu", "last 3 checkpoints")
    said += (f"`modeling_vanilla` {modeling_vanilla.__version__}, torch 2.13.0, transformers 5.24.0.",)
    assert [part for part in said if part not in parsed.text] == []


MUON = {"optim": "muon", "lr_scheduler_type": "linear", "learning_rate": 0.005}


@pytest.mark.parametrize(
    ("training", "said"),
    [({}, "Adam, 400 warm-up steps, learning rate scale 1.0, seed 0"),
     (MUON, "Muon and Adam, 400 warm-up steps, learning rate 0.005 at its peak, then falling to 0, seed 0")],
)  # fmt: skip
def test_the_card_says_how_the_model_was_optimised(tmp_path, training, said):
    assert f"process(es). {said};" in write_card(tmp_path, {}, training=training)[0].text


def test_the_front_matter_has_codes_of_languages_alone(tmp_path):
    parsed, _ = write_card(tmp_path, {"source_lang": "eng_Latn", "target_lang": "pt_BR"})
    assert parsed.data.language == ["eng", "pt"] and "eng\\_Latn to pt\\_BR" in parsed.text


def test_a_place_on_this_machine_is_not_published_and_no_language_claimed(tmp_path):
    parsed, _ = write_card(tmp_path, {"dataset_name": "../data"}, dataset="../data")
    assert "../data" not in parsed.content and "secret" not in parsed.content
    assert parsed.data.language is None and "translates" not in parsed.text


def test_no_value_is_taken_for_markup(tmp_path):
    evil = "x\n# y <img src=a onerror=b> [c](http://d) | `e` **f**"
    parsed, tokens = write_card(tmp_path, {"source_lang": evil, "target_lang": "de"}, licence=evil)
    inline = [child for token in tokens for child in token.children or []]
    assert not {"html_inline", "link_open", "strong_open"} & {child.type for child in inline if "e" in child.content}
    assert not any(token.type == "html_block" for token in tokens)
    assert sum(token.tag == "h1" and token.nesting == 1 for token in tokens) == 1
    assert parsed.data.license == evil  # escaped by YAML


DEPARTS = {"attention_bias": True, "tie_word_embeddings": False, "position_embedding_type": "learned"}
DEPARTS |= {"max_position_embeddings": 99, "activation_function": "silu"}
OTHER_SEARCH = {"length_penalty_type": "length", "length_penalty": 1.3, "num_beams": 6, "max_new_tokens": 8}
DEPARTURES = ["biases in the projections of attention", "a matrix each", "a table of 99 positions", "silu"]
SAID = [
    (
        {},
        {},
        ["as the paper has it", "4 beams by log P / ((5 + length) / 6)^0.6, GNMT", "more than the source"],
        ["departs"],
    ),
    (
        DEPARTS,
        OTHER_SEARCH,
        [*DEPARTURES, "6 beams by log P / length^1.3", "at most 8 tokens."],
        ["as the paper", "GNMT"],
    ),
]


@pytest.mark.parametrize(("config", "search", "said", "not_said"), SAID)
def test_the_card_says_what_the_configurations_say(tmp_path, config, search, said, not_said):
    model = make_tiny(**config)
    model.generation_config.update(**search)
    text = write_card(tmp_path, {}, model)[0].text
    assert [part for part in said if part not in text] == [part for part in not_said if part in text] == []


SOURCE = {"base_model": "Helsinki-NLP/opus-mt-en-de", "license": "cc-by-4.0", "datasets": "opus100"}
SOURCE |= {"language": ["en", "de"]}


def test_a_converted_model_names_its_source_and_keeps_its_licence(tmp_path):
    """And so does a model that is fine-tuned from it."""
    tokenizer = make_tokenizer(["a dog"])
    source = save_folder(tmp_path / "source", make_marian(len(tokenizer), scale_embedding=True), tokenizer)
    assert call(convert.main, "--from", "marian", source, tmp_path / "bare").code == 0
    assert ModelCard.load(tmp_path / "bare" / "README.md").data.base_model is None  # not the name of a local folder
    (source / "README.md").write_text(f"---\n{json.dumps(SOURCE)}\n---\n")
    assert call(convert.main, "--from", "marian", source, tmp_path / "ours").code == 0
    source = source_metadata(tmp_path / "ours")
    languages, rate = {"source_lang": "en", "target_lang": "fr"}, {"learning_rate": 5e-5, "learning_rate_scale": None}
    assert write_card(tmp_path, languages, training=rate, source=source)[0].data.language == ["en", "fr"]
    tuned, _ = write_card(tmp_path, {}, training=rate, source=source)
    assert "learning rate 5e-05 at its peak" in tuned.text
    for card, verb in ((ModelCard.load(tmp_path / "ours" / "README.md"), "Converted"), (tuned, "Fine-tuned")):
        assert card.data.to_dict() == card.data.to_dict() | SOURCE
        assert f"{verb} from Helsinki-NLP/opus-mt-en-de." in card.text
        assert "under cc-by-4.0; whoever passes it on names its authors, too." in card.text


def test_the_copy_of_a_model_claims_no_more_than_its_card_says(tmp_path):
    """Norwegian's code is False to YAML."""
    for origin in ({}, {"base_model": "Helsinki-NLP/opus-mt-en-de"}):
        card = {"language": ["en", False], "license": "mit", **origin}
        (tmp_path / "README.md").write_text(f"---\n{json.dumps(card).replace('false', 'no')}\n---\n")
        write_card_of_run(tmp_path, make_tiny(), tmp_path)
        copied = ModelCard.load(tmp_path / "README.md")
        assert (copied.data.language, copied.data.license) == (["en", "no"], "mit")
        assert "Converted" not in copied.text and "since it was" not in copied.text
        assert ("Made from Helsinki-NLP/opus-mt-en-de" in copied.text) == bool(origin)

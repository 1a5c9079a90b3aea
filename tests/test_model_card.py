"""The model card: what it says of a run, what it keeps to itself, and that no value is taken for markup."""

import copy
import json

import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from modeling_vanilla import VanillaConfig
from modeling_vanilla.hub.model_card import write_model_card

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
SCORES = {"bleu": 40.934, "bleu_compound_split": 40.91, "chrf": 61.2}
RESULTS = {
    "settings": {
        "data": {"source_lang": None, "target_lang": None, "dataset_name": None, "train_file": "/secret/train.jsonl"},
        "training": {"tokens_per_update": 4096, "warmup_steps": 400, "learning_rate_scale": 1.0, "seed": 0,
                     "average_checkpoints": 5},
    },
    "training_pairs": 29000, "steps": 1300, "tokens": 3250000, "train_seconds": 240.0, "processes": 1, "device": "cpu",
    "parameters": 123456, "vocabulary": 280, "test_sentences": 1000,
    **SCORES, **{f"{name}_signature": SIGNATURE for name in SCORES},
}  # fmt: skip


@pytest.fixture
def card(tmp_path):
    """The card of RESULTS with other settings of the data: the parsed card, and the tokens of its Markdown."""

    def write(data: dict | None = None, dataset: str | None = None, **options):
        results = {**copy.deepcopy(RESULTS), "dataset": dataset}
        results["settings"]["data"].update(data or {})
        write_model_card(tmp_path, VanillaConfig(), results, **options)
        parsed = ModelCard.load(tmp_path / "README.md")
        return parsed, MarkdownIt().enable("table").parse(parsed.text)

    return write


def test_a_signature_is_one_cell_of_the_table(card):
    _, tokens = card()
    texts = ["".join(child.content for child in token.children) for token in tokens if token.type == "inline"]
    start = texts.index("sacreBLEU")
    assert texts[start : start + 3] == ["sacreBLEU", "40.93", SIGNATURE]


def test_the_card_says_what_the_run_was(card):
    parsed, _ = card({"source_lang": "en", "target_lang": "de"}, licence="cc-by-4.0", model_id="you/it")
    assert (parsed.data.language, parsed.data.license) == (["en", "de"], "cc-by-4.0")
    assert {one.metric_type: one.metric_value for one in parsed.data.eval_results} == {"bleu": 40.93, "chrf": 61.2}
    for said in ("29000 sentence pairs,", "It translates en to de.", 'model="you/it"', "123456", "1000 test sentences"):
        assert said in parsed.text


def test_without_language_options_no_language_is_claimed(card):
    parsed, _ = card()
    assert parsed.data.language is None
    assert "translates" not in parsed.text


@pytest.mark.parametrize("name", ["/tmp", "/no/such/folder", "../data"])
def test_a_place_on_this_machine_is_not_published(card, name):
    parsed, _ = card({"dataset_name": name}, dataset=name)
    assert name not in parsed.content and "secret" not in parsed.content
    assert parsed.data.eval_results[0].dataset_type == "text"


def test_a_dataset_of_the_hub_is_named(card):
    parsed, _ = card(dataset="wmt/wmt14")
    assert "of wmt/wmt14" in parsed.text
    assert parsed.data.eval_results[0].dataset_name == "wmt/wmt14"


def test_no_value_is_taken_for_markup(card):
    evil = "x\n# y <img src=a onerror=b> [c](http://d) | `e` **f**"
    parsed, tokens = card({"source_lang": evil, "target_lang": "de"}, licence=evil, example=evil)
    inline = [child for token in tokens for child in token.children or []]
    assert not {"html_inline", "link_open", "strong_open"} & {child.type for child in inline if "e" in child.content}
    assert not any(token.type == "html_block" for token in tokens)
    assert sum(token.tag == "h1" and token.nesting == 1 for token in tokens) == 1
    (code,) = [token.content for token in tokens if token.type == "fence"]
    assert json.dumps("\n# y")[1:-1] in code  # a string of Python still
    compile(code, "snippet", "exec")
    assert parsed.data.license == evil  # escaped by YAML

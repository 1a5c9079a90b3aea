"""The recipe of a preset, and that which `vanilla train` chooses without one: by hand, for corpora of each size."""

import pytest
import recipes
import torch
from accelerate import PartialState
from datasets import Dataset, DatasetDict
from helpers import TINY, as_lines, as_options, call, read_json, write_toy_corpus

from modeling_vanilla import preset_config
from modeling_vanilla.cli.train import main
from modeling_vanilla.training import DataOptions, ModelOptions, TrainingOptions
from modeling_vanilla.training import recipe as recipe_module
from modeling_vanilla.training.model import make_model
from modeling_vanilla.training.recipe import RunOptions, choose_recipe, complete, complete_options
from modeling_vanilla.training.train import learning_rate, rate_of

PAPER = {"tokens_per_update": 25_000, "warmup_steps": 4000, "learning_rate_scale": 1.0, "max_steps": 100_000}
PAPER |= {"optim": "adam", "lr_scheduler_type": "inverse_sqrt"}


@pytest.fixture
def choose(monkeypatch, own_precision):
    """The recipe for a corpus of so many characters on a device of a type, by default with eight processes."""

    def choose(characters: int, device: str, processes: int = 8, replay: bool = False, **given) -> dict:
        state = PartialState()
        monkeypatch.setattr(state, "device", torch.device(device))
        monkeypatch.setattr(state, "num_processes", processes)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
        monkeypatch.setattr(recipe_module, "_product_seconds", lambda dtype: 0.0)  # seconds where bf16 is slow
        pairs = Dataset.from_dict({"source": ["é" * (characters // 2)], "target": ["b" * (characters // 2)]})
        splits = DatasetDict(train=pairs, **({"replay": pairs} if replay else {}))
        return choose_recipe(splits, given)[0]

    return choose


RECIPES = [(3_000_000, "cpu", "tiny", None, 0.2, 8660), (4_000_000, "cuda", "tiny", None, 0.2, 10_000)]
RECIPES += [(40_000_000, "cpu", "tiny", 192, 0.1, 12_649), (40_000_000, "cuda", "base", None, 0.3, 12_649)]


@pytest.mark.parametrize(("characters", "device", "preset", "width", "dropout", "vocabulary"), RECIPES)
def test_the_model_and_the_vocabulary_grow_with_the_corpus(
    choose, characters, device, preset, width, dropout, vocabulary
):
    recipe = choose(characters, device)
    assert (recipe["preset"], recipe.get("d_model"), recipe["dropout"]) == (preset, width, dropout)
    assert recipe["vocab_size"] == vocabulary and "d_model" not in choose(characters, device, d_model=64)
    assert 1 < 8 * recipe["tokens_per_batch"] / recipe["tokens_per_update"] <= 1.2
    assert recipe.get("join_batches", False) == (characters < 10_000_000 and recipe.get("mixed_precision") == "bf16")
    assert "join_batches" not in choose(characters, device, tokens_per_batch=512)
    training = complete(TrainingOptions("run"), recipe)
    peak = rate_of(training, preset_config(preset).d_model, training.warmup_steps)
    assert peak == pytest.approx(0.005 if preset == "tiny" else 0.0007, rel=0.01)
    assert training.optim == ("muon" if preset == "tiny" else "adam")
    assert recipe.get("label_smoothing") == (0.2 if dropout == 0.2 else None)


def test_the_page_has_the_rows():
    assert recipes.table() in recipes.PAGE.read_text(encoding="utf-8")


def test_much_data_on_a_gpu_get_the_recipe_of_the_paper(choose, monkeypatch):
    monkeypatch.setattr(recipe_module, "_characters", lambda pairs: 400_000_000)
    recipe = choose(2, "cuda")
    here = {"preset": "base", "vocab_size": 37_000, "tokens_per_batch": 3750, "mixed_precision": "bf16"}
    assert recipe == {**here, **PAPER}
    defaults = {**PAPER, "join_batches": False, "tokens_per_batch": 3125, "validate_steps": 1000}
    defaults |= {"checkpoint_steps": 1500, "keep_checkpoints": 5, "average_checkpoints": 5}
    assert complete(TrainingOptions("run")) == TrainingOptions("run", **defaults)


# Updates, those between two checkpoints, checkpoints averaged; beam, alpha, tokens beyond the source's.
ROWS = {
    "big": (300_000, 600, 20, 4, 0.6, 50),
    "A-h1": (100_000, 1500, 1, 4, 0.6, 50),
    "parsing": (100_000, 1500, 5, 21, 0.3, 300),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_preset_is_trained_and_searches_as_the_paper_says(row, tokenizer):
    options = ModelOptions(preset=row)
    training = complete_options(DatasetDict(), DataOptions(), RunOptions(TrainingOptions("run"), options, {})).training
    search = make_model(None, options, TINY, tokenizer).generation_config
    figures = (training.max_steps, training.checkpoint_steps, training.average_checkpoints)
    assert (*figures, search.num_beams, search.length_penalty, search.max_extra_tokens) == ROWS[row]


SMALLEST = {"one pair": ["a dog"], "one of 13 is too long": [*["the old man"] * 12, "the old man " * 300]}
SMALLEST |= {"Hindi": ["वह जाता है।", "वह आता है।", "मैं घर जाता हूँ।", "यह एक कुत्ता है।"]}


@pytest.mark.usefixtures("own_cache", "own_precision")
@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_corpora_are_trained_on(name, tmp_path):
    (tmp_path / "text").write_bytes(as_lines(SMALLEST[name]))
    files = dict.fromkeys(("train_source", "train_target"), tmp_path / "text")
    settings = {**TINY, "max_steps": 1, "mixed_precision": "no"}
    assert call(main, *as_options({**settings, **files, "output_dir": tmp_path / "run"})).succeeded


def test_a_short_run_of_adam_rises_in_a_quarter_of_it_and_to_a_lower_peak(choose):
    peaks = []
    for steps in (20_000, 4000, 2000):
        recipe = choose(40_000_000, "cpu", optim="adam", max_steps=steps)
        warmup = min(2000, steps // 4)
        assert recipe["warmup_steps"] == warmup and "max_steps" not in recipe
        peaks.append(learning_rate(warmup, 128, warmup, recipe["learning_rate_scale"]))
    assert peaks == pytest.approx([0.005, 0.005 / 2**0.5, 0.005 / 2], rel=0.01)
    assert choose(40_000_000, "cpu", optim="adam", warmup_steps=500)["learning_rate_scale"] == pytest.approx(
        2.53 / 4, rel=0.01
    )


def test_adam_on_a_small_corpus_has_eq_3_and_no_rate_of_muons(choose):
    """With Muon's a post-LN model never learns to read the source."""
    training = complete(TrainingOptions("run", optim="adam"), choose(4_000_000, "cpu", optim="adam"))
    assert (training.lr_scheduler_type, training.max_steps, training.warmup_steps) == ("inverse_sqrt", 5100, 1275)
    assert rate_of(training, 128, 1275) == pytest.approx(0.005 * (1275 / 2000) ** 0.5, rel=0.01)


def test_few_pairs_are_seen_at_most_100_times_and_from_30_on_with_more_dropout(choose):
    """120 thousand characters of both sides, some four to a token, are 12.5 updates of 1200 tokens a side."""
    few, half, whole = (choose(characters, "cpu") for characters in (120_000, 2_000_000, 4_000_000))
    assert few["tokens_per_update"] == 1200 and few["max_steps"] == pytest.approx(1250, abs=1)
    assert (few["warmup_steps"], few["validate_steps"]) == (few["max_steps"] // 10, 250)
    assert [recipe["dropout"] for recipe in (few, half, whole)] == [0.3, 0.3, 0.2]
    assert half["max_steps"] == whole["max_steps"] == 5100
    assert (whole["tokens_per_update"], whole["warmup_steps"], whole["validate_steps"]) == (2048, 510, 1020)
    assert choose(4_000_000, "cpu", processes=1)["tokens_per_batch"] == 512  # four batches an update


def test_a_saved_model_is_fine_tuned(choose):
    """Some four characters are a token: 4 million of both sides are 244 updates of 2048 tokens a side, thrice."""
    few, some, many = (choose(size, "cpu", model="saved", d_model=512) for size in (80_000, 800_000, 4_000_000))
    assert many["learning_rate"] == 5e-5 < choose(4_000_000, "cpu", model="saved", d_model=128)["learning_rate"] < 1e-3
    assert many["max_steps"] == pytest.approx(5 * 244, abs=1) and many["warmup_steps"] == many["max_steps"] // 10
    passes = [
        row["max_steps"] * row["tokens_per_update"] / size for row, size in ((few, 8e4), (some, 8e5), (many, 4e6))
    ]
    assert passes[0] > passes[1] > passes[2]
    replayed = [choose(size, "cpu", model="saved", d_model=512, replay=True) for size in (80_000, 800_000)]
    assert [row["learning_rate"] for row in replayed] == [2.5e-4, 5e-5]
    assert not {"preset", "dropout", "vocab_size"} & few.keys()
    training = complete(TrainingOptions("run"), few)
    assert (training.learning_rate, training.learning_rate_scale) == (few["learning_rate"], None)


@pytest.mark.usefixtures("own_cache", "own_precision")
def test_the_command_says_what_it_chose_and_takes_what_is_given(tmp_path):
    files = write_toy_corpus(tmp_path, train=100, validation=4, test=2)
    given = TINY | {"mixed_precision": "no"}
    options = as_options({**files, **given, "output_dir": tmp_path / "run"})
    done = call(main, *options, "--max_steps", 2).succeeded
    (line,) = (line for line in done.errors.splitlines() if line.startswith("recipe: "))
    words = line.removeprefix("recipe: --").replace(" --", " ").split()
    chosen = dict(zip(words[::2], words[1::2], strict=True))
    assert not chosen.keys() & {*given, "max_steps"} and chosen["preset"] == "tiny" and chosen["optim"] == "muon"
    settings = read_json(tmp_path / "run/results.json")["settings"]
    used = settings["training"] | settings["model"]
    assert {name: str(used[name]) for name in chosen} == chosen
    assert {name: used[name] for name in given} == given
    # A longer run keeps what the shorter one was started with.
    assert call(main, *options, "--max_steps", 8, "--resume").succeeded
    resumed = read_json(tmp_path / "run/results.json")["settings"]
    assert resumed == {**settings, "training": {**settings["training"], "max_steps": 8}}

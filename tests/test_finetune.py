"""Fine-tuning with Seq2SeqTrainer: the loss is the model's own, resumed as never interrupted, judged by BLEU."""

import shutil
from functools import partial
from pathlib import Path

import pytest
from finetune_seq2seq_trainer import FinetuningArguments, finetune
from helpers import TINY, assert_same_weights, make_tiny, make_tokenizer, read_json, save_folder, write_toy_corpus
from transformers import GenerationConfig

from modeling_vanilla import Translator
from modeling_vanilla.corpus.batches import collate
from modeling_vanilla.corpus.data import load_pairs
from modeling_vanilla.corpus.tokenized import tokenize_training_pairs
from modeling_vanilla.training import DataOptions

pytestmark = pytest.mark.usefixtures("own_cache", "own_precision")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return DataOptions(**write_toy_corpus(tmp_path_factory.mktemp("corpus"), train=60, validation=4, test=4))


@pytest.fixture
def make_folder(data, tmp_path):
    """A saved model of random weights with its tokenizer."""

    def make(**overrides) -> str:
        pairs = load_pairs(data)["train"]
        tokenizer = make_tokenizer([*pairs["source"], *pairs["target"]], TINY["vocab_size"])
        return str(save_folder(tmp_path / "model", make_tiny(**TINY, **overrides), tokenizer))

    return make


def arguments_for(folder: str, run: Path, **overrides) -> FinetuningArguments:
    quick = {"max_steps": 1, "eval_steps": 1, "save_steps": 1, "logging_steps": 1, "warmup_steps": 0, "use_cpu": True}
    return FinetuningArguments(model=folder, output_dir=str(run), disable_tqdm=True, **{**quick, **overrides})


def logged(run: Path, step: int, name: str) -> dict[int, float]:
    """A figure that the Trainer has logged, by step."""
    history = read_json(run / f"checkpoint-{step}" / "trainer_state.json")["log_history"]
    return {entry["step"]: entry[name] for entry in history if name in entry}


@pytest.mark.parametrize("batches", [1, 3])
def test_the_first_loss_is_the_model_s_own_over_all_tokens(tmp_path, data, make_folder, batches):
    """An update of the whole training data, in one batch and accumulated over three; then validated by loss alone."""
    folder = make_folder(dropout=0.0, label_smoothing=0.1)
    translator = Translator.from_pretrained(folder)
    model, tokenizer = translator.model, translator.tokenizer
    rows = tokenize_training_pairs(load_pairs(data)["train"], tokenizer, data).rows
    expected = model.train()(**collate(rows.with_format("arrow")[:], tokenizer.pad_token_id)).loss.item()
    sizes = {"per_device_train_batch_size": len(rows) // batches, "gradient_accumulation_steps": batches}
    alone = {} if batches == 1 else {"predict_with_generate": False, "metric_for_best_model": "loss"}
    finetune(data, arguments_for(folder, tmp_path / "run", **sizes, **alone))
    assert logged(tmp_path / "run", 1, "loss")[1] == pytest.approx(expected, abs=1e-4)  # it may round to four digits


def test_resumed_is_as_if_never_interrupted(tmp_path, data, make_folder):
    """From the middle of the second epoch, where the last step is done: other batches than the first's, and dropout."""
    run = tmp_path / "run"
    given = {"max_steps": 6, "save_steps": 2, "eval_steps": 2, "per_device_train_batch_size": 20}
    arguments = partial(arguments_for, make_folder(dropout=0.2), run, save_total_limit=None, **given)
    finetune(data, arguments())
    assert 1 < logged(run, 4, "epoch")[4] < 2
    whole = Path(shutil.copytree(run / "checkpoint-6", tmp_path / "whole"))
    for name in ("checkpoint-2", "model"):
        shutil.rmtree(run / name)
    finetune(data, arguments(resume=True))
    assert_same_weights(run / "checkpoint-6", whole, atol=1e-6)


def test_what_it_writes(tmp_path, data, make_folder):
    folder, run = make_folder(), tmp_path / "run"
    results = finetune(data, arguments_for(folder, run, max_steps=2, bf16=True))
    assert results == read_json(run / "results.json") and results["steps"] == 2
    assert {"bleu", "bleu_signature", "chrf"} <= results["before"].keys() & results["after"].keys()
    evaluations = logged(run, 2, "eval_bleu")
    assert evaluations.pop(0) >= 0  # before the first update
    chosen = int(results["best_checkpoint"].removeprefix("checkpoint-"))
    assert results["best_metric"] == evaluations[chosen] == max(evaluations.values())
    assert_same_weights(run / "model", run / f"checkpoint-{chosen}")
    # The search is still the model's own, not what an evaluation of the Trainer sets.
    before, after = (GenerationConfig.from_pretrained(path).to_diff_dict() for path in (folder, run / "model"))
    assert before == after

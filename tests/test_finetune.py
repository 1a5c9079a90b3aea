"""Fine-tuning with Seq2SeqTrainer: the loss of our own loop, resumed as never interrupted, judged by BLEU."""

import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from finetune_seq2seq_trainer import FinetuningArguments, FinetuningOptions, TokenBatches, finetune, last_checkpoint
from helpers import TINY, assert_same_weights, make_tokenizer, save_folder, write_toy_corpus
from transformers import GenerationConfig

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.inference import load_translator
from modeling_vanilla.training import DataOptions, TrainingOptions, train
from modeling_vanilla.training.batches import epoch_batches
from modeling_vanilla.training.data import load_pairs
from modeling_vanilla.training.preprocessing import pair_lengths, tokenize_training_pairs

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return DataOptions(**write_toy_corpus(tmp_path_factory.mktemp("corpus"), train=60, validation=4, test=4))


@pytest.fixture(scope="module")
def make_folder(data, tmp_path_factory):
    """A saved model of random weights with its tokenizer."""
    pairs = load_pairs(data)["train"]
    tokenizer = make_tokenizer([*pairs["source"], *pairs["target"]], TINY["vocab_size"])

    def make(**overrides) -> str:
        torch.manual_seed(0)
        model = VanillaForConditionalGeneration(VanillaConfig(**TINY, **overrides))
        model.generation_config.max_extra_tokens = 4
        return str(save_folder(tmp_path_factory.mktemp("models") / "model", model, tokenizer))

    return make


def arguments_for(run: Path, **overrides) -> FinetuningArguments:
    quick = {"max_steps": 1, "eval_steps": 1, "save_steps": 1, "logging_steps": 1, "warmup_steps": 0, "use_cpu": True}
    return FinetuningArguments(output_dir=str(run), disable_tqdm=True, **{**quick, **overrides})


def logged(run: Path, step: int, name: str) -> dict[int, float]:
    """A figure that Trainer has logged, by step."""
    history = json.loads((run / f"checkpoint-{step}" / "trainer_state.json").read_text())["log_history"]
    return {entry["step"]: entry[name] for entry in history if name in entry}


@pytest.mark.parametrize(("batches", "smoothing"), [(1, None), (3, 0.3)])
def test_the_first_loss_is_that_of_our_own_loop(tmp_path, data, make_folder, batches, smoothing):
    """An update of the whole training data, in one batch and accumulated over three."""
    folder = make_folder(dropout=0.0, label_smoothing=0.1)
    model, tokenizer = load_translator([folder])
    model.config.label_smoothing = smoothing or 0.1
    training_data, _ = tokenize_training_pairs(load_pairs(data)["train"], tokenizer, data)
    lengths = pair_lengths(training_data)
    size = next(n for n in range(5000, 0, -1) if len(epoch_batches(*lengths, n, 0, 0)) == batches)
    tokens = int((lengths[0].sum() + lengths[1].sum()) / 2)
    options = TrainingOptions(
        str(tmp_path / "ours"), max_steps=1, tokens_per_batch=size, tokens_per_update=tokens, mixed_precision="no"
    )
    _, progress = train(model, tokenizer, training_data, None, options)

    run = tmp_path / "theirs"
    finetuning = FinetuningOptions(folder, tokens_per_batch=size, label_smoothing=smoothing)
    finetune(data, finetuning, arguments_for(run, gradient_accumulation_steps=batches))
    assert logged(run, 1, "loss")[1] == pytest.approx(progress.losses[0], abs=1e-4)  # Trainer may round to four digits


def test_resumed_is_as_if_never_interrupted(tmp_path, data, make_folder):
    """Interrupted in the middle of the second epoch: other batches than the first's, and dropout, must go on."""
    options = FinetuningOptions(make_folder(dropout=0.2), tokens_per_batch=1300)
    run = tmp_path / "run"
    arguments = partial(arguments_for, run, max_steps=6, save_steps=2, eval_steps=2, save_total_limit=None)
    finetune(data, options, arguments())
    assert 1 < logged(run, 4, "epoch")[4] < 2
    whole = (run / "checkpoint-6").rename(tmp_path / "whole")
    for name in ("checkpoint-2", "model"):
        shutil.rmtree(run / name)
    options.resume = True
    finetune(data, options, arguments())
    assert_same_weights(run / "checkpoint-6", whole, atol=1e-6)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_epoch_distributes_all_pairs_anew(world):
    ids = [[0] * n for n in range(3, 103)]
    data = Dataset.from_dict({"input_ids": ids, "labels": ids})

    def share(rank, epoch):
        arguments = SimpleNamespace(world_size=world, process_index=rank, seed=0)
        trainer = SimpleNamespace(train_dataset=data, state=SimpleNamespace(epoch=epoch), args=arguments)
        batches = TokenBatches(trainer, 400)
        assert len(list(batches)) == len(batches)
        return [tuple(batch) for batch in batches]

    for epoch in (None, 1.0, 1.5):
        rows = [row for rank in range(world) for batch in share(rank, epoch) for row in batch]
        assert len(set(rows)) == len(rows)
        assert len(rows) == 100 or world > 1
    assert share(0, 1.0) == share(0, 1.5) != share(0, None)


def test_what_it_writes(tmp_path, data, make_folder, capsys):
    folder, run = make_folder(), tmp_path / "run"
    options = FinetuningOptions(folder, tokens_per_batch=500, quiet=True)
    results = finetune(data, options, arguments_for(run, max_steps=2, bf16=True))
    assert capsys.readouterr().out == ""  # Trainer would print each figure that it logs
    assert results == json.loads((run / "results.json").read_text())
    assert results["steps"] == 2
    assert {"bleu", "bleu_signature", "chrf"} <= results["before"].keys() & results["after"].keys()
    evaluations = logged(run, 2, "eval_bleu")
    chosen = int(results["best_checkpoint"].removeprefix("checkpoint-"))
    assert results["best_validation_bleu"] == evaluations[chosen] == max(evaluations.values())
    assert_same_weights(run / "model", run / f"checkpoint-{chosen}")
    # The search is still the model's own, not what an evaluation of Trainer sets.
    before, after = (GenerationConfig.from_pretrained(path).to_diff_dict() for path in (folder, run / "model"))
    assert before == after
    load_translator([run / "model"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resume": True}, "holds no checkpoint"),
        ({"validation_file": None}, "no validation data"),
        ({"output_dir": str(Path(__file__).parent)}, "holds something already|is not empty"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path, data, make_folder, change, message):
    data, arguments = SimpleNamespace(**vars(data)), arguments_for(tmp_path / "run")
    options = FinetuningOptions(make_folder())
    ((name, value),) = change.items()
    setattr(next(part for part in (data, options, arguments) if hasattr(part, name)), name, value)
    with pytest.raises(ValueError, match=message):
        finetune(data, options, arguments)
    assert not list(tmp_path.rglob("run/*"))


def test_a_checkpoint_that_was_not_finished_is_passed_over(tmp_path):
    """Trainer writes trainer_state.json last."""
    for step, state in ((2, "{}"), (10, "{}"), (12, '{"epo'), (14, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
    for step in (2, 10):
        shutil.rmtree(tmp_path / f"checkpoint-{step}")
    assert last_checkpoint(tmp_path) is None  # begins again


@pytest.mark.parametrize(
    "setting",
    [
        {"max_steps": -5},
        {"num_train_epochs": -3},
        {"learning_rate": float("inf")},
        {"save_steps": 0},
        {"metric_for_best_model": "foo"},
        {"gradient_accumulation_steps": 0},
        {"label_smoothing_factor": 0.1},
        {"per_device_train_batch_size": 16},
        {"resume_from_checkpoint": "runs/tuned/checkpoint-1"},
    ],
    ids=str,
)
def test_settings_that_train_nothing_or_do_nothing_are_refused(tmp_path, setting):
    with pytest.raises(ValueError, match=f"^{next(iter(setting))} (must be |does nothing here)"):
        arguments_for(tmp_path, **setting)

"""The training loop against a plain one written out here, and against itself resumed."""

import itertools
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import sacrebleu
import torch
from datasets import Dataset
from helpers import TINY, assert_same_weights, batch_of, make_tokenizer, tensors, write_toy_corpus
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.utils.rnn import pad_sequence
from toy_corpus import toy_corpus

from modeling_vanilla import Translator, VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.corpus.batches import epoch_batches, join_batches, update_batches
from modeling_vanilla.corpus.tokenized import pair_lengths, tokenize_training_pairs
from modeling_vanilla.training import (
    DataOptions,
    ModelOptions,
    TrainingOptions,
    checkpoints,
    train,
    train_translation,
)
from modeling_vanilla.training import run as run_module
from modeling_vanilla.training.recipe import complete
from modeling_vanilla.training.run import prepare, trackers
from modeling_vanilla.training.train import read_updates

# The small start leaves queries and keys with gradients so slight that Adam would step along their rounding.
SETTINGS = {**TINY, "init_std": None}

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def corpus():
    return toy_corpus(train=120, validation=6, test=6)


@pytest.fixture(scope="module")
def tokenizer(corpus):
    return make_tokenizer((text for pair in corpus["train"] for text in pair), 320)


@pytest.fixture
def datasets(corpus):
    """The splits as training reads them."""
    rows = {split: [{"source": one, "target": other} for one, other in pairs] for split, pairs in corpus.items()}
    return {split: Dataset.from_list(rows[split]) for split in rows}


@pytest.fixture
def training_data(datasets, tokenizer):
    return tokenize_training_pairs(datasets["train"], tokenizer, DataOptions())


def new_model():
    torch.manual_seed(0)
    return VanillaForConditionalGeneration(VanillaConfig(**SETTINGS, dropout=0.0))


@pytest.fixture
def run_loop(tokenizer, training_data):
    """Train a new model without dropout, or the one given: the model as the last update leaves it, and its progress."""

    def run(folder, model=None, pairs=None, **overrides):
        options = options_for(folder, **overrides)
        state = prepare(model or new_model(), tokenizer, options)
        with trackers(state):
            train.train(state, read_updates(state, training_data), pairs or {})
        return state.own_model, state.progress

    return run


def options_for(run, **overrides):
    settings = {"max_steps": 3, "tokens_per_update": 500, "tokens_per_batch": 150, "warmup_steps": 2}
    settings |= {"mixed_precision": "no", "average_checkpoints": 1}
    return complete(TrainingOptions(output_dir=str(run), **{**settings, **overrides}))


def plain_training(model, data, options):
    """The same updates as one big padded batch each, with torch alone. Returns the loss of each."""
    updates = first_epoch(data, options)[: options.max_steps]
    assert min(len(update) for update in updates) > 2  # or nothing is accumulated
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    model.train()
    losses = []
    for step, update in enumerate(updates, start=1):
        rows = [data[int(row)] for row in np.concatenate(update)]
        target = pad_sequence([torch.tensor(row["labels"]) for row in rows], batch_first=True, padding_value=-100)
        shifted = torch.cat([torch.ones(len(rows), 1, dtype=torch.long), target[:, :-1].clamp(min=0)], dim=1)
        logits = model(**batch_of([row["input_ids"] for row in rows]), decoder_input_ids=shifted).logits
        smoothing = model.config.label_smoothing
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=smoothing)
        loss.backward()
        if options.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), options.max_grad_norm)
        rate = 16**-0.5 * min(step**-0.5, step * options.warmup_steps**-1.5)
        optimizer.param_groups[0]["lr"] = options.learning_rate_scale * rate
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def first_epoch(data, options):
    lengths = pair_lengths(data)
    batches = epoch_batches(*lengths, options.tokens_per_batch, options.seed, epoch=0)
    return update_batches(batches, *lengths, options.tokens_per_update)


@pytest.mark.parametrize(
    "given", [{}, {"join_batches": True}, {"seed": 1, "learning_rate_scale": 0.5, "max_grad_norm": 0.5}]
)
def test_three_updates_are_those_of_a_plain_loop(tmp_path, run_loop, training_data, given):
    """So the batches of an update, of whatever shape, add up to one big batch.

    Of the clipped gradients, the norms of the first two are above the limit, that of the third is below.
    """
    plain = new_model()
    expected = plain_training(plain, training_data.rows, options_for(tmp_path, **given))
    trained, progress = run_loop(tmp_path / "run", **given)
    assert progress.losses == pytest.approx(expected, abs=1e-5)
    updates = [
        join_batches(each, *training_data.lengths) if "join_batches" in given else each
        for each in first_epoch(training_data.rows, options_for(tmp_path, **given))[:3]
    ]
    padded = [len(rows) * side[rows].max() for each in updates for rows in each for side in training_data.lengths]
    assert progress.positions == sum(padded)
    parameters, start = dict(trained.named_parameters()), new_model().state_dict()
    # Adam divides by the gradient's own size, so that where that is rounding, rounding is what differs.
    torch.testing.assert_close(parameters, dict(plain.named_parameters()), rtol=0, atol=5e-5)
    assert max(float((value.detach() - start[name]).abs().max()) for name, value in parameters.items()) > 0.1


def test_averaged_are_evenly_spaced_checkpoints(tmp_path, data, monkeypatch):
    """Counted back from the last, of step 7; the best one is kept apart."""
    set_scores(monkeypatch, 5.0, 2.0, 1.0)
    run, schedule = tmp_path / "run", {"checkpoint_steps": 2, "keep_checkpoints": 2, "average_checkpoints": 2}
    results = run_to(run, data, 7, validate_steps=5, **schedule)
    folders = {path.name for path in run.iterdir() if path.is_dir()} - {"tensorboard"}
    assert folders == {"checkpoint-5", "checkpoint-7", "best", "model"}
    assert results["averaged_checkpoints"] == [5, 7]
    assert_same_weights(run / "best", run / "checkpoint-5")
    fifth, seventh, mean = (load_file(run / name / "model.safetensors") for name in sorted(folders - {"best"}))
    for name, value in fifth.items():
        torch.testing.assert_close(mean[name], (value + seventh[name]) / 2)


@pytest.mark.parametrize(("max_steps", "given", "last"), [(100, None, 90), (25, 7, 18), (10_000, None, 9980)])
def test_the_schedule_fits_the_length_of_the_run(max_steps, given, last):
    """The paper writes a checkpoint after 600 of the big model's 300000 updates."""
    options = complete(TrainingOptions("unused", max_steps=max_steps, checkpoint_steps=given), preset="big")
    assert [step for step in range(max_steps + 1) if checkpoints.is_scheduled(options, step)][-2:] == [last, max_steps]


def test_progress_counts_what_was_read(tmp_path, run_loop, datasets, training_data):
    """Losses, tokens and validations of two epochs and a bit."""
    lengths = training_data.lengths
    plan = [update_batches(epoch_batches(*lengths, 150, 0, epoch), *lengths, 500) for epoch in range(2)]
    steps, every = sum(map(len, plan)) + 1, len(plan[0])
    _, progress = run_loop(tmp_path / "run", pairs=datasets, max_steps=steps, validate_steps=every)
    assert (progress.step, progress.epoch, progress.updates_of_epoch, len(progress.losses)) == (steps, 2, 1, steps)
    assert progress.positions >= progress.tokens > 2 * sum(int(side.sum()) for side in lengths)
    assert [entry["step"] for entry in progress.validations] == [*range(every, steps, every), steps]
    for entry in progress.validations:
        assert entry["perplexity"] == pytest.approx(math.exp(entry["loss"]))
        assert 0 <= entry["bleu"] <= 100 and "tok:13a" in entry["bleu_signature"]
    assert checkpoints.read_progress(checkpoints.newest_checkpoint(tmp_path / "run")).losses == progress.losses
    assert progress.best()["bleu"] == max(entry["bleu"] for entry in progress.validations)


def test_translations_are_scored_against_the_targets(tmp_path, corpus, monkeypatch):
    """Those of validation and test data, both with a word too many."""
    answers = {source: f"{target} x" for split in ("validation", "test") for source, target in corpus[split]}
    monkeypatch.setattr(Translator, "translate", lambda self, texts, **_: [answers[source] for source in texts])
    data = DataOptions(**write_toy_corpus(tmp_path, train=120, validation=6, test=6))
    results = run_to(tmp_path / "run", data, 1)
    for split, scores in (("validation", results["validation"]), ("test", results)):
        sources, targets = zip(*corpus[split], strict=True)
        expected = sacrebleu.corpus_bleu([answers[source] for source in sources], [targets]).score
        assert 1 < expected < 99 and scores["bleu"] == pytest.approx(expected)


def test_a_loss_that_is_not_finite_stops_with_the_last_checkpoint_intact(tmp_path, run_loop, training_data):
    updates, calls = first_epoch(training_data.rows, options_for(tmp_path)), itertools.count(1)
    model, spoiled = new_model(), len(updates[0]) + len(updates[1]) + 2

    def spoil(module, arguments, output):
        if next(calls) == spoiled:
            output.last_hidden_state = output.last_hidden_state * math.nan
        return output

    model.get_decoder().register_forward_hook(spoil)
    with pytest.raises(ValueError, match=r"^the loss of step 3 is nan, .*warmup_steps \(2\).*learning_rate_scale \(1"):
        run_loop(tmp_path, model, max_steps=9, checkpoint_steps=1)
    assert [path.name for path in checkpoints.list_checkpoints(tmp_path)] == ["checkpoint-1", "checkpoint-2"]


@pytest.mark.usefixtures("own_precision")
def test_a_second_training_has_its_own_precision(tmp_path, data):
    given = {"a": "bf16", "b": "no", "c": None}
    seen = [run_to(tmp_path / name, data, 1, mixed_precision=given[name])["precision"] for name in given]
    assert seen == ["bf16", "no", "no"]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator has fp16")
@pytest.mark.usefixtures("own_precision")
def test_a_precision_that_the_device_lacks_is_refused(tmp_path, data):
    with pytest.raises(ValueError, match=r"^mixed_precision fp16: cpu has none"):
        run_to(tmp_path / "run", data, 1, mixed_precision="fp16")
    assert not (tmp_path / "run").exists()


def test_tensorboard_has_loss_learning_rate_and_the_norm_before_clipping(tmp_path, run_loop):
    """The learning rate is given by its peak."""
    free = run_loop(tmp_path / "free")[1].losses
    run_loop(tmp_path / "clipped", max_grad_norm=1e-9, learning_rate=0.01)
    shown, other = scalars(tmp_path / "free"), scalars(tmp_path / "clipped")
    assert shown["gradient_norm"][1] == pytest.approx(other["gradient_norm"][1], rel=1e-4)
    assert list(shown["loss"].values()) == pytest.approx(free, rel=1e-6)
    assert list(other["learning_rate"].values()) == pytest.approx([0.005, 0.01, 0.01 * (2 / 3) ** 0.5])


def scalars(run):
    """What TensorBoard shows of a run: {tag: {step: value}}."""
    found = EventAccumulator(str(run / "tensorboard" / "modeling_vanilla")).Reload()
    return {tag: {event.step: event.value for event in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def set_scores(monkeypatch, *bleus):
    """Let the validations find these BLEUs, one after the other; the last of a run is that of its average."""
    figures = {"loss": 1.0, "perplexity": math.e, "chrf": 0.0, "bleu_signature": "x"}
    scores = iter(bleus)
    for module in (train, run_module):
        monkeypatch.setattr(module, "validation_scores", lambda *_: {**figures, "bleu": next(scores)})


def test_early_stopping(tmp_path, data, monkeypatch, capsys):
    """Two validations without a new best end the run; TensorBoard has them; resuming goes no further.

    Nor does it start anew: there would be no scores for that.
    """
    end = 0.0  # of the average that a run writes
    set_scores(monkeypatch, 1.0, 3.0, 2.0, 3.0, end, end, 9.0, end)
    results = run_to(tmp_path / "run", data, 100, validate_steps=2, early_stopping=2)
    assert results["steps"] == 8
    ending = "early_stopping: no better BLEU in 2 validations, the run ends; a larger one goes on\n"
    assert ending in capsys.readouterr().err
    assert scalars(tmp_path / "run")["validation_bleu"] == {2: 1.0, 4: 3.0, 6: 2.0, 8: 3.0}
    assert run_to(tmp_path / "run", data, 100, resume=True, validate_steps=2, early_stopping=2)["steps"] == 8
    assert ending in capsys.readouterr().err
    assert run_to(tmp_path / "run", data, 10, resume=True, validate_steps=2, early_stopping=3)["steps"] == 10


# Resuming, and several processes


@pytest.fixture
def data(tmp_path):
    files = write_toy_corpus(tmp_path, train=120, validation=6, test=6)
    return DataOptions(**{**files, "test_file": None})


def run_to(run, data, max_steps, resume=False, **overrides):
    """Two epochs are four updates here, so the end of an epoch is on the way."""
    steps = {"max_steps": max_steps, "tokens_per_update": 900, "checkpoint_steps": 1, "validate_steps": 3}
    training = options_for(run, resume=resume, **{**steps, **overrides})
    return train_translation(data, training, ModelOptions(preset="tiny"), {**SETTINGS, "dropout": 0.1})


def test_a_run_of_the_recipes_optimizer_and_rate_goes_on_as_if_never_interrupted(tmp_path, data, monkeypatch):
    """To the bit. The rate depends on where the run ends, so the whole run loses its last checkpoints."""
    run, settings = tmp_path / "run", {"optim": "muon", "lr_scheduler_type": "linear", "learning_rate": 0.01}
    set_scores(monkeypatch, *[0.0] * 6)
    run_to(run, data, 5, **settings)
    expected = tensors(run / "checkpoint-5")
    for step in (3, 4, 5):
        shutil.rmtree(run / f"checkpoint-{step}")
    run_to(run, data, 5, resume=True, **settings)
    torch.testing.assert_close(tensors(run / "checkpoint-5"), expected, rtol=0, atol=0)


def test_a_fine_tuning_that_makes_worse_keeps_the_start(tmp_path, data, monkeypatch):
    """Its card names what it started from, and so does that of a model which is fine-tuned from its best."""
    run_to(tmp_path / "first", data, 1)
    start = tmp_path / "first" / "model"
    (start / "README.md").write_text("---\nbase_model: you/it\nlicense: mit\n---\n")
    set_scores(monkeypatch, 5.0, *5 * [1.0])
    training = TrainingOptions(str(tmp_path / "run"), max_steps=2, tokens_per_update=900, mixed_precision="no")
    train_translation(data, replace(training, validate_steps=2), ModelOptions(model=str(start)))
    assert_same_weights(tmp_path / "run" / "best", start)
    again = TrainingOptions(str(tmp_path / "again"), max_steps=1, tokens_per_update=900, mixed_precision="no")
    train_translation(data, again, ModelOptions(model=str(tmp_path / "run" / "best")))
    for run in ("run", "again"):
        metadata = ModelCard.load(tmp_path / run / "model" / "README.md").data
        assert (metadata.base_model, metadata.license) == ("you/it", "mit")


def test_a_16_bit_model_is_trained_in_32_bits(tmp_path, data):
    """In 16 bits fp16 is NaN within some steps, and bf16 loses most of what Adam adds."""
    run_to(tmp_path / "first", data, 1)
    folder = tmp_path / "first" / "model"
    VanillaForConditionalGeneration.from_pretrained(folder, dtype=torch.float16).save_pretrained(folder)
    training = options_for(tmp_path / "run", max_steps=8, tokens_per_update=900)
    train_translation(data, training, ModelOptions(model=str(folder)))
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.float32}
    assert all(value.isfinite().all() for value in weights.values())

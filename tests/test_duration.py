"""--minutes: as many updates as there is time for beside validations and scores, by a pace that is given here."""

import pytest
from datasets import Dataset, DatasetDict
from helpers import TINY, as_options, call, read_json, write_toy_corpus
from toy_corpus import toy_corpus, write_corpus

from modeling_vanilla import VanillaForConditionalGeneration
from modeling_vanilla.cli.train import main
from modeling_vanilla.training import ModelOptions, TrainingOptions, duration
from modeling_vanilla.training import run as training_run
from modeling_vanilla.training.duration import Pace, steps_within
from modeling_vanilla.training.recipe import RunOptions, complete

PACE = Pace(update=0.5, pair=0.1)
PAIRS = DatasetDict({part: Dataset.from_dict({"source": ["a"] * 10}) for part in ("validation", "test")})


@pytest.mark.parametrize(("every", "model"), [(7, None), (100, None), (7, "runs/old")])
def test_a_longer_run_than_chosen_would_take_too_long(every, model):
    def options_of(steps):
        training = complete(TrainingOptions("run", max_steps=steps, validate_steps=every))
        return RunOptions(training, ModelOptions(model=model), {})

    # A validation or the test, of 10 pairs, takes a second; at the end there is one of each, and one of a saved model.
    def seconds(steps):
        return 0.5 * steps + len({*range(every, steps, every), steps}) + 2 + (model is not None)

    steps = steps_within(60, PACE, PAIRS, options_of)
    assert PACE.seconds(options_of(steps), PAIRS) == pytest.approx(seconds(steps))
    assert seconds(steps) <= 60 < seconds(steps + 1)
    with pytest.raises(ValueError, match=r"^minutes: an update and the scores take 0\.1, and 0\.0 are left$"):
        steps_within(2, PACE, PAIRS, options_of)


@pytest.mark.usefixtures("own_cache", "own_precision")
def test_a_run_of_some_minutes_has_a_schedule_of_its_own_and_resumes_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(training_run, "monotonic", lambda: 0.0)
    files = write_toy_corpus(tmp_path, train=100, validation=4, test=2)
    options = as_options({**files, **TINY, "output_dir": tmp_path / "run", "minutes": 1})
    trial = duration.measure_pace

    def measure_pace(*arguments):
        trial(*arguments)
        return Pace(update=2.0, pair=1.0)

    monkeypatch.setattr(training_run, "measure_pace", measure_pace)
    done = call(main, *options).succeeded
    # A validation of 4 pairs, as five would take a third of the time, one of the model, and a test of 2 leave 50 of 60
    # seconds.
    training = read_json(tmp_path / "run/run.json")["training"]
    assert "25 updates, with their validations and scores: about 1.0 minutes" in done.errors
    assert (training["max_steps"], training["validate_steps"], training["warmup_steps"]) == (25, 25, 2)
    assert training["minutes"] is None
    assert call(main, *options, "--resume").succeeded
    assert read_json(tmp_path / "run/run.json")["training"] == training


@pytest.mark.usefixtures("own_cache", "own_precision")
def test_a_trial_does_not_search_again_for_the_spans_that_an_untrained_model_loses(tmp_path, monkeypatch):
    pairs = {part: [(f"{a} %s", f"{b} %s") for a, b in pairs] for part, pairs in toy_corpus(100, 4, 2).items()}
    files = dict(zip(("train_file", "validation_file", "test_file"), write_corpus(pairs, tmp_path), strict=True))
    trial, generate, beams = duration.measure_pace, VanillaForConditionalGeneration.generate, []

    def record_beams(self, *arguments, num_beams=None, **others):
        beams.append(num_beams)
        return generate(self, *arguments, **others, **({"num_beams": num_beams} if num_beams else {}))

    def measure_pace(*arguments):
        with monkeypatch.context() as patched:
            patched.setattr(VanillaForConditionalGeneration, "generate", record_beams)
            return trial(*arguments)

    monkeypatch.setattr(training_run, "measure_pace", measure_pace)
    options = as_options({**files, **TINY, "protect": "all", "output_dir": tmp_path / "run", "max_steps": 1})
    assert call(main, *options).succeeded
    assert beams and not any(beams)

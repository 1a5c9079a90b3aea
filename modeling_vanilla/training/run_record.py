"""run.json, the record of the options and data of a run; a resumed run must be started with the same."""

from dataclasses import asdict, replace
from pathlib import Path

from ..corpus.options import DataOptions
from ..corpus.tokenized import TokenizedPairs
from ..files import digest_of, read_json, write_json
from .options import ModelOptions, TrainingOptions

_FILE = "run.json"
# The options on which the updates depend. Others may change: the length of the run, what it reports, its test data.
_DATA = ("max_source_length", "max_target_length")
_TRAINING = (
    *("tokens_per_update", "tokens_per_batch", "join_batches", "optim", "lr_scheduler_type"),
    *("learning_rate", "learning_rate_scale", "warmup_steps"),
    *("max_grad_norm", "mixed_precision", "bleu_tokenize", "seed"),
)


def record_run(
    data: DataOptions, training: TrainingOptions, options: ModelOptions, overrides: dict, corpus: TokenizedPairs
) -> dict:
    """All options of a run but its folder and whether it is resumed, and the number and digest of its pairs."""
    return {
        "data": asdict(data),
        "training": {name: value for name, value in asdict(training).items() if name not in ("output_dir", "resume")},
        "model": asdict(options) | overrides,
        "pairs": {"training_pairs": corpus.new, "training_data": corpus.digest()},
    }


def digests_of_weights(folder: Path | None) -> dict[str, str]:
    """The SHA-256 of each file of weights of a model folder, if there is one."""
    return {path.name: digest_of(path) for path in sorted(folder.glob("model*.safetensors"))} if folder else {}


def write_run(run: Path, record: dict) -> None:
    run.mkdir(parents=True, exist_ok=True)
    write_json(run / _FILE, record)


def is_begun(run: Path) -> bool:
    """Whether a folder holds a run that `resume` can go on with."""
    return (run / _FILE).is_file()


def read_run(run: Path) -> dict:
    """The record of a run; ValueError if the folder has none that this version can go on with."""
    if not is_begun(run):
        raise ValueError(f"resume: {run} holds no run, as it has no {_FILE}")
    record = read_json(run / _FILE)
    if not all(isinstance(record.get(part), dict) for part in ("data", "training", "model", "pairs")):
        raise ValueError(f"resume: {run} was begun by another version of this package: train it anew")
    return record


def model_of_run(options: ModelOptions, previous: dict) -> ModelOptions:
    """The options of a resumed run's model, which is the one that the run fine-tunes if no other is given."""
    was = previous["model"]
    if options.model or options.preset or not was.get("model"):
        return options
    return replace(options, model=was["model"], revision=was["revision"])


def check_same_run(run: Path, previous: dict, record: dict) -> None:
    """Raise ValueError if the run as it was begun, which `read_run` gives, takes other updates than the new record."""
    fields = previous["model"] | record["model"]
    for part, names in (("data", _DATA), ("training", _TRAINING), ("model", fields), ("pairs", record["pairs"])):
        for name in names:
            was, now = (each[part].get(name, "the default") for each in (previous, record))
            if was != now:
                raise ValueError(f"resume: {run} was started with {name} {was!r}, not {now!r}")

"""Whether a run can be resumed: run.json holds its settings and a digest of its training data."""

import hashlib
from pathlib import Path

import pyarrow.compute as pc
from datasets import Dataset

from ..files import read_json, write_json
from .options import MAY_CHANGE_ON_RESUME

_FILE = "run.json"
_NOT_GIVEN = "the default"


def started_with(run: Path) -> dict:
    """The run.json in a folder: settings of "data", "training" and "model"; ValueError if it lacks them."""
    if not (run / _FILE).is_file():
        raise ValueError(f"resume: {run} holds no run, as it has no {_FILE}")
    settings = read_json(run / _FILE)
    for part in ("data", "training", "model"):
        if not isinstance(settings.get(part), dict):
            raise ValueError(f"resume: {run / _FILE} lacks the settings of {part}")
    return settings


def check_same_settings(run: Path, before: dict, settings: dict[str, dict]) -> None:
    """Raise ValueError unless a run was started with the same settings. before: its `started_with`."""
    for part, values in settings.items():
        # The model's fields are saved where they were given. Another option that is saved only is one that is gone.
        saved = before[part]
        for name in {**saved, **values} if part == "model" else values:
            was, now = saved.get(name, _NOT_GIVEN), values.get(name, _NOT_GIVEN)
            if was != now and name not in MAY_CHANGE_ON_RESUME:
                raise ValueError(f"resume: {run} was started with {name} {was!r}, not {now!r}")


def check_same_data(run: Path, before: dict, digest: str) -> None:
    """Raise ValueError unless a run was started with training data of the same digest. before: its `started_with`."""
    was = before.get("training_data")
    if was != digest:
        raise ValueError(f"resume: {run} was started with other training data (digest {was}, not {digest})")


def write_run(run: Path, settings: dict[str, dict], digest: str) -> None:
    """Write the run.json that the checks read to the folder of a run."""
    write_json(run / _FILE, {**settings, "training_data": digest})


def data_digest(tokenized: Dataset) -> str:
    """A short hash of all token ids in their order."""
    result = hashlib.sha256()
    for table in tokenized.select_columns(["input_ids", "labels"]).with_format("arrow").iter(batch_size=100_000):
        for column in table.columns:
            ids = column.combine_chunks()
            result.update(pc.list_value_length(ids).to_numpy())
            result.update(ids.flatten().to_numpy())
    return result.hexdigest()[:16]

"""One trial for each file of tests; all of them are slow."""

from pathlib import Path

import pytest
from trial import Trial


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    return Trial(tmp_path_factory.mktemp("trial"))


@pytest.fixture
def folder(trial):
    """A folder of its own, as `furnish` makes it."""
    return trial.copy()

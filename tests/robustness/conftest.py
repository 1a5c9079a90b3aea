"""The folder that the programs of trial.py work in; all tests here are slow."""

import shutil
from pathlib import Path

import datasets
import pytest
from trial import furnish


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trial") / "template"
    folder.mkdir()
    furnish(folder)
    return folder


@pytest.fixture
def folder(template, tmp_path, monkeypatch):
    """A copy of the template, which is the working folder."""
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(shutil.copytree(template, tmp_path / "work", symlinks=True))
    return tmp_path / "work"

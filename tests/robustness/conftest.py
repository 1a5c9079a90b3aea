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


# The figures, as `make robust` prints them


def _count(reporter, *files):
    """Tests of these files that came out right, of those tried."""
    outcomes = {name: reporter.getreports(name) for name in ("passed", "failed", "error")}
    tried = {name: [report for report in of if Path(report.fspath).stem in files] for name, of in outcomes.items()}
    return f"{len(tried['passed'])} of {sum(map(len, tried.values()))}"


def pytest_terminal_summary(terminalreporter):
    reports = [report for name in ("passed", "failed") for report in terminalreporter.getreports(name)]
    figures = [(name, value) for report in reports for name, value in report.user_properties]
    kills = [tuple(map(int, value.split(" of "))) for name, value in figures if name == "kills"]
    survived, killed = (sum(pair[part] for pair in kills) for part in (0, 1))
    rows = [
        ("bad inputs answered right", _count(terminalreporter, "test_bad_options", "test_broken_files")),
        ("malicious folders that ran no code", _count(terminalreporter, "test_foreign_code")),
        ("kills survived", f"{survived} of {killed}"),
        ("properties held", _count(terminalreporter, "test_properties")),
        *((name, value) for name, value in figures if name == "load"),
    ]
    terminalreporter.section("robustness")
    for name, value in rows:
        terminalreporter.write_line(f"{name:36} {value}")

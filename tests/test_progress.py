"""Progress on stderr: a bar on a terminal, whole lines in a log, nothing where the process is to be quiet."""

import io
import re
import sys

import pytest

from modeling_vanilla import progress
from modeling_vanilla.progress import inform, progress_bar

LINE = r"Work: {} of 100 rows \[\d\d:\d\d<\d\d:\d\d, +[\d.]+(s/ rows| rows/s)(, loss \d+)?\]\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Seconds, which tqdm reads."""
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    return now


def work(clock, monkeypatch, stream) -> str:
    """What 100 rows of a second each write, with another line after the 40th."""
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(total=100, desc="Work", unit=" rows") as bar:
        for row in range(100):
            clock[0] += 1
            bar.set_postfix_str(f"loss {row + 1}", refresh=False)
            bar.update()
            if row == 40:
                inform("half way")
    return stream.getvalue()


def test_a_log_gets_a_line_every_half_minute_and_the_last(clock, monkeypatch):
    expected = "".join([LINE.format(30), "half way\n", LINE.format(60), LINE.format(90), LINE.format(100)])
    assert re.fullmatch(expected, work(clock, monkeypatch, io.StringIO()))


def test_a_terminal_gets_a_bar_that_moves(clock, monkeypatch):
    text = work(clock, monkeypatch, Terminal())
    assert text.count("\r") > 90 and "100/100 [01:40<00:00" in text and "half way\n" in text


def test_quiet(clock, monkeypatch):
    monkeypatch.setattr(progress, "_quiet", True)
    assert work(clock, monkeypatch, Terminal()) == ""

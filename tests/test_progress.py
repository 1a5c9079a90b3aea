"""Progress in a log: whole lines on stderr. On a terminal it is the bar of tqdm."""

import io
import re
import sys

from modeling_vanilla.progress import inform, progress_bar

LINE = r"Work: {} of 100 rows \[\d\d:\d\d<\d\d:\d\d, +[\d.]+(s/ rows| rows/s)(, loss \d+)?\]\n"


def test_a_log_gets_a_line_every_half_minute_and_the_last(monkeypatch):
    """Of 100 rows of a second each; another line is said after the 40th."""
    now, log = [0.0], io.StringIO()
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", log)
    with progress_bar(total=100, desc="Work", unit=" rows") as bar:
        for row in range(100):
            now[0] += 1
            bar.set_postfix_str(f"loss {row + 1}", refresh=False)
            bar.update()
            if row == 40:
                inform("half way")
    expected = "".join([LINE.format(30), "half way\n", LINE.format(60), LINE.format(90), LINE.format(100)])
    assert re.fullmatch(expected, log.getvalue())

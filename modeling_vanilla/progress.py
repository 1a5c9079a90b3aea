"""Progress on stderr: bars on a terminal and in a notebook, lines in a log; nothing if it is to be quiet."""

import sys
from collections.abc import Iterable

from tqdm import auto, std
from tqdm.asyncio import tqdm as terminal_bar
from transformers.utils import logging

SECONDS = 30  # between two lines of a log

_quiet = False


def set_quiet(quiet: bool) -> None:
    """Set whether this process shows no progress.

    transformers never shows its own, which would tear the bar of a training apart, nor does datasets in a log.
    """
    global _quiet
    _quiet = quiet
    logging.disable_progress_bar()
    if (_quiet or _is_log()) and "datasets" in sys.modules:  # which takes seconds to import
        sys.modules["datasets"].disable_progress_bars()


def progress_bar(iterable: Iterable | None = None, disable: bool = False, **kwargs) -> std.tqdm:
    """tqdm's bar, with tqdm's arguments; where stderr is a log, a line every SECONDS and one at the end instead."""
    return (_Lines if _is_log() else auto.tqdm)(iterable, disable=disable or _quiet, **kwargs)


def inform(line: str) -> None:
    """Write a line to stderr, above the bars if there are some, unless the process is to be quiet."""
    if not _quiet:
        auto.tqdm.write(line, file=sys.stderr)


def _is_log() -> bool:
    # A notebook's stderr is no terminal either; there tqdm has another class.
    return auto.tqdm is terminal_bar and not sys.stderr.isatty()


class _Lines(std.tqdm):
    """A bar that writes lines."""

    def __init__(self, iterable: Iterable | None, **kwargs):
        label = "{desc}: " if kwargs.get("desc") else ""
        shape = label + "{n_fmt} of {total_fmt}{unit} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
        intervals = {"mininterval": SECONDS, "miniters": 1, "delay": SECONDS}
        super().__init__(iterable, bar_format=shape, **{**kwargs, **intervals, "smoothing": 0})

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        print(self, file=self.fp, flush=True)

    def refresh(self, nolock: bool = False, lock_args=None) -> None:
        if not nolock:  # from update(); from tqdm.write(), which would have this line again, it is True
            self.display()

    def clear(self, nolock: bool = False) -> None:
        """Nothing: what is in a log stays."""

    def close(self) -> None:
        if not self.disable and self.n > self.last_print_n:
            self.display()
        self.sp = None  # or tqdm would end the line once more
        super().close()

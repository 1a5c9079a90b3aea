"""files.py, errors.py, progress.py: lines, files and folders that are whole or not there, errors, and progress."""

import errno
import gzip
import io
import itertools
import os
import random
import re
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
from helpers import call, fork, tree

from modeling_vanilla import errors, files
from modeling_vanilla.progress import inform, progress_bar

# Lines


LINES = [
    (b"", []),
    (b"a dog\r\n\r\na cat", ["a dog", "", "a cat"]),
    ("a\u2028b\x85c\x0bd\re\n".encode(), ["a\u2028b\x85c\x0bd\re"]),
    ("\ufeffa dog\n\ufeffa cat\n".encode(), ["a dog", "\ufeffa cat"]),
]


@pytest.mark.parametrize(("content", "lines"), LINES)
def test_lines(tmp_path, content, lines):
    for name, written in (("text", content), ("text.gz", gzip.compress(content, mtime=0))):
        (tmp_path / name).write_bytes(written)
        assert list(files.read_lines(tmp_path / name)) == lines
    assert list(files.decode_lines(io.BytesIO(content), "stdin")) == lines


UNREADABLE = [
    ("cut.gz", gzip.compress(b"a dog\n" * 99, mtime=0)[:-9], r"cannot be read: Compressed file ended .*"),
    ("latin", b"a dog\nGr\xfc\xdfe\n", r"line 2: not UTF-8: byte 0xfc at position 2; iconv .*"),
]


@pytest.mark.parametrize(("name", "content", "message"), UNREADABLE)
def test_what_cannot_be_read(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{tmp_path / name}[:,] {message}$"):
        list(files.read_lines(tmp_path / name))


# Files and folders, written whole or not at all


def write(whole, path: Path, text: str = "new") -> None:
    """Write a text by whole_file, or three files of it by whole_folder."""
    with whole(path) as part:
        for file in (part / name for name in "abc") if whole is files.whole_folder else (part,):
            file.write_text(text, encoding="utf-8")


@pytest.fixture(params=["whole_file", "whole_folder"])
def whole(request):
    return getattr(files, request.param)


@pytest.fixture
def place(whole, tmp_path) -> Path:
    """The path of something old."""
    write(whole, tmp_path / "place", "old")
    return tmp_path / "place"


def renewed(before: dict) -> dict:
    return {name: content and content.replace(b"old", b"new") for name, content in before.items()}


def test_the_old_stays_until_the_new_is_whole(whole, place, tmp_path):
    before = tree(tmp_path)
    with whole(place) as part:
        write(whole, part)
        assert {name: data for name, data in tree(tmp_path).items() if not name.startswith(".place.")} == before
    assert tree(tmp_path) == renewed(before)


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_and_passes(whole, place, tmp_path, error):
    before = tree(tmp_path)
    for path in (place, tmp_path / "new"):
        with pytest.raises(type(error)) as raised, whole(path):
            raise error
        assert raised.value is error and tree(tmp_path) == before


def test_the_umask_decides_who_reads_what_is_written(whole, tmp_path):
    before = os.umask(0o027)
    write(whole, tmp_path / "new")
    os.umask(before)
    for path in (tmp_path / "new", *(tmp_path / "new").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640), path


def test_a_file_that_is_replaced_keeps_its_readers(tmp_path):
    (tmp_path / "mine").touch(0o600)
    write(files.whole_file, tmp_path / "mine")
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o600


def test_a_path_with_a_nul_is_named(whole):
    for opened in (whole, partial(files.locked, "output_dir")):
        with pytest.raises(ValueError, match=r"^'a.x00b': no path, as"), opened(Path("a\0b")):
            pass


def test_a_link_stays_a_link(whole, place, tmp_path):
    (tmp_path / "link").symlink_to(place)
    before = tree(tmp_path)
    write(whole, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and tree(tmp_path) == renewed(before)


def test_a_killed_writer_leaves_all_or_nothing(whole, place, tmp_path):
    """Killed at random times, a dozen times; what it leaves goes as soon as a process holds the folder."""

    def write_until_killed():
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.01, 0.1))  # its signal ends the process at once
        for number in itertools.count():
            write(whole, place, f"{number}" * 9999)

    for _ in range(12):
        assert fork(write_until_killed) == -signal.SIGALRM
        contents = set(tree(place).values()) or {place.read_bytes()} if place.exists() else set()
        assert len(contents) <= 1 and len(tree(place)) in (0, 3)
        assert all(text == b"old" or len(text) % 9999 == 0 for text in contents)
    files.write_text(tmp_path / "kept", "")
    with files.locked("output_dir", tmp_path):
        assert {path.name for path in tmp_path.iterdir()} <= {"place", "kept"}


@pytest.mark.parametrize(("end", "left"), [(partial(signal.raise_signal, signal.SIGKILL), b"new"), (sys.exit, b"old")])
def test_what_ends_between_the_renames_loses_nothing(tmp_path, monkeypatch, end, left):
    """The old folder has been moved away, and the new one is not yet in its place."""
    place = tmp_path / "place"
    write(files.whole_folder, place, "old")

    def rename(path, target):
        os.rename(path, target)
        if path == place:
            end()

    monkeypatch.setattr(Path, "rename", rename)
    assert fork(lambda: write(files.whole_folder, place))
    with files.locked("output_dir", tmp_path):
        assert tree(tmp_path) == {"place": None, **{f"place/{name}": left for name in "abc"}}


def test_a_locked_folder(tmp_path):
    """Held by one process; a dead one's lock is no obstacle, and nothing of it is left."""
    folder = tmp_path / "run"

    def lock(then=bool):
        with files.locked("output_dir", folder):
            files.check_unused("output_dir", folder)
            then()

    def fail():
        with pytest.raises(ValueError, match=f"^output_dir: {folder} is in use by another process$"):
            lock()

    lock(lambda: pytest.fail("two hold it") if fork(fail) else None)
    with files.locked("output_dir", Path()):  # the present folder has no name
        pass
    assert not folder.exists()
    assert fork(lambda: lock(lambda: signal.raise_signal(signal.SIGKILL))) == -signal.SIGKILL
    lock()
    assert not tree(tmp_path)


# Errors in one line


def fail(error: BaseException) -> None:
    with errors.one_line_errors():
        raise error


ERRORS = [
    (ValueError("a: is bad,\n  in two lines"), 2, "error: a: is bad, in two lines\n"),
    (OSError(errno.ENOSPC, "No space left", "file"), 2, "error: file: No space left\n"),
    (BrokenPipeError(), 141, ""),
    (RuntimeError("out of memory\nx"), 2, "error: not enough memory: out of memory; lower tokens_per_batch\n"),
    (KeyboardInterrupt(), 130, "error: interrupted\n"),
]


@pytest.mark.parametrize(("error", "code", "line"), ERRORS)
def test_errors_in_one_line(error, code, line):
    assert call(lambda: fail(error)) == (code, "", line)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_removes_what_is_half_written(tmp_path, signum, code):
    def wait():
        with errors.one_line_errors(), files.whole_file(tmp_path / "file") as part:
            part.touch()
            signal.raise_signal(signum)

    before = signal.signal(signum, signal.SIG_DFL)  # a shell has what it starts in the background ignore some
    assert call(wait) == (code, "", "error: interrupted\n")
    assert tree(tmp_path) == {} and signal.signal(signum, before) == signal.SIG_DFL


# Progress in a log: whole lines on stderr. On a terminal it is the bar of tqdm.

LINE = r"{} of 100 rows \[\d\d:\d\d<\d\d:\d\d, +[\d.]+(s/ rows| rows/s)(, loss \d+)?\]\n"


@pytest.mark.parametrize("label", ["Work: ", ""])
def test_a_log_gets_a_line_every_half_minute_and_the_last(monkeypatch, label):
    """Of 100 rows of a second each; another line is said after the 40th."""
    now, log = [0.0], io.StringIO()
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", log)
    with progress_bar(total=100, desc=label[:-2], unit=" rows") as bar:
        for row in range(100):
            now[0] += 1
            bar.set_postfix_str(f"loss {row + 1}", refresh=False)
            bar.update()
            if row == 40:
                inform("half way")
    expected = "".join(["half way\n" if row == 40 else label + LINE.format(row) for row in (30, 40, 60, 90, 100)])
    assert re.fullmatch(expected, log.getvalue())

"""files.py, errors.py: lines, files and folders that are whole or not there, and errors in one line."""

import errno
import gzip
import io
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from helpers import call, fork, tree
from safetensors.torch import save_file

from modeling_vanilla import errors, files

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# Lines


LINES = [
    (b"", []),
    (b"a dog\r\n\r\na cat", ["a dog", "", "a cat"]),
    ("a\u2028b\x85c\x0bd\re\n".encode(), ["a\u2028b\x85c\x0bd\re"]),
    (BYTE_ORDER_MARK + b"a dog\n" + BYTE_ORDER_MARK + b"a cat\n", ["a dog", "\ufeffa cat"]),
]


@pytest.mark.parametrize(("content", "lines"), LINES)
def test_lines(tmp_path, content, lines):
    (tmp_path / "text").write_bytes(content)
    (tmp_path / "text.gz").write_bytes(gzip.compress(content, mtime=0))
    for name in ("text", "text.gz"):
        assert list(files.read_lines(tmp_path / name)) == lines
    assert list(files.decode_lines(io.BytesIO(content), "stdin")) == lines


UNREADABLE = [
    (".", None, "cannot be read: Is a directory"),
    ("plain.gz", b"a dog\n", r"cannot be read: Not a gzipped file .*"),
    ("cut.gz", gzip.compress(b"a dog\n" * 99, mtime=0)[:-9], r"cannot be read: Compressed file ended .*"),
    ("damaged.gz", gzip.compress(b"a dog\n", mtime=0)[:10] + b"\xff" * 9, r"cannot be read: .*invalid .*"),
    ("latin", b"a dog\nGr\xfc\xdfe\n", r"line 2: not UTF-8: byte 0xfc at position 2"),
]


@pytest.mark.parametrize(("name", "content", "message"), UNREADABLE)
def test_what_cannot_be_read(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{path}[:,] {message}$"):
        list(files.read_lines(path))


# Files and folders, written whole or not at all


def write(whole, path: Path, error: BaseException | None = None) -> None:
    """Write "new" by whole_file or whole_folder, and fail with the error, if any, when it is half written."""
    with whole(path) as part:
        (part / "file" if whole is files.whole_folder else part).write_text("new", encoding="utf-8")
        if error is not None:
            raise error


@pytest.fixture(params=["whole_file", "whole_folder"])
def whole(request):
    return getattr(files, request.param)


@pytest.fixture
def place(whole, tmp_path) -> Path:
    """The path of something old."""
    path = tmp_path / "place"
    if whole is files.whole_folder:
        path.mkdir()
    (path / "file" if path.is_dir() else path).write_text("old", encoding="utf-8")
    return path


def test_the_old_stays_until_the_new_is_whole(whole, place, tmp_path):
    before = tree(tmp_path)
    with whole(place) as part:
        (part / "file" if whole is files.whole_folder else part).write_text("new", encoding="utf-8")
        assert {name: data for name, data in tree(tmp_path).items() if not name.startswith(".place.")} == before
    assert tree(tmp_path) == {name: content and b"new" for name, content in before.items()}


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("error", [FULL, ValueError("bad"), BrokenPipeError("bad"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_and_one_of_the_disk_names_what_was_to_be_written(whole, place, tmp_path, error):
    before = tree(tmp_path)
    for path in (place, tmp_path / "new"):
        with pytest.raises(type(error)) as raised:
            write(whole, path, error)
        if error is FULL:
            assert re.fullmatch(f"{path}: cannot be written: .*No space left on device", str(raised.value))
        assert error in (raised.value, raised.value.__cause__)
        assert tree(tmp_path) == before


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_umask_decides_who_reads_what_is_written(tmp_path, umask):
    before = os.umask(umask)
    try:
        with files.whole_folder(tmp_path / "model") as part:
            save_file({"a": torch.zeros(1)}, part / "model.safetensors")
            (part / "code").mkdir()
            (part / "code" / "model.py").touch(mode=0o755)
        files.write_text(tmp_path / "text", "new")
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    written = dict.fromkeys(("model/model.safetensors", "model/code/model.py", "text"), 0o666 & ~umask)
    assert modes == written | dict.fromkeys(("model", "model/code"), 0o777 & ~umask)


def test_new_parents_go_with_a_folder_that_fails(tmp_path):
    with pytest.raises(ValueError, match="bad"):
        write(files.whole_folder, tmp_path / "a" / "b" / "c", ValueError("bad"))
    assert not tree(tmp_path)
    write(files.whole_folder, tmp_path / "a" / "b" / "c")
    assert tree(tmp_path) == {"a": None, "a/b": None, "a/b/c": None, "a/b/c/file": b"new"}


def test_a_link_stays_a_link(whole, place, tmp_path):
    (tmp_path / "link").symlink_to(place)
    before = tree(tmp_path)
    write(whole, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert tree(tmp_path) == {name: content and b"new" for name, content in before.items()}


def test_what_belongs_to_the_user_stays(whole, place, tmp_path):
    """Whatever its name: an ending in .part, or one of a temporary folder that is none."""
    others = ["place.part", "place.old.part", "place.old", ".place.12345678.tmp", "notes.part", "run.lock"]
    for name in others:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("mine", encoding="utf-8")
    before = tree(tmp_path)
    write(whole, place)
    files.remove_litter(tmp_path)
    assert tree(tmp_path) == {name: b"new" if data == b"old" else data for name, data in before.items()}


@pytest.mark.parametrize(("owner", "name"), [(os, "fsync"), (os, "replace"), (Path, "rename"), (shutil, "rmtree")])
@pytest.mark.parametrize("count", [1, 2])
def test_a_killed_process_leaves_nothing_half_written(whole, place, tmp_path, monkeypatch, owner, name, count):
    """Killed before the count-th call: the old or the new is in its place, or both are whole beside it."""
    calls, real = [], getattr(owner, name)

    def die(*arguments, **keywords):
        calls.append(name)
        return os._exit(9) if len(calls) == count else real(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        assert fork(lambda: write(whole, place)) in (0, 9)
    left = tree(tmp_path)
    temporary = {name.split("/")[0] for name in left} - {"place"}
    assert all(re.fullmatch(r"\.place\.\w{8}\.tmp", name) for name in temporary)
    if "place" in left:
        assert left.get("place/file", left["place"]) in (b"old", b"new")
    else:
        (folder,) = temporary
        assert (left[f"{folder}/part/file"], left[f"{folder}/old/file"]) == (b"new", b"old")
    write(whole, place)
    assert {*tree(tmp_path)} <= {"place", "place/file"}
    assert tree(place) in ({}, {"file": b"new"})
    assert whole is files.whole_folder or place.read_bytes() == b"new"


def test_what_killed_processes_left_is_removed(tmp_path):
    """And no more: what a living process writes stays, and a folder that was moved away comes back."""
    for name in ("model", "best", "last-2"):
        (tmp_path / name).mkdir()
        write(files.whole_folder, tmp_path / name)
        temporary = tmp_path / f".{name}.12345678.tmp"
        temporary.mkdir()
        (temporary / "run.lock").touch()
        (tmp_path / name).rename(temporary / ("old" if name == "best" else "part"))
    with files.whole_file(tmp_path / "text") as part:
        part.touch()
        before = {name for name in tree(tmp_path) if name.startswith(".text")}
        assert fork(lambda: files.remove_litter(tmp_path)) == 0
        assert {*tree(tmp_path)} == {"best", "best/file", *before}


def test_a_locked_folder(tmp_path):
    """Held by one process; a dead one's lock is no obstacle, and a folder into which nothing was written is removed."""
    folder = tmp_path / "new" / "run"

    def lock(then=bool):
        with files.locked("output_dir", folder):
            files.check_unused("output_dir", folder)
            then()

    def fail():
        with pytest.raises(ValueError, match=f"^output_dir: {folder} is in use by another process$"):
            lock()

    lock(lambda: pytest.fail("two hold it") if fork(fail) else None)
    assert not folder.parent.exists()
    folder.mkdir(parents=True)
    assert fork(lambda: lock(lambda: signal.raise_signal(signal.SIGKILL))) == -signal.SIGKILL
    assert tree(folder) == {"run.lock": b""}
    lock(lambda: files.write_text(folder / "kept", ""))
    assert tree(folder) == {"kept": b""}
    with pytest.raises(ValueError, match=f"^x: {folder / 'kept'} is no folder$"), files.locked("x", folder / "kept"):
        pass
    files.write_text(folder / "run.lock", "the user's")
    with pytest.raises(ValueError, match=f"^output_dir: {folder / 'run.lock'} is not the lock of a run$"):
        lock()
    assert tree(folder) == {"kept": b"", "run.lock": b"the user's"}


def test_a_place_in_use(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        files.check_unused("output_dir", path)
    (tmp_path / ".run.json.12345678.tmp").mkdir()  # of a process that was killed
    files.check_unused("output_dir", tmp_path)
    (tmp_path / "notes.part").touch()
    for path in (tmp_path / "notes.part", tmp_path):
        with pytest.raises(ValueError, match=f"^output_dir: {path} holds something already; choose another folder$"):
            files.check_unused("output_dir", path)


# Errors in one line


def fail(error: BaseException, debug: bool = False) -> None:
    with errors.one_line_errors(debug):
        raise error from RuntimeError("the cause")


ERRORS = [
    (ValueError("a: is bad,\n  in two lines"), 2, "error: a: is bad, in two lines\n"),
    (OSError(errno.ENOSPC, "No space left", "file"), 2, "error: file: No space left\n"),
    (BrokenPipeError(), 141, ""),
    (ValueError(), 2, "error: ValueError\n"),
    (MemoryError(), 2, "error: not enough memory: MemoryError\n"),
    (RuntimeError("CUDA out of memory.\nTried"), 2, "error: not enough memory: CUDA out of memory.\n"),
    (KeyboardInterrupt(), 130, "error: interrupted\n"),
]


@pytest.mark.parametrize(("error", "code", "line"), ERRORS)
def test_errors_in_one_line(error, code, line):
    assert call(lambda: fail(error)) == (code, "", line)


@pytest.mark.parametrize("error", [KeyError("name"), RuntimeError("CUDA error: an illegal memory access")])
def test_an_error_of_the_program_keeps_its_traceback(error):
    with pytest.raises(type(error)):
        fail(error)


@pytest.fixture
def heeded():
    """No signal is ignored, as a shell has it for what it starts in the background."""
    before = {
        number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_removes_what_is_half_written(tmp_path, heeded, name, code):
    def wait():
        with errors.one_line_errors(), files.whole_file(tmp_path / "file") as part:
            part.touch()
            signal.raise_signal(getattr(signal, name))

    before = signal.getsignal(getattr(signal, name))
    assert call(wait) == (code, "", "error: interrupted\n")
    assert tree(tmp_path) == {} and signal.getsignal(getattr(signal, name)) == before


def test_the_second_signal_ends_the_process_and_an_ignored_one_nothing(heeded):
    received = []

    def send():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with errors.on_signal(received.append):
            for name in (signal.SIGHUP, signal.SIGTERM):
                signal.raise_signal(name)
            if received == [signal.SIGTERM]:
                signal.raise_signal(signal.SIGINT)

    assert fork(send) == -signal.SIGINT


@pytest.mark.parametrize(("debug", "variable", "shown"), [(True, "", True), (False, "1", True), (False, "0", False)])
def test_the_cause_is_shown_on_request(monkeypatch, debug, variable, shown):
    monkeypatch.setenv("VANILLA_DEBUG", variable)
    done = call(lambda: fail(ValueError("bad"), debug))
    assert done.code == 2 and done.errors.endswith("error: bad\n")
    assert bool(re.search(r"RuntimeError: the cause.*Traceback.*ValueError: bad", done.errors, re.S)) == shown

"""Files: text read line by line; files and folders written whole or not at all; a folder held by one process."""

import gzip
import hashlib
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

_TEMPORARY = ".vanilla.tmp"  # the end of the names of temporary folders, which no other program uses
_BYTE_ORDER_MARK = "\ufeff"


def check_path(path: str | os.PathLike) -> None:
    """Raise ValueError for a path that no system takes, with words for the NUL that a terminal does not show."""
    if "\0" in str(path):
        raise ValueError(f"{str(path)!a}: no path, as it has a NUL in it")


# Reading


def read_lines(path: str | os.PathLike) -> Iterator[str]:
    r"""Read the lines of a UTF-8 text file, plain or `.gz`, as `decode_lines` does.

    Raises:
        ValueError: the file cannot be read, or a line is not UTF-8.
    """
    path = Path(path)
    check_path(path)
    try:
        with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as stream:
            yield from decode_lines(stream, str(path))
    except (OSError, EOFError, zlib.error) as error:  # all but the first: a damaged file
        raise ValueError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def ending(path: str | os.PathLike) -> str:
    """The ending of a file's name, such as ".csv", in small letters; that of a compressed file without its ".gz"."""
    return Path(os.fspath(path).lower().removesuffix(".gz")).suffix


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def decode_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    r"""Decode the lines of a stream of UTF-8 text, without their ends and without a byte order mark.

    A line ends at "\n", with or without a "\r" before it, and nowhere else: text mode and str.splitlines end lines at
    other characters too.

    Args:
        name: of the stream, for the error message.

    Raises:
        ValueError: a line is not UTF-8.
    """
    for number, line in enumerate(stream, start=1):
        try:
            text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            byte = f"byte 0x{line[error.start]:02x} at position {error.start}; iconv -f ENCODING -t UTF-8 converts it"
            raise ValueError(f"{name}, line {number}: not UTF-8: {byte}") from error
        yield text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text


def read_json(path: Path) -> dict:
    """Read a JSON object from a file; ValueError if the file cannot be read or holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: cannot be read: it holds a {type(value).__name__}, not an object")
    return value


# Writing


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to, which becomes the file `path` when the block ends without an error.

    If `path` is a symbolic link, the file that it points to is replaced.

    Raises:
        OSError: the file cannot be written. The file that was there stays.
    """
    check_path(path)
    target = path.resolve()
    with disk_errors(path), _temporary_folder(target) as temporary:
        part = temporary / "new"
        yield part
        _sync(part)
        if target.exists():
            shutil.copymode(target, part)  # a file that its owner alone may read stays so
        part.replace(target)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary folder to write to, which replaces `folder` when the block ends without an error.

    If `folder` is a symbolic link, the folder that it points to is replaced.

    Raises:
        OSError: the folder cannot be written. The folder that was there stays.
    """
    check_path(folder)
    target = folder.resolve()
    with disk_errors(folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _temporary_folder(target) as temporary:
            part, old = temporary / "new", temporary / "old"
            part.mkdir()
            yield part
            for path in part.rglob("*"):
                if path.is_file():  # safetensors makes files for their owner alone; the umask decides, as of `part`
                    path.chmod(part.stat().st_mode & 0o666)
                    _sync(path)
            try:
                if target.is_dir():
                    target.rename(old)
                part.rename(target)
            except BaseException:
                if old.exists() and not target.exists():
                    old.rename(target)
                raise


def _sync(path: Path) -> None:
    """Wait until a file is on the disk, so that a machine that is switched off leaves all of it under its name."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def delete_folder(folder: Path) -> None:
    """Delete a folder. A process that is killed meanwhile leaves all of it or nothing under its name."""
    with _temporary_folder(folder) as temporary:
        folder.rename(temporary / "old")


@contextmanager
def _temporary_folder(target: Path) -> Iterator[Path]:
    """Make a folder beside `target` under a name that nobody else has; delete it when the block ends."""
    prefix = f".{target.name}."
    with tempfile.TemporaryDirectory(_TEMPORARY, prefix, target.parent, ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)


def _clean(temporary: Path) -> None:
    """Delete the leftovers of a killed process; if it had moved the old folder away, put the new one in its place."""
    target = temporary.with_name(temporary.name.removesuffix(_TEMPORARY).rpartition(".")[0].removeprefix("."))
    new, old = temporary / "new", temporary / "old"
    if new.exists() and old.exists() and not target.exists():
        new.rename(target)
    shutil.rmtree(temporary)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Make an error of the disk name `path`. An error that names another file passes as it is."""
    try:
        yield
    except OSError as error:
        target = error.filename2 or error.filename  # of a copy the second file is the one that is written
        if error.errno is None or (target is not None and _TEMPORARY not in str(target)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except Exception as error:
        # safetensors and tokenizers, written in Rust, raise exceptions of their own.
        if number := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file as `whole_file` does."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")  # JSON reads a file's name back as it was


def write_json(path: Path, value: dict) -> None:
    """Write a value as JSON, as `whole_file` does."""
    write_text(path, json_text(value))


def json_text(value: dict) -> str:
    """Give a value as the text of a JSON file."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


# A folder to write to


def check_unused(name: str, folder: Path) -> None:
    """Raise ValueError unless `folder` is new or empty, under a name that is UTF-8; `name` is its option."""
    if str(folder).encode(errors="replace").decode() != str(folder):  # tokenizers could not write there
        raise ValueError(f"{name}: {str(folder)!a} is not UTF-8")
    if folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise ValueError(f"{name}: {folder} holds something already; choose another folder")


@contextmanager
def locked(name: str, folder: Path) -> Iterator[None]:
    """Hold a folder by a lock beside it, and delete what killed processes have left half-written in it.

    The system releases the lock of a process that dies.

    Raises:
        ValueError: another process holds the folder; `name` is its option.
        OSError: the folder cannot be written to.
    """
    check_path(folder)
    folder = folder.resolve()  # "." has no name
    lock = FileLock(folder.with_name(f".{folder.name}{_TEMPORARY}.lock"), blocking=False)
    with disk_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout as error:
            raise ValueError(f"{name}: {folder} is in use by another process") from error
    try:
        for path in folder.glob(f".*{_TEMPORARY}"):
            _clean(path)
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()

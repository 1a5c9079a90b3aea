"""Files: read line by line, written whole or not at all, and folders that one process holds."""

import glob
import gzip
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

_LOCK = "run.lock"  # in the folder of a run, and in each temporary folder
# In a temporary folder: what is not whole yet, or no more, and the folder that it is about to replace.
_PART, _OLD = "part", "old"
_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}\.tmp", re.DOTALL)  # the name that tempfile makes for a target
_BYTE_ORDER_MARK = "\ufeff"


# Reading


def is_gzip(path: Path) -> bool:
    """Whether the name of a file says that it is compressed."""
    return path.suffix.lower() == ".gz"


def read_lines(path: str | os.PathLike) -> Iterator[str]:
    r"""The lines of a UTF-8 text file, plain or `.gz`, as decode_lines gives them.

    Raises:
        ValueError: the file cannot be read, or a line is not UTF-8.
    """
    path = Path(path)
    try:
        with gzip.open(path) if is_gzip(path) else path.open("rb") as stream:
            yield from decode_lines(stream, str(path))
    except (OSError, EOFError, zlib.error) as error:  # the last two: a damaged .gz
        raise ValueError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def decode_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    r"""The lines of a stream of UTF-8 text, without their ends and without a byte order mark.

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
            byte = f"byte 0x{line[error.start]:02x} at position {error.start}"
            raise ValueError(f"{name}, line {number}: not UTF-8: {byte}") from error
        yield text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text


def read_json(path: Path) -> dict:
    """The JSON object of a file; ValueError if it cannot be read or holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: cannot be read: it holds a {type(value).__name__}, not an object")
    return value


# Writing


class _NotWritten(OSError):
    """An error of the disk that names the file or folder which could not be written."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which becomes the file `path` when the block ends without an error.

    A symbolic link stays: the file that it points to is replaced.

    Raises:
        OSError: what the disk refuses, with the file's name. After any error nothing half-written stays.
    """
    target = path.resolve()
    with disk_errors(path), _temporary_folder(target) as temporary:
        part = temporary / _PART
        yield part
        _sync(part)
        os.replace(part, target)
        _sync(target.parent)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to write to, which becomes `folder`, in place of what was there, when the block ends well.

    A symbolic link stays: the folder that it points to is replaced.

    Raises:
        OSError: what the disk refuses, with the folder's name. After any error nothing half-written stays.
    """
    target = folder.resolve()
    with new_parents(target), disk_errors(folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _temporary_folder(target) as temporary:
            part, old = temporary / _PART, temporary / _OLD
            part.mkdir()
            yield part
            for path in [*part.rglob("*"), part]:
                if path.is_file():  # the umask, as it made the folder: safetensors makes files for their owner alone
                    path.chmod(part.stat().st_mode & 0o666)
                _sync(path)
            # Moved away before it is deleted: a process that is killed while it deletes a folder leaves half of it.
            if target.is_dir():
                target.rename(old)
            part.rename(target)
            _sync(target.parent)
            if old.is_dir():
                old.rename(part)


def delete_folder(folder: Path) -> None:
    """Delete a folder. A process that is killed meanwhile leaves all of it or nothing under its name."""
    with _temporary_folder(folder) as temporary:
        folder.rename(temporary / _PART)


@contextmanager
def _temporary_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target` of a name that nobody else has, deleted with what it holds when the block ends.

    The process holds a lock in it: who can take that knows that the process is dead, and that it may delete the folder.
    """
    remove_litter(target.parent, glob.escape(target.name))
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        with FileLock(temporary / _LOCK, blocking=False):
            yield temporary
    finally:
        _delete_temporary(temporary)


def remove_litter(folder: Path, target: str = "*") -> None:
    """Remove what processes that were killed while they wrote `target`, a pattern, into a folder have left there."""
    for path in folder.glob(f".{target}.????????.tmp"):
        if _is_temporary(path):
            with suppress(OSError):  # a process that lives holds it, or another user owns it
                with FileLock(path / _LOCK, blocking=False):
                    pass
                _delete_temporary(path)


def _is_temporary(path: Path) -> bool:
    return (
        _TEMPORARY.fullmatch(path.name) is not None
        and path.is_dir()
        and not path.is_symlink()
        and {file.name for file in path.iterdir()} <= {_LOCK, _PART, _OLD}
    )


def _delete_temporary(temporary: Path) -> None:
    """Delete a temporary folder. What was to be replaced goes back to its place, unless something is there."""
    old, target = temporary / _OLD, _target_of(temporary)
    if old.is_dir() and not target.exists():
        old.rename(target)
    shutil.rmtree(temporary, ignore_errors=True)


def _target_of(path: Path) -> Path:
    """The file or folder to be written that a path in or below a temporary folder is for; any other path itself."""
    for folder in (path, *path.parents):
        if match := _TEMPORARY.fullmatch(folder.name):
            return folder.with_name(match[1])
    return path


@contextmanager
def new_parents(path: Path) -> Iterator[None]:
    """When the block ends, delete the folders above a path that were not there before and have stayed empty."""
    new = [parent for parent in path.parents if not parent.exists()]
    try:
        yield
    finally:
        for parent in new:
            with suppress(OSError):
                parent.rmdir()


def write_text(path: Path, text: str) -> None:
    """Write a text file as whole_file does."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: dict) -> None:
    """Write a value as JSON, as whole_file does."""
    write_text(path, json_text(value))


def json_text(value: dict) -> str:
    """A value as the text of a JSON file."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def write_files(folder: Path, contents: dict[str, bytes]) -> None:
    """Write files of these names to a folder, which is made if need be. None gets its name before all are written."""
    with new_parents(folder / "file"), ExitStack() as stack:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            stack.enter_context(whole_file(folder / name)).write_bytes(content)


def check_unused(name: str, folder: Path) -> None:
    """Raise ValueError if there is anything at the place of a folder that is to be written; `name` is its option.

    What a killed process has left half-written does not count.
    """
    if folder.exists() and not (
        folder.is_dir() and all(_is_temporary(path) or _is_lock(path) for path in folder.iterdir())
    ):
        raise ValueError(f"{name}: {folder} holds something already; choose another folder")


def _is_lock(path: Path) -> bool:
    return path.name == _LOCK and path.is_file() and not path.stat().st_size


@contextmanager
def locked(name: str, folder: Path) -> Iterator[None]:
    """Hold a folder, which is made if there is none, and is removed again if nothing was written into it.

    The lock of a process that has died is no obstacle: the system has released it. `name` is the folder's option.

    Raises:
        ValueError: another process holds it, it is a file, or something else has the name of the lock.
        OSError: the folder cannot be written to.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{name}: {folder} is no folder")
    lock = folder / _LOCK
    with new_parents(lock):
        folder.mkdir(parents=True, exist_ok=True)
        if lock.exists() and not _is_lock(lock):
            raise ValueError(f"{name}: {lock} is not the lock of a run")
        try:
            with FileLock(lock, blocking=False):
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)
        except Timeout as error:
            raise ValueError(f"{name}: {folder} is in use by another process") from error


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Name the file or folder in an error of the disk; let every other error pass as it is."""
    try:
        yield
    except (_NotWritten, BrokenPipeError):
        raise  # of another file, written in the same block, or of no file at all
    except Exception as error:
        # safetensors and tokenizers, written in Rust, raise classes of their own and end the message in the errno.
        if _is_of(error, path) or "(os error " in str(error):
            raise _NotWritten(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from error
        raise


def _is_of(error: Exception, path: Path) -> bool:
    """Whether an error is one of the disk, at this path, below it, on the way to it, or at no path that it names."""
    if not isinstance(error, OSError) or isinstance(error, ConnectionError) or error.errno is None:
        return False
    target = path.resolve()
    names = [name for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    places = [_target_of(Path(os.fsdecode(name)).resolve()) for name in names]
    return not places or any(place.is_relative_to(target) or target.is_relative_to(place) for place in places)


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk, so that no rename comes before what it names."""
    if os.name == "nt":
        return  # Windows opens no folders, and syncs no file that is opened to be read
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Files: read line by line, written whole or not at all, and folders that one process holds."""

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

PART = ".part"  # the ending of what is not whole yet
_OLD = f".old{PART}"  # of a folder that another one is about to replace
_LOCK = "run.lock"
_BYTE_ORDER_MARK = "\ufeff"


# Reading


def read_lines(path: str | os.PathLike) -> Iterator[str]:
    r"""The lines of a UTF-8 text file, plain or `.gz`, as decode_lines gives them.

    Raises:
        ValueError: the file cannot be read, or a line is not UTF-8.
    """
    path = Path(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
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
    part = _beside(target, PART)
    try:
        with disk_errors(path):
            yield part
            _sync(part)
            os.replace(part, target)
            _sync(target.parent)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to write to, which becomes `folder`, in place of what was there, when the block ends well.

    A symbolic link stays: the folder that it points to is replaced.

    Raises:
        OSError: what the disk refuses, with the folder's name. After any error nothing half-written stays.
    """
    target = folder.resolve()
    part, old = _beside(target, PART), _beside(target, _OLD)
    with new_parents(target):
        try:
            with disk_errors(folder):
                _put_back(old)
                if part.exists():
                    shutil.rmtree(part)
                part.mkdir(parents=True)
                yield part
                for path in [*part.rglob("*"), part]:
                    _apply_umask(path, part)
                    _sync(path)
                _replace_folder(part, target, old)
                _sync(target.parent)
            shutil.rmtree(old, ignore_errors=True)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise


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


def _apply_umask(path: Path, folder: Path) -> None:
    """Give a file the mode that the umask has given its folder: safetensors makes files for their owner alone."""
    mode = folder.stat().st_mode & 0o666
    if path.is_file() and path.stat().st_mode & 0o777 != mode:
        path.chmod(mode)


def _replace_folder(part: Path, folder: Path, old: Path) -> None:
    """Rename `part` to `folder`; what was there becomes `old`, or stays if the disk refuses."""
    if folder.is_dir():
        # Moved away before it is deleted: a process that is killed while it deletes a folder leaves half of it.
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    try:
        part.rename(folder)
    except BaseException:
        _put_back(old)
        raise


def _put_back(old: Path) -> None:
    """Give a folder that was moved away its name again, if nothing has taken its place."""
    folder = _beside(old, "", _OLD)
    if old.is_dir() and not folder.exists():
        old.rename(folder)


def remove_litter(folder: Path) -> None:
    """Remove what processes that were killed while they wrote into a folder have left there."""
    for path in folder.glob(f"*{_OLD}"):
        _put_back(path)
    for path in folder.glob(f"*{PART}"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _beside(path: Path, ending: str, instead_of: str = "") -> Path:
    return path.with_name(path.name.removesuffix(instead_of) + ending)


def write_text(path: Path, text: str) -> None:
    """Write a text file as whole_file does."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: dict) -> None:
    """Write a value as JSON, as whole_file does."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_files(folder: Path, contents: dict[str, bytes]) -> None:
    """Write files of these names to a folder, which is made if need be. None gets its name before all are written."""
    with new_parents(folder / "file"), ExitStack() as stack:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            part = stack.enter_context(whole_file(folder / name))
            with disk_errors(folder / name):
                part.write_bytes(content)


def check_unused(name: str, folder: Path) -> None:
    """Raise ValueError if there is anything at the place of a folder that is to be written; `name` is its option.

    What a killed process has left half-written does not count.
    """
    if folder.exists() and (not folder.is_dir() or any(_counts(path) for path in folder.iterdir())):
        raise ValueError(f"{name}: {folder} holds something already; choose another folder")


def _counts(path: Path) -> bool:
    return path.suffix != PART and path.name != _LOCK


@contextmanager
def locked(name: str, folder: Path) -> Iterator[None]:
    """Hold a folder, which is made if there is none, and is removed again if nothing was written into it.

    The lock of a process that has died is no obstacle: the system has released it. `name` is the folder's option.

    Raises:
        ValueError: another process holds it, or it is a file.
        OSError: the folder cannot be written to.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{name}: {folder} is no folder")
    with new_parents(folder / _LOCK):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(folder / _LOCK, blocking=False):
                try:
                    yield
                finally:
                    (folder / _LOCK).unlink(missing_ok=True)
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
            raise _NotWritten(f"{path}: cannot be written: {error}") from error
        raise


def _is_of(error: Exception, path: Path) -> bool:
    """Whether an error is one of the disk, at this path or its temporary twin, or at no path that it names."""
    if not isinstance(error, OSError) or isinstance(error, ConnectionError) or error.errno is None:
        return False
    named = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return not named or any(name.startswith((str(path), str(path.resolve()))) for name in named)


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk, so that no rename comes before what it names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

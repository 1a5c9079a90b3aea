"""Folders that appear under their name only once they are complete."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def new_folder(destination: Path) -> Iterator[Path]:
    """A folder to write to, which becomes `destination` when the block ends without an error; else nothing stays.

    Raises:
        ValueError: if `destination` exists.
        OSError: if it cannot be written.
    """
    if destination.exists():
        raise ValueError(f"{destination}: exists already")
    nearest = next(parent for parent in destination.absolute().parents if parent.exists())
    with TemporaryDirectory(prefix=f"{destination.name}.part-", dir=nearest) as part:
        folder = Path(part, "folder")
        folder.mkdir()
        yield folder
        destination.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(destination)

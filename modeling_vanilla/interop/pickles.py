"""Checkpoints of torch.save from elsewhere: read without running anything in them, in bounded time and memory."""

import argparse
import pickle
import pickletools
import re
import warnings
import zipfile
from pathlib import Path

import torch

from ..errors import one_line

# A checkpoint of fairseq's largest models, optimizer included, takes some 10^5 operations.
MAX_OPERATIONS = 400_000
# Before 2020 torch.save wrote a row of pickles: magic number, protocol, system, the object, its storages.
_LEGACY_PICKLES = 5


def load_pickle(file: Path) -> object:
    """What torch.save wrote. Only tensors, plain containers and argparse's Namespace are taken from it.

    Raises:
        ValueError: if there is no such file, it holds anything else, is damaged, or is larger inside than outside.
    """
    if not file.is_file():
        raise ValueError(f"{file}: no such file")
    try:
        _check_size(file)
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of protocols
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        match = re.search(r"GLOBAL (\S+)", str(error))
        held = f"holds {match[1]}" if match else "cannot be read"
        raise ValueError(
            f"{file}: {held}; of a pickle only tensors, plain containers and argparse.Namespace are taken. If you "
            "trust it, load it with fairseq and save its 'args' or 'cfg', as plain values, and its 'model' alone"
        ) from error
    except Exception as error:  # a damaged pickle makes torch raise almost anything
        raise ValueError(f"{file}: cannot be read: {one_line(error)}") from error


def _check_size(file: Path) -> None:
    """Raise ValueError if reading the file would take more than its own size in memory, or too many operations."""
    with file.open("rb") as stream:
        if stream.read(4) != b"PK\x03\x04":  # by which torch.load goes, too
            stream.seek(0)
            _count_operations(stream, _LEGACY_PICKLES)
            return
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("it is compressed, which torch.save does not do")
        if sum(entry.file_size for entry in entries) > file.stat().st_size:
            raise ValueError("its entries are larger than the file")
        for entry in entries:
            if entry.filename.endswith("data.pkl"):
                with archive.open(entry) as stream:
                    _count_operations(stream, 1)


def _count_operations(stream, pickles: int) -> None:
    count = 0
    for _ in range(pickles):
        for _ in pickletools.genops(stream):
            count += 1
            if count > MAX_OPERATIONS:
                raise ValueError(f"it takes more than {MAX_OPERATIONS} operations to read")

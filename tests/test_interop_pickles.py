"""Hostile checkpoints of fairseq's: one ValueError in short time, nothing run, nothing large allocated.

test_loading_fuzz.py damages them at random.
"""

import io
import pickle
import resource
import signal
import zipfile

import pytest
import torch
from helpers import fork
from importers import make_settings, make_weights, save

from modeling_vanilla.interop import from_fairseq
from modeling_vanilla.interop.pickles import MAX_OPERATIONS


def content_of(*arguments) -> bytes:
    stream = io.BytesIO()
    save(stream, *arguments)
    return stream.getvalue()


def with_weight(weight) -> bytes:
    return content_of({**make_weights(), "decoder.layers.0.fc1.bias": weight})


def with_settings(**settings) -> bytes:
    return content_of(make_weights(), make_settings(**settings))


def zipped(content: bytes, compression: int = zipfile.ZIP_STORED) -> bytes:
    """A checkpoint with this as its pickle."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", b"3\n")
    return stream.getvalue()


# A checkpoint of torch.save before 2020.
stream = io.BytesIO()
torch.save({"args": {}, "model": {"a": torch.zeros(65537)}}, stream, _use_new_zipfile_serialization=False)
LEGACY = stream.getvalue()
SIZE = b"J" + (65537).to_bytes(4, "little")  # as the pickle has it

HOSTILE = {
    "stack underflow in an archive": zipped(b"\x80\x02R."),
    "build": zipped(b"\x80\x02]}b."),
    "a long list": zipped(b"\x80\x02](" + b"N" * (MAX_OPERATIONS + 1) + b"e."),
    "a compressed list of 4 * 10^7": zipped(b"\x80\x02](" + b"N" * 4 * 10**7 + b"e.", zipfile.ZIP_DEFLATED),
    "a long list before an empty archive": b"\x80\x02](" + b"N" * (MAX_OPERATIONS + 1) + b"e." + b"PK\5\6" + bytes(18),
    "a legacy storage of 8 GB": LEGACY.replace(SIZE, b"J" + (2**31 - 1).to_bytes(4, "little")),
    "a legacy storage of 4 TB": LEGACY.replace(SIZE, b"\x8a\x08" + (10**12).to_bytes(8, "little")),
    "a string longer than the file": zipped(b"\x80\x02X\xff\xff\xff\x7fabc."),
    "a number of 10^7 digits": zipped(b"\x80\x02I" + b"9" * 10**7 + b"\n."),
    "nested deeply": zipped(b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b"."),
    "a class": zipped(pickle.dumps(zipfile.ZipFile)),
    "no weights": zipped(pickle.dumps({"model": {"a": 1}, "args": {"encoder_layers": 1}}, protocol=2)),
    "sparse": with_weight(torch.eye(3).to_sparse()),
    "meta": with_weight(torch.empty(3, device="meta")),
    "integers": with_weight(torch.ones(28, dtype=torch.long)),
    "one value repeated": with_weight(torch.zeros(1).expand(2**40)),
    "another shape": with_weight(torch.zeros(3, 4, 5)),
    "many layers": with_settings(encoder_layers=10**6),
    "many positions": with_settings(max_source_positions=10**12, max_target_positions=10**12),
    "layers in words": with_settings(encoder_layers="two"),
    "a huge number": with_settings(encoder_attention_heads=10**400),
    "a tensor for a setting": with_settings(encoder_layers=torch.tensor([2, 2])),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_one_value_error(tmp_path, content):
    path = tmp_path / "model.pt"
    path.write_bytes(content)

    def load() -> None:
        signal.alarm(30)  # which ends a process that hangs
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in a fork the peak begins anew
        with pytest.raises(ValueError) as raised:
            from_fairseq(path)
        message = str(raised.value)
        assert message.startswith(f"{path}: ") and "\n" not in message
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**19  # KiB

    assert fork(load) == 0

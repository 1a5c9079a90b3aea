"""What may not be read or written: the error says so, and not that it is missing or bad."""

import errno
import os
import tempfile
from pathlib import Path

import pytest
from helpers import fork, make_tiny, make_tokenizer, save_folder

from modeling_vanilla.files import write_text
from modeling_vanilla.inference import load_translator
from modeling_vanilla.training import DataOptions
from modeling_vanilla.training.data import load_pairs


@pytest.fixture(scope="module")
def root():
    """Not tmp_path, which other users than its owner cannot enter."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        save_folder(Path(folder, "model"), make_tiny(), make_tokenizer(["a dog"]))
        Path(folder, "data").mkdir()
        Path(folder, "data/train.jsonl").write_text("text", encoding="utf-8")
        for path in Path(folder).rglob("*.safetensors"):
            path.chmod(0o644)
        yield Path(folder)


NAMES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")
CLOSED = [
    *((lambda path: load_translator([path]), "model", f"model/{name}") for name in NAMES),
    (lambda path: load_pairs(DataOptions(train_file=str(path))), "data/train.jsonl", "data"),
    (lambda path: write_text(path, "new"), "data/new", "data"),
]


@pytest.mark.parametrize(("function", "argument", "closed"), CLOSED)
def test_a_permission_that_is_missing_is_named(root, function, argument, closed):
    def fail():
        """As a user without any rights."""
        if os.getuid() == 0:
            os.setuid(65534)
        with pytest.raises((OSError, ValueError)) as raised:
            function(root / argument)
        assert os.strerror(errno.EACCES) in str(raised.value) and str(root / closed) in str(raised.value)

    mode = (root / closed).stat().st_mode
    (root / closed).chmod(0)
    status = fork(fail)
    (root / closed).chmod(mode)
    assert status == 0

"""What the training loop does about memory beside fit_batch, which test_trainer.py tries."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.utils import DistributedType
from helpers import run_python

from modeling_vanilla.training.batch_size import fit_batch

RESIDENT = """
import sys, torch
from modeling_vanilla.training.cpu_memory import bound_kernel_caches, keep_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

weight = torch.ones(128, 512, dtype=torch.bfloat16)
"""
BLOCK = """
before = resident()
if sys.argv[1] == "yes":
    keep_freed_memory()
block = torch.ones(2**26)
assert resident() - before > 2**27
del block
print(resident() - before)
"""
KERNELS = """
if sys.argv[1] == "yes":
    bound_kernel_caches()
torch.ones(4, 128, dtype=torch.bfloat16) @ weight
before = resident()
for rows in range(1000, 1600):
    torch.ones(rows, 128, dtype=torch.bfloat16) @ weight
print(resident() - before)
"""


@pytest.fixture
def held(tmp_path, monkeypatch):
    """Bytes that a process of its own still has after `code`."""
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        monkeypatch.delenv(name, raising=False)  # what a training in this process has set
    return lambda code, how: int(run_python("-c", RESIDENT + code, how, cwd=tmp_path).output)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc is meant, and /proc")
def test_freed_memory_is_kept(held):
    """A block of 256 MiB that was used and freed: by default it goes back at once."""
    assert held(BLOCK, "yes") > 2**27 > held(BLOCK, "no")


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="no products by oneDNN in bf16")
def test_kernels_of_new_shapes_are_not_all_kept(held):
    """Of 600 shapes oneDNN keeps the kernels of all, or of the last 64."""
    assert held(KERNELS, "yes") < held(KERNELS, "no") / 2


def test_a_sharded_model_is_not_tried_out():
    """Where one process runs out of memory, the others would wait for it for ever."""
    accelerator = SimpleNamespace(distributed_type=DistributedType.FSDP)
    with pytest.raises(ValueError, match=r"^fit_batch: a model sharded by FSDP"):
        fit_batch(accelerator, None, (np.ones(3), np.ones(3)), 100)

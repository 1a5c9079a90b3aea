"""What the training loop does about memory beside fit_batch, which test_trainer.py tries."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from accelerate.utils import DistributedType

from modeling_vanilla.training.memory import fit_batch

RESIDENT = """
import sys, torch
from modeling_vanilla.training.memory import keep_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

torch.ones(1)
before = resident()
if sys.argv[1] == "keep":
    keep_freed_memory()
block = torch.ones(2**26)
assert resident() - before > 2**27
del block
print(resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc is meant, and /proc")
def test_freed_memory_is_kept():
    """A block of 256 MiB that was used and freed: by default it goes back at once."""
    left = [
        int(subprocess.run([sys.executable, "-c", RESIDENT, how], capture_output=True, text=True, check=True).stdout)
        for how in ("keep", "default")
    ]
    assert left[0] > 2**27 > left[1]


def test_a_sharded_model_is_not_tried_out():
    """Where one process runs out of memory, the others would wait for it for ever."""
    accelerator = SimpleNamespace(distributed_type=DistributedType.FSDP)
    with pytest.raises(ValueError, match=r"^fit_batch: a model sharded by FSDP"):
        fit_batch(accelerator, None, (np.ones(3), np.ones(3)), 100)

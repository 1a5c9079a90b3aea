"""The device of a training: the FLOP/s that it sustains, and the memory that a CPU's process keeps between steps.

A FLOP is one addition or one multiplication in floating point.
"""

import ctypes
import os
import sys

import torch
from accelerate import Accelerator
from torch.utils.benchmark import Timer

KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16}  # of the products, by mixed_precision; else 32 bits
_KERNELS = "64"  # an update of one layout of the model needs about 50
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def product_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s that one device sustains in products of large square matrices.

    They have 2048 rows on a CPU and 8192 elsewhere, or fewer where a product would last much longer than 0.05 s: some
    types have no fast product on some devices. On a CPU the device is this process, on the threads that torch gives it.
    """
    largest = 2048 if device.type == "cpu" else 8192
    size, seconds = 128, 0.0
    while seconds < 0.05 and size < largest:
        size *= 2
        a, b = (torch.rand(size, size, device=device, dtype=dtype) for _ in range(2))
        timer = Timer("a @ b", globals={"a": a, "b": b}, num_threads=torch.get_num_threads())
        seconds = timer.blocked_autorange(min_run_time=0.1).median
    return 2 * size**3 / seconds


def device_flops(accelerator: Accelerator) -> float | None:
    """FLOP/s of this process's device in large products of the training's precision.

    None on a CPU: other programs share its cores, and what one moment has is not what the whole run could have.
    """
    if accelerator.device.type == "cpu":
        return None
    return product_flops(accelerator.device, KINDS.get(accelerator.mixed_precision, torch.float32))


def keep_freed_memory() -> None:
    """Let this process keep the memory it frees, where the C library is glibc.

    By default freed large blocks go back to the system, which must clear their pages when they are allocated again at
    the next step: up to a sixth of a training step on a CPU (RESULTS.md).
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)  # as a size it is the largest there is: never


def bound_kernel_caches() -> None:
    """Let oneDNN keep fewer compiled kernels than its default, unless the environment sets their number.

    In bf16 it compiles a kernel for each shape of a matrix product and keeps 1024 of them. Batches have ever new
    shapes, so that the kernels fill gigabytes (`python benchmarks/cpu.py`). Call this before the process's first such
    product.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # oneDNN's own, and torch's in front of it
        os.environ.setdefault(name, _KERNELS)

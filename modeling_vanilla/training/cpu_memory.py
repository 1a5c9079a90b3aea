"""The memory that a CPU's process keeps between training steps: freed blocks, and compiled kernels."""

import ctypes
import os
import sys

_KERNELS = "64"  # an update of one layout of the model needs about 50
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


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

"""What a CPU keeps between training steps: freed memory, and compiled kernels."""

import ctypes
import os
import sys

_KERNELS = "64"  # an update of one layout of the model needs about 50
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Let this process keep the memory it frees, where the C library is glibc.

    By default large blocks go back to the system when freed and come again as pages that it must clear, at every step:
    up to a third of a training step on a CPU (RESULTS.md).
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)  # as a size it is the largest there is: never


def bound_kernel_caches() -> None:
    """Let oneDNN keep fewer of its compiled kernels, unless the environment says how many.

    In bf16 it compiles each matrix product for the shapes of its factors, and keeps 1024 of them: with batches of
    always new shapes that comes to gigabytes (`python benchmarks/cpu.py`). Has an effect only before
    the process's first such product.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # oneDNN's own, and torch's in front of it
        os.environ.setdefault(name, _KERNELS)

"""The time and the memory of a computation, and exponents fitted to them."""

import os
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from modeling_vanilla.training.device import keep_freed_memory


def costs_of(compute: Callable[[], object], rounds: int) -> dict[str, float]:
    """Seconds and bytes of a computation."""
    keep_freed_memory()  # or the time to clear new pages would be measured at large sizes
    return {"seconds": best_seconds(compute, rounds), "bytes": peak_bytes(compute)}


def best_seconds(compute: Callable[[], object], rounds: int) -> float:
    """Processor time of the fastest of `rounds` calls on one thread, after a first call that does not count.

    Processor time excludes other work on the machine, which would change the exponents. With several threads it would
    include the time in which they wait for each other.
    """
    times, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(rounds + 1):
            start = time.process_time()
            compute()
            times.append(time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    return min(times[1:])


def peak_bytes(compute: Callable[[], object]) -> int:
    """The most bytes of tensors allocated at once during the call, above those allocated before it.

    Counted from every allocation and release of torch's allocator on the CPU, as torch.profiler records them. This
    includes tensors saved for the backward pass and temporary tensors of a kernel, but not the memory that a library
    allocates itself (oneDNN's scratch pad). The size of the process would not show small layers, nor exclude memory
    that the allocator keeps for reuse.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes to stderr at every start and stop
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        compute()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return int(np.cumsum([0, *changes]).max())


def fitted_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The b of cost = a size^b, by least squares on the logarithms; needs two different sizes."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])

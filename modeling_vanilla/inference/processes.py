"""Batches searched one after the other, or over several processes of one thread each.

The operations of a decoding step are too small for a second thread to pay; processes do not wait for each other. They
are forks: they have the model at once, its weights in memory once, where a new process would import PyTorch for
seconds. Of the threads a fork has only the one that made it, so PyTorch computes with a single one there, as it does in
the processes of its DataLoader.
"""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait

import torch
from tqdm import std
from transformers import PreTrainedModel

from ..errors import SIGNALS
from ..progress import progress_bar, track_batches

# A fork is there in 0.03 s, but makes its kernels anew, which takes as long as two batches of a small model.
BATCHES_PER_PROCESS = 2


def batch_searcher(model: PreTrainedModel, processes: int | None = None, show_progress: bool = False) -> Callable:
    """What `translate_texts` takes as `search_batches`.

    Args:
        processes: None is, for a model on the CPU of a Linux system, as many as PyTorch has threads, if there are
            BATCHES_PER_PROCESS for each; for any other model one.
        show_progress: a progress bar of sentences on stderr.

    Raises:
        ValueError: if processes is below 1, or more than one cannot be had.
    """
    if processes is not None and processes < 1:
        raise ValueError(f"processes must be at least 1, not {processes}")
    if sys.platform != "linux" or model.device.type != "cpu":  # there is no safe fork
        if processes is not None and processes > 1:
            raise ValueError(f"processes: {processes} need Linux and a model on the CPU, this one is on {model.device}")
        processes = 1
    return partial(_search_batches, processes, show_progress)


def _search_batches(processes: int | None, show_progress: bool, search: Callable, batches: Sequence[list]) -> list:
    if processes is None:
        processes = min(torch.get_num_threads(), len(batches) // BATCHES_PER_PROCESS)
    processes = min(processes, len(batches))
    if processes < 2:
        return [search(batch) for batch in track_batches(batches, " sentences", show_progress)]
    with progress_bar(total=sum(map(len, batches)), unit=" sentences", disable=not show_progress) as bar:
        return _search_in_processes(processes, search, batches, bar)


def _search_in_processes(processes: int, search: Callable, batches: Sequence[list], bar: std.tqdm) -> list:
    """What `search` gives for each batch, in their order. The processes end with this call, however it ends."""
    fork = multiprocessing.get_context("fork")
    found: list = [None] * len(batches)
    workers: dict = {}
    try:
        # What a signal does is this process's to decide: in the others, which inherit it, each stays blocked.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            for _ in range(processes):
                connection, other_end = fork.Pipe()
                worker = fork.Process(target=_work, args=(other_end, search, batches))
                worker.start()
                other_end.close()  # or the end of the process would not be that of the connection
                workers[connection] = worker
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        remaining = iter(range(len(batches)))
        for connection in workers:
            connection.send(next(remaining))
        for _ in batches:
            ready: list = wait(workers)
            connection = ready[0]
            number, result = connection.recv()
            if isinstance(result, Exception):
                raise result
            found[number] = result
            bar.update(len(batches[number]))
            following = next(remaining, None)
            if following is not None:
                connection.send(following)
        return found
    except (EOFError, ConnectionError) as error:
        raise ChildProcessError("a process was killed; if for lack of memory, fewer --processes help") from error
    finally:
        for connection, worker in workers.items():
            worker.kill()
            worker.join()
            connection.close()


def _work(connection: Connection, search: Callable, batches: Sequence[list]) -> None:
    """Search the batches whose numbers arrive, until this process is killed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    while True:
        number = connection.recv()
        try:
            result = search(batches[number])
        except Exception as error:
            error.add_note(traceback.format_exc())
            result = error
        connection.send((number, result))


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)

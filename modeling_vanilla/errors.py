"""Errors as one line on stderr, and the signals that ask a process to end."""

import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

# torch's own error for it is a RuntimeError. An illegal access of memory and its like are something else.
_NO_MEMORY = re.compile("out of memory|not enough memory|allocate( [0-9]+ bytes of)? memory|bad_alloc", re.IGNORECASE)


# How a terminal, Slurm and Kubernetes end a process. SIGHUP is a closed terminal, and is missing on Windows.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class RowError(ValueError):
    """Row `row`, from 0, of `what` is bad; `message` says how."""

    def __init__(self, what: str, row: int, message: str):
        super().__init__(f"{what} {row}: {message}")
        self.what, self.row, self.message = what, row, message


class Interrupted(KeyboardInterrupt):
    """A signal has asked this process to end; `signum` is its number."""

    def __init__(self, signum: int, message: str = "interrupted"):
        super().__init__(message)
        self.signum = signum


@contextmanager
def on_signal(handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle` with the number of the first Ctrl-C, SIGTERM or SIGHUP; the second ends the process at once.

    A signal that the process ignores stays ignored, as SIGHUP does under nohup. Only the main thread can handle
    signals: in any other nothing changes. A process that is forked meanwhile just ends: a pool ends its own by SIGTERM.
    """
    process = os.getpid()
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {signum: handler for signum in SIGNALS if (handler := signal.getsignal(signum)) != signal.SIG_IGN}

    def first(signum, frame):
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        if os.getpid() != process:
            signal.raise_signal(signum)
        handle(signum)

    for signum in before:
        signal.signal(signum, first)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _interrupt(signum: int) -> None:
    raise Interrupted(signum)


@contextmanager
def one_line_errors(debug: bool = False) -> Iterator[None]:
    """Turn a ValueError, an OSError or a lack of memory into a line on stderr and exit code 2.

    Ctrl-C, SIGTERM and SIGHUP become a line and the exit codes 130, 143 and 129, after what is half-written is removed.
    If nobody reads stdout any more, the exit code is that of a SIGPIPE, 141, without a line.

    Args:
        debug: print the traceback, with the causes, before the line. The environment variable VANILLA_DEBUG=1 does
            the same.
    """
    debug = debug or os.environ.get("VANILLA_DEBUG") == "1"
    try:
        with on_signal(_interrupt):
            yield
            sys.stdout.flush()
    except BrokenPipeError:
        with suppress(OSError):  # stdout may be no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would report it at exit
        sys.exit(141)  # 128 + SIGPIPE, which Windows has not
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        message = one_line(error)
        if isinstance(error, MemoryError | RuntimeError):
            if not isinstance(error, MemoryError) and not _NO_MEMORY.search(message):
                raise
            message = f"not enough memory: {(str(error) or message).splitlines()[0]}; lower tokens_per_batch"
        if debug:
            traceback.print_exc()
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as error:
        print(f"error: {str(error) or 'interrupted'}", file=sys.stderr)
        sys.exit(128 + getattr(error, "signum", signal.SIGINT))


def one_line(error: BaseException) -> str:
    """Give what an error says on one line: of an error of the system its own words, of an empty one its class."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror is not None:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return " ".join(text.split()) or type(error).__name__

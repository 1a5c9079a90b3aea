"""The page of `vanilla demo` under many requests: sentences a second and waiting times, one by one and all at once.

    python benchmarks/serve.py MODEL test.en

The page runs in a process of its own, with as many threads as OMP_NUM_THREADS says, and gradio_client asks for the
first 64 lines. After a round that is not counted come --rounds of each kind, in turn; the rates are the medians of the
rounds, the waiting times those of all requests.
"""

import socket
import statistics
import subprocess
import sys
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice

from common import take_turns, timed, with_range
from gradio_client import Client

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import read_lines


def ask(client: Client, texts: list[str], at_once: int) -> tuple[float, list[float]]:
    """Sentences a second, and the waiting time of each."""

    def wait(text: str) -> float:
        return timed(partial(client.predict, text, api_name="/translate"))[0]

    with ThreadPoolExecutor(at_once) as pool:
        seconds, waits = timed(lambda: list(pool.map(wait, texts)))
    return len(texts) / seconds, waits


def serve(model: str) -> tuple[subprocess.Popen, str]:
    """The page in a process, and its address once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "modeling_vanilla", "demo", model, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().split()[0]


def measure(options: Namespace) -> None:
    texts = list(islice(read_lines(options.source), 64))
    process, address = serve(options.model)
    try:
        client = Client(address, verbose=False)
        turns = {at_once: partial(ask, client, texts, at_once) for at_once in (1, len(texts))}
        medians = []
        for at_once, measured in take_turns(turns, options.rounds).items():
            rates, waits = zip(*measured, strict=True)
            cuts = statistics.quantiles(list(chain.from_iterable(waits)), n=100)
            medians.append(statistics.median(rates))
            waiting = f"waiting p50 {cuts[49]:.3f} s, p95 {cuts[94]:.3f} s"
            print(f"{at_once:3} at once: {with_range(rates, 1)} sentences/s, {waiting}")
        alone, together = medians
        print(f"ratio {together / alone:.1f}")
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("model", help="folder of a model")
    parser.add_argument("source", help="text, a sentence a line")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count")
    run_command(parser, measure)

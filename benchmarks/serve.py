"""The page of `vanilla demo` under many requests: sentences a second and waiting times, one by one and all at once.

    python benchmarks/serve.py MODEL test.en

The page runs in a process of its own, with as many threads as OMP_NUM_THREADS says, and gradio_client asks for the
first 64 lines. After a round that is not counted come --rounds of each kind, in turn; the rates are the medians of the
rounds, the waiting times those of all requests.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

from gradio_client import Client

from modeling_vanilla.files import read_lines


def ask(client: Client, text: str) -> float:
    """Seconds until a text is translated."""
    start = time.perf_counter()
    client.predict(text, api_name="/translate")
    return time.perf_counter() - start


def measure(client: Client, texts: list[str], at_once: int) -> tuple[float, list[float]]:
    """Sentences a second, and the waiting time of each."""
    start = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        waits = list(pool.map(partial(ask, client), texts))
    return len(texts) / (time.perf_counter() - start), waits


def serve(model: str) -> tuple[subprocess.Popen, str]:
    """The page in a process, and its address once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "modeling_vanilla", "demo", model, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().split()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a model")
    parser.add_argument("source", help="text, a sentence a line")
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    texts = list(islice(read_lines(options.source), options.sentences))
    process, address = serve(options.model)
    try:
        client = Client(address, verbose=False)
        rates, waits = {1: [], len(texts): []}, {1: [], len(texts): []}
        for number in range(options.rounds + 1):
            for at_once in rates:
                rate, waited = measure(client, texts, at_once)
                if number:
                    rates[at_once].append(rate)
                    waits[at_once] += waited
        for at_once, values in rates.items():
            cuts = statistics.quantiles(waits[at_once], n=100)
            print(
                f"{at_once:3} at once: {statistics.median(values):6.1f} sentences/s ({min(values):.1f} to "
                f"{max(values):.1f}), waiting p50 {cuts[49]:.3f} s, p95 {cuts[94]:.3f} s"
            )
        alone, together = (statistics.median(values) for values in rates.values())
        print(f"ratio {together / alone:.1f}")
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()

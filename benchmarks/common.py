"""What the benchmarks share: models, rounds, processes, and how figures are shown with the machine they belong to."""

import multiprocessing
import platform
import resource
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

import sacrebleu
import torch
from transformers import MarianConfig, MarianMTModel

from modeling_vanilla.files import read_lines

DIMS = {  # d_model, layers, heads, d_ff, vocabulary
    "tiny": (128, 4, 4, 256, 8000),
    "base": (512, 6, 8, 2048, 32000),
    "big": (1024, 6, 16, 4096, 32000),
}


def config_fields(d_model: int, layers: int, heads: int, d_ff: int, vocab_size: int) -> dict:
    """The fields of a configuration, of this package or of MarianMT."""
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    stack = {"layers": layers, "attention_heads": heads, "ffn_dim": d_ff}
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in stack.items()}
    return {"d_model": d_model, "vocab_size": vocab_size, **sides, **special}


def random_marian(*dims: int) -> MarianMTModel:
    return MarianMTModel(MarianConfig(activation_function="relu", scale_embedding=True, **config_fields(*dims)))


def timed(function: Callable, clock: Callable[[], float] = time.perf_counter) -> tuple[float, object]:
    """Seconds that the function takes, and what it returns."""
    start = clock()
    result = function()
    return clock() - start, result


def take_turns(systems: dict[str, Callable], rounds: int) -> dict[str, list]:
    """What each system returns, by round. The first round, which sets up memory and libraries, is not counted."""
    results = {name: [] for name in systems}
    for _ in range(rounds + 1):
        for name, run in systems.items():
            results[name].append(run())
    return {name: counted for name, (_, *counted) in results.items()}


def in_own_process(make: Callable[..., Callable], *arguments) -> Callable[[], object]:
    """The function that `make` returns: it is made and called in one process of its own."""
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _set_up, (make, arguments))
    return lambda: pool.submit(_run).result()


def _set_up(make: Callable[..., Callable], arguments: tuple) -> None:
    _run.function = make(*arguments)


def _run():
    return _run.function()


def peak_gib() -> float:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """The median of the ratios of the rounds."""
    return statistics.median(above / below for above, below in zip(numerators, denominators, strict=True))


def with_range(measured: Sequence[float], digits: int = 0) -> str:
    """Median, least and most."""
    numbers = (statistics.median(measured), min(measured), max(measured))
    median, least, most = (f"{number:.{digits}f}" for number in numbers)
    return f"{median} ({least} to {most})"


def add_translation_options(parser: ArgumentParser, sentences: int) -> None:
    parser.add_argument("--reference", help="for BLEU")
    parser.add_argument("--bleu_tokenize", default="13a", help="sacreBLEU's tokeniser")
    parser.add_argument("--sentences", type=int, default=sentences, help="the first so many")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count")
    parser.add_argument("--threads", type=int, default=2, help="of each engine")


def bleu(texts: Sequence[str], options: Namespace) -> str:
    if not options.reference:
        return "-"
    references = list(islice(read_lines(options.reference), len(texts)))
    return f"{sacrebleu.corpus_bleu(texts, [references], tokenize=options.bleu_tokenize, force=True).score:.2f}"


def machine(device: str = "cpu") -> str:
    """The chip, threads and versions that a figure belongs to."""
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.machine()
    return f"{name}, threads: {torch.get_num_threads()}, torch {torch.__version__}"


def table(columns: Sequence[str], rows: Sequence[Sequence]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)

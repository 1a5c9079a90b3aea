"""What is done only because a CPU is faster that way: CPU milliseconds of torch's own way and of ours, on one thread.

    python benchmarks/cpu.py
    python benchmarks/cpu.py --parts attention --rounds 5
    python benchmarks/cpu.py --parts kernels

"attention" is Eq. 1 written out beside torch's fused kernel, in a decoding step and in a training step (forward and
backward), and `*` marks the sizes at which the package takes the former. "residual" is the sum behind a dropout that is
ours in both. The figure is the median of the rounds. "kernels" trains in bf16 on 100 batches of new shapes, as in
training, with oneDNN's cache of kernels as it is and bounded, which saves memory above all.
"""

import itertools
import random
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial

import torch
from common import DIMS, in_own_process, peak_gib, take_turns, timed
from torch import nn
from train_step import made_up_batch, real_tokens, training_step
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from modeling_vanilla import cpu_vanilla
from modeling_vanilla.attention_vanilla import eager_attention
from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.training.cpu_memory import bound_kernel_caches

Case = tuple[str, tuple, Callable, Callable]  # what is measured, arguments, and what they are given to: torch's, ours
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def softmax() -> Iterator[Case]:
    for columns in (4, 8, 15, 16):
        scores = torch.randn(256, 8, 8, columns)
        yield f"{columns} columns", (scores,), lambda z: z.softmax(dim=-1), cpu_vanilla.short_softmax


def attention() -> Iterator[Case]:
    def attend(function: Callable, q, k, v, mask) -> None:
        output, _ = function(nn.Identity(), q, k, v, mask, scaling=0.125, dropout=0.0, is_causal=False)
        if q.requires_grad:
            output.sum().backward()

    fused, written_out = partial(attend, sdpa_attention_forward), partial(attend, eager_attention)
    sizes = ((1, 24), (1, 64), (1, 256), (24, 24), (64, 64), (128, 128), (256, 256), (512, 512))
    for (dtype, kind), training, (queries, keys) in itertools.product(DTYPES.items(), (False, True), sizes):
        if training and queries == 1:
            continue
        rows = max(1, 4096 // queries // (4 if queries == 1 else 1) // 4)
        q, k, v = (
            torch.randn(rows, 8, length, 64, dtype=kind, requires_grad=training) for length in (queries, keys, keys)
        )
        mask = torch.ones(rows, 1, 1, keys, dtype=torch.bool)
        mask[..., -1] = False
        with torch.set_grad_enabled(training):
            chosen = "*" if cpu_vanilla.eager_is_faster(q, k) else " "
        what = "training" if training else "decoding" if queries == 1 else "encoding"
        name = f"{chosen} {what} {dtype:8} {rows:4} rows, {queries:3} queries, {keys:3} keys"
        yield name, (q, k, v, mask), fused, written_out


def dropout() -> Iterator[Case]:
    for dtype, kind in DTYPES.items():
        x = torch.randn(4096, 512, dtype=kind)
        yield dtype, (x, 0.1), nn.functional.dropout, cpu_vanilla.dropout


def residual() -> Iterator[Case]:
    def plain(x, y) -> None:
        (x + cpu_vanilla.dropout(y, 0.1)).backward(x)

    def ours(x, y) -> None:
        cpu_vanilla.dropout(y, 0.1, x).backward(x)

    for dtype, kind in DTYPES.items():
        x, y = torch.randn(4096, 512, dtype=kind), torch.randn(4096, 512, dtype=kind, requires_grad=True)
        yield f"{dtype}, training", (x, y), plain, ours


def loss() -> Iterator[Case]:
    def plain(h, w, y, out) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.mm(h, w.T, out=out)
        return z.softmax(dim=-1), z.float().logsumexp(dim=-1)

    for (dtype, kind), vocabulary in itertools.product(DTYPES.items(), (8000, 37000)):
        h, w = torch.randn(512, 64, dtype=kind), torch.randn(vocabulary, 64, dtype=kind) / 8
        y, out = torch.randint(vocabulary, (512,)), torch.empty(512, vocabulary, dtype=kind)
        yield f"{dtype}, V {vocabulary}", (h, w, y, out), plain, cpu_vanilla.softmax_of_logits


def add_product() -> Iterator[Case]:
    for d_model, vocabulary in ((128, 8000), (512, 32000)):
        p, h = torch.randn(512, vocabulary).bfloat16(), torch.randn(512, d_model).bfloat16()
        arguments = torch.zeros(vocabulary, d_model), p, h
        name = f"bfloat16, {vocabulary} x {d_model}"
        yield name, arguments, lambda total, p, h: total.add_((p.T @ h).float()), cpu_vanilla.add_product


def log_softmax() -> Iterator[Case]:
    for sentences, vocabulary in ((64, 8000), (16, 37000)):
        logits = torch.randn(4 * sentences, vocabulary).bfloat16()
        name = f"{4 * sentences} rows, V {vocabulary}"
        yield name, (logits,), lambda z: z.float().log_softmax(dim=-1), cpu_vanilla.log_softmax


def top_sums() -> Iterator[Case]:
    def plain(score, log_probs, k) -> tuple[torch.Tensor, torch.Tensor]:
        return (score[..., None] + log_probs).flatten(1).topk(k)

    for sentences, vocabulary in itertools.product((1, 16, 64), (8000, 37000)):
        score, log_probs = torch.randn(sentences, 4), torch.randn(sentences, 4, vocabulary).log_softmax(dim=-1)
        yield f"{sentences} sentences, V {vocabulary}", (score, log_probs, 8), plain, cpu_vanilla.top_sums


def train_on_new_shapes(bounded: bool) -> None:
    if bounded:
        bound_kernel_caches()
    dims, rng = DIMS["tiny"], random.Random(0)
    step, held = training_step("ours", dims, bf16=True), peak_gib()
    tokens, seconds = 0, 0.0
    for _ in range(100):
        longest = rng.randint(8, 40)
        batch = made_up_batch(4096 // longest - rng.randint(0, 8), longest, dims[-1])
        seconds += timed(partial(step, batch), time.process_time)[0]
        tokens += real_tokens(batch)
    name = "bounded" if bounded else "as it is"
    print(f"{'kernels':10} cache {name}: {tokens / seconds:.0f} tokens/s, {peak_gib() - held:.2f} GiB", flush=True)


FUNCTIONS = (softmax, attention, dropout, residual, loss, add_product, log_softmax, top_sums)
PARTS = {part.__name__: part for part in FUNCTIONS}


def measure(options: Namespace) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for part in options.parts:
        if part == "kernels":
            for bounded in (False, True):
                in_own_process(partial, train_on_new_shapes, bounded)()
            continue
        for name, arguments, plain, ours in PARTS[part]():
            both = {"torch": partial(plain, *arguments), "ours": partial(ours, *arguments)}
            turns = {system: partial(timed, function, time.process_time) for system, function in both.items()}
            with torch.set_grad_enabled("training" in name):
                measured = take_turns(turns, options.rounds).values()
            torchs, own = (1000 * statistics.median(seconds for seconds, _ in rounds) for rounds in measured)
            print(f"{part:10} {name:55} torch {torchs:8.2f} ms, ours {own:8.2f} ms, ratio {torchs / own:.2f}")


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument(
        "--parts", nargs="+", choices=[*PARTS, "kernels"], default=list(PARTS), help="functions to measure"
    )
    parser.add_argument("--rounds", type=int, default=9, help="rounds that count")
    run_command(parser, measure)

"""What each function of cpu_vanilla.py saves: CPU milliseconds of torch's own way and of ours, on one thread.

usage: python benchmarks/cpu.py [--parts softmax attention dropout residual loss add_product log_softmax top_sums]
                                [--rounds N]

"attention" is Eq. 1 written out beside torch's fused kernel, in a decoding step and in a training step (forward and
backward); `*` marks the sizes at which the package takes the former. The figure is the median of the rounds.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from modeling_vanilla import cpu_vanilla
from modeling_vanilla.attention_vanilla import eager_attention

Case = tuple[str, Callable, Callable]  # what is measured, torch's way, our way
DTYPES = (torch.float32, torch.bfloat16)


def softmax() -> Iterator[Case]:
    for columns in (4, 8, 15, 16):
        scores = torch.randn(256, 8, 8, columns)
        yield f"{columns} columns", lambda z=scores: z.softmax(dim=-1), lambda z=scores: cpu_vanilla.short_softmax(z)


def attention() -> Iterator[Case]:
    sizes = ((1, 24), (1, 64), (1, 256), (24, 24), (64, 64), (128, 128))
    for dtype, training, (queries, keys) in itertools.product(DTYPES, (False, True), sizes):
        if training and queries == 1:
            continue
        rows = max(1, 4096 // queries // (4 if queries == 1 else 1) // 4)
        q, k, v = (
            torch.randn(rows, 8, length, 64, dtype=dtype, requires_grad=training) for length in (queries, keys, keys)
        )
        mask = torch.ones(rows, 1, 1, keys, dtype=torch.bool)
        mask[..., -1] = False

        def run(function, tensors=(q, k, v), mask=mask, training=training):
            output, _ = function(nn.Identity(), *tensors, mask, scaling=0.125, dropout=0.0, is_causal=False)
            if training:
                output.sum().backward()

        with torch.set_grad_enabled(training):
            chosen = "*" if cpu_vanilla.eager_is_faster(q, k) else " "
        what = "training" if training else "decoding" if queries == 1 else "encoding"
        name = f"{chosen} {what} {str(dtype)[6:]:8} {rows:4} rows, {queries:3} queries, {keys:3} keys"
        yield name, lambda run=run: run(sdpa_attention_forward), lambda run=run: run(eager_attention)


def dropout() -> Iterator[Case]:
    for dtype in DTYPES:
        x = torch.randn(4096, 512, dtype=dtype)
        yield str(dtype)[6:], lambda x=x: nn.functional.dropout(x, 0.1), lambda x=x: cpu_vanilla.dropout(x, 0.1)


def residual() -> Iterator[Case]:
    for dtype in DTYPES:
        x, y = torch.randn(4096, 512, dtype=dtype), torch.randn(4096, 512, dtype=dtype, requires_grad=True)

        def ours(x=x, y=y):
            cpu_vanilla.dropout(y, 0.1, x).backward(x)

        yield f"{str(dtype)[6:]}, training", lambda x=x, y=y: (x + cpu_vanilla.dropout(y, 0.1)).backward(x), ours


def loss() -> Iterator[Case]:
    for dtype, vocabulary in itertools.product(DTYPES, (8000, 37000)):
        h, w = torch.randn(512, 64, dtype=dtype), torch.randn(vocabulary, 64, dtype=dtype) / 8
        y, out = torch.randint(vocabulary, (512,)), torch.empty(512, vocabulary, dtype=dtype)

        def plain(h=h, w=w, out=out):
            z = torch.mm(h, w.T, out=out)
            return z.softmax(dim=-1), z.float().logsumexp(dim=-1)

        def ours(h=h, w=w, y=y, out=out):
            return cpu_vanilla.softmax_of_logits(h, w, y, out)

        yield f"{str(dtype)[6:]}, V {vocabulary}", plain, ours


def add_product() -> Iterator[Case]:
    for d_model, vocabulary in ((128, 8000), (512, 32000)):
        p, h = torch.randn(512, vocabulary).bfloat16(), torch.randn(512, d_model).bfloat16()
        total = torch.zeros(vocabulary, d_model)

        def plain(p=p, h=h, total=total):
            total.add_((p.T @ h).float())

        def ours(p=p, h=h, total=total):
            cpu_vanilla.add_product(total, p, h)

        yield f"bfloat16, {vocabulary} x {d_model}", plain, ours


def log_softmax() -> Iterator[Case]:
    for sentences, vocabulary in ((64, 8000), (16, 37000)):
        logits = torch.randn(4 * sentences, vocabulary).bfloat16()

        def plain(logits=logits):
            return logits.float().log_softmax(dim=-1)

        yield f"{4 * sentences} rows, V {vocabulary}", plain, lambda z=logits: cpu_vanilla.log_softmax(z)


def top_sums() -> Iterator[Case]:
    for sentences, vocabulary in itertools.product((1, 16, 64), (8000, 37000)):
        score, log_probs = torch.randn(sentences, 4), torch.randn(sentences, 4, vocabulary).log_softmax(dim=-1)

        def plain(score=score, log_probs=log_probs):
            return (score[..., None] + log_probs).flatten(1).topk(8)

        def ours(score=score, log_probs=log_probs):
            return cpu_vanilla.top_sums(score, log_probs, 8)

        yield f"{sentences} sentences, V {vocabulary}", plain, ours


FUNCTIONS = (softmax, attention, dropout, residual, loss, add_product, log_softmax, top_sums)
PARTS = {part.__name__: part for part in FUNCTIONS}


def measure(function: Callable) -> float:
    start = time.process_time()
    function()
    return 1000 * (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for part in options.parts:
        for name, plain, ours in PARTS[part]():
            with torch.set_grad_enabled("training" in name):
                times = [(measure(plain), measure(ours)) for _ in range(options.rounds + 1)][1:]
            torchs, own = (statistics.median(column) for column in zip(*times, strict=True))
            print(f"{part:10} {name:55} torch {torchs:8.2f} ms, ours {own:8.2f} ms, ratio {torchs / own:.2f}")


if __name__ == "__main__":
    main()

"""At which lengths Eq. 1 written out beats torch's fused attention on this CPU, forward and backward.

usage: python benchmarks/attention_cpu.py [--dtype bfloat16|float32] [--rounds N]

Prints milliseconds of both at about 4096 positions, 8 heads of 64 and 4 of 32, for a range of lengths, and their ratio.
"""

import argparse
import statistics
import time

import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from modeling_vanilla.attention_vanilla import eager_attention


def measure(attention, tensors: list[torch.Tensor], mask: torch.Tensor | None) -> float:
    start = time.perf_counter()
    output, _ = attention(nn.Identity(), *tensors, mask, scaling=tensors[0].shape[-1] ** -0.5, is_causal=False)
    output.sum().backward()
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(f"{arguments.dtype}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for heads, width in ((4, 32), (8, 64)):
        for length in (8, 16, 32, 64, 128, 256, 512, 1024):
            shape = (max(1, 4096 // length), heads, length, width)
            dtype = getattr(torch, arguments.dtype)
            tensors = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]
            mask = torch.ones(shape[0], 1, length, length, dtype=torch.bool)
            mask[:, :, :, -1] = False
            times = {"eager": [], "sdpa": []}
            for _ in range(arguments.rounds + 1):
                times["eager"].append(measure(eager_attention, tensors, mask))
                times["sdpa"].append(measure(sdpa_attention_forward, tensors, mask))
            eager, sdpa = (statistics.median(values[1:]) for values in times.values())
            print(
                f"heads {heads} x {width}, length {length:5d}: eager {eager:8.2f} ms, sdpa {sdpa:8.2f} ms, "
                f"ratio {sdpa / eager:.2f}"
            )


if __name__ == "__main__":
    main()

"""What a training run cost in FLOPs: counted, measured, and estimated as Table 2 does; and what the paper's would here.

A FLOP is one addition or one multiplication in floating point.
"""

import math

import numpy as np
import torch
from torch.utils.benchmark import Timer

from ..configuration_vanilla import VanillaConfig

# Section 5.1: an update's tokens, 25000 of the source and 25000 of the target.
_PAPER_UPDATE_TOKENS = 50_000

# Updates (5.2), and training FLOPs as Table 2 prints them.
_PAPER_RUNS = {"base": (100_000, 3.3e18), "big": (300_000, 2.3e19)}


def model_flops(config: VanillaConfig, source_lengths: np.ndarray, target_lengths: np.ndarray) -> float:
    """FLOPs of one forward and one backward pass over sentence pairs, by formula.

    Each multiply-add of a matrix product is two FLOPs, and the backward pass has two products (the gradients of either
    factor) for the forward pass's one. Counted are, at the real tokens alone, without padding: every projection, Q K^T
    and the product of its weights with V, both products of each feed-forward network, and the output projection.
    Causal attention counts in full, T x T, as Eq. 1 computes it; under attention_window r each position counts the
    min(r, n) keys that restricted attention needs (section 4), although the mask here saves none of the others.
    Not counted are embedding look-ups, positions, biases, softmax, dropout, normalisation, residuals, the loss and the
    optimizer: a small share, which grows as the model narrows.

    Args:
        source_lengths, target_lengths: (pairs,), tokens of each sentence, end-of-sentence token included.
    """
    # In floats, as the squares of a large corpus add up beyond some integers.
    source, target = np.asarray(source_lengths, float), np.asarray(target_lengths, float)
    window = config.attention_window or math.inf
    encoder_layer = _attention(config, config.encoder_attention_heads, source, source, np.minimum(source, window))
    encoder_layer += _feed_forward(config, config.encoder_ffn_dim, source)
    decoder_layer = _attention(config, config.decoder_attention_heads, target, target, np.minimum(target, window))
    decoder_layer += _attention(config, config.decoder_attention_heads, target, source, source)
    decoder_layer += _feed_forward(config, config.decoder_ffn_dim, target)
    output_projection = target * config.d_model * config.vocab_size
    forward = 2 * (config.encoder_layers * encoder_layer + config.decoder_layers * decoder_layer + output_projection)
    return float(3 * forward.sum())


def _attention(config: VanillaConfig, num_heads: int, queries, sources, keys) -> np.ndarray:
    """Multiply-adds of multi-head attention (3.2.2) of `queries` positions over `sources`, of which each sees `keys`.

    W^Q and W^O work on the queries, d_k and d_v wide; W^K and W^V on the sources, as wide; the score of a key takes d_k
    multiply-adds, its value d_v. Hence d_k + d_v is a factor of all.
    """
    return num_heads * sum(config.head_dims(num_heads)) * (config.d_model * (queries + sources) + queries * keys)


def _feed_forward(config: VanillaConfig, d_ff: int, tokens) -> np.ndarray:
    """Multiply-adds of W_1 and W_2 (3.3)."""
    return 2 * config.d_model * d_ff * tokens


def measured_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s that one device sustains in products of large square matrices: what Table 2 takes as the device's rate.

    They have 2048 rows on a CPU and 8192 elsewhere (three of them are held: 0.8 GB in 32 bits), or fewer where a
    product would last much longer than 0.05 s: some types have no fast product on some devices. Takes about a second.
    On a CPU the device is this process, on the threads that torch now gives it. No random state is touched.
    """
    largest = 2048 if device.type == "cpu" else 8192
    generator = torch.Generator(device).manual_seed(0)
    size, seconds = 128, 0.0
    while seconds < 0.05 and size < largest:
        size *= 2
        a, b = (torch.rand(size, size, generator=generator, device=device, dtype=dtype) for _ in range(2))
        timer = Timer(
            "torch.mm(a, b, out=c)", globals={"a": a, "b": b, "c": a.clone()}, num_threads=torch.get_num_threads()
        )
        seconds = timer.blocked_autorange(min_run_time=0.1).median
    return 2 * size**3 / seconds


def training_cost(
    config: VanillaConfig,
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    tokens: int,
    seconds: float,
    devices: int,
    rate: float,
) -> dict:
    """What a run cost, and what the paper's base and big models would cost on the same data and devices.

    Args:
        source_lengths, target_lengths: (pairs,), tokens of each sentence of the whole training set.
        tokens: real ones that the run read, both sides. seconds: that it trained for. devices: that it ran on.
        rate: FLOP/s that one device sustains, as measured_rate gives it or as a data sheet says.

    Returns:
        - analytic_flops: what model_flops counts, for that many tokens of such sentences.
        - achieved_flops_per_second: analytic_flops by the seconds, of one device. Padding lowers it, as does all that
          model_flops leaves out. sustained_flops_per_second: the rate.
        - table_2_flops: seconds x devices x rate, the paper's estimate (Table 2). It is to analytic_flops as the
          sustained rate is to the achieved one.
        - paper: for "base" and "big", trained by the paper's recipe (5.1, 5.2: 100000 and 300000 updates of 25000 +
          25000 tokens, a vocabulary of 37000) on sentences as long as these: analytic_flops; hours on these devices at
          the achieved rate; table_2_flops of those hours; printed_table_2_flops, the paper's own, of 8 P100s. A small
          model achieves less of a device than a large one would: from a small model's run, hours and table_2_flops
          come out too high.
    """
    epoch_tokens = int(np.sum(source_lengths)) + int(np.sum(target_lengths))

    def analytic_flops(config: VanillaConfig, tokens: int) -> float:
        return model_flops(config, source_lengths, target_lengths) * tokens / epoch_tokens

    own = analytic_flops(config, tokens)
    achieved = own / (seconds * devices)
    paper = {}
    for name, (updates, printed) in _PAPER_RUNS.items():
        flops = analytic_flops(VanillaConfig.preset(name), updates * _PAPER_UPDATE_TOKENS)
        paper[name] = {
            "analytic_flops": flops,
            "hours": flops / (achieved * devices) / 3600,
            "table_2_flops": flops / achieved * rate,
            "printed_table_2_flops": printed,
        }
    return {
        "analytic_flops": own,
        "achieved_flops_per_second": achieved,
        "sustained_flops_per_second": float(rate),
        "table_2_flops": float(seconds * devices * rate),
        "paper": paper,
    }

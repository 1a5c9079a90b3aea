"""What a training run cost in FLOPs: counted, and estimated as Table 2 does; and what the paper's would cost there.

A FLOP is one addition or one multiplication in floating point.
"""

from collections.abc import Mapping

import torch
from torch.utils.benchmark import Timer

from modeling_vanilla import VanillaConfig

# Section 5.1: an update's tokens, 25000 of the source and 25000 of the target.
_PAPER_UPDATE_TOKENS = 50_000

# Updates (5.2), and training FLOPs as Table 2 prints them.
_PAPER_RUNS = {"base": (100_000, 3.3e18), "big": (300_000, 2.3e19)}


def model_flops(config: VanillaConfig, sums: Mapping[str, float]) -> float:
    """FLOPs of one forward and one backward pass over sentence pairs, by formula.

    Each multiply-add of a matrix product is two FLOPs, and the backward pass has two products (the gradients of either
    factor) for the forward pass's one. Counted are, at the real tokens alone, without padding: every projection, Q K^T
    and the product of its weights with V, both products of each feed-forward network, and the output projection.
    Causal attention counts in full, T x T, as Eq. 1 computes it, and so does attention within a window, whose mask
    saves nothing. Not counted are embedding look-ups, positions, biases, softmax, dropout, normalisation, residuals,
    the loss and the optimizer: a small share, which grows as the model narrows.

    Args:
        sums: over the pairs, as results.json has them in "length_sums": "source" and "target" tokens, </s> included,
            and the products "source_source", "target_target" and "target_source" of the tokens of a pair's sides.
    """

    def attention(num_heads: int, queries: str, keys: str) -> float:
        """Multiply-adds of multi-head attention (3.2.2).

        W^Q and W^O work on the queries, d_k and d_v wide; W^K and W^V on the keys, as wide; the score of a key takes
        d_k multiply-adds, its value d_v. Hence d_k + d_v is a factor of all.
        """
        projected = config.d_model * (sums[queries] + sums[keys])
        return num_heads * sum(config.head_dims(num_heads)) * (projected + sums[f"{queries}_{keys}"])

    source, target = sums["source"], sums["target"]
    encoder_layer = attention(config.encoder_attention_heads, "source", "source")
    encoder_layer += 2 * config.d_model * config.encoder_ffn_dim * source  # W_1 and W_2 (3.3)
    decoder_layer = attention(config.decoder_attention_heads, "target", "target")
    decoder_layer += attention(config.decoder_attention_heads, "target", "source")
    decoder_layer += 2 * config.d_model * config.decoder_ffn_dim * target
    output_projection = target * config.d_model * config.vocab_size
    forward = 2 * (config.encoder_layers * encoder_layer + config.decoder_layers * decoder_layer + output_projection)
    return float(3 * forward)


def measured_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s that one device sustains in products of large square matrices: what Table 2 takes as the device's rate.

    They have 2048 rows on a CPU and 8192 elsewhere, or fewer where a product would last much longer than 0.05 s: some
    types have no fast product on some devices. On a CPU the device is this process, on the threads that torch gives it.
    """
    largest = 2048 if device.type == "cpu" else 8192
    size, seconds = 128, 0.0
    while seconds < 0.05 and size < largest:
        size *= 2
        a, b = (torch.rand(size, size, device=device, dtype=dtype) for _ in range(2))
        timer = Timer("a @ b", globals={"a": a, "b": b}, num_threads=torch.get_num_threads())
        seconds = timer.blocked_autorange(min_run_time=0.1).median
    return 2 * size**3 / seconds


def training_cost(config: VanillaConfig, run: Mapping, rate: float) -> dict:
    """What a run cost, and what the paper's base and big models would cost on the same data and devices.

    Args:
        run: of its results.json "length_sums", "tokens", "tokens_per_second" and "processes", one to a device.
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
    sums, devices = run["length_sums"], run["processes"]
    seconds = run["tokens"] / run["tokens_per_second"]

    def analytic_flops(config: VanillaConfig, tokens: int) -> float:
        return model_flops(config, sums) * tokens / (sums["source"] + sums["target"])

    own = analytic_flops(config, run["tokens"])
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

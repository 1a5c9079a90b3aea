"""What a training run cost in FLOPs: counted, and estimated as Table 2 does; and what the paper's would cost there."""

from collections.abc import Mapping

from modeling_vanilla import VanillaConfig
from modeling_vanilla.training.flops import model_flops

# Section 5.1: an update's tokens, 25000 of the source and 25000 of the target.
_PAPER_UPDATE_TOKENS = 50_000

# Updates (5.2), and training FLOPs as Table 2 prints them.
_PAPER_RUNS = {"base": (100_000, 3.3e18), "big": (300_000, 2.3e19)}


def training_cost(config: VanillaConfig, run: Mapping, rate: float) -> dict:
    """What a run cost, and what the paper's base and big models would cost on the same data and devices.

    Args:
        run: of its results.json "length_sums", "tokens", "tokens_per_second" and "processes", one to a device.
        rate: FLOP/s that one device sustains, as product_rate gives it or as a data sheet says.

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

"""Cost: FLOPs against torch's counter on the real model, and Table 2's own arithmetic."""

import pytest
import torch
from cost import model_flops, training_cost
from torch.utils.flop_counter import FlopCounterMode

from modeling_vanilla import VanillaConfig

PAIRS = [(3, 4), (11, 2), (1, 9), (6, 8)]  # tokens of source and target


def sums_of(pairs):
    return {
        **{"source": sum(s for s, _ in pairs), "target": sum(t for _, t in pairs)},
        **{"source_source": sum(s * s for s, _ in pairs), "target_target": sum(t * t for _, t in pairs)},
        "target_source": sum(s * t for s, t in pairs),
    }


def counted_by_torch(model, s: int, t: int) -> int:
    """What torch counts in one forward and one backward pass over one pair."""
    ids, labels = torch.randint(4, 41, (1, s)), torch.randint(4, 41, (1, t))
    # Torch does not count by itself what is added in place. Its mapping gets shapes.
    in_place = {torch.ops.aten.addmm_: lambda total, a, b, **kwargs: 2 * a[0] * a[1] * b[1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        model(input_ids=ids, labels=labels).loss.backward()
    return counter.get_total_flops()


def test_torch_counts_as_much_on_pairs_without_padding(make_model):
    """Every size is one of its own, so that a mix-up shows. The mask of a window saves nothing."""
    sizes = {"d_k": 5, "d_v": 7, "encoder_attention_heads": 3, "decoder_attention_heads": 2, "attention_window": 3}
    model = make_model(attn="eager", **sizes).train()
    assert model_flops(model.config, sums_of(PAIRS)) == sum(counted_by_torch(model, *pair) for pair in PAIRS)


@pytest.mark.parametrize(
    ("name", "updates", "hours", "expected", "printed"),
    [("base", 100_000, 12, 3.28e18, 3.3e18), ("big", 300_000, 3.5 * 24, 2.298e19, 2.3e19)],
)
def test_the_papers_own_run(name, updates, hours, expected, printed):
    """12 hours, or 3.5 days, of 8 P100s at 9.5 TFLOP/s (5.2, Table 2). What such a run extrapolates to is itself."""
    config, tokens, seconds = VanillaConfig.preset(name), updates * (25_000 + 25_000), hours * 3600
    run = {"length_sums": sums_of(PAIRS), "tokens": tokens, "tokens_per_second": tokens / seconds, "processes": 8}
    cost = training_cost(config, run, 9.5e12)
    assert cost["table_2_flops"] == pytest.approx(expected, rel=1e-3)
    assert f"{cost['table_2_flops']:.1e}" == f"{printed:.1e}"
    flops = {key: pytest.approx(cost[key]) for key in ("table_2_flops", "analytic_flops")}
    assert cost["paper"][name] == {"printed_table_2_flops": printed, "hours": pytest.approx(hours), **flops}


def test_extrapolation_by_hand():
    """Sentences of 20 and 30 tokens: a pair is 50 tokens, an update of the paper 1000 pairs. Three devices, 4 s."""
    config, sums = VanillaConfig.preset("tiny"), sums_of([(20, 30)] * 7)
    run = {"length_sums": sums, "tokens": 50 * 13, "tokens_per_second": 50 * 13 / 4, "processes": 3}
    cost = training_cost(config, run, 5e12)
    assert cost["analytic_flops"] == pytest.approx(13 * model_flops(config, sums_of([(20, 30)])))
    assert cost["achieved_flops_per_second"] == pytest.approx(cost["analytic_flops"] / (4 * 3))
    assert (cost["sustained_flops_per_second"], cost["table_2_flops"]) == (5e12, pytest.approx(4 * 3 * 5e12))
    for name, updates in (("base", 100_000), ("big", 300_000)):
        flops = updates * 1000 * model_flops(VanillaConfig.preset(name), sums_of([(20, 30)]))
        seconds = 4.0 * flops / cost["analytic_flops"]
        expected = {"analytic_flops": flops, "hours": seconds / 3600, "table_2_flops": seconds * 3 * 5e12}
        assert {figure: cost["paper"][name][figure] for figure in expected} == pytest.approx(expected)

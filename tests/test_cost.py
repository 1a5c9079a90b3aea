"""Cost: FLOPs against torch's counter on the real model, and Table 2's own arithmetic."""

import time

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from modeling_vanilla import VanillaConfig
from modeling_vanilla.training.cost import measured_rate, model_flops, training_cost

# Every size of its own, so that a mix-up shows.
ODD = {"d_k": 5, "d_v": 7, "encoder_attention_heads": 3, "decoder_attention_heads": 2}
SOURCES, TARGETS = np.array([3, 11, 1, 6]), np.array([4, 2, 9, 8])


def counted_by_torch(model, s: int, t: int) -> int:
    """What torch counts in one forward and one backward pass over one pair."""
    ids, labels = torch.randint(4, 41, (1, s)), torch.randint(4, 41, (1, t))
    # Torch does not count by itself what is added in place. Its mapping gets shapes.
    in_place = {torch.ops.aten.addmm_: lambda total, a, b, **kwargs: 2 * a[0] * a[1] * b[1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        model(input_ids=ids, labels=labels).loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("train", [True, False], ids=["fused loss", "logits"])
def test_torch_counts_as_much(make_model, train):
    """In the real model, on pairs without padding; the fused loss and the written-out one take the same products."""
    model = make_model(attn="eager", **ODD).train(train)
    counted = sum(counted_by_torch(model, s, t) for s, t in zip(SOURCES.tolist(), TARGETS.tolist(), strict=True))
    assert model_flops(model.config, SOURCES, TARGETS) == counted


def test_the_mask_of_a_window_saves_nothing(make_model):
    """Torch counts what the model does, which is all pairs of positions: more by the keys beyond the window."""
    model = make_model(attn="eager", attention_window=3, **ODD)
    beyond = 2 * 3 * (5 + 7) * (2 * 3 * 11 * (11 - 3) + 3 * 2 * 4 * (4 - 3))  # encoder: 2 layers of 3 heads; decoder
    counted = counted_by_torch(model, 11, 4)
    assert counted - model_flops(model.config, np.array([11]), np.array([4])) == beyond


def test_large_figures_do_not_overflow(make_config):
    """Of so long sentences only attention counts, which grows with the square of their length."""
    config, lengths = make_config(**ODD), np.full(2, 1_000_000_000, np.int32)
    once, twice = (model_flops(config, length, length) for length in (lengths, 2 * lengths))
    assert twice / once == pytest.approx(4, rel=1e-4) and once > 2**63


HOUR, DAY = 3600.0, 86400.0


@pytest.mark.parametrize(
    ("name", "updates", "seconds", "expected", "printed"),
    [("base", 100_000, 12 * HOUR, 3.28e18, 3.3e18), ("big", 300_000, 3.5 * DAY, 2.298e19, 2.3e19)],
)
def test_the_paper_s_own_run(name, updates, seconds, expected, printed):
    """12 hours, or 3.5 days, of 8 P100s at 9.5 TFLOP/s (5.2, Table 2). What such a run extrapolates to is itself."""
    config, tokens = VanillaConfig.preset(name), updates * (25_000 + 25_000)
    run = training_cost(config, SOURCES, TARGETS, tokens, seconds, 8, 9.5e12)
    assert run["table_2_flops"] == pytest.approx(expected, rel=1e-3)
    assert f"{run['table_2_flops']:.1e}" == f"{printed:.1e}"
    flops = {key: pytest.approx(run[key]) for key in ("table_2_flops", "analytic_flops")}
    hours = pytest.approx(seconds / HOUR)
    assert run["paper"][name] == {"printed_table_2_flops": printed, "hours": hours, **flops}


def test_an_epoch_costs_what_its_pairs_cost(make_config):
    config = make_config(**ODD)
    tokens = int(SOURCES.sum() + TARGETS.sum())
    run = training_cost(config, SOURCES, TARGETS, tokens, 5.0, 2, 1e12)
    assert run["analytic_flops"] == pytest.approx(model_flops(config, SOURCES, TARGETS))
    assert run["achieved_flops_per_second"] == pytest.approx(run["analytic_flops"] / 10)
    assert run["sustained_flops_per_second"] == 1e12
    assert run["table_2_flops"] == 1e13


def test_extrapolation_by_hand():
    """Sentences of 20 and 30 tokens: a pair is 50 tokens, an update 1000 pairs."""
    sources, targets = np.full(7, 20), np.full(7, 30)
    run = training_cost(VanillaConfig.preset("tiny"), sources, targets, 50 * 13, 4.0, 3, 5e12)
    for name, updates in (("base", 100_000), ("big", 300_000)):
        flops = updates * 1000 * model_flops(VanillaConfig.preset(name), sources[:1], targets[:1])
        seconds = 4.0 * flops / run["analytic_flops"]
        expected = {"analytic_flops": flops, "hours": seconds / 3600, "table_2_flops": seconds * 3 * 5e12}
        assert {figure: run["paper"][name][figure] for figure in expected} == pytest.approx(expected)


def test_rate_of_this_machine():
    """Within a factor of ten of that of one product, timed by hand."""
    a = torch.rand(512, 512)
    start = time.perf_counter()
    for _ in range(20):
        a @ a
    by_hand = 20 * 2 * 512**3 / (time.perf_counter() - start)
    assert by_hand / 10 < measured_rate(torch.device("cpu"), torch.float32) < by_hand * 10


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rate_of_a_gpu(dtype):
    """A rate beyond 10 PFLOP/s would mean that nobody waited for the products."""
    assert 1e11 < measured_rate(torch.device("cuda"), dtype) < 1e16

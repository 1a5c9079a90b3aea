"""Cost: FLOPs against products listed one by one, torch's counter on the real model, and Table 2's own arithmetic."""

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


def products(rows: int, inner: int, columns: int, count: int = 1) -> int:
    return count * 2 * rows * inner * columns


def attention_by_hand(config: VanillaConfig, heads: int, rows: int, source: int, keys: int) -> int:
    """Queries of `rows` positions, keys and values of `source`; a query is compared with `keys` of them."""
    d, k, v = config.d_model, config.d_k, config.d_v
    return (
        products(rows, d, k, heads)  # W^Q
        + products(source, d, k, heads)  # W^K
        + products(source, d, v, heads)  # W^V
        + products(rows, k, keys, heads)  # Q K^T
        + products(rows, keys, v, heads)  # weights times V
        + products(rows, heads * v, d)  # W^O
    )


def forward_by_hand(config: VanillaConfig, s: int, t: int, self_keys=lambda n: n) -> int:
    """Every matrix product of one pair's forward pass: (rows x inner) times (inner x columns), so many times."""
    d, heads, d_ff = config.d_model, config.encoder_attention_heads, config.encoder_ffn_dim
    encoder_layer = attention_by_hand(config, heads, s, s, self_keys(s)) + products(s, d, d_ff) + products(s, d_ff, d)
    heads, d_ff = config.decoder_attention_heads, config.decoder_ffn_dim
    decoder_layer = attention_by_hand(config, heads, t, t, self_keys(t)) + attention_by_hand(config, heads, t, s, s)
    decoder_layer += products(t, d, d_ff) + products(t, d_ff, d)
    layers = config.encoder_layers * encoder_layer + config.decoder_layers * decoder_layer
    return layers + products(t, d, config.vocab_size)


def counted_by_torch(model, s: int, t: int) -> int:
    """What torch counts in one forward and one backward pass over one pair."""
    ids, labels = torch.randint(4, 41, (1, s)), torch.randint(4, 41, (1, t))
    # Torch does not count by itself what is added in place. Its mapping gets shapes.
    in_place = {torch.ops.aten.addmm_: lambda total, a, b, **kwargs: products(*a, b[1])}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        model(input_ids=ids, labels=labels).loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("window", [None, 3])
def test_products_by_hand(make_config, window):
    """A window is of 3 keys, or of as many as a shorter sentence has; attention over the source has none."""
    config = make_config(**ODD, attention_window=window)
    expected = 3 * sum(
        forward_by_hand(config, s, t, self_keys=lambda n: min(window or n, n))
        for s, t in zip(SOURCES.tolist(), TARGETS.tolist(), strict=True)
    )
    assert model_flops(config, SOURCES, TARGETS) == expected


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
    config = make_config(**ODD)
    lengths = np.full(2, 2_000_000_000, np.int32)
    expected = 2 * 3 * forward_by_hand(config, 2_000_000_000, 2_000_000_000)  # Python's integers have no end
    assert model_flops(config, lengths, lengths) == pytest.approx(expected)


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

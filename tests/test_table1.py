"""Table 1 and the figures: what is measured against formulas by hand, and the scripts' answers."""

import itertools
import math

import figures
import measure
import pytest
import table1
import torch
from figures import scaling, softmax_gradient
from helpers import call, read_json, tree
from measure import peak_bytes
from restricted_attention import restricted_attention
from table1 import ROWS, Size, longest_chain, path_length
from torch.utils.flop_counter import FlopCounterMode

from modeling_vanilla.attention_vanilla import SelfAttention
from modeling_vanilla.masks_vanilla import encoder_mask

SMALL = Size(n=12, d=8, k=3, r=4, d_k=4)


@pytest.mark.parametrize(("n", "r"), [(5, 1), (12, 4), (13, 4), (11, 8), (4, 9)])
def test_restricted_attention_is_the_package_s_with_a_window(make_config, n, r):
    """The same layer with the same weights, once by the package's mask over n x n scores, once by blocks."""
    config = make_config(attention_window=r, attn_implementation="eager")
    torch.manual_seed(0)
    layer = SelfAttention(config, num_heads=4, layer_idx=0, is_causal=False)
    x = torch.randn(2, n, config.d_model, requires_grad=True)
    expected = layer(x, encoder_mask(config, x, None))[0]
    seed = torch.randn_like(expected)
    expected_gradient = torch.autograd.grad(expected, x, seed)[0]

    q, k, v = (layer.split_heads(part, x.shape[0]) for part in layer.qkv_proj(x).split(layer.parts, dim=-1))
    output = layer.out_proj(restricted_attention(q, k, v, r).transpose(1, 2).flatten(2))
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(output, x, seed)[0], expected_gradient, rtol=0, atol=1e-5)


def test_restricted_attention_multiplies_in_proportion_to_r_n_d():
    def flops(n: int, r: int, d: int) -> int:
        with FlopCounterMode(display=False) as counter:
            restricted_attention(*[torch.randn(1, 1, n, d)] * 3, r)
        return counter.get_total_flops()

    # Two products of n x (2r - 1) x d, of two FLOPs each.
    for n, r, d in ((64, 8, 16), (512, 8, 16), (64, 8, 32)):
        assert flops(n, r, d) == 2 * 2 * n * (2 * r - 1) * d
    # With a tensor of size n x n, eight times the length would take 64 times the memory.
    peaks = [peak_bytes(lambda n=n: restricted_attention(*[torch.randn(1, 1, n, 16)] * 3, 8)) for n in (8192, 1024)]
    assert peaks[0] < 8.5 * peaks[1]


def test_only_the_recurrent_layer_waits_for_every_position():
    for row in ROWS.values():
        chains = []
        for n in (16, 24, 32):  # below 16 the package's softmax takes another way on a CPU
            x = torch.randn(1, n, SMALL.d, dtype=torch.double, requires_grad=True)
            chains.append(longest_chain(row.layer(SMALL._replace(n=n)).double()(x)))
        if row.sequential == "O(n)":
            assert chains[1] - chains[0] == chains[2] - chains[1] >= 8  # as many operations for each position
        else:
            assert chains[0] == chains[1] == chains[2]


@pytest.mark.parametrize("n", [2, 9, 10])
def test_paths_are_as_long_as_arithmetic_says(n):
    size = SMALL._replace(n=n)
    torch.manual_seed(0)
    convolutions = next(depth for depth in range(1, 9) if 3**depth >= n)
    expected = {"self-attention": 1, "recurrent (LSTM)": n - 1, "convolutional": convolutions}
    expected["self-attention, restricted"] = -(-(n - 1) // 2)
    assert {name: path_length(row, size) for name, row in ROWS.items()} == expected


def test_the_script_leaves_table_and_numbers_or_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "keep_freed_memory", lambda: None)  # it would change the tests that follow
    for name, sizes in {"KERNELS": (2, 3), "WINDOWS": (2, 4), "PATH_LENGTHS": (4, 8)}.items():
        monkeypatch.setattr(table1, name, sizes)
    folder = tmp_path / "out"
    arguments = ("--output_dir", folder, "--rounds", 1, "--lengths", 8, 16, "--widths", 64)
    assert "widths in multiples of 64" in call(table1.main, *arguments, 96).error and not folder.exists()
    assert call(table1.main, *arguments, 128).succeeded
    rows = read_json(folder / "table1.json")["rows"]
    assert rows["self-attention"]["costs"]["n"]["sizes"] == [8, 16]
    assert rows["recurrent (LSTM)"]["steps"] == [3, 7]
    text = (folder / "table1.md").read_text()
    for formula in (formula for row in ROWS.values() for formula in row[2:]):
        assert f"| {formula} |" in text


# The numbers behind the pictures


def test_softmax_gradient_is_the_norm_of_torch_s_jacobian():
    scores = torch.tensor([[0.3, -1.0, 2.0, 0.0], [9.0, -9.0, 0.0, 1.0]], dtype=torch.double)
    jacobians = [torch.autograd.functional.jacobian(lambda row: row.softmax(dim=-1), row) for row in scores]
    assert softmax_gradient(scores).tolist() == pytest.approx([jacobian.norm().item() for jacobian in jacobians])


def test_variance_of_dot_products_grows_with_d_k_and_flattens_the_softmax():
    torch.manual_seed(0)
    numbers = scaling()[1]
    assert numbers["variance_grows_as_d_k_to_the"] == pytest.approx(1, abs=0.02)
    unscaled = [row["unscaled"]["gradient"] for row in numbers["rows"]]
    assert max(unscaled[:2]) > unscaled[2] > unscaled[3]
    for row in numbers["rows"]:
        assert row["unscaled"]["variance"] == pytest.approx(row["d_k"], rel=0.05)
        assert row["scaled"]["variance"] == pytest.approx(1, rel=0.05)
        assert row["scaled"]["gradient"] == pytest.approx(numbers["rows"][0]["scaled"]["gradient"], rel=0.05)


def test_scores_one_by_one():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 5), torch.randn(4, 5), torch.randn(5)
    for i, j in itertools.product(range(2), range(4)):
        torch.testing.assert_close(figures.additive_scores(q, k, v)[i, j], v @ torch.tanh(q[i] + k[j]))
        torch.testing.assert_close(figures.scaled_dot_products(q, k, v)[i, j], q[i] @ k[j] / math.sqrt(5))


def test_the_script_leaves_pictures_and_their_numbers(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "keep_freed_memory", lambda: None)  # it would change the tests that follow
    for name, value in {"D_K": (2, 8), "LENGTHS": (8, 64), "ROUNDS": 1}.items():
        monkeypatch.setattr(figures, name, value)
    assert call(figures.main, "--output_dir", tmp_path).code == 0
    assert {*tree(tmp_path)} == {"figures.json", "additive.png", "scaling.png"}
    costs = read_json(tmp_path / "figures.json")["additive"]["costs"]
    bytes_of = {kind: costs[kind][1]["bytes"] for kind in costs}
    # Additive attention holds tanh(q + k) of every pair, d_k (here 64) numbers of four bytes each.
    assert bytes_of["additive"] > 64 * 64 * 64 * 4 > bytes_of["scaled dot-product"]

"""Table 1: what is measured against formulas by hand, and the script's answers."""

import measure
import pytest
import table1
import torch
from helpers import call, read_json
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

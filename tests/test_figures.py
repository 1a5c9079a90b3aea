"""The numbers behind the pictures, each against its formula by hand, and the script's answers."""

import itertools
import math

import figures
import measure
import pytest
import torch
from figures import scaling, softmax_gradient
from helpers import call, read_json, tree


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

"""The numbers behind the pictures, each against its formula by hand, and the script's answers."""

import itertools
import math

import figures
import measure
import pytest
import torch
from figures import Head, retrieval, scaling, softmax_gradient
from helpers import call, read_json, tree

QUICK = {"D_K": (2, 8), "LENGTHS": (8, 64), "STEPS": 2, "SEEDS": (0,), "ROUNDS": 1}


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


SCORES = {
    "dot-product": lambda q, k, v: q @ k,
    "scaled dot-product": lambda q, k, v: q @ k / math.sqrt(5),
    "additive": lambda q, k, v: v @ torch.tanh(q + k),
}


@pytest.mark.parametrize("kind", figures.KINDS)
def test_scores_one_by_one(kind):
    torch.manual_seed(0)
    head = Head(kind, d_model=3, d_k=5)
    x, keys = torch.randn(1, 2, 3), torch.randn(1, 4, 3)
    for i, j in itertools.product(range(2), range(4)):
        expected = SCORES[kind](head.w_q.weight @ x[0, i], head.w_k.weight @ keys[0, j], head.v)
        torch.testing.assert_close(head(x, keys)[0, i, j], expected)


def test_retrieval_is_learned():
    before, after = (retrieval("scaled dot-product", 16, steps, seed=0) for steps in (1, 150))
    assert after["error"] < 0.5 * before["error"]
    assert before["gradient"] == after["gradient"] > 0  # taken before the first update
    assert retrieval("scaled dot-product", 16, 150, seed=0) == after


def test_the_script_leaves_pictures_and_their_numbers(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "keep_freed_memory", lambda: None)  # it would change the tests that follow
    for name, value in QUICK.items():
        monkeypatch.setattr(figures, name, value)
    assert call(figures.main, "--output_dir", tmp_path).code == 0
    names = {"additive", "scaling"}
    assert {*tree(tmp_path)} == {"figures.json", *(f"{name}.png" for name in names)}
    results = read_json(tmp_path / "figures.json")
    assert names < {*results}
    costs = {(cost["kind"], cost["n"]): cost["bytes"] for cost in results["additive"]["costs"]}
    # Additive attention holds tanh(q + k) of every pair, d_k (here 64) numbers of four bytes each.
    assert costs["additive", 64] > 64 * 64 * 64 * 4 > costs["scaled dot-product", 64]
    assert len(results["additive"]["training"]) == len(figures.KINDS) * 2

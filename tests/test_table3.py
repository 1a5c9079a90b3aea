"""Tables 2 and 3: FLOPs by torch's counter and by hand, what is scaled and judged, and the scripts' answers."""

import json
import re

import pytest
import table2
import table3
import torch
from cost import training_cost
from helpers import as_options, call, read_json, write_toy_corpus
from table3 import ROWS, SCALES, Scale, describe, judge, read_scale, scaled, steps_of
from torch.utils.flop_counter import FlopCounterMode

from modeling_vanilla import VanillaConfig
from modeling_vanilla.configuration_vanilla import PRESETS
from modeling_vanilla.training.flops import model_flops

# Table 2

PAIRS = [(3, 4), (11, 2), (1, 9), (6, 8)]  # tokens of source and target


def sums_of(pairs):
    s, t = torch.tensor(pairs).T
    sums = {"source": s, "target": t, "source_source": s * s, "target_target": t * t, "target_source": s * t}
    return {name: int(lengths.sum()) for name, lengths in sums.items()}


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


RUNS = [("base", 100_000, 12, 3.28e18, 3.3e18), ("big", 300_000, 3.5 * 24, 2.298e19, 2.3e19)]


@pytest.mark.parametrize(("name", "updates", "hours", "expected", "printed"), RUNS)
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


# Table 3


@pytest.mark.parametrize("row", sorted(PRESETS.keys() - {"tiny", "parsing"}))
def test_the_papers_scale_changes_nothing_but_the_vocabulary(row):
    scale = read_scale(SCALES / "paper.json")
    plain, same = VanillaConfig.preset(row), VanillaConfig.preset(row, **scaled(row, scale))
    assert same.to_dict() == plain.to_dict() | {"vocab_size": same.vocab_size}
    assert steps_of(row, scale) == (300_000 if row == "big" else 100_000)


def test_a_scale_keeps_the_proportions_of_the_rows():
    scale = Scale(width=0.25, depth=0.5, steps=0.001, vocab_size=100, training={})
    rows = {row: describe(row, scale) for row in ROWS}
    assert [rows[row]["N"] for row in ("C-N2", "C-N4", "base", "C-N8")] == [1, 2, 3, 4]
    assert [rows[row]["d_model"] for row in ("C-d256", "base", "C-d1024", "big")] == [64, 128, 256, 256]
    assert [rows[row]["d_k"] for row in ("B-dk16", "B-dk32", "base", "A-h1", "A-h32")] == [4, 8, 16, 128, 4]
    assert [rows[row]["d_v"] for row in ("B-dk16", "B-dk32", "base")] == [16, 16, 16]
    assert (rows["base"]["steps"], rows["big"]["steps"]) == (100, 300)
    assert (rows["D-drop0.2"]["P_drop"], rows["D-ls0.2"]["eps_ls"]) == (0.2, 0.2)


def test_orderings_are_judged_by_both_measures():
    perplexity = {"base": 5.0, "C-N8": 4.0, "C-N4": 6.0, "C-N2": 7.0, "A-h1": 4.9}
    bleu = {"base": 25.0, "C-N8": 26.0, "C-N4": 24.0, "C-N2": 24.5, "A-h1": 24.0}
    entries = [{"row": row, "PPL": perplexity[row], "BLEU": bleu[row]} for row in perplexity]
    verdicts = {what.split(" (")[0]: found for what, *found in judge(entries)}
    assert verdicts == {
        "one head is worse": ["does not", "holds", "holds", "holds"],
        "deeper is better": ["holds", "does not", "holds", "does not"],
    }


def test_rows_are_trained_once(own_cache, tmp_path):
    """In a table of two updates a row."""
    data = {**write_toy_corpus(tmp_path, train=300, validation=10, test=10), "test_file": None}
    (tmp_path / "scale.json").write_text(json.dumps(read_json(SCALES / "smoke.json") | {"steps": 2e-5}))
    output = tmp_path / "out"
    arguments = as_options({**data, "scale": tmp_path / "scale.json", "output_dir": output})
    assert call(table3.main, *arguments, "--rows", "base").code == 0
    written = (output / "base/results.json").stat().st_mtime_ns
    assert call(table3.main, *arguments, "--rows", "base", "E-learned").code == 0
    assert (output / "base/results.json").stat().st_mtime_ns == written
    found = read_json(output / "table3.json")
    assert [row["row"] for row in found["rows"]] == ["base", "E-learned"]
    for row in found["rows"]:
        validated = read_json(output / row["row"] / "results.json")["validation"]
        assert (row["PPL"], row["BLEU"]) == (validated["perplexity"], validated["bleu"])
    line = (output / "table3.md").read_text().splitlines()[4].replace("|", ",")
    assert re.fullmatch(r", base , 3 , 32 , 128 , 8 , 4 , 4 , 0.1 , 0.1 , 2 ,.+, 4.92 , 25.8 , 65 ,", line)
    error = call(table3.main, *arguments, "--rows", "base", "--seed", 1).error
    assert error == f"output_dir: {output} holds rows of seed 0, not 1"


def test_table_2_has_runs_below_the_paper(tmp_path):
    results = {"bleu": 12.345, "bleu_compound_split": 13.5, "test_sentences": 7, "device": "cpu", "precision": "no"}
    results["settings"], sums = {"data": {"source_lang": "en", "target_lang": "de"}}, sums_of(PAIRS)
    results |= {"length_sums": sums, "tokens": 10**9, "tokens_per_second": 10**6, "processes": 4}
    (tmp_path / "results.json").write_text(json.dumps(results))
    VanillaConfig().save_pretrained(tmp_path / "model")
    run = ["--runs", tmp_path, "--sustained_tflops", 1]
    assert call(table2.main, *run, "--output_dir", tmp_path / "out").code == 0
    text = (tmp_path / "out/table2.md").read_text()
    assert "| Transformer (big) | 28.4 | 41.8 | 2.3e+19 | 2.3e+19 |" in text
    counted = model_flops(VanillaConfig(), sums) * 10**9 / (sums["source"] + sums["target"])
    assert f"| {tmp_path.name} | en-de | 7 | 12.35 | 13.50 | {counted:.2e} | 4.00e+15 |" in text

"""Tables 2 and 3: FLOPs by torch's counter and by hand, what is scaled and judged, and the scripts' answers."""

import json
import re

import pytest
import table2
import table3
import torch
from helpers import as_options, call, read_json, write_toy_corpus
from table3 import ROWS, SCALES, Scale, describe, judge, read_scale, scaled, steps_of
from torch.utils.flop_counter import FlopCounterMode

from modeling_vanilla import PRESETS, preset_config
from modeling_vanilla.training.results import model_flops

# Table 2

PAIRS = [(3, 4), (11, 2), (1, 9), (6, 8)]  # tokens of source and target


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
    counted = [counted_by_torch(model, *pair) for pair in PAIRS]
    assert model_flops(model.config, *torch.tensor(PAIRS).T).tolist() == counted


# Table 3


@pytest.mark.parametrize("row", sorted(PRESETS.keys() - {"tiny", "parsing"}))
def test_the_papers_scale_changes_nothing_but_the_vocabulary(row):
    scale = read_scale(SCALES / "paper.json")
    plain, same = preset_config(row), preset_config(row, **scaled(row, scale))
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
    perplexity = {"base": 5.0, "C-N8": 4.0, "C-N4": 6.0, "C-N2": 7.0, "A-h1": 4.9, "A-h32": 4.99, "D-drop0.0": 5.06}
    bleu = {"base": 25.0, "C-N8": 26.0, "C-N4": 24.0, "C-N2": 24.6, "A-h1": 24.0, "A-h32": 25.1, "D-drop0.0": 24.6}
    entries = [{"row": row, "PPL": perplexity[row], "BLEU": bleu[row]} for row in perplexity]
    verdicts = {what.split(" (")[0]: found for what, *found in judge(entries)}
    assert verdicts == {
        "one head is worse": ["does not", "holds", "holds", "holds"],
        "too many heads are worse": ["too close", "too close", "holds", "holds"],
        "dropout helps": ["holds", "too close", "holds", "holds"],
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
    results["settings"] = {"data": {"source_lang": "en", "target_lang": "de"}}
    results |= {"flops": 1.234e15, "train_seconds": 1000.0, "processes": 4}
    (tmp_path / "results.json").write_text(json.dumps(results))
    run = ["--runs", tmp_path, "--sustained_tflops", 1]
    assert call(table2.main, *run, "--output_dir", tmp_path / "out").code == 0
    text = (tmp_path / "out/table2.md").read_text()
    assert "| Transformer (big) | 28.4 | 41.8 | 2.3e+19 | 2.3e+19 |" in text
    assert f"| {tmp_path.name} | en-de | 7 | 12.35 | 13.50 | 1.23e+15 | 4.00e+15 |" in text

"""The peer of `vanilla train`, MarianMT by Seq2SeqTrainer, for two steps, and the picture of its scores."""

import pytest
from helpers import ROOT, as_options, make_tokenizer, read_json, run_python
from toy_corpus import toy_corpus, write_corpus

ORDER = f"""
import sys
sys.path.insert(0, {str(ROOT / "benchmarks")!r})
from seq2seq_trainer import PeerArguments, Trainer, common

rows = [dict(input_ids=[5] * length, labels=[6] * length) for length in (1, 4, 2, 5, 3)]
arguments = PeerArguments("run", tokenizer="", use_cpu=True, eval_strategy="no", per_device_eval_batch_size=1)
model = common.random_marian(16, 1, 2, 16, 20)
trainer = Trainer(model, arguments, train_dataset=rows, data_collator=lambda batch: batch[0])
print(*(len(batch["labels"]) for batch in trainer.get_test_dataloader(rows)))
"""


@pytest.mark.slow
def test_the_peer_trains_on_the_same_pairs(tmp_path):
    corpus = toy_corpus(64, 4, 6)
    files = zip(("train_file", "validation_file", "test_file"), write_corpus(corpus, tmp_path), strict=True)
    tokenizer = make_tokenizer(["A dog runs.", "Ein Hund rennt."])
    tokenizer.save_pretrained(tmp_path / "vocabulary")
    options = {**dict(files), "tokenizer": tmp_path / "vocabulary", "output_dir": tmp_path / "run"}
    options |= {"max_steps": 2, "eval_steps": 1, "generation_max_length": 8, "per_device_train_batch_size": 32}
    assert run_python(ROOT / "benchmarks/seq2seq_trainer.py", *as_options(options), cwd=tmp_path).succeeded
    first, last = read_json(tmp_path / "run/validation.json")["validations"]
    assert (first["step"], last["step"]) == (1, 2)
    assert 0 < first["seconds"] < last["seconds"]
    assert last["tokens"] == sum(len(tokenizer(text)["input_ids"]) for pair in corpus["train"] for text in pair)
    assert len((tmp_path / "run/test.txt").read_text(encoding="utf-8").split("\n")) == 6 + 1
    drawn = run_python(ROOT / "benchmarks/draw_bleu.py", "bleu.png", "run", cwd=tmp_path)
    assert [row.split(" | ")[0] for row in drawn.succeeded.output.splitlines()] == ["| run", "| ---", "| run", "| run"]
    assert (tmp_path / "bleu.png").stat().st_size


def test_the_peer_translates_in_the_order_of_the_data(tmp_path):
    (tmp_path / "order.py").write_text(ORDER, encoding="utf-8")
    assert run_python(tmp_path / "order.py", cwd=tmp_path).succeeded.output.split() == list("14253")

"""The steps of datatrove's pipelines, and the example that runs them: after kills, too, the same files as without."""

import sys
from collections import Counter

import many_machines
import pytest
from datasets import Dataset, DatasetDict
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.writers import JsonlWriter
from helpers import add_noise, call, make_tiny, save_folder, tree
from test_checks import FAULTY, GOOD, good_pairs

from modeling_vanilla import Translator
from modeling_vanilla.cluster import DocumentTranslator, PairFilter, split_documents
from modeling_vanilla.corpus.checks import find_faults


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    model = add_noise(make_tiny(len(tokenizer)), scale=1.0)
    return save_folder(tmp_path_factory.mktemp("cluster") / "model", model, tokenizer)


def documents(pairs):
    return [Document(source, str(row), metadata={"de": target}) for row, (source, target) in enumerate(pairs)]


def totals(step) -> dict[str, float]:
    return {name: stat.total for name, stat in step.stats.stats.items()}


def test_documents_come_out_in_order_with_their_translation(folder):
    """Of two batches, of which one document has two lines and one is blank."""
    texts = ["a dog", "the old man sees a cat", "a cat\nthe dog", " ", "a dog", "cat"]
    step = DocumentTranslator(str(folder), key="de", batch_size=4, with_scores=True, num_beams=2)
    found = [*step(Document(text, str(row), metadata={"own": row}) for row, text in enumerate(texts))]
    best = [each[0] for each in Translator.from_pretrained(folder).nbest(texts, 1, num_beams=2)]
    assert [document.text for document in found] == texts
    for row, (document, one) in enumerate(zip(found, best, strict=True)):
        score = pytest.approx(one.score, abs=1e-5)
        assert document.metadata == {"own": row, "de": one.text, "score": score}
    assert totals(step)["total"] == len(texts) and step.stats.time_stats.n == 2


def test_a_worker_loads_once(folder, monkeypatch):
    loaded, load = [], Translator.from_pretrained
    monkeypatch.setattr(Translator, "from_pretrained", lambda *given, **more: loaded.append(1) or load(*given, **more))
    for _ in range(2):
        assert [*DocumentTranslator(str(folder), "de", model_kwargs={"device": "cpu"})(documents(GOOD[:1]))]
    assert loaded == [1]


def test_sentences_become_documents():
    text = "Er kommt z. B. um 8 Uhr. Sie geht.\n\nEin Hund?"
    found = split_documents("de", [Document(text, "a", metadata={"own": 1})])
    expected = ["Er kommt z. B. um 8 Uhr.", "Sie geht.", "Ein Hund?"]
    assert [*found] == [Document(each, f"a/{row}", metadata={"own": 1}) for row, each in enumerate(expected)]


def test_the_filter_drops_and_counts_what_the_check_finds(tmp_path):
    pairs = [*GOOD, *(pair for pair, _ in FAULTY), ("A dog.", None)]
    rows = Dataset.from_list([{"source": source, "target": target or ""} for source, target in pairs])
    faults = find_faults(DatasetDict(train=rows))["train"]
    bad = Counter(row for found in faults.values() for row in found.tolist())
    step = PairFilter("de", JsonlWriter(str(tmp_path), compression=None))
    assert [document.id for document in step(documents(pairs))] == [
        str(row) for row in range(len(pairs)) if row not in bad
    ]
    counts = totals(step)
    assert {fault: counts[fault] for fault in faults} == {fault: len(found) for fault, found in faults.items()}
    assert (counts["total"], counts["dropped"]) == (len(pairs), len(bad))
    assert '"filter_reason":"script language"' in (tmp_path / "00000.jsonl").read_text()


def test_later_batches_are_judged_by_the_first():
    russian = ("Это предложение.", "Das ist ein Satz.")
    step = PairFilter("de", batch_size=len(GOOD))
    assert [document.id for document in step(documents([*GOOD, russian]))] == [str(row) for row in range(len(GOOD))]
    assert len([*step(documents([russian]))]) == 1  # another task


def test_a_job_that_is_ended_goes_on(folder, tmp_path, monkeypatch):
    """It ends before the second task is marked as done; the first one is not done again. Each keeps some pairs."""
    for row in range(3):
        texts = [f"{source} {source}" for source, _ in good_pairs(range(100 + 300 * row, 400 + 300 * row))]
        Dataset.from_dict({"id": [*map(str, range(300))], "text": texts}).to_parquet(tmp_path / f"mono/{row}.parquet")
    ended, whole = tmp_path / "ended", tmp_path / "whole"
    first, mark = ended / "000_00000.parquet", LocalPipelineExecutor.mark_rank_as_completed

    def run(output):
        more = ["--model", folder, "--source", "en", "--target", "de", "--tasks", 3, "--workers", 1]
        return call(many_machines.main, tmp_path / "mono", output, *more).code

    with monkeypatch.context() as patched:
        ends = lambda executor, rank: sys.exit(9) if rank else mark(executor, rank)  # noqa: E731
        patched.setattr(LocalPipelineExecutor, "mark_rank_as_completed", ends)
        assert run(ended) == 9
    before = first.stat().st_mtime_ns
    assert run(ended) == run(whole) == 0
    assert first.stat().st_mtime_ns == before
    assert tree(ended) == tree(whole) and len(tree(whole)) == 3

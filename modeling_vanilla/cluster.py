"""Steps for pipelines of datatrove, which run on one machine, on Slurm and on Ray: sentences, translation, check.

A document is a source, with its translation in the metadata, where a reader of two columns puts it. Each task of a
pipeline has its own files; datatrove marks it as completed, and skips it when the pipeline is started again.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain

import pandas as pd
import torch
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.filters.base_filter import BaseFilter
from datatrove.pipeline.writers.disk_base import DiskWriter
from datatrove.utils.batching import batched
from datatrove.utils.typeshelper import StatHints

from .corpus.checks import faults_of, properties_of
from .inference import Translator
from .splitting_vanilla import split_sentences


def split_documents(language: str, data: Iterable[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
    """Make of each document as many as it has sentences; `id` becomes `id/number`. partial(split_documents, "de") is a
    step, by the rules of German.
    """
    for document in data:
        lines = filter(str.strip, document.text.splitlines())
        sentences = chain.from_iterable(split_sentences(line, language) for line in lines)
        for number, sentence in enumerate(sentences):
            yield Document(sentence.strip(), f"{document.id}/{number}", metadata=dict(document.metadata))


class DocumentTranslator(PipelineStep):
    """Translate the text of each document, line by line, to `metadata[key]`.

    A worker loads the model once, whatever the number of its tasks. Of several GPUs that it sees, the engine
    ctranslate2 takes all, the engine torch the one that its task's number chooses.

    Args:
        model: a folder, or a name on the Hub. model_kwargs: of Translator.from_pretrained, such as
            {"engine": "ctranslate2", "quantization": "int8"}.
        key: field of the metadata for the translation.
        batch_size: documents that are read, sorted by length and translated together.
        options: of Translator.translations. with_scores=True also writes metadata["score"].
    """

    type = "🌍 - TRANSLATOR"
    name = "🍦 Vanilla"

    def __init__(self, model: str, key: str, batch_size: int = 10_000, model_kwargs: dict | None = None, **options):
        super().__init__()
        self.model, self.model_kwargs, self.options = model, model_kwargs or {}, options
        self.key, self.batch_size = key, batch_size

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        kwargs, gpus = dict(self.model_kwargs), torch.cuda.device_count()
        if gpus > 1 and kwargs.get("engine") != "ctranslate2":
            kwargs.setdefault("device", f"cuda:{rank % gpus}")
        translator = _load(self.model, *kwargs.items())
        for documents in batched(data, self.batch_size):
            with self.track_time("batch"):
                texts = [document.text for document in documents]
                for rows, found in translator.translations(texts, **self.options):
                    for row, translation in zip(rows, found, strict=True):
                        best, metadata = translation.hypotheses[0], documents[row].metadata
                        metadata[self.key] = best.text
                        if self.options.get("with_scores"):
                            metadata["score"] = best.score
            self.stat_update(StatHints.total, value=len(documents), unit="batch")
            yield from documents


@lru_cache(maxsize=1)
def _load(model: str, *kwargs: tuple) -> Translator:
    return Translator.from_pretrained(model, **dict(kwargs))


class PairFilter(BaseFilter):
    """Drop the documents that `vanilla check` finds fault with, as pairs of their text and `metadata[key]`.

    The statistics count the documents with each fault, and metadata["filter_reason"] names the faults of one. Lengths,
    scripts and languages are judged by the task's first batch: it should be a fair sample, in languages and in kind.
    Duplicates and near-duplicates are found within a batch alone, and no other data are looked at: for duplicates of a
    whole corpus there is datatrove.pipeline.dedup; for sentences of the test data, `vanilla check` afterwards.

    Args:
        exclusion_writer: of datatrove, writes what is dropped.
    """

    name = "🍦 Vanilla check"

    def __init__(self, key: str, exclusion_writer: DiskWriter | None = None, batch_size: int = 10_000):
        super().__init__(exclusion_writer, batch_size)
        self.key = key
        self.usual: pd.DataFrame | None = None  # the properties of the first batch

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        self.usual = None  # with tasks_per_job, Slurm runs several tasks by one object
        yield from super().run(data, rank, world_size)

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        return self.filter_batch([doc])[0]

    def filter_batch(self, batch: list[Document]) -> list[bool | tuple[bool, str]]:
        pairs = [(document.text, document.metadata[self.key] or "") for document in batch]
        properties = properties_of(pd.DataFrame(pairs, columns=["source", "target"], dtype=object))
        self.usual = properties if self.usual is None else self.usual
        reasons: list[list[str]] = [[] for _ in batch]
        for fault, rows in faults_of(properties, self.usual, properties[:0]).items():
            self.stat_update(fault, value=len(rows), unit="batch")
            for row in rows:
                reasons[row].append(fault)
        return [(False, " ".join(faults)) if faults else True for faults in reasons]

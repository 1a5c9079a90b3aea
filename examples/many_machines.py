"""Translate a Parquet data set, or clean a parallel one, on this machine, on Slurm or on Ray.

    python examples/many_machines.py mono pairs --model runs/backward/model --source de --target en
    python examples/many_machines.py s3://bucket/pairs s3://bucket/clean --source en --target de \\
        --executor slurm --settings '{"partition": "gpu", "time": "08:00:00"}'

Folders are paths or URLs of fsspec, such as s3:// and hf://. With --model, the column --text is cut into sentences,
which are translated, and the pairs written as columns that are named as the languages. Without, the data set has these
columns. Either way only pairs without a fault are written. Copy this file, and change what your cluster has otherwise.
"""

import json
from argparse import ArgumentParser, Namespace
from functools import partial

from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor, SlurmPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter

from modeling_vanilla.cluster import DocumentTranslator, PairFilter, split_documents

EXECUTORS = {"local": LocalPipelineExecutor, "slurm": SlurmPipelineExecutor, "ray": RayPipelineExecutor}


def as_pair(writer, document, source: str, target: str) -> dict[str, str]:
    return {"id": document.id, source: document.text, target: document.metadata[target]}


def steps_of(options: Namespace) -> list:
    source, target = options.source, options.target
    steps: list = [ParquetReader(options.input, text_key=options.text if options.model else source)]
    if options.model:
        engine = {"engine": "ctranslate2", "quantization": options.quantization}
        steps += [partial(split_documents, source), DocumentTranslator(options.model, key=target, model_kwargs=engine)]
    writer = ParquetWriter(options.output, adapter=partial(as_pair, source=source, target=target))  # type: ignore
    return [*steps, PairFilter(target), writer]


def main() -> None:
    parser = ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("input", help="folder of Parquet files")
    add("output", help="folder for the pairs, a file of each task; OUTPUT-logs has logs, statistics and marks")
    add("--model", help="folder of a model, or its name on the Hub")
    add("--quantization", help="such as int8")
    add("--source", required=True, help="language of the text")
    add("--target", required=True, help="language of its translation")
    add("--text", default="text", help="column of the text to translate")
    add("--tasks", type=int, default=2, help="at most as many as there are files")
    add("--workers", type=int, default=-1, help="tasks at the same time")
    add("--executor", choices=EXECUTORS, default="local")
    add("--settings", type=json.loads, default={}, metavar="JSON", help="further arguments of the executor")
    options = parser.parse_args()
    given = {"tasks": options.tasks, "workers": options.workers, "logging_dir": f"{options.output}-logs"}
    EXECUTORS[options.executor](steps_of(options), **{**given, **options.settings}).run()


if __name__ == "__main__":
    main()

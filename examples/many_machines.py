"""Translate a Parquet data set, or clean a parallel one, on this machine, on Slurm or on Ray.

    python examples/many_machines.py mono pairs --model runs/backward/model --source de --target en
    python examples/many_machines.py s3://bucket/pairs s3://bucket/clean --source en --target de --executor slurm

Folders are paths or URLs of fsspec, such as s3:// and hf://. With --model, the column --text is cut into sentences,
which are translated, and the pairs written as columns that are named as the languages. Without, the data set has these
columns. Either way only pairs without a fault are written. Copy this file, and change what your cluster has otherwise.
"""

from argparse import ArgumentParser, Namespace
from functools import partial

from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor, SlurmPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter

from modeling_vanilla.cluster import DocumentTranslator, PairFilter, SentenceSplitter


def as_pair(writer, document, source: str, target: str) -> dict[str, str]:
    return {"id": document.id, source: document.text, target: document.metadata[target]}


def steps_of(options: Namespace) -> list:
    source, target = options.source, options.target
    steps: list = [ParquetReader(options.input, text_key=options.text if options.model else source)]
    if options.model:
        engine = {"engine": "ctranslate2", "quantization": options.quantization}
        steps += [SentenceSplitter(source), DocumentTranslator(options.model, key=target, model_kwargs=engine)]
    writer = ParquetWriter(options.output, adapter=partial(as_pair, source=source, target=target))  # type: ignore
    return [*steps, PairFilter(target), writer]


def executor_of(options: Namespace):
    given = {"pipeline": steps_of(options), "tasks": options.tasks, "workers": options.workers}
    given["logging_dir"] = options.logs or f"{options.output}-logs"
    if options.executor == "local":
        return LocalPipelineExecutor(**given)
    given |= {"cpus_per_task": options.cpus, "mem_per_cpu_gb": 4, "gpus_per_task": options.gpus}
    if options.executor == "ray":
        return RayPipelineExecutor(**given)
    start = f"source {options.venv}/bin/activate; export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK"
    return SlurmPipelineExecutor(**given, time=options.time, partition=options.partition, qos=None, env_command=start)


def main() -> None:
    parser = ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("input", help="folder of Parquet files")
    add("output", help="folder for the pairs, a file of each task")
    add("--model", help="folder of a model, or its name on the Hub")
    add("--quantization", help="such as int8")
    add("--source", required=True, help="language of the text")
    add("--target", required=True, help="language of its translation")
    add("--text", default="text", help="column of the text to translate")
    add("--executor", choices=("local", "slurm", "ray"), default="local")
    add("--tasks", type=int, default=2, help="at most as many as there are files")
    add("--workers", type=int, default=-1, help="tasks at the same time")
    add("--logs", help="folder of the logs, statistics and marks (default: beside the output)")
    add("--cpus", type=int, default=1, help="of a task, on slurm and ray")
    add("--gpus", type=int, default=0, help="of a task, on slurm and ray")
    add("--time", default="24:00:00", help="of a task, on slurm")
    add("--partition", default="normal", help="of slurm")
    add("--venv", default=".venv", help="environment of Python, on slurm")
    executor_of(parser.parse_args()).run()


if __name__ == "__main__":
    main()

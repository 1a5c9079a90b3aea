"""Text to text by each engine of a model folder, beside bare CTranslate2 and MarianMT on the same weights.

    python benchmarks/engine.py runs/mine/model --source test.en --reference test.de
    python benchmarks/engine.py runs/mine/model --source test.en --sentences 200 --one   # one sentence at a time

Beam 4 and alpha 0.6, two threads; the start is not counted. "ours" is Translator.translate by
either engine. "bare" is a plain script around ctranslate2.Translator: it tokenises, gives the whole list to one call of
translate_batch(), with a translator on each core, and decodes the best; each of --batches is tried, in examples or
tokens, and the fastest counts. MarianMT is generate() of transformers, 64 sentences of similar length at once. Each
engine runs in a process of its own; they take turns, and the first round is not counted. "equal" is the share of
translations that are those of the engine torch.
"""

import os
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path

import common
import torch
from decode import torch_engine
from transformers import AutoTokenizer, MarianMTModel

from modeling_vanilla import Translator
from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import read_lines
from modeling_vanilla.interop.folders import export

ENGINES = ["ours torch", "ours float32", "ours int8", "bare float32", "bare int8", "MarianMT"]
BATCHES = ["16 examples", "32 examples", "64 examples", "512 tokens", "1024 tokens", "2048 tokens"]


def ours(options: Namespace, lines: list[str], kind: str) -> Callable:
    engine = {} if kind == "torch" else {"engine": "ctranslate2", "quantization": kind}
    translator = Translator.from_pretrained(options.model, device="cpu", **engine)
    if options.one:
        return lambda: [translator.translate([line])[0] for line in lines]
    return lambda: translator.translate(lines)


def bare(options: Namespace, lines: list[str], kind: str, batches: str) -> Callable:
    import ctranslate2

    with tempfile.TemporaryDirectory() as folder:
        export("ctranslate2", options.model, Path(folder, "ct2"))
        threads = {"inter_threads": options.threads, "intra_threads": 1}
        translator = ctranslate2.Translator(f"{folder}/ct2", compute_type=kind, **threads)
        tokenizer = AutoTokenizer.from_pretrained(f"{folder}/ct2")
    size, unit = batches.split()

    def run(texts: list[str]) -> list[str]:
        sources = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(texts).input_ids]
        settings = {"max_batch_size": int(size), "batch_type": unit, "beam_size": 4, "length_penalty": 0.6}
        found = translator.translate_batch(sources, max_decoding_length=max(map(len, sources)) + 50, **settings)
        ids = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in found]
        return tokenizer.batch_decode(ids, skip_special_tokens=True)

    return lambda: list(chain.from_iterable(map(run, [[line] for line in lines] if options.one else [lines])))


def marian(options: Namespace, lines: list[str]) -> Callable:
    with tempfile.TemporaryDirectory() as folder:
        export("marian", options.model, Path(folder, "marian"))
        model = MarianMTModel.from_pretrained(f"{folder}/marian").eval()
        tokenizer = AutoTokenizer.from_pretrained(f"{folder}/marian")
    options = Namespace(**vars(options), beams=4, device="cpu", batch_size=1 if options.one else 64)

    def run() -> list[str]:
        search = torch_engine(model, "fp32", tokenizer(lines).input_ids, options)
        return tokenizer.batch_decode(search(), skip_special_tokens=True)

    return run


def make_engine(engine: str, options: Namespace, batches: str = "") -> Callable:
    torch.set_num_threads(options.threads)
    lines = list(islice(read_lines(options.source), options.sentences))
    name, _, kind = engine.partition(" ")
    if name == "bare":
        run = bare(options, lines, kind, batches)
    else:
        run = marian(options, lines) if name == "MarianMT" else ours(options, lines, kind)
    return lambda: common.timed(run)


def main(options: Namespace) -> None:
    # CTranslate2's threads would wait beside those of torch, which only converts for it.
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    engines = {}
    for name in options.engines:
        tried = options.batches if name.startswith("bare") and not options.one else options.batches[:1]
        for batches in tried:
            label = f"{name}, {batches}" if len(tried) > 1 else name
            engines[label] = common.in_own_process(make_engine, name, options, batches)
    measured = common.take_turns(engines, options.rounds)
    outputs = {name: rounds[-1][1] for name, rounds in measured.items()}
    exact = outputs.get("ours torch", next(iter(outputs.values())))
    best = min((name for name in measured if name.startswith("bare float32")), key=lambda name: median(measured[name]))
    rows = []
    for name, rounds in measured.items():
        times = [seconds for seconds, _ in rounds]
        rates = [len(exact) / seconds for seconds in times]
        equal = sum(map(str.__eq__, outputs[name], exact)) / len(exact)
        ratio = common.median_ratio([seconds for seconds, _ in measured[best]], times)
        bleu = common.bleu(outputs[name], options)
        milliseconds = f"{1000 * statistics.median(times) / len(exact):.2f}"
        rows.append((name, common.with_range(rates, 1), milliseconds, f"{ratio:.2f}", f"{100 * equal:.1f}%", bleu))
    print(common.machine())
    columns = ("", "sentences/s (range)", "ms a sentence", f"times {best}", "equal", "BLEU")
    print(common.table(columns, rows))


def median(rounds: list[tuple]) -> float:
    return statistics.median(seconds for seconds, _ in rounds)


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("model", help="a model folder")
    parser.add_argument("--source", required=True, help="a sentence a line, .gz or not")
    common.add_translation_options(parser, sentences=10_000)
    parser.add_argument("--one", action="store_true", help="one sentence at a time")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES, help="what to measure")
    parser.add_argument("--batches", nargs="+", default=BATCHES, help="of bare CTranslate2, such as '64 examples'")
    run_command(parser, main)

"""Export a model to CTranslate2 (pip install ctranslate2), to MarianMT, or to ONNX or transformers.js (pip install onnx
onnxruntime onnxscript).

    vanilla export --to ctranslate2 runs/mine/model runs/mine/ct2 --quantization int8
    vanilla export --to onnx runs/mine/model runs/mine/onnx
    vanilla export --to marian runs/mine/model runs/mine/marian
    vanilla export --to transformers.js runs/mine/model runs/mine/js

SRC is a model folder with its tokenizer, or their name on the Hub. DST, which must be new or empty, appears only once
it is complete; it holds the tokenizer too.

CTranslate2 has weights of 32-bit floats or of 8-bit integers, and needs no more of this package:

    import ctranslate2
    from transformers import AutoTokenizer

    tokenizer, translator = AutoTokenizer.from_pretrained("runs/mine/ct2"), ctranslate2.Translator("runs/mine/ct2")
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("A sentence.").input_ids)
    best = translator.translate_batch([tokens], beam_size=4, length_penalty=0.6)[0].hypotheses[0]
    tokenizer.decode(tokenizer.convert_tokens_to_ids(best), skip_special_tokens=True)

It divides log P by length^length_penalty; with a beam of 1 its search and this package's are the same.

ONNX writes encoder.onnx and decoder.onnx, a decoder with its cache; the docstring of modeling_vanilla.interop.to_onnx
gives their inputs and outputs.

MarianMT's folder is loaded by AutoModelForSeq2SeqLM and AutoTokenizer of transformers, without this package and without
trust_remote_code. The search there is that of transformers; the command names each setting that it lacks.

transformers.js runs in Node and in a browser. Its folder has weights of 32 bits and of 8 (dtype "q8"):

    import { env, pipeline } from "@huggingface/transformers";

    env.localModelPath = "runs/mine";
    const translator = await pipeline("translation", "js", { dtype: "q8" });
    await translator("A sentence.");

It takes the most probable token at each step. Give it one sentence at a time: it continues the finished sentences of a
batch until the last is finished.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from ..interop.folders import FORMATS, export
from .parser import CommandParser, add_revision, run_command, warn


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("--to", choices=FORMATS, required=True, help="the format to write")
    parser.add_argument("source", metavar="SRC", help="a model folder, or its name on the Hub")
    parser.add_argument("destination", metavar="DST", type=Path, help="the folder to write, which must be new or empty")
    parser.add_argument("--quantization", metavar="NAME", help='of ctranslate2, such as "int8" (default: float32)')
    add_revision(parser)
    run_command(parser, export_folder, arguments)


def export_folder(options: Namespace) -> None:
    given = {"quantization": options.quantization} if options.quantization else {}
    if given and options.to != "ctranslate2":
        raise ValueError(f"--quantization is no option of --to {options.to}")
    for line in export(options.to, options.source, options.destination, options.revision, **given):
        warn(line)
    print(f"{options.destination} is written")

"""int8 weights beside 32-bit ones on a CPU: BLEU, changed translations, speed and size of one trained model.

    python benchmarks/quantized.py runs/mine/model test.en test.de
    python benchmarks/quantized.py path/to/opus-mt-en-de test.en test.de

The test text is translated by the model's own search in every form, in turn in one process; the speed is the best of
the rounds, of which the first is not counted, and of all threads that OMP_NUM_THREADS allows. Size: the weights in
memory. Forms whose library is not installed are left out.
"""

import copy
import io
import warnings
from argparse import Namespace
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from common import add_bleu_tokenize, load, take_turns, timed
from torch import nn

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import read_lines
from modeling_vanilla.inference import translate
from modeling_vanilla.inference.quantization import quantize
from modeling_vanilla.training.metrics import translation_scores


def by_torch(model):
    """torch's own: int8 weights, and activations rounded to 8 bits as they come."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has moved to torchao, which has no such kernel for a CPU
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def by_torchao(model, name: str):
    from torchao import quantization

    quantization.quantize_(model, getattr(quantization, name)())
    return model


def by_ours(model):
    quantize(model)
    return model


FORMS = {
    "float32": lambda model: model,
    "bfloat16": lambda model: model.to(torch.bfloat16),
    "int8, ours": by_ours,
    "int8 weights, torchao": lambda model: by_torchao(model, "Int8WeightOnlyConfig"),
    "int8 weights and activations, torchao": lambda model: by_torchao(model, "Int8DynamicActivationInt8WeightConfig"),
    "int8 weights and activations, torch.ao": by_torch,
}


def megabytes(model) -> float:
    """Of the weights, as saved: what a packed kernel holds counts, and a shared matrix counts once."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell() / 1e6


def measure(options: Namespace) -> None:
    """Print a row for each form: its BLEU, sentences a second and megabytes."""
    model, tokenizer = load(options.model)
    sources, references = (
        list(islice(read_lines(path), options.sentences)) for path in (options.source, options.reference)
    )
    forms = {}
    for name, make in FORMS.items():
        try:
            forms[name] = make(copy.deepcopy(model.eval()))
        except ImportError as error:
            print(f"{name}: left out, as there is no {error.name}")
    print(f"{len(sources)} sentences, {torch.get_num_threads()} threads, torch {torch.__version__}")
    turns = {name: partial(timed, partial(translate, form, tokenizer, sources)) for name, form in forms.items()}
    first = None
    for name, measured in take_turns(turns, options.rounds).items():
        speed = len(sources) / min(seconds for seconds, _ in measured)
        scores = translation_scores(measured[-1][1], references, options.bleu_tokenize)
        first = first or (scores["bleu"], speed, measured[-1][1])
        changed = sum(map(str.__ne__, measured[-1][1], first[2])) / len(sources)
        quality = f"BLEU {scores['bleu']:.2f} ({scores['bleu'] - first[0]:+.2f}), {changed:.1%} changed"
        print(
            f"{name:40} {quality}  {speed:7.1f} sentences/s ({speed / first[1]:.2f} x)  {megabytes(forms[name]):.1f} MB"
        )
    print(scores["bleu_signature"])


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("model", type=Path, help="folder of a model and its tokenizer, this package's or MarianMT's")
    parser.add_argument("source", type=Path, help="sentences to translate, one a line, plain or .gz")
    parser.add_argument("reference", type=Path, help="their translations")
    add_bleu_tokenize(parser)
    parser.add_argument("--sentences", type=int, help="take the first so many (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count")
    run_command(parser, measure)

"""int8 weights beside 32-bit ones on a CPU: BLEU, speed and size of one trained model.

    python benchmarks/quantized.py runs/mine/model test.en test.de
    python benchmarks/quantized.py path/to/opus-mt-en-de test.en test.de --from_marian

The test text is translated by the model's own search in every form, in turn in one process; the speed is the best of
the rounds, and of all threads that OMP_NUM_THREADS allows. Size: the weights in memory. Forms whose library is not
installed are left out.
"""

import argparse
import copy
import io
import time
import warnings
from pathlib import Path

import torch
from torch import nn

from modeling_vanilla.errors import one_line_errors
from modeling_vanilla.files import read_lines
from modeling_vanilla.inference import load_translator, translate
from modeling_vanilla.interop import from_marian, marian_tokenizer
from modeling_vanilla.training.metrics import translation_scores


def dynamic(model):
    """torch's own: int8 weights, and activations rounded to 8 bits as they come."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has moved to torchao, which has no such kernel for a CPU
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)


def by_torchao(model, name: str):
    from torchao import quantization

    model = copy.deepcopy(model)
    quantization.quantize_(model, getattr(quantization, name)())
    return model


FORMS = {
    "float32": lambda model: model,
    "bfloat16": lambda model: copy.deepcopy(model).to(torch.bfloat16),
    "int8 weights, torchao": lambda model: by_torchao(model, "Int8WeightOnlyConfig"),
    "int8 weights and activations, torchao": lambda model: by_torchao(model, "Int8DynamicActivationInt8WeightConfig"),
    "int8 weights and activations, torch.ao": dynamic,
}


def megabytes(model) -> float:
    """Of the weights, as saved: what a packed kernel holds counts, and a shared matrix counts once."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell() / 1e6


def measure(model, tokenizer, sources: list[str], references: list[str], rounds: int) -> list[dict]:
    """One row for each form: its BLEU, sentences a second and megabytes."""
    forms = {}
    for name, make in FORMS.items():
        try:
            forms[name] = make(model)
        except ImportError as error:
            print(f"{name}: left out, as there is no {error.name}")
    rows = {name: {"form": name, "speed": 0.0, "megabytes": megabytes(form)} for name, form in forms.items()}
    for _ in range(rounds):
        for name, form in forms.items():
            start = time.perf_counter()
            translations = translate(form, tokenizer, sources)
            rows[name]["speed"] = max(rows[name]["speed"], len(sources) / (time.perf_counter() - start))
            scores = translation_scores(translations, references, tokenize="none")
            rows[name] |= {"bleu": scores["bleu"], "signature": scores["bleu_signature"]}
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of a model and its tokenizer")
    parser.add_argument("source", type=Path, help="sentences to translate, one a line, plain or .gz")
    parser.add_argument("reference", type=Path, help="their translations, tokenised as the model's are")
    parser.add_argument("--from_marian", action="store_true", help="the folder is of a MarianMT model")
    parser.add_argument("--sentences", type=int, help="take the first so many (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    options = parser.parse_args()
    with one_line_errors():
        if options.from_marian:
            model, tokenizer = from_marian(options.model).eval(), marian_tokenizer(options.model)
        else:
            model, tokenizer = load_translator([options.model])
        sources, references = (
            list(read_lines(path))[: options.sentences] for path in (options.source, options.reference)
        )
        rows = measure(model, tokenizer, sources, references, options.rounds)
    print(f"{len(sources)} sentences, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for row in rows:
        change, ratio = row["bleu"] - rows[0]["bleu"], row["speed"] / rows[0]["speed"]
        quality, speed = f"BLEU {row['bleu']:.2f} ({change:+.2f})", f"{row['speed']:7.1f} sentences/s ({ratio:.2f} x)"
        print(f"{row['form']:40} {quality}  {speed}  {row['megabytes']:.1f} MB")
    print(rows[0]["signature"])


if __name__ == "__main__":
    main()

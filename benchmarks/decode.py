"""Beam search of this model beside MarianMT and CTranslate2 on the same weights: sentences and tokens a second.

    python benchmarks/decode.py --model FOLDER --source test.en --reference test.de   # a trained MarianMT
    python benchmarks/decode.py --dims base --batch_size 32                           # random weights, 24 tokens each
    python benchmarks/decode.py --model FOLDER --source test.en --batch_size 1        # one sentence at a time

Beam 4 (or --beams), a length penalty of 0.6 by the formula of transformers for all, sentences sorted by length, two
threads. Each engine runs in a process of its own, as CTranslate2 brings a thread library that slows torch's in the same
process; they take turns, the first round is not counted, and the figure is the median of the others. Memory is the
process's peak, on a GPU what torch has allocated there at its peak; CTranslate2 does not tell its own. With "inter" in
its name CTranslate2 translates on each thread by itself.
"""

import statistics
import tempfile
from argparse import Namespace
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path

import common
import torch
from tokenizers import Tokenizer, models
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, MarianMTModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import read_lines
from modeling_vanilla.interop import from_marian

IN_TORCH = [f"{model} {kind}" for model in ("ours", "MarianMT") for kind in ("fp32", "bf16")]
ENGINES = [*IN_TORCH, *(f"CTranslate2 {kind}{how}" for how in ("", " inter") for kind in ("float32", "int8"))]
ON_A_GPU = ["CTranslate2 float16"]  # which a CPU refuses
EXTRA_TOKENS, NEW_TOKENS = 50, 24  # limits: beyond the source's tokens; of a sentence by random weights


def load(options: Namespace) -> tuple[MarianMTModel, PreTrainedTokenizerBase, list[list[int]]]:
    """The weights, the tokenizer, and the source sentences as token ids, EOS last; made up where there is no file."""
    if options.model:
        marian, tokenizer = MarianMTModel.from_pretrained(options.model), AutoTokenizer.from_pretrained(options.model)
        return marian, tokenizer, tokenizer(list(islice(read_lines(options.source), options.sentences))).input_ids
    torch.manual_seed(0)
    marian = common.random_marian(*common.DIMS[options.dims])
    size = marian.config.vocab_size
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({f"t{number}": number for number in range(size)}, "t3")),
        unk_token="t3",
    )
    torch.manual_seed(0)
    return marian, tokenizer, torch.randint(4, size, (options.sentences, 23)).tolist()


def torch_engine(model, kind: str, ids: list[list[int]], options: Namespace) -> Callable:
    pad, eos = model.config.pad_token_id, model.config.eos_token_id
    model = model.eval().to(options.device, torch.bfloat16 if kind == "bf16" else torch.float32)
    order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
    batches = [order[start : start + options.batch_size] for start in range(0, len(order), options.batch_size)]

    def search(rows: list[int]) -> list[list[int]]:
        source = pad_sequence([torch.tensor(ids[row]) for row in rows], batch_first=True, padding_value=pad)
        source = source.to(options.device)
        output = model.generate(
            input_ids=source, attention_mask=(source != pad).long(), num_beams=options.beams, length_penalty=0.6,
            max_new_tokens=source.shape[1] + EXTRA_TOKENS if options.model else NEW_TOKENS, do_sample=False,
            forced_eos_token_id=None,
        )  # fmt: skip
        return [tokens[: tokens.index(eos)] if eos in tokens else tokens for tokens in output[:, 1:].tolist()]

    def run() -> list[list[int]]:
        found = dict(zip(order, chain.from_iterable(map(search, batches)), strict=True))
        return [found[row] for row in range(len(ids))]

    return run


def ctranslate2_engine(marian: MarianMTModel, kind: str, how: str, tokenizer, ids: list[list[int]], options: Namespace):
    import ctranslate2

    from modeling_vanilla.interop.to_ctranslate2 import to_ctranslate2

    with tempfile.TemporaryDirectory() as folder:
        to_ctranslate2(from_marian(marian), tokenizer, Path(folder))
        inter, intra = (options.threads, 1) if how == "inter" else (1, options.threads)
        translator = ctranslate2.Translator(
            folder, device=options.device, compute_type=kind, inter_threads=inter, intra_threads=intra
        )
    source = list(map(tokenizer.convert_ids_to_tokens, ids))
    limit = max(map(len, ids)) + EXTRA_TOKENS if options.model else NEW_TOKENS
    search = {"beam_size": options.beams, "length_penalty": 0.6, "max_decoding_length": limit}

    def run() -> list[list[int]]:
        # It sorts all sentences of a call by length and cuts them into batches; one at a time is a call for each.
        calls = [[row] for row in source] if options.batch_size == 1 else [source]
        results = [translator.translate_batch(rows, max_batch_size=options.batch_size, **search) for rows in calls]
        return [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in chain.from_iterable(results)]

    return run


def make_engine(engine: str, options: Namespace) -> Callable:
    """A function that decodes everything once and returns its seconds, the tokens, and the peak memory so far."""
    torch.set_num_threads(options.threads)
    marian, tokenizer, ids = load(options)
    name, kind, how = (*engine.split(), "")[:3]
    if name == "CTranslate2":
        run = ctranslate2_engine(marian, kind, how, tokenizer, ids, options)
    else:
        run = torch_engine(from_marian(marian) if name == "ours" else marian, kind, ids, options)
    return lambda: (*common.timed(run), peak_on(name, options.device))


def peak_on(name: str, device: str) -> float | None:
    """The most memory that this process has held on the device; None where nothing tells."""
    if device == "cpu":
        return common.peak_gib()
    return None if name == "CTranslate2" else torch.cuda.max_memory_allocated() / 2**30


def decode(options: Namespace) -> None:
    if (options.source is None) != (options.model is None):
        raise ValueError("--model and --source go together")
    engines = {engine: common.in_own_process(make_engine, engine, options) for engine in options.engines}
    torch.set_num_threads(options.threads)
    print(common.machine(options.device))
    rows, first = [], None
    _, tokenizer, _ = load(options)
    for engine, measured in common.take_turns(engines, options.rounds).items():
        times, outputs, memory = zip(*measured, strict=True)
        first, sentences, median = first or times, len(outputs[-1]), statistics.median(times)
        tokens = sum(len(row) + 1 for row in outputs[-1]) if options.model else sentences * NEW_TOKENS
        rows.append(
            (
                engine,
                common.with_range([sentences / seconds for seconds in times], 1),
                f"{1000 * median / sentences:.1f}",
                f"{tokens / median:.0f}",
                "-" if memory[-1] is None else f"{memory[-1]:.2f}",
                common.bleu(tokenizer.batch_decode(outputs[-1], skip_special_tokens=True), options),
                f"{common.median_ratio(times, first):.2f}",
            )
        )
    faster = f"{options.engines[0]} is faster by"
    print(common.table(("", "sentences/s (range)", "ms a sentence", "tokens/s", "peak GiB", "BLEU", faster), rows))


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("--model", help="a folder of a MarianMT model with tokenizer.json (default: random weights)")
    parser.add_argument("--dims", choices=common.DIMS, default="tiny", help="of the random weights")
    parser.add_argument("--source", help="a sentence a line, .gz or not (default: made up, 24 new tokens each)")
    common.add_translation_options(parser, sentences=1000)
    parser.add_argument("--batch_size", type=int, default=64, help="sentences at once")
    parser.add_argument("--beams", type=int, default=4, help="beam size")
    parser.add_argument("--engines", nargs="+", choices=[*ENGINES, *ON_A_GPU], default=ENGINES, help="what to measure")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where")
    run_command(parser, decode)

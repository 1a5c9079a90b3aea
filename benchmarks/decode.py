"""Beam search of this model beside MarianMT and CTranslate2 on the same weights: sentences and tokens a second.

    python benchmarks/decode.py --model FOLDER --source test.en --reference test.de   # a trained MarianMT
    python benchmarks/decode.py --dims base --batch_size 32                           # random weights, 24 tokens each
    python benchmarks/decode.py --model FOLDER --source test.en --batch_size 1        # one sentence at a time

Beam 4 (or --beams), a length penalty of 0.6 by the formula of transformers for all, sentences sorted by length, two
threads. Each engine runs in a process of its own, as CTranslate2 brings a thread library that slows torch's in the same
process; they take turns, the first round is not counted, and the figure is the median of the others. Memory is the
process's peak, on a GPU what torch has allocated there at its peak; CTranslate2 does not tell its own.
A compiled engine's first round is printed apart: it compiles there. With --output_dir table and plot are written there.
"""

import argparse
import multiprocessing
import resource
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path

import sacrebleu
import torch
from report import draw_bars, machine, with_range, write_table
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

from modeling_vanilla.files import read_lines
from modeling_vanilla.interop import from_marian

DIMS = {  # d_model, layers, heads, d_ff, vocabulary
    "tiny": (128, 4, 4, 256, 8000),
    "base": (512, 6, 8, 2048, 32000),
}
OURS = ("ours fp32", "ours bf16", "ours fp32 compiled", "ours bf16 compiled")
ENGINES = (*OURS, "MarianMT fp32", "MarianMT bf16", "CTranslate2 float32", "CTranslate2 int8")
EXTRA_TOKENS = 50


def random_marian(dims: str) -> MarianMTModel:
    d_model, layers, heads, d_ff, vocab_size = DIMS[dims]
    torch.manual_seed(0)
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
             (("layers", layers), ("attention_heads", heads), ("ffn_dim", d_ff))}  # fmt: skip
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return MarianMTModel(MarianConfig(vocab_size=vocab_size, d_model=d_model, scale_embedding=True, **sides, **special))


def read_ids(options) -> list[list[int]]:
    """Source sentences as token ids, EOS last; made up where there is no file."""
    if options.source is None:
        torch.manual_seed(0)
        return torch.randint(4, DIMS[options.dims][-1], (options.sentences, 23)).tolist()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(Path(options.model) / "tokenizer.json"))
    eos = MarianConfig.from_pretrained(options.model).eos_token_id
    rows = tokenizer(list(islice(read_lines(options.source), options.sentences)), add_special_tokens=False)["input_ids"]
    return [[token for token in row if token != eos] + [eos] for row in rows]


def batches(ids: list[list[int]], size: int) -> list[list[int]]:
    order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
    return [order[start : start + size] for start in range(0, len(order), size)]


def torch_engine(model, bf16: bool, ids: list[list[int]], options, **kwargs):
    pad, eos = model.config.pad_token_id, model.config.eos_token_id
    model = model.eval().to(options.device, torch.bfloat16 if bf16 else torch.float32)

    def run() -> list[list[int]]:
        outputs = [None] * len(ids)
        for rows in batches(ids, options.batch_size):
            width = max(len(ids[row]) for row in rows)
            source = torch.tensor([ids[row] + [pad] * (width - len(ids[row])) for row in rows], device=options.device)
            limit = options.new_tokens or width + EXTRA_TOKENS
            output = model.generate(
                input_ids=source, attention_mask=(source != pad).long(), num_beams=options.beams, length_penalty=0.6,
                max_new_tokens=limit, do_sample=False, forced_eos_token_id=None, **kwargs,
            )  # fmt: skip
            for row, tokens in zip(rows, output[:, 1:].tolist(), strict=True):
                outputs[row] = tokens[: tokens.index(eos)] if eos in tokens else tokens
        return outputs

    return run


def ctranslate2_engine(marian: MarianMTModel, kind: str, ids: list[list[int]], options):
    import ctranslate2
    from ctranslate2.converters.transformers import MarianMTLoader

    spec = MarianMTLoader().get_model_spec(marian)
    config = marian.config
    words = [f"t{token}" for token in range(config.vocab_size)]
    # Its Marian models have one row more than words, the pad that no translation may have.
    words = words[: spec.encoder.embeddings[0].weight.shape[0]]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.bos_token = spec.config.decoder_start_token = words[config.decoder_start_token_id]
    spec.config.eos_token, spec.config.unk_token = words[config.eos_token_id], words[3]
    spec.config.add_source_eos = False
    spec.decoder.start_from_zero_embedding = False
    spec.validate()
    spec.optimize(None)
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        translator = ctranslate2.Translator(
            folder, device=options.device, compute_type=kind, inter_threads=1, intra_threads=options.threads
        )
    source = [[words[token] for token in row] for row in ids]
    longest = options.new_tokens or max(map(len, ids)) + EXTRA_TOKENS

    def run() -> list[list[int]]:
        results = translator.translate_batch(
            source,
            beam_size=options.beams,
            length_penalty=0.6,
            max_batch_size=options.batch_size,
            max_decoding_length=longest,
        )
        return [[int(word[1:]) for word in result.hypotheses[0]] for result in results]

    def one_at_a_time() -> list[list[int]]:
        return [
            [int(word[1:]) for word in translator.translate_batch(
                [row], beam_size=options.beams, length_penalty=0.6, max_decoding_length=longest)[0].hypotheses[0]]
            for row in source
        ]  # fmt: skip

    return one_at_a_time if options.batch_size == 1 else run


def serve(engine: str, options, pipe) -> None:
    """In a process of its own: decode everything once for each message, and answer with time, tokens and memory."""
    torch.set_num_threads(options.threads)
    marian = MarianMTModel.from_pretrained(options.model) if options.model else random_marian(options.dims)
    ids = read_ids(options)
    name, kind, *compiled = engine.split()
    if name == "CTranslate2":
        run = ctranslate2_engine(marian, kind, ids, options)
    else:
        model = from_marian(marian) if name == "ours" else marian
        run = torch_engine(model, kind == "bf16", ids, options, **({"compile": True} if compiled else {}))
    while pipe.recv():
        start = time.perf_counter()
        outputs = run()
        pipe.send((time.perf_counter() - start, outputs, peak_gib(name, options.device)))


def peak_gib(name: str, device: str) -> float | None:
    """The most memory that this process has held on the device; None where its library does not tell."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return None if name == "CTranslate2" else torch.cuda.max_memory_allocated() / 2**30


def bleu(outputs: list[list[int]], options) -> float:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(Path(options.model) / "tokenizer.json"))
    texts = tokenizer.batch_decode(outputs, skip_special_tokens=True)
    references = list(islice(read_lines(options.reference), len(texts)))
    return sacrebleu.corpus_bleu(texts, [references], tokenize=options.bleu_tokenize, force=True).score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder of a MarianMT model with tokenizer.json (default: random weights)")
    parser.add_argument("--dims", choices=DIMS, default="tiny", help="of the random weights")
    parser.add_argument("--source", help="a sentence a line, .gz or not (default: made up, 24 new tokens each)")
    parser.add_argument("--reference", help="for BLEU")
    parser.add_argument("--bleu_tokenize", default="13a")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--output_dir", type=Path, help="a folder for decode.md and decode.png")
    options = parser.parse_args()
    if (options.source is None) != (options.model is None):
        parser.error("--model and --source go together")
    options.new_tokens = None if options.source else 24

    context = multiprocessing.get_context("spawn")
    pipes = {}
    for engine in options.engines:
        pipes[engine], end = context.Pipe()
        context.Process(target=serve, args=(engine, options, end), daemon=True).start()
        end.close()  # or nobody would hear of it if the process died
    seconds, memory, results = {engine: [] for engine in pipes}, {}, {}
    for turn in range(options.rounds + 1):
        for engine, pipe in pipes.items():
            pipe.send(True)
            time_taken, results[engine], memory[engine] = pipe.recv()
            if turn:
                seconds[engine].append(time_taken)
            elif "compiled" in engine:
                print(f"{engine}: first round, with compiling, {time_taken:.0f} s", flush=True)
    for pipe in pipes.values():
        pipe.send(False)

    report(options, seconds, results, memory)


def report(options, seconds: dict[str, list[float]], results: dict, memory: dict[str, float | None]) -> None:
    """Print the figures, and write them to --output_dir."""
    first = next(iter(seconds))
    columns = ("sentences/s (range)", "ms a sentence", "tokens/s", "peak GiB", "BLEU", f"{first} is faster by")
    rows, medians = [], {}
    for engine, times in seconds.items():
        outputs, median = results[engine], statistics.median(times)
        medians[engine] = len(outputs) / median
        tokens = sum(len(row) + 1 for row in outputs) if options.source else len(outputs) * options.new_tokens
        score = f"{bleu(outputs, options):.2f}" if options.reference else "-"
        ratio = statistics.median(theirs / own for theirs, own in zip(times, seconds[first], strict=True))
        speeds = with_range([len(outputs) / taken for taken in times], 1), f"{1000 * median / len(outputs):.1f}"
        peak = "-" if memory[engine] is None else f"{memory[engine]:.2f}"
        rows.append((engine, *speeds, f"{tokens / median:.0f}", peak, score, f"{ratio:.2f}"))
    for row in (("", *columns), *rows):
        print("".join(f"{cell:{width}}" for cell, width in zip(row, (22, 26, 15, 10, 10, 8, 0), strict=True)))
    if options.output_dir:
        what = "trained model" if options.model else f"{options.dims} dimensions"
        title = (
            f"{what}, beam {options.beams}, {options.batch_size} at once; {machine(options.device, options.threads)}"
        )
        write_table(options.output_dir / "decode.md", title, columns, rows)
        draw_bars(options.output_dir / "decode.png", title, medians, "sentences a second")


if __name__ == "__main__":
    main()

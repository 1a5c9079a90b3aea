"""A training step of this model beside MarianMT and torch.nn.Transformer: tokens a second, or peak memory.

    python benchmarks/train_step.py --dims base --bf16
    python benchmarks/train_step.py --bf16 --compile
    python benchmarks/train_step.py --dims base --tokens 4096 --memory
    python benchmarks/train_step.py --shapes --bf16 --rounds 10

All have the same dimensions and shared embeddings, drop out only embeddings and sublayers' outputs, and read the same
made-up batches; a step is forward, label-smoothed loss, backward and fused Adam. Speed: real tokens, taken in turn in
one process, the median of the rounds; on a CPU the others do without torch's fused attention, with which they are up to
40% slower in bf16. Memory: two steps in a process of its own for each, and what its peak is above what it held before
the first. One thread is measured in processor time, several and a GPU by the clock. With --output_dir speeds are
written there too, as a table and a plot, with the share of what large products reach. Shapes: this model on batches
of new shapes, as in training, with and without what training.cpu_memory does on a CPU; each in a process of its own,
which take turns of 20 batches; tokens a second of processor time.
"""

import argparse
import multiprocessing
import random
import resource
import statistics
import time
from pathlib import Path

import torch
from report import draw_bars, machine, with_range, write_table
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import MarianConfig, MarianMTModel

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.training.cpu_memory import bound_kernel_caches, keep_freed_memory

DIMS = {  # d_model, layers, heads, d_ff, vocabulary
    "tiny": (128, 4, 4, 256, 8000),
    "base": (512, 6, 8, 2048, 32000),
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def made_up_batch(rows: int, longest: int, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Source, target shifted right, and target, (rows, longest); sentences of `longest` tokens or up to 4 fewer."""

    def side() -> torch.Tensor:
        ids = torch.randint(4, vocab_size, (rows, longest))
        lengths = torch.randint(longest - 4, longest + 1, (rows, 1))
        positions = torch.arange(longest)
        return ids.masked_fill(positions == lengths - 1, 2).masked_fill(positions >= lengths, 0)

    source, target = side(), side()
    return source, torch.cat([torch.ones(rows, 1, dtype=torch.long), target[:, :-1]], dim=1), target


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), target.flatten(), ignore_index=0, label_smoothing=0.1
    )


def ours(d_model, layers, heads, d_ff, vocab_size):
    sizes = {"encoder_layers": layers, "decoder_layers": layers, "encoder_ffn_dim": d_ff, "decoder_ffn_dim": d_ff}
    sizes |= {"encoder_attention_heads": heads, "decoder_attention_heads": heads}
    model = VanillaForConditionalGeneration(VanillaConfig(vocab_size=vocab_size, d_model=d_model, **sizes, **SPECIAL))

    def loss(source, shifted, target):
        labels = target.masked_fill(target == 0, -100)
        return model(input_ids=source, attention_mask=(source != 0).long(), labels=labels).loss

    return model, loss


def marian(d_model, layers, heads, d_ff, vocab_size):
    sizes = {"encoder_layers": layers, "decoder_layers": layers, "encoder_ffn_dim": d_ff, "decoder_ffn_dim": d_ff}
    sizes |= {"encoder_attention_heads": heads, "decoder_attention_heads": heads}
    config = MarianConfig(
        vocab_size=vocab_size,
        d_model=d_model,
        dropout=0.1,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=512,
        **sizes,
        **SPECIAL,
    )
    model = MarianMTModel(config)

    def loss(source, shifted, target):
        mask = (source != 0).long()
        logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=shifted, use_cache=False).logits
        return cross_entropy(logits, target)

    return model, loss


class TorchTransformer(nn.Module):
    """torch.nn.Transformer, which is post-LN but for a last norm, with tied embeddings and a table of positions.

    It would also drop out attention weights and within the feed-forward network, which the others do not: there the
    rate is 0.
    """

    def __init__(self, d_model, layers, heads, d_ff, vocab_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.transformer = nn.Transformer(d_model, heads, layers, layers, d_ff, 0.1, batch_first=True)
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = 0.0  # within the feed-forward network; dropout1 to dropout3 are the sublayers'
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        self.register_buffer("positions", torch.randn(512, d_model))

    def forward(self, source, shifted):
        def embed(ids):
            x = self.embedding(ids) * self.embedding.embedding_dim**0.5 + self.positions[: ids.shape[1]]
            return nn.functional.dropout(x, 0.1, self.training)

        padding = torch.zeros(source.shape, device=source.device).masked_fill(source == 0, float("-inf"))
        causal = nn.Transformer.generate_square_subsequent_mask(shifted.shape[1], device=shifted.device)
        x = self.transformer(
            embed(source),
            embed(shifted),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return x @ self.embedding.weight.T


def torch_nn(*dims):
    model = TorchTransformer(*dims)
    return model, lambda source, shifted, target: cross_entropy(model(source, shifted), target)


SYSTEMS = {"ours": ours, "MarianMT": marian, "torch.nn.Transformer": torch_nn}


def stepper(system: str, dims: str, bf16: bool, device: str = "cpu", compiled: bool = False):
    """A function that takes one training step on a batch, compiled for batches of any shape or not at all."""
    torch.manual_seed(0)
    model, loss_of = SYSTEMS[system](*DIMS[dims])
    model.to(device).train()
    if compiled:
        model.compile(dynamic=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(batch) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            loss = loss_of(*batch)
        loss.backward()
        optimizer.step()

    return step


def measure_speed(
    dims: str, bf16: bool, tokens: int, rounds: int, device: str, compiled: bool
) -> dict[str, list[float]]:
    """Real tokens a second of each system in each round."""
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    torch.manual_seed(0)
    batches = [made_up_batch(tokens // longest, longest, DIMS[dims][-1]) for longest in (12, 20)]
    batches = [tuple(side.to(device) for side in batch) for batch in batches]
    real = sum(int((source != 0).sum() + (target != 0).sum()) for source, _, target in batches)
    steps = {system: stepper(system, dims, bf16, device, compiled) for system in SYSTEMS}
    if device == "cpu":
        steps |= {system: sdpa_kernel(SDPBackend.MATH)(steps[system]) for system in SYSTEMS if system != "ours"}
    rates = {system: [] for system in SYSTEMS}
    for number in range(rounds + 1):
        for system, step in steps.items():
            start = clock()
            for batch in batches:
                step(batch)
            wait_for(device)
            if number:  # the first round sets up memory and libraries
                rates[system].append(real / (clock() - start))
    for system, measured in rates.items():
        ratio = statistics.median(own / other for own, other in zip(rates["ours"], measured, strict=True))
        print(f"{system:22s} {statistics.median(measured):8.0f} tokens/s    ours is {ratio:.2f} times as fast")
    return rates


def wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak(bf16: bool, device: str) -> float:
    """Floating point operations a second of large square products, the best of ten."""
    size = 8192 if device == "cuda" else 2048
    factor = torch.randn(size, size, device=device, dtype=torch.bfloat16 if bf16 else torch.float32)
    seconds = []
    for _ in range(10):
        wait_for(device)
        start = time.perf_counter()
        factor @ factor
        wait_for(device)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


def write_report(folder: Path, title: str, rates: dict[str, list[float]], share: float, device: str) -> None:
    """train_step.md and train_step.png: median and range of each system."""
    title = f"{title}; {machine(device)}"
    medians = {system: statistics.median(measured) for system, measured in rates.items()}
    ratios = [
        statistics.median(own / other for own, other in zip(rates["ours"], measured, strict=True))
        for measured in rates.values()
    ]
    rows = [
        (system, with_range(measured), f"{ratio:.2f}")
        for (system, measured), ratio in zip(rates.items(), ratios, strict=True)
    ]
    note = f"Of the rate of large products, this model reaches {share:.0%}."
    columns = ("tokens/s, median (range)", "this model's ratio to it")
    write_table(folder / "train_step.md", title, columns, rows, note)
    draw_bars(folder / "train_step.png", title, medians, "tokens a second")


def measure_memory(dims: str, bf16: bool, tokens: int) -> None:
    context = multiprocessing.get_context("spawn")
    for system in SYSTEMS:
        with context.Pool(1) as pool:
            held, peak = pool.apply(_peak, (system, dims, bf16, tokens))
        print(f"{system:22s} {peak - held:6.2f} GiB above the {held:.2f} GiB of model and libraries")


def _peak(system: str, dims: str, bf16: bool, tokens: int) -> tuple[float, float]:
    step = stepper(system, dims, bf16)
    batch = made_up_batch(tokens // 32, 32, DIMS[dims][-1])
    held = _maximum()
    for _ in range(2):
        step(batch)
    return held, _maximum()


MEASURES = {
    "neither": [],
    "freed memory kept": [keep_freed_memory],
    "kernel caches bounded": [bound_kernel_caches],
    "both, as in training": [keep_freed_memory, bound_kernel_caches],
}


def measure_shapes(dims: str, bf16: bool, tokens: int, rounds: int) -> None:
    context = multiprocessing.get_context("spawn")
    pools = {name: context.Pool(1) for name in MEASURES}
    rates = {name: [] for name in MEASURES}
    for number in range(rounds):
        for name, pool in pools.items():
            rate, peak = pool.apply(_turn, (name, dims, bf16, tokens, number))
            rates[name].append(rate)
            print(f"{20 * (number + 1):5d} batches  {name:22s} {rate:8.0f} tokens/s  {peak:5.2f} GiB", flush=True)
    for name, measured in rates.items():
        print(f"{name:22s} {statistics.median(measured):8.0f} tokens/s")
        pools[name].terminate()


def _turn(name: str, dims: str, bf16: bool, tokens: int, number: int) -> tuple[float, float]:
    """Tokens a second of processor time over 20 batches, and the process's peak memory so far, in GiB."""
    if number == 0:
        for measure in MEASURES[name]:
            measure()
        _turn.step = stepper("ours", dims, bf16)
    rng = random.Random(number)
    torch.manual_seed(number)
    real, seconds = 0, 0.0
    for _ in range(20):
        longest = rng.randint(8, 40)
        batch = made_up_batch(tokens // longest - rng.randint(0, 8), longest, DIMS[dims][-1])
        start = time.process_time()
        _turn.step(batch)
        seconds += time.process_time() - start
        real += int((batch[0] != 0).sum() + (batch[2] != 0).sum())
    return real / seconds, _maximum()


def _maximum() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", choices=DIMS, default="tiny", help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch on either side (default: %(default)s)")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--compile", action="store_true", help="all by torch.compile, in the round that is not counted")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--memory", action="store_true", help="measure peak memory instead of speed")
    parser.add_argument("--shapes", action="store_true", help="measure batches of new shapes instead")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of speed (default: %(default)s)")
    parser.add_argument("--output_dir", type=Path, help="a folder for train_step.md and train_step.png")
    arguments = parser.parse_args()
    if (arguments.output_dir or arguments.compile) and (arguments.memory or arguments.shapes):
        parser.error("--output_dir and --compile go with speed, not with --memory or --shapes")
    print(f"{arguments}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    if arguments.shapes:
        measure_shapes(arguments.dims, arguments.bf16, arguments.tokens, arguments.rounds)
    elif arguments.memory:
        measure_memory(arguments.dims, arguments.bf16, arguments.tokens)
    else:
        rates = measure_speed(
            arguments.dims, arguments.bf16, arguments.tokens, arguments.rounds, arguments.device, arguments.compile
        )
        if arguments.output_dir:
            kind = ("bf16" if arguments.bf16 else "fp32") + (", compiled" if arguments.compile else "")
            title = f"training step, {arguments.dims}, {kind}, {arguments.tokens} tokens a batch"
            # 6 operations a parameter and token; half of the tokens pass through either stack.
            model, _ = ours(*DIMS[arguments.dims])
            operations = 3 * sum(parameter.numel() for parameter in model.parameters())
            share = operations * statistics.median(rates["ours"]) / peak(arguments.bf16, arguments.device)
            write_report(arguments.output_dir, title, rates, share, arguments.device)


if __name__ == "__main__":
    main()

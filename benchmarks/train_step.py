"""A training step of this model beside MarianMT and torch.nn.Transformer: tokens a second, and peak memory.

    python benchmarks/train_step.py --dims base --bf16
    python benchmarks/train_step.py --device cuda --dims base --tokens 25000 --passes 8 --bf16 --compile layers

All have the same dimensions and shared embeddings, drop out only embeddings and sublayers' outputs, and read the same
made-up batches; a step is forward, label-smoothed loss, backward and fused Adam. Speed: real tokens, the median of the
rounds, each system in a process of its own, which take turns. On a CPU all keep freed memory, as training does here,
and the others do without torch's fused attention, with which they are up to 40% slower in bf16. One thread is measured
in processor time, several and a GPU by the clock. Memory: what the process held at its peak, above the model and the
libraries. The last line is the share of what large products reach.
"""

import statistics
import time
from argparse import Namespace
from collections.abc import Callable

import common
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.training.device import keep_freed_memory, product_flops
from modeling_vanilla.training.results import model_flops

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def made_up_batch(rows: int, longest: int, vocab_size: int) -> Batch:
    """Source, target shifted right, and target, (rows, longest); sentences of `longest` tokens or up to 4 fewer."""

    def side() -> torch.Tensor:
        ids = torch.randint(4, vocab_size, (rows, longest))
        lengths = torch.randint(longest - 4, longest + 1, (rows, 1))
        positions = torch.arange(longest)
        return ids.masked_fill(positions == lengths - 1, 2).masked_fill(positions >= lengths, 0)

    source, target = side(), side()
    return source, torch.cat([torch.ones(rows, 1, dtype=torch.long), target[:, :-1]], dim=1), target


def real_tokens(batch: Batch) -> int:
    """Tokens of both sides without padding."""
    source, _, target = batch
    return int((source != 0).sum() + (target != 0).sum())


CROSS_ENTROPY = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)


def ours(*dims: int) -> tuple[nn.Module, Callable]:
    model = VanillaForConditionalGeneration(VanillaConfig(**common.config_fields(*dims)))

    def loss(source, shifted, target):
        labels = target.masked_fill(target == 0, -100)
        return model(input_ids=source, attention_mask=(source != 0).long(), labels=labels).loss

    return model, loss


def marian(*dims: int) -> tuple[nn.Module, Callable]:
    model = common.random_marian(*dims)

    def loss(source, shifted, target):
        mask = (source != 0).long()
        logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=shifted, use_cache=False).logits
        return CROSS_ENTROPY(logits.flatten(0, 1).float(), target.flatten())

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

    def embed(self, ids):
        x = self.embedding(ids) * self.embedding.embedding_dim**0.5 + self.positions[: ids.shape[1]]
        return nn.functional.dropout(x, 0.1, self.training)

    def forward(self, source, shifted):
        kind = {"device": source.device, "dtype": self.embedding.weight.dtype}
        padding = torch.zeros(source.shape, **kind).masked_fill(source == 0, float("-inf"))
        causal = nn.Transformer.generate_square_subsequent_mask(shifted.shape[1], **kind)
        masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding, "tgt_mask": causal}
        x = self.transformer(self.embed(source), self.embed(shifted), tgt_is_causal=True, **masks)
        return x @ self.embedding.weight.T


def torch_nn(*dims: int) -> tuple[nn.Module, Callable]:
    model = TorchTransformer(*dims)

    def loss(source, shifted, target):
        return CROSS_ENTROPY(model(source, shifted).flatten(0, 1).float(), target.flatten())

    return model, loss


SYSTEMS = {"ours": ours, "MarianMT": marian, "torch.nn.Transformer": torch_nn}


def training_step(
    system: str, dims: tuple[int, ...], bf16: bool, device: str = "cpu", compiled: str | None = None, passes: int = 1
) -> Callable[[Batch], None]:
    """A function that takes one training step on a batch, in so many passes.

    Args:
        bf16: autocast to bfloat16.
        compiled: "model" or "layers", for batches of any shape.
    """
    torch.manual_seed(0)
    model, loss_of = SYSTEMS[system](*dims)
    model.to(device).train()
    layers = (layer for stack in model.modules() if isinstance(stack, nn.ModuleList) for layer in stack)
    for module in {None: [], "model": [model], "layers": layers}[compiled]:
        module.compile(dynamic=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        for part in zip(*(side.chunk(passes) for side in batch), strict=True):
            with torch.autocast(device, torch.bfloat16, enabled=bf16):
                loss = loss_of(*part)
            (loss / passes).backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def made_up_batches(options: Namespace) -> list[Batch]:
    """The two of a round."""
    torch.manual_seed(0)
    return [made_up_batch(options.tokens // longest, longest, common.DIMS[options.dims][-1]) for longest in (12, 20)]


def flops_of_a_token(options: Namespace) -> float:
    """Floating point operations that this model needs for a real token of these batches, forward and backward."""
    batches = made_up_batches(options)
    source, target = (torch.cat([(batch[side] != 0).sum(1) for batch in batches]) for side in (0, 2))
    config = VanillaConfig(**common.config_fields(*common.DIMS[options.dims]))
    return float(model_flops(config, source, target).sum() / (source + target).sum())


def make_system(system: str, options: Namespace) -> Callable[[], tuple[float, float]]:
    """A function that takes a step on either of two batches.

    It returns real tokens a second, and how many GiB more than before the first step the process has held at its peak.
    """
    keep_freed_memory()
    device, dims = options.device, common.DIMS[options.dims]
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    batches = made_up_batches(options)
    real = sum(map(real_tokens, batches))
    batches = [tuple(side.to(device) for side in batch) for batch in batches]
    step = training_step(system, dims, options.bf16, device, options.compile, options.passes)
    held = common.peak_gib()
    if device == "cpu" and system != "ours":
        step = sdpa_kernel(SDPBackend.MATH)(step)

    def run() -> tuple[float, float]:
        seconds, _ = common.timed(lambda: [step(batch) for batch in batches], clock)
        return real / seconds, common.peak_gib() - held

    return run


def measure(options: Namespace) -> None:
    """Print the table of all systems, and the share of this one."""
    print(common.machine(options.device))
    turns = {system: common.in_own_process(make_system, system, options) for system in SYSTEMS}
    measured = common.take_turns(turns, options.rounds)
    rates = {system: [rate for rate, _ in found] for system, found in measured.items()}
    rows = []
    for system, found in rates.items():
        peak = f"{measured[system][-1][1]:.2f}" if options.device == "cpu" else "-"
        rows.append((system, common.with_range(found), f"{common.median_ratio(rates['ours'], found):.2f}", peak))
    print(common.table(("", "tokens/s, median (range)", "ratio of ours, to it", "GiB"), rows))
    reached = flops_of_a_token(options) * statistics.median(rates["ours"])
    peak = product_flops(torch.device(options.device), torch.bfloat16 if options.bf16 else torch.float32)
    print(f"\nOf the FLOP/s of large products, this model reaches {reached / peak:.1%} (MFU).")


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("--dims", choices=common.DIMS, default="tiny", help="of the models")
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch on either side")
    parser.add_argument("--passes", type=int, default=1, help="that share the tokens of a step")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--compile", nargs="?", const="model", choices=["model", "layers"], help="by torch.compile")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where")
    run_command(parser, measure)

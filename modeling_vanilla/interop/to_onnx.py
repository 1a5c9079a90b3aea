"""Export to ONNX: an encoder, and a decoder with its cache, for onnxruntime and whatever else reads that format.

encoder.onnx    input_ids (B, S), attention_mask (B, S) -> last_hidden_state (B, S, layers * H * (K + V))
decoder.onnx    input_ids (B, T), encoder_attention_mask (B, S), encoder_hidden_states, which is the encoder's output,
                and of every layer i, for the positions before, of which there may be none,
                past_key_values.i.decoder.key (B, H, P, K) and past_key_values.i.decoder.value (B, H, P, V)
                -> logits (B, T, vocabulary), present.i.decoder.key and present.i.decoder.value, the next call's past

B, S, T and P are free. The beams of a search are further rows of B: repeat the encoder's output for them. That output
is what the decoder's layers read in their cross-attention, the keys and values of all heads one after another, so that
they are computed once for a sentence. The names are those that transformers.js knows.
"""

import copy
import logging
import warnings
from pathlib import Path

import onnx
import onnxscript  # noqa: F401  what torch exports with, asked for here rather than in the middle
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.quant_utils import add_pre_process_metadata
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from ..modeling_vanilla import VanillaForConditionalGeneration
from ..progress import progress_bar
from .weights import check_quantization

ENCODER, DECODER = "encoder.onnx", "decoder.onnx"
# The sizes of what torch.export follows through the code; it keeps the one way that they take. They are told apart, and
# are not such as some code treats apart: 0 and 1 and, because a CPU is faster otherwise, fewer than 16 keys.
ROWS, SOURCE, TARGET, PAST = 2, 20, 18, 19
# transformers.js knows the size of this axis by its name; where it begins, all others without a number are 0.
B = "batch_size"


def to_onnx(
    model: VanillaForConditionalGeneration, folder: Path, quantization: str = "float32", show_progress: bool = False
) -> None:
    """Write encoder.onnx and decoder.onnx to an existing folder. Takes a minute or two.

    Learned positions keep their end: a longer sequence is an error of the runtime's.

    Args:
        quantization: how the matrices are stored and multiplied, "float32" or "int8".
        show_progress: a progress bar on stderr.

    Raises:
        ValueError: if the quantization is none of these, or a model has fewer than 37 learned positions.
    """
    check_quantization(quantization)
    paths = folder / ENCODER, folder / DECODER
    export_graphs(model, *paths, show_progress)
    if quantization == "int8":
        for path in paths:
            quantize(path, path)


def export_graphs(
    model: VanillaForConditionalGeneration, encoder: Path, decoder: Path, show_progress: bool = False
) -> None:
    """Write both graphs, in 32-bit floats; ValueError for fewer learned positions than the export follows through."""
    config, least = model.config, PAST + TARGET
    if config.position_embedding_type == "learned" and config.max_position_embeddings < least:
        raise ValueError(f"max_position_embeddings {config.max_position_embeddings}: an export to ONNX needs {least}")
    model = copy.deepcopy(model).float().cpu().eval()
    # Eq. 1 written out becomes plain products and a softmax, which every runtime knows.
    model.set_attn_implementation("eager")
    with progress_bar(total=2, unit=" graphs", disable=not show_progress) as bar, torch.no_grad():
        _export_encoder(model, encoder)
        bar.update()
        _export_decoder(model, decoder)
        bar.update()


def quantize(source: Path, destination: Path) -> None:
    """Write a graph with matrices of 8-bit integers. What they are multiplied with is rounded to 8 bits as it comes."""
    graph = onnx.load(source)
    add_pre_process_metadata(graph)  # torch has already simplified it
    # Unsigned: products of signed ones overflow on a CPU that has no instruction for them.
    quantize_dynamic(graph, destination, weight_type=QuantType.QUInt8)


class Encoder(nn.Module):
    """The encoder, and what the decoder's cross-attention makes of its output."""

    def __init__(self, model: VanillaForConditionalGeneration):
        super().__init__()
        self.model = model.model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden_states = self.model.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return torch.cat([layer.cross_attn.kv_proj(hidden_states) for layer in self.model.decoder.layers], dim=-1)


class Decoder(nn.Module):
    """The decoder and the output projection, with every layer's keys and values as plain tensors."""

    def __init__(self, model: VanillaForConditionalGeneration):
        super().__init__()
        self.model = model
        # (D, vocabulary): embeddings are columns of it, so that one matrix is enough, in 8 bits, too
        self.register_buffer("projection", model.lm_head.weight.t().contiguous())

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """(B, T) -> (B, T, D)"""
        if not self.model.config.tie_word_embeddings:
            return self.model.model.decoder.embed_tokens(input_ids)
        return self.projection.index_select(1, input_ids.flatten()).t().unflatten(0, input_ids.shape)

    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        heads, widths = _heads_and_widths(self.model)
        parts = encoder_hidden_states.split([heads * width for width in widths], dim=-1)
        encoder = [part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts]
        cache = EncoderDecoderCache(DynamicCache(_pairs(past)), DynamicCache(_pairs(encoder)))
        x = self.model.model.decoder(
            inputs_embeds=self.embed(input_ids),
            # The layers read the cached keys and values; of the encoder's output only the size is looked at.
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            cache=cache,
            use_cache=True,
        ).last_hidden_state
        present = [tensor for layer in cache.self_attention_cache.layers for tensor in (layer.keys, layer.values)]
        logits = x @ self.projection
        return logits if self.model.lm_head.bias is None else logits + self.model.lm_head.bias, *present


def _heads_and_widths(model: VanillaForConditionalGeneration) -> tuple[int, list[int]]:
    """The decoder's heads, and the widths K and V of each layer."""
    heads = model.config.decoder_attention_heads
    return heads, list(model.config.head_dims(heads)) * model.config.decoder_layers


def _pairs(tensors: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def _names(kind: str, layers: int) -> list[str]:
    return [f"{kind}.{index}.decoder.{part}" for index in range(layers) for part in ("key", "value")]


def _export_encoder(model: VanillaForConditionalGeneration, path: Path) -> None:
    ids, axes = torch.ones(ROWS, SOURCE, dtype=torch.long), {0: B, 1: "S"}
    _export(
        Encoder(model),
        (ids, torch.ones_like(ids)),
        path,
        input_names=["input_ids", "attention_mask"],
        output_names=["last_hidden_state"],
        dynamic_shapes=(axes, axes),
    )


def _export_decoder(model: VanillaForConditionalGeneration, path: Path) -> None:
    layers, (heads, widths) = model.config.decoder_layers, _heads_and_widths(model)
    _export(
        Decoder(model),
        (
            torch.ones(ROWS, TARGET, dtype=torch.long),
            torch.ones(ROWS, SOURCE, dtype=torch.long),
            torch.zeros(ROWS, SOURCE, heads * sum(widths)),
            [torch.zeros(ROWS, heads, PAST, width) for width in widths],
        ),
        path,
        input_names=[
            "input_ids",
            "encoder_attention_mask",
            "encoder_hidden_states",
            *_names("past_key_values", layers),
        ],
        output_names=["logits", *_names("present", layers)],
        dynamic_shapes=({0: B, 1: "T"}, {0: B, 1: "S"}, {0: B, 1: "S"}, [{0: B, 2: "P"}] * len(widths)),
    )


def _export(module: nn.Module, inputs: tuple, path: Path, **options) -> None:
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # or each graph gets four lines because torchvision is not installed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of one library at another, and that several axes have one name
            graph = torch.onnx.export(module, inputs, dynamo=True, verbose=False, **options).model_proto
    finally:
        logger.setLevel(level)
    for node in graph.graph.node:
        del node.metadata_props[:]  # the places in this machine's files that it comes from
    onnx.save(graph, path)
    onnx.checker.check_model(path)

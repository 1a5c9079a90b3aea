"""Export to ONNX: an encoder, and a decoder with its cache, for onnxruntime and whatever else reads that format.

encoder.onnx    input_ids (B, S), attention_mask (B, S) -> last_hidden_state (B, S, layers * H * (d_k + d_v))
decoder.onnx    input_ids (B, T), encoder_attention_mask (B, S), encoder_hidden_states, which is the encoder's output,
                and of every layer i, for the P positions before,
                past_key_values.i.decoder.key (B, H, P, d_k) and past_key_values.i.decoder.value (B, H, P, d_v)
                -> logits (B, T, vocabulary), present.i.decoder.key and present.i.decoder.value, the next call's past

B, S, T and P are free; P may be 0. The beams of a search are further rows of B: repeat the encoder's output for them.
That output is what the decoder's layers read in their cross-attention, the keys and values of all heads one after
another, so that they are computed once for a sentence. The names are those that transformers.js uses.
"""

import copy
import logging
import warnings
from pathlib import Path

import onnx
import onnxscript  # noqa: F401  torch exports with it: where it is missing, the error comes before the work
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.quant_utils import add_pre_process_metadata
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from ..generation_vanilla import savable
from ..modeling_vanilla import VanillaForConditionalGeneration
from .exports import save_tokenizer

# The sizes that torch.export follows through the code; it keeps the branches that they take. They differ from each
# other and from 0 and 1, which it treats as constants, and there are at least 16 keys, because a CPU has a faster
# branch for fewer.
ROWS, SOURCE, TARGET, PAST = 2, 20, 18, 19
# transformers.js knows the size of this axis by its name; in its first step all other free axes of the past are 0.
B = "batch_size"


def to_onnx(model: VanillaForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, folder: Path) -> list[str]:
    """Write encoder.onnx, decoder.onnx, both configurations and the tokenizer to an existing folder.

    It takes up to a minute or two. With learned positions a longer sequence is an error of the runtime.

    Returns:
        No line, as every setting is expressed; see `to_marian`.
    """
    export_graphs(model, folder / "encoder.onnx", folder / "decoder.onnx")
    model.config.save_pretrained(folder)
    savable(model.generation_config).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return []


def export_graphs(model: VanillaForConditionalGeneration, encoder: Path, decoder: Path) -> None:
    """Write both graphs, in 32-bit floats. Learned positions must be at least PAST + TARGET."""
    config = model.config
    model = copy.deepcopy(model).float().cpu().eval()
    # Eq. 1 written out becomes plain products and a softmax, which every runtime has.
    model.set_attn_implementation("eager")
    heads, widths = _heads_and_widths(model)
    _check_logits(model, [torch.zeros(ROWS, heads, 0, width) for width in widths])
    ids, mask = torch.ones(ROWS, SOURCE, dtype=torch.long), {0: B, 1: "S"}
    inputs = {"input_ids": mask, "attention_mask": mask}
    _export(Encoder(model), (ids, torch.ones_like(ids)), inputs, ["last_hidden_state"], encoder)
    encoded = torch.zeros(ROWS, SOURCE, heads * sum(widths))
    past = [torch.zeros(ROWS, heads, PAST, width) for width in widths]
    inputs = {"input_ids": {0: B, 1: "T"}, "encoder_attention_mask": mask, "encoder_hidden_states": mask}
    names = [f"{layer}.decoder.{part}" for layer in range(config.decoder_layers) for part in ("key", "value")]
    inputs |= {f"past_key_values.{name}": {0: B, 2: "P"} for name in names}
    outputs = ["logits", *(f"present.{name}" for name in names)]
    _export(Decoder(model), (torch.ones(ROWS, TARGET, dtype=torch.long), ids, encoded, *past), inputs, outputs, decoder)


@torch.no_grad()
def _check_logits(model: VanillaForConditionalGeneration, past: list[torch.Tensor]) -> None:
    """Raise ValueError if a model computes more than the stacks and the projection, which Encoder and Decoder know."""
    ids = torch.arange(ROWS * TARGET).reshape(ROWS, TARGET) % model.config.vocab_size
    mask = torch.ones_like(ids)
    expected = model(input_ids=ids, attention_mask=mask, decoder_input_ids=ids, return_dict=True).logits
    found = Decoder(model)(ids, mask, Encoder(model)(ids, mask), *past)[0]
    if not torch.allclose(found, expected, rtol=1e-3, atol=1e-3):
        error = f"{(found - expected).abs().max():.3g}"
        raise ValueError(f"ONNX: the graphs of the stacks and the output projection miss the model's logits by {error}")


def quantize(source: Path, destination: Path) -> None:
    """Write a graph with matrices of 8-bit integers. The other factor is rounded to 8 bits when it is computed."""
    graph = onnx.load(source)
    add_pre_process_metadata(graph)  # torch has already simplified it
    # Unsigned: products of signed ones overflow on a CPU that has no instruction for them.
    quantize_dynamic(graph, destination, weight_type=QuantType.QUInt8)


class Encoder(nn.Module):
    """The encoder, and the keys and values that the decoder's cross-attention computes from its output."""

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
        # (D, vocabulary): embeddings are columns of it, so that the graph holds one matrix, in 8 bits, too
        self.register_buffer("projection", model.lm_head.weight.t().contiguous())

    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        *past: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        model, (heads, widths) = self.model, _heads_and_widths(self.model)
        if model.config.tie_word_embeddings:
            x = self.projection.index_select(1, input_ids.flatten()).t().unflatten(0, input_ids.shape)  # (B, T, D)
        else:
            x = model.model.decoder.embed_tokens(input_ids)
        parts = encoder_hidden_states.split([heads * width for width in widths], dim=-1)
        encoder = [part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts]
        caches = (DynamicCache(list(zip(every[::2], every[1::2], strict=True))) for every in (past, encoder))
        cache = EncoderDecoderCache(*caches)
        x = model.model.decoder(
            inputs_embeds=x,
            # The layers read the cached keys and values; the encoder's output only tells their size.
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            cache=cache,
            use_cache=True,
        ).last_hidden_state
        present = [tensor for layer in cache.self_attention_cache.layers for tensor in (layer.keys, layer.values)]
        logits = x @ self.projection
        return logits if model.lm_head.bias is None else logits + model.lm_head.bias, *present


def _heads_and_widths(model: VanillaForConditionalGeneration) -> tuple[int, list[int]]:
    """The decoder's heads, and the widths K and V of each layer."""
    heads = model.config.decoder_attention_heads
    return heads, list(model.config.head_dims(heads)) * model.config.decoder_layers


def _export(module: nn.Module, arguments: tuple, inputs: dict[str, dict], outputs: list[str], path: Path) -> None:
    """Write the graph of a module. inputs: the free axes of each argument by its name."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # each graph gets four lines where torchvision is missing
    free = list(inputs.values())
    shapes = tuple(free) if len(free) == 2 else (*free[:3], tuple(free[3:]))  # the last argument is *past
    names = {"input_names": list(inputs), "output_names": outputs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one library at another, and that several axes have one name
        program = torch.onnx.export(module, arguments, dynamo=True, verbose=False, dynamic_shapes=shapes, **names)
    graph = program.model_proto
    for node in graph.graph.node:
        del node.metadata_props[:]  # the places in this machine's files that it comes from
    onnx.save(graph, path)

"""Export to ONNX: an encoder, and a decoder with its cache, for onnxruntime and whatever else reads that format.

encoder.onnx    input_ids (B, S), attention_mask (B, S) -> last_hidden_state (B, S, D), and of every decoder layer i
                encoder_key_i (B, H, S, K) and encoder_value_i (B, H, S, V), which its cross-attention reads
decoder.onnx    input_ids (B, T), encoder_attention_mask (B, S), encoder_key_i, encoder_value_i, and of the positions
                before, of which there may be none, past_key_i (B, H, P, K) and past_value_i (B, H, P, V)
                -> logits (B, T, vocabulary), present_key_i and present_value_i, the next call's past

B, S, T and P are free. The beams of a search are further rows of B: repeat the encoder's outputs for them.
"""

import copy
import logging
import warnings
from pathlib import Path

import onnx
import onnxscript  # noqa: F401  what torch exports with, asked for here rather than in the middle
import torch
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from ..modeling_vanilla import VanillaForConditionalGeneration
from ..progress import progress_bar

ENCODER, DECODER = "encoder.onnx", "decoder.onnx"
# The sizes of what torch.export follows through the code; it keeps the one way that they take. They are told apart, and
# are not such as some code treats apart: 0 and 1 and, because a CPU is faster otherwise, fewer than 16 keys.
ROWS, SOURCE, TARGET, PAST = 2, 20, 18, 19


def to_onnx(model: VanillaForConditionalGeneration, folder: Path, show_progress: bool = False) -> None:
    """Write encoder.onnx and decoder.onnx, in 32-bit floats, to an existing folder. Takes a minute or two.

    Learned positions keep their end: a longer sequence is an error of the runtime's.

    Args:
        show_progress: a progress bar on stderr.
    """
    model = copy.deepcopy(model).float().cpu().eval()
    # Eq. 1 written out becomes plain products and a softmax, which every runtime knows.
    model.set_attn_implementation("eager")
    with progress_bar(total=2, unit=" graphs", disable=not show_progress) as bar, torch.no_grad():
        _export_encoder(model, folder / ENCODER)
        bar.update()
        _export_decoder(model, folder / DECODER)
        bar.update()


class Encoder(nn.Module):
    """The encoder, and what the decoder's cross-attention makes of its output."""

    def __init__(self, model: VanillaForConditionalGeneration):
        super().__init__()
        self.model = model.model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden_states = self.model.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        pairs = [layer.cross_attn.keys_and_values(hidden_states, None) for layer in self.model.decoder.layers]
        return hidden_states, *(tensor for pair in pairs for tensor in pair)


class Decoder(nn.Module):
    """The decoder and the output projection, with every layer's keys and values as plain tensors."""

    def __init__(self, model: VanillaForConditionalGeneration):
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
        encoder: list[torch.Tensor],
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        cache = EncoderDecoderCache(DynamicCache(_pairs(past)), DynamicCache(_pairs(encoder)))
        rows, source = encoder_attention_mask.shape
        # The layers read the cached keys and values; of the encoder's output only the size is looked at.
        encoder_hidden_states = encoder[0].new_zeros(rows, source, self.model.config.d_model)
        x = self.model.model.decoder(
            input_ids=input_ids,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        present = [tensor for layer in cache.self_attention_cache.layers for tensor in (layer.keys, layer.values)]
        return self.model.lm_head(x), *present


def _pairs(tensors: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def _names(kind: str, layers: int) -> list[str]:
    return [f"{kind}_{part}_{index}" for index in range(layers) for part in ("key", "value")]


def _export_encoder(model: VanillaForConditionalGeneration, path: Path) -> None:
    ids = torch.ones(ROWS, SOURCE, dtype=torch.long)
    axes = {0: "B", 1: "S"}
    _export(
        Encoder(model),
        (ids, torch.ones_like(ids)),
        path,
        input_names=["input_ids", "attention_mask"],
        output_names=["last_hidden_state", *_names("encoder", model.config.decoder_layers)],
        dynamic_shapes=(axes, axes),
    )


def _export_decoder(model: VanillaForConditionalGeneration, path: Path) -> None:
    layers, heads = model.config.decoder_layers, model.config.decoder_attention_heads
    widths = model.config.head_dims(heads) * layers

    def keys_and_values(length: int) -> list[torch.Tensor]:
        return [torch.zeros(ROWS, heads, length, width) for width in widths]

    _export(
        Decoder(model),
        (
            torch.ones(ROWS, TARGET, dtype=torch.long),
            torch.ones(ROWS, SOURCE, dtype=torch.long),
            keys_and_values(SOURCE),
            keys_and_values(PAST),
        ),
        path,
        input_names=["input_ids", "encoder_attention_mask", *_names("encoder", layers), *_names("past", layers)],
        output_names=["logits", *_names("present", layers)],
        dynamic_shapes=(
            {0: "B", 1: "T"},
            {0: "B", 1: "S"},
            [{0: "B", 2: "S"}] * (2 * layers),
            [{0: "B", 2: "P"}] * (2 * layers),
        ),
    )


def _export(module: nn.Module, inputs: tuple, path: Path, **options) -> None:
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # or each graph gets four lines because torchvision is not installed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of one library at another, and that several axes are called B
            torch.onnx.export(module, inputs, path, dynamo=True, external_data=False, verbose=False, **options)
    finally:
        logger.setLevel(level)
    onnx.checker.check_model(path)

"""Translate with an ONNX export, by onnxruntime and this package's own search.

    from modeling_vanilla.inference import translate
    from modeling_vanilla.interop.onnx_model import load_onnx

    model, tokenizer = load_onnx("runs/mine/onnx")
    translate(model, tokenizer, ["A sentence."])  # beam 4, alpha 0.6, input + 50 tokens, or the model's own search

generate() takes input_ids and attention_mask, in every search, and gives what the model itself gives but for rounding.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ..cache_vanilla import CACHE, named_arguments
from ..errors import one_line
from ..generation_vanilla import GnmtGenerationMixin
from ..inference.loading import load_config, load_tokenizer
from ..modeling_vanilla import VanillaPreTrainedModel


class OnnxModel(VanillaPreTrainedModel, GnmtGenerationMixin):
    """The two graphs of an exported folder as one model, for generate() alone.

    Args:
        folder: what `vanilla export --to onnx` wrote.
        providers: where onnxruntime computes, the best first, such as ["CUDAExecutionProvider"].

    Raises:
        ValueError: if the folder lacks a file, or one of them cannot be read.
    """

    _can_compile_fullgraph = False

    def __init__(self, folder: str | Path, providers: Sequence[str] = ("CPUExecutionProvider",)):
        super().__init__(load_config(Path(folder)))
        try:
            self.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
        except OSError as error:
            raise ValueError(f"model: {folder} has no good generation_config.json: {one_line(error)}") from error
        self.encoder = OnnxEncoder(_session(Path(folder) / "encoder.onnx", providers))
        self.step = _session(Path(folder) / "decoder.onnx", providers)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")  # where the graphs take and give their tensors

    @named_arguments
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        **kwargs,
    ) -> Seq2SeqLMOutput:
        """Score the next token; the rows of decoder_input_ids (B, T) are those of a sentence's beams, side by side.

        Returns:
            logits (B, T, V) and cache.

        Raises:
            ValueError: if attentions or hidden states are asked for.
        """
        for name in ("output_attentions", "output_hidden_states"):
            if kwargs.get(name):
                raise ValueError(f"{name}: the graphs of an ONNX export give none")
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        encoded, rows = encoder_outputs.last_hidden_state, len(decoder_input_ids)
        mask = torch.ones(encoded.shape[:2]) if attention_mask is None else attention_mask

        def repeat(tensor: torch.Tensor) -> np.ndarray:
            """For each beam of a sentence."""
            return tensor.repeat_interleave(rows // len(encoded), 0).numpy()

        inputs = {
            "input_ids": decoder_input_ids.numpy(),
            "encoder_attention_mask": repeat(mask.long()),
            "encoder_hidden_states": repeat(encoded),
        }
        has_past = cache is not None and cache.get_seq_length()
        past = cache.self_attention_cache.layers if has_past else []
        keys_and_values = [tensor for layer in past for tensor in (layer.keys, layer.values)]
        for index, put in enumerate(self.step.get_inputs()[len(inputs) :]):
            _, heads, _, width = put.shape
            empty = torch.zeros(rows, heads, 0, width)
            inputs[put.name] = (keys_and_values[index] if has_past else empty).numpy()
        logits, *present = map(torch.from_numpy, self.step.run(None, inputs))
        cache = DynamicCache(list(zip(present[::2], present[1::2], strict=True)))
        return Seq2SeqLMOutput(logits=logits, **{CACHE: EncoderDecoderCache(cache, DynamicCache())})


class OnnxEncoder(nn.Module):
    """encoder.onnx, whose output is what decoder.onnx takes."""

    main_input_name = "input_ids"

    def __init__(self, session: onnxruntime.InferenceSession):
        super().__init__()
        self.session = session

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs) -> BaseModelOutput:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        (output,) = self.session.run(None, {"input_ids": input_ids.numpy(), "attention_mask": mask.numpy()})
        return BaseModelOutput(torch.from_numpy(output))


def load_onnx(
    folder: str | Path, providers: Sequence[str] = ("CPUExecutionProvider",)
) -> tuple[OnnxModel, PreTrainedTokenizerBase]:
    """An exported folder as a model and its tokenizer, for `inference.translate` and generate(); as `OnnxModel`."""
    tokenizer = load_tokenizer(Path(folder))
    return OnnxModel(folder, providers), tokenizer


def _session(path: Path, providers: Sequence[str]) -> onnxruntime.InferenceSession:
    try:
        return onnxruntime.InferenceSession(path, providers=list(providers))
    except Exception as error:  # onnxruntime raises nothing more special
        raise ValueError(f"{path}: cannot be read: {one_line(error)}") from error

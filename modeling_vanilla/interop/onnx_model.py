"""Translate with an ONNX export, by onnxruntime and this package's own search.

    from modeling_vanilla.inference import translate
    from modeling_vanilla.interop.onnx_model import load_onnx

    model, tokenizer = load_onnx("runs/mine/onnx")
    translate(model, tokenizer, ["A sentence."])  # beam 4, alpha 0.6, input + 50 tokens, or the model's own search

generate() takes input_ids and attention_mask, in every search, and gives what the model itself gives, to rounding.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from onnxruntime import InferenceSession
from torch import nn
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ..cache_vanilla import CACHE, named_arguments
from ..generation_vanilla import GnmtGenerationMixin
from ..inference.loading import load_config, load_tokenizer
from ..modeling_vanilla import VanillaPreTrainedModel


class OnnxModel(VanillaPreTrainedModel, GnmtGenerationMixin):
    """The two graphs of an exported folder as one model, for generate() alone.

    Args:
        folder: what `vanilla export --to onnx` wrote.
        providers: where onnxruntime computes, the best first, such as ["CUDAExecutionProvider"].

    Raises:
        ValueError: if config.json is missing or cannot be read.
        OSError: if generation_config.json is missing.
        Exception: of onnxruntime, if a graph is missing or cannot be read; it names the file.
    """

    _can_compile_fullgraph = False

    def __init__(self, folder: str | Path, providers: Sequence[str] = ("CPUExecutionProvider",)):
        super().__init__(load_config(Path(folder)))
        self.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
        self.encoder = OnnxEncoder(InferenceSession(Path(folder, "encoder.onnx"), providers=list(providers)))
        self.step = InferenceSession(Path(folder, "decoder.onnx"), providers=list(providers))

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
        """Score the next token; decoder_input_ids (B * beams, T) has the beams of a sentence in adjacent rows.

        Returns:
            logits (B * beams, T, V) and cache.
        """
        encoded = (encoder_outputs or self.encoder(input_ids, attention_mask)).last_hidden_state
        mask = torch.ones(encoded.shape[:2]) if attention_mask is None else attention_mask
        beams = len(decoder_input_ids) // len(encoded)
        feeds = {
            "input_ids": decoder_input_ids,
            "encoder_attention_mask": mask.long().repeat_interleave(beams, 0),
            "encoder_hidden_states": encoded.repeat_interleave(beams, 0),
        }
        inputs = self.step.get_inputs()[len(feeds) :]
        if cache is not None and cache.get_seq_length():
            past = [tensor for layer in cache.self_attention_cache.layers for tensor in (layer.keys, layer.values)]
        else:  # (B * beams, H, 0, K)
            past = [torch.zeros(len(decoder_input_ids), each.shape[1], 0, each.shape[3]) for each in inputs]
        feeds |= zip((each.name for each in inputs), past, strict=True)
        logits, *present = map(torch.from_numpy, self.step.run(None, {name: feeds[name].numpy() for name in feeds}))
        present_cache = DynamicCache(list(zip(present[::2], present[1::2], strict=True)))
        return Seq2SeqLMOutput(logits=logits, **{CACHE: EncoderDecoderCache(present_cache, DynamicCache())})


class OnnxEncoder(nn.Module):
    """encoder.onnx, whose output is what decoder.onnx takes."""

    main_input_name = "input_ids"

    def __init__(self, session: InferenceSession):
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
    return OnnxModel(folder, providers), load_tokenizer(Path(folder))

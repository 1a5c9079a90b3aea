"""Weights and activations of 8-bit integers, which a CPU multiplies faster. None of it is in the paper.

    model = AutoModelForSeq2SeqLM.from_pretrained(folder, quantization_config=Int8Config())

benchmarks/decode.py has the speed, benchmarks/quantized.py BLEU.
"""

import logging

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

METHOD = "vanilla_int8"
LARGEST = 127
# Weights of a layer. With fewer, rounding the rows costs what the product gains (benchmarks/decode.py).
SMALLEST = 2**18
logger = logging.getLogger(__name__)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The integers q (N, D) and the scales s (N, 1) with which x (N, D) is about s q.

    The number of largest magnitude in a row is 127 there, so that a row does not depend on the others.
    """
    scale = (x.abs().amax(dim=-1, keepdim=True) / LARGEST).clamp(min=torch.finfo(x.dtype).tiny)
    return (x / scale).round_().to(torch.int8), scale


class Int8Linear(nn.Module):
    """y = x W^T + b of a linear layer, with the rows of x and of W as 8-bit integers; their product is exact."""

    matrix: torch.Tensor
    scale: torch.Tensor

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight, scale = quantize_rows(linear.weight.detach().float())
        self.register_buffer("matrix", weight.T.contiguous())
        self.register_buffer("scale", scale.squeeze(1))
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., D) -> (..., F)"""
        rows, scale = quantize_rows(x.flatten(0, -2))
        y = torch._int_mm(rows, self.matrix).float().mul_(self.scale).mul_(scale)
        y = y if self.bias is None else y.add_(self.bias)
        return y.unflatten(0, x.shape[:-1])


def quantize(model: PreTrainedModel) -> None:
    """Replace the larger linear layers of a model in 32 bits, which include the output projection; embeddings stay.

    The output projection gets a copy of its own of the matrix that it shares with them. Where the processor has no
    products of 8-bit integers there is a warning, and the model stays as it is.

    Raises:
        ValueError: for a model elsewhere than on a CPU or in another format.
    """
    if model.device.type != "cpu" or model.dtype != torch.float32:
        raise ValueError(f"int8: a model in float32 on a CPU is needed, not in {model.dtype} on {model.device}")
    if not torch.cpu._is_vnni_supported():  # without, oneDNN adds products up in 16 bits, which may overflow
        logger.warning("int8: this goes on in float32, as the processor has no AVX512-VNNI")
        return
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and module.weight.numel() >= SMALLEST:
            model.set_submodule(name, Int8Linear(module))


@register_quantization_config(METHOD)
class Int8Config(QuantizationConfigMixin):
    """What from_pretrained takes as its quantization_config; such a model is not trained, and not saved."""

    def __init__(self, **kwargs):
        self.quant_method = METHOD


@register_quantizer(METHOD)
class Int8Quantizer(HfQuantizer):
    """`quantize` behind from_pretrained."""

    is_trainable = False
    is_compileable = True

    def is_serializable(self) -> bool:
        return False

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs) -> None:
        quantize(model)

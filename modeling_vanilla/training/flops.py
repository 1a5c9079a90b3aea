"""The floating point operations of a training, and those that its device can do in a second.

A FLOP is one addition or one multiplication in floating point.
"""

import torch
from accelerate import Accelerator
from torch.utils.benchmark import Timer

KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16}  # of the products, by mixed_precision; else 32 bits


def model_flops(config, source, target):
    """FLOPs of one forward and one backward pass over each of some sentence pairs, by formula.

    Each multiply-add of a matrix product is two FLOPs, and the backward pass has two products (the gradients of either
    factor) for the forward pass's one. Counted are, at the real tokens alone, without padding: every projection, Q K^T
    and the product of its weights with V, both products of each feed-forward network, and the output projection.
    Causal attention counts in full, T x T, as Eq. 1 computes it, and so does attention within a window, whose mask
    saves nothing. Not counted are embedding look-ups, positions, biases, softmax, dropout, normalisation, residuals,
    the loss and the optimizer: a small share, which grows as the model narrows.

    Args:
        config: VanillaConfig.
        source, target: the tokens of the pairs' sides, of which </s> is one; each a number, an array or a tensor.
    """

    def attention(num_heads: int, queries, keys):
        """Multiply-adds of multi-head attention (3.2.2).

        W^Q and W^O work on the queries, d_k and d_v wide; W^K and W^V on the keys, as wide; the score of a key takes
        d_k multiply-adds, its value d_v. Hence d_k + d_v is a factor of all.
        """
        products = config.d_model * (queries + keys) + queries * keys
        return num_heads * sum(config.head_dims(num_heads)) * products

    encoder_layer = attention(config.encoder_attention_heads, source, source)
    encoder_layer += 2 * config.d_model * config.encoder_ffn_dim * source  # W_1 and W_2 (3.3)
    decoder_layer = attention(config.decoder_attention_heads, target, target)
    decoder_layer += attention(config.decoder_attention_heads, target, source)
    decoder_layer += 2 * config.d_model * config.decoder_ffn_dim * target
    output_projection = target * config.d_model * config.vocab_size
    forward = 2 * (config.encoder_layers * encoder_layer + config.decoder_layers * decoder_layer + output_projection)
    return 3 * forward


def product_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s that one device sustains in products of large square matrices.

    They have 2048 rows on a CPU and 8192 elsewhere, or fewer where a product would last much longer than 0.05 s: some
    types have no fast product on some devices. On a CPU the device is this process, on the threads that torch gives it.
    """
    largest = 2048 if device.type == "cpu" else 8192
    size, seconds = 128, 0.0
    while seconds < 0.05 and size < largest:
        size *= 2
        a, b = (torch.rand(size, size, device=device, dtype=dtype) for _ in range(2))
        timer = Timer("a @ b", globals={"a": a, "b": b}, num_threads=torch.get_num_threads())
        seconds = timer.blocked_autorange(min_run_time=0.1).median
    return 2 * size**3 / seconds


def device_flops(accelerator: Accelerator) -> float | None:
    """FLOP/s of this process's device in large products of the training's precision.

    None on a CPU: other programs share its cores, and what one moment has is not what the whole run could have.
    """
    if accelerator.device.type == "cpu":
        return None
    return product_flops(accelerator.device, KINDS.get(accelerator.mixed_precision, torch.float32))

"""Saved weights: the files in which they are, and whether they are those of a model. None of it is in the paper."""

import json
import os
import re
from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

# A file in the folder of the index that names it, on every system.
_SHARD = re.compile(r"[^/\\:]+\.safetensors")


def read_weights(path: str | PathLike | None, subfolder: str | None = None) -> dict[str, torch.Tensor]:
    """The weights in a folder by name, mapped into memory; none if the folder has none, or the path is no folder.

    Raises:
        ValueError: if an index names something else than a file of safetensors beside it.
        SafetensorError: if a file is damaged.
        OSError: if a file cannot be read.
    """
    if path is None or not os.path.isdir(path):
        return {}
    folder = Path(path, subfolder or "")
    files = set(folder.glob("model*.safetensors"))
    for index in folder.glob("*.safetensors.index*.json"):
        try:
            names = set(json.loads(index.read_bytes())["weight_map"].values())
        except Exception as error:  # it may hold anything
            raise ValueError(f"{index} is no index of weights: {type(error).__name__} {error}") from error
        for name in names:
            if not _SHARD.fullmatch(str(name)):
                raise ValueError(f"{index} names {str(name)!r}, not a file of safetensors beside it")
        files |= {folder / name for name in names}
    return {name: weight for file in sorted(files) for name, weight in load_file(file).items()}


def compare_weights(weights: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> dict[str, Collection]:
    """What is missing, unexpected or of another shape, as from_pretrained tells it by output_loading_info."""
    common = weights.keys() & expected.keys()
    shapes = {(name, weights[name].shape, expected[name].shape) for name in common}
    return {
        "missing_keys": expected.keys() - common,
        "unexpected_keys": weights.keys() - common,
        "mismatched_keys": {shape for shape in shapes if shape[1] != shape[2]},
    }


def check_weights(
    weights: Mapping[str, torch.Tensor], info: Mapping[str, Collection], source: object = "", finite: bool = True
) -> None:
    """Raise a ValueError that names the weight unless all are there, and are floating-point numbers.

    Args:
        weights: by name.
        info: how they differ from the model's, as `compare_weights` tells it; what it leaves out is not checked.
        source: where they are from, for the message.
        finite: whether NaN and infinity are errors, too.
    """
    prefix = f"{source}: " if source else ""
    for name, shape, expected in sorted(info.get("mismatched_keys", ())):
        raise ValueError(f"{prefix}the weight {name} is of shape {tuple(shape)}, not {tuple(expected)}")
    for kind, what in (("missing_keys", "lack"), ("unexpected_keys", "have, beyond the model's,")):
        if info.get(kind):
            raise ValueError(f"{prefix}the weights {what} {', '.join(sorted(info[kind])[:3])}")
    for name, weight in weights.items():
        if not weight.is_floating_point():
            raise ValueError(f"{prefix}the weight {name} is of {weight.dtype}, which is no format of real numbers")
        if finite and weight.numel() and not torch.stack(weight.aminmax()).isfinite().all():
            raise ValueError(f"{prefix}the weight {name} has values that are NaN or infinite")


class CheckedWeights:
    """What goes before PreTrainedModel among the bases of a model, so that from_pretrained checks its weights."""

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path,
        *model_args,
        use_safetensors: bool | None = None,
        output_loading_info: bool = False,
        ignore_mismatched_sizes: bool = False,
        **kwargs,
    ):
        """Load a model, as PreTrainedModel.from_pretrained does, but read a pickle only with use_safetensors=False.

        Raises:
            ValueError: if the configuration is invalid, or the weights are damaged, integers or another model's.
            OSError: if there is no model.
        """
        source = f"the weights of {pretrained_model_name_or_path}"
        try:
            saved = read_weights(pretrained_model_name_or_path, kwargs.get("subfolder"))
            model, info = super().from_pretrained(
                pretrained_model_name_or_path,
                *model_args,
                use_safetensors=True if use_safetensors is None else use_safetensors,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **kwargs,
            )
        except SafetensorError as error:
            raise ValueError(f"{source}: {error}") from error
        # transformers draws missing weights at random. Where most are, beside as many others, they are another model's.
        missing, unexpected = info["missing_keys"], info["unexpected_keys"]
        is_another = 2 * min(len(missing), len(unexpected)) > len(model.state_dict())
        used = {name: weight for name, weight in saved.items() if name not in unexpected}
        checked = {
            "missing_keys": missing if is_another else (),
            "mismatched_keys": () if ignore_mismatched_sizes else info["mismatched_keys"],
        }
        quantized = getattr(model, "hf_quantizer", None) is not None  # to integers, maybe
        check_weights({} if quantized else used, checked, source, finite=False)
        return (model, info) if output_loading_info else model

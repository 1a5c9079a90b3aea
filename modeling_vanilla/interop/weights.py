"""What the importers share: settings, weights and search of transformers' and fairseq's post-LN models.

MarianMT, FSMT and fairseq give the weights of a layer the same names; `build` takes them by those names.
"""

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from ..configuration_vanilla import VanillaConfig
from ..errors import one_line
from ..generation_vanilla import default_generation_config
from ..inference.loading import check_no_adapter, check_readable, check_weights, load_weights
from ..modeling_vanilla import VanillaForConditionalGeneration

# Fields of MarianConfig and FSMTConfig that mean the same in VanillaConfig.
_SIZES = [f"{stack}_{size}" for stack in ("encoder", "decoder") for size in ("layers", "attention_heads", "ffn_dim")]
_TOKENS = ["pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"]
_DROPOUT = ["dropout", "attention_dropout", "activation_dropout"]
SAME_FIELDS = ["d_model", *_SIZES, *_DROPOUT, "activation_function", *_TOKENS, "use_cache"]
POSITIONS, MOST_POSITIONS = 1024, 2**20  # rows of a table of sinusoids that is exported, by default and at most
QUANTIZATIONS = ("float32", "int8")  # how the matrices of an export are stored and multiplied
MARIAN_NORM_EPS = 1e-5  # torch's default, which none of the three changes
# The limits of their searches, which are numbers where ours follow the source's length; and an EOS forced at the limit,
# which would come at the end of the longest sentence of a batch, so that a translation depended on its batch mates.
OTHER_LIMITS = ("max_length", "max_new_tokens", "forced_eos_token_id")

# Source embedding, target embedding and output projection.
EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
_LAYER_NAME = re.compile(r"(encoder|decoder)\.layers\.\d+")
_QKV = ("q_proj", "k_proj", "v_proj")
# Our module in a layer, and theirs; those of one entry are fused in ours.
LAYER = (
    ("self_attn.qkv_proj", [f"self_attn.{part}" for part in _QKV]),
    ("self_attn.out_proj", ["self_attn.out_proj"]),
    ("self_attn_add_norm", ["self_attn_layer_norm"]),
    ("ffn.fc1", ["fc1"]),
    ("ffn.fc2", ["fc2"]),
    ("ffn_add_norm", ["final_layer_norm"]),
)
CROSS_ATTENTION = (
    ("cross_attn.q_proj", ["encoder_attn.q_proj"]),
    ("cross_attn.kv_proj", ["encoder_attn.k_proj", "encoder_attn.v_proj"]),
    ("cross_attn.out_proj", ["encoder_attn.out_proj"]),
    ("cross_attn_add_norm", ["encoder_attn_layer_norm"]),
)


def load_source(
    cls: type[PreTrainedModel], path: str | PathLike | PreTrainedModel, importer: str, name: str
) -> PreTrainedModel:
    """A model of a class of transformers, from a folder or a Hub id with weights in safetensors, or the model itself.

    Args:
        importer: the function that was called, and name: the kind of model, for the messages.

    Raises:
        ValueError: if there is no such model, or its weights are incomplete or pickled.
        PermissionError: if a file of the folder may not be read.
    """
    if isinstance(path, cls):
        return path
    if not isinstance(path, str | PathLike):
        raise ValueError(f"{importer} takes a folder, a Hub id or {cls.__name__}, not {type(path).__name__}")
    check_readable(path)
    check_no_adapter(Path(path))
    model_type, expected = read_config(path).get("model_type"), cls.config_class.model_type
    if model_type != expected:
        raise ValueError(f"{path}: model_type in config.json is {model_type!r}, not {expected!r}")
    if Path(path, "pytorch_model.bin").is_file() and not any(Path(path).glob("*.safetensors")):
        raise ValueError(
            f"{path}: pytorch_model.bin is a pickle, which is not opened here; if you trust it, load it with "
            f"{cls.__name__}.from_pretrained and give {importer} the model"
        )
    return load_weights(cls, path, f"{path}: no {name} model could be loaded")


def read_config(path: str | PathLike) -> dict:
    """config.json of a folder or a Hub id; ValueError if there is none."""
    try:
        return dict(PreTrainedConfig.get_config_dict(path)[0])
    except Exception as error:  # a damaged file makes transformers raise almost anything
        raise ValueError(f"{path}: no config.json could be read: {one_line(error)}") from error


def check_positions(positions: int) -> None:
    """Raise ValueError unless a table of sinusoids, d_model floats for each position, can be of this length."""
    if not 1 <= positions <= MOST_POSITIONS:
        raise ValueError(f"positions must be from 1 to {MOST_POSITIONS}, not {positions}")


def check_quantization(quantization: str) -> None:
    """Raise ValueError unless this is one of QUANTIZATIONS."""
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization must be one of {', '.join(QUANTIZATIONS)}, not {quantization!r}")


def same_fields(config: PreTrainedConfig) -> dict:
    """SAME_FIELDS of a configuration of transformers."""
    return {field: getattr(config, field) for field in SAME_FIELDS}


@torch.no_grad()
def build(fields: dict, weights: Mapping[str, torch.Tensor]) -> VanillaForConditionalGeneration:
    """The model of these fields with weights by fairseq's names.

    Source embedding, target embedding and output projection are one matrix if their weights are the same, three if not.

    Args:
        fields: of VanillaConfig, but what the weights tell: vocab_size, tie_word_embeddings and output_bias.

    Returns:
        The model in evaluation mode, of the type and on the device of the weights.

    Raises:
        KeyError: if a weight is missing.
        ValueError: as check_weights does, or if source and target vocabulary differ in size.
    """
    ours = our_weights(weights)
    source, target, projection = (ours[name] for name in EMBEDDINGS)
    if len(source) != len(target):
        raise ValueError(f"the source has a vocabulary of {len(source)} tokens, the target {len(target)}: 5.1 has one")
    for stack in ("encoder", "decoder"):
        layers = {name.split(".")[3] for name in ours if name.startswith(f"model.{stack}.layers.")}
        if fields[f"{stack}_layers"] != len(layers):
            raise ValueError(f"{stack}_layers is {fields[f'{stack}_layers']}, but there are weights of {len(layers)}")
    config = VanillaConfig(
        vocab_size=len(source),
        tie_word_embeddings=torch.equal(source, target) and torch.equal(source, projection),
        output_bias="lm_head.bias" in ours,
        attention_bias=True,
        layer_norm_eps=MARIAN_NORM_EPS,
        **fields,
    )
    with torch.device("meta"):  # takes no memory, whatever the settings say
        model = VanillaForConditionalGeneration(config)
    check_weights(ours, model.state_dict())
    model.load_state_dict({name: weight.detach().clone() for name, weight in ours.items()}, assign=True)
    model.tie_weights()
    return model.eval()


def our_weights(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights by fairseq's names as weights by this package's, fused where ours are.

    Raises:
        KeyError: if an embedding or a part of a fused weight is missing.
    """
    rest = dict(weights)
    source, target = (rest.pop(f"{stack}.embed_tokens.weight") for stack in ("encoder", "decoder"))
    ours = dict(zip(EMBEDDINGS, (source, target, rest.pop("decoder.output_projection.weight", target)), strict=True))
    if "decoder.output_projection.bias" in rest:
        ours["lm_head.bias"] = rest.pop("decoder.output_projection.bias")
    layers = dict.fromkeys(match[0] for match in map(_LAYER_NAME.match, weights) if match)
    for layer in layers:
        for name, parts in LAYER + (CROSS_ATTENTION if layer.startswith("decoder") else ()):
            for kind in ("weight", "bias"):
                theirs = [rest.pop(f"{layer}.{part}.{kind}") for part in parts]
                ours[f"model.{layer}.{name}.{kind}"] = torch.cat(theirs)
    return ours | {f"model.{name}": weight for name, weight in rest.items()}


def keep_search(theirs: GenerationConfig, config: VanillaConfig) -> GenerationConfig:
    """The search of a model of transformers, but for its limits: see `from_marian`."""
    kept = {name: value for name, value in theirs.to_diff_dict().items() if name not in OTHER_LIMITS}
    if kept.get("num_beams") == 1:
        del kept["num_beams"]  # transformers' default, which the model did not set
    kept.pop("_from_model_config", None)
    result = default_generation_config(config)
    result.update(**{"length_penalty_type": "length", "length_penalty": 1.0, **kept})
    return result

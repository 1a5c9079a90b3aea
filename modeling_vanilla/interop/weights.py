"""What the importers share: settings, weights, search and tokenizers of transformers' and fairseq's post-LN models.

MarianMT, FSMT and fairseq give the weights of a layer the same names; `build` takes them by those names.
"""

import re
from collections.abc import Mapping
from itertools import product
from os import PathLike

import torch
from transformers import AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import has_file

from ..configuration_vanilla import VanillaConfig
from ..errors import one_line
from ..generation_vanilla import default_generation_config
from ..loading import check_search, check_weights, load_weights
from ..modeling_vanilla import VanillaForConditionalGeneration

# Fields of MarianConfig and FSMTConfig that mean the same in VanillaConfig.
_SIZES = [f"{stack}_{size}" for stack in ("encoder", "decoder") for size in ("layers", "attention_heads", "ffn_dim")]
_TOKENS = ["pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"]
_DROPOUT = ["dropout", "attention_dropout", "activation_dropout"]
SAME_FIELDS = ["d_model", *_SIZES, *_DROPOUT, "activation_function", *_TOKENS, "use_cache"]
MARIAN_NORM_EPS = 1e-5  # torch's default, which MarianMT, FSMT and fairseq keep
# The limits of their searches are numbers, where ours follow the length of the source. An EOS that is forced at the
# limit would come at the end of the longest sentence of a batch: a translation would depend on its batch.
OTHER_LIMITS = ("max_length", "max_new_tokens", "forced_eos_token_id")

# Source embedding, target embedding and output projection.
EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
# The modules of our layers, each with the modules of theirs that are fused in it.
LAYER = {
    "self_attn.qkv_proj": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "self_attn.out_proj": ["self_attn.out_proj"],
    "self_attn_add_norm": ["self_attn_layer_norm"],
    "ffn.fc1": ["fc1"],
    "ffn.fc2": ["fc2"],
    "ffn_add_norm": ["final_layer_norm"],
}
DECODER_LAYER = LAYER | {
    "cross_attn.q_proj": ["encoder_attn.q_proj"],
    "cross_attn.kv_proj": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
    "cross_attn.out_proj": ["encoder_attn.out_proj"],
    "cross_attn_add_norm": ["encoder_attn_layer_norm"],
}


def load_source(cls: type[PreTrainedModel], path: str | PathLike | PreTrainedModel) -> PreTrainedModel:
    """A model of a class of transformers, from a folder or a Hub id with weights in safetensors, or the model itself.

    Raises:
        ValueError: if there is no such model, or its weights are incomplete or pickled.
    """
    if isinstance(path, cls):
        return path
    check_search(path)
    return load_weights(cls, path, f"{path}: no {cls.__name__} could be loaded")


def load_source_tokenizer(path: str | PathLike, *files: str) -> PreTrainedTokenizerBase:
    """The tokenizer that AutoTokenizer finds in a folder or by a Hub id.

    Args:
        files: the files of the library's own tokenizer.

    Raises:
        ValueError: if it finds none; the line names those of `files` that are not there.
    """
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # tokenizers raises nothing more special
        # The library's own tokenizer takes None for the path of a file that is not there.
        is_own = isinstance(error, TypeError) or not has_file(path, "tokenizer.json")
        missing = ", ".join(name for name in files if is_own and not has_file(path, name))
        why = f"no {missing}" if missing else one_line(error)
        raise ValueError(f"{path}: no tokenizer could be loaded: {why}") from error


def same_fields(config: PreTrainedConfig) -> dict:
    """SAME_FIELDS of a configuration of transformers."""
    return {field: getattr(config, field) for field in SAME_FIELDS}


@torch.no_grad()
def build(fields: dict, weights: Mapping[str, torch.Tensor]) -> VanillaForConditionalGeneration:
    """The model of these fields with weights by fairseq's names.

    Source embedding, target embedding and output projection are one matrix if their weights are the same, three if not.

    Args:
        fields: of VanillaConfig, without those that the weights tell: vocab_size, numbers of layers,
            tie_word_embeddings and output_bias.

    Returns:
        The model in evaluation mode, with the dtype and on the device of the weights.

    Raises:
        KeyError: if a part of a fused weight is missing.
        ValueError: as check_weights does, also if source and target vocabulary (one in 5.1) differ in size.
    """
    ours = our_weights(weights)
    source, target, projection = (ours[name] for name in EMBEDDINGS)
    layers = {
        f"{stack}_layers": len({name.split(".")[3] for name in ours if name.startswith(f"model.{stack}.layers.")})
        for stack in ("encoder", "decoder")
    }
    config = VanillaConfig(
        **fields | layers,
        vocab_size=len(source),
        tie_word_embeddings=torch.equal(source, target) and torch.equal(source, projection),
        output_bias="lm_head.bias" in ours,
        attention_bias=True,
        layer_norm_eps=MARIAN_NORM_EPS,
    )
    with torch.device("meta"):  # takes no memory, whatever the fields say
        model = VanillaForConditionalGeneration(config)
    check_weights(ours, model.state_dict())
    model.load_state_dict({name: weight.detach().clone() for name, weight in ours.items()}, assign=True)
    model.tie_weights()
    return model.eval()


def our_weights(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights by fairseq's names as weights by this package's names, fused where ours are.

    Raises:
        KeyError: if an embedding or a part of a fused weight is missing.
    """
    rest = dict(weights)
    source, target = (rest.pop(f"{stack}.embed_tokens.weight") for stack in ("encoder", "decoder"))
    ours = dict(zip(EMBEDDINGS, (source, target, rest.pop("decoder.output_projection.weight", target)), strict=True))
    if "decoder.output_projection.bias" in rest:
        ours["lm_head.bias"] = rest.pop("decoder.output_projection.bias")
    for layer in dict.fromkeys(match[0] for name in weights if (match := re.match(r"\w+\.layers\.\d+", name))):
        modules = LAYER if layer.startswith("encoder") else DECODER_LAYER
        for (module, parts), kind in product(modules.items(), ("weight", "bias")):
            theirs = [rest.pop(f"{layer}.{part}.{kind}") for part in parts]
            ours[f"model.{layer}.{module}.{kind}"] = torch.cat(theirs)
    return ours | {f"model.{name}": weight for name, weight in rest.items()}


def keep_search(theirs: GenerationConfig, config: VanillaConfig) -> GenerationConfig:
    """The search of a model of transformers without its limits: see `from_marian`."""
    kept = {name: value for name, value in theirs.to_diff_dict().items() if name not in OTHER_LIMITS}
    kept.pop("_from_model_config", None)
    if kept.get("num_beams") == 1:
        del kept["num_beams"]  # transformers' default, which the model did not set
    result = default_generation_config(config)
    result.update(**{"length_penalty_type": "length", "length_penalty": 1.0, **kept})
    return result

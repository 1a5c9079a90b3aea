"""FSMT (facebook/wmt19-en-de and its like), fairseq's transformer as transformers has it."""

from os import PathLike

from transformers import FSMTForConditionalGeneration, FSMTTokenizer

from ..modeling_vanilla import VanillaForConditionalGeneration
from .from_fairseq import with_positions
from .weights import build, keep_search, load_source, load_source_tokenizer, same_fields


def from_fsmt(path_or_model: str | PathLike | FSMTForConditionalGeneration) -> VanillaForConditionalGeneration:
    """The model whose logits are those of an FSMT model, to the rounding of 32-bit floats.

    Positions are treated as in from_fairseq.py, padding and the search as in `from_marian`.

    Args:
        path_or_model: a folder or a Hub id with weights in safetensors, or the model itself, which is not changed.

    Returns:
        The model in evaluation mode, with weights of its own, of the same dtype and on the same device.

    Raises:
        ValueError: if there is no FSMT model, its weights are incomplete or pickled, or the paper's model cannot
            express it: embeddings that are not scaled, vocabularies of different sizes.
    """
    fsmt = load_source(FSMTForConditionalGeneration, path_or_model)
    if not fsmt.config.scale_embedding:
        raise ValueError("scale_embedding is False in this FSMT model; the paper multiplies by sqrt(d_model) (3.4)")
    positions = fsmt.config.max_position_embeddings
    fields = same_fields(fsmt.config)
    fields |= {"position_embedding_type": "learned", "max_position_embeddings": positions}
    weights = {name.removeprefix("model."): weight for name, weight in fsmt.state_dict().items()}
    model = build(fields, with_positions(fields, weights))
    model.generation_config = keep_search(fsmt.generation_config, model.config)
    return model


def fsmt_tokenizer(path: str | PathLike) -> FSMTTokenizer:
    """The tokenizer of an FSMT model, as AutoTokenizer loads it, with `eos_token` set.

    Raises:
        ValueError: if there is none, or it needs the package sacremoses, which is not installed.
    """
    tokenizer = load_source_tokenizer(path, "vocab-src.json", "vocab-tgt.json", "merges.txt")
    tokenizer.eos_token = tokenizer.eos_token or tokenizer.sep_token
    return tokenizer

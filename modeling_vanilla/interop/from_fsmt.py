"""FSMT (facebook/wmt19-en-de and its like), fairseq's transformer as transformers has it."""

from os import PathLike
from pathlib import Path

from transformers import AutoTokenizer, FSMTForConditionalGeneration, FSMTTokenizer

from ..files import read_json, read_lines
from ..modeling_vanilla import VanillaForConditionalGeneration
from .from_fairseq import with_positions
from .weights import build, keep_search, load_source, same_fields


def from_fsmt(path_or_model: str | PathLike | FSMTForConditionalGeneration) -> VanillaForConditionalGeneration:
    """The model whose logits are those of an FSMT model, to the rounding of 32-bit floats.

    What is said of the positions in from_fairseq.py, and of padding and of the search in from_marian, holds here.

    Args:
        path_or_model: a folder or a Hub id with weights in safetensors, or the model itself, which is not changed.

    Returns:
        The model in evaluation mode, with weights of its own, of the same type and on the same device.

    Raises:
        ValueError: if there is no FSMT model, its weights are incomplete or pickled, or it is one that the paper's
            model cannot be: embeddings that are not scaled, vocabularies of different sizes.
    """
    fsmt = load_source(FSMTForConditionalGeneration, path_or_model, "from_fsmt", "FSMT")
    if not fsmt.config.scale_embedding:
        raise ValueError("scale_embedding is False in this FSMT model; the paper multiplies by sqrt(d_model) (3.4)")
    fields = same_fields(fsmt.config) | {
        "position_embedding_type": "learned",
        "max_position_embeddings": fsmt.config.max_position_embeddings,
    }
    weights = {name.removeprefix("model."): weight for name, weight in fsmt.state_dict().items()}
    model = build(fields, with_positions(fields, weights))
    model.generation_config = keep_search(fsmt.generation_config, model.config)
    return model


def fsmt_tokenizer(path: str | PathLike) -> FSMTTokenizer:
    """The tokenizer of an FSMT model, AutoTokenizer's, which here knows EOS by that name, too.

    Raises:
        ValueError: if there is none, its languages have different vocabularies, or sacremoses is not installed.
    """
    if Path(path).is_dir():  # FSMTTokenizer does not say which of its files is bad
        for name in ("vocab-src.json", "vocab-tgt.json"):
            read_json(Path(path, name))
        list(read_lines(Path(path, "merges.txt")))
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # tokenizers raises nothing more special
        raise ValueError(f"{path}: no tokenizer could be loaded: {error}") from error
    if not isinstance(tokenizer, FSMTTokenizer):
        raise ValueError(f"{path}: its tokenizer is a {type(tokenizer).__name__}, not an FSMTTokenizer")
    if tokenizer.decoder != {number: token for token, number in tokenizer.encoder.items()}:
        raise ValueError(f"{path}: vocab-src.json and vocab-tgt.json differ; a model of this package has one (5.1)")
    tokenizer.eos_token = tokenizer.eos_token or tokenizer.sep_token
    return tokenizer

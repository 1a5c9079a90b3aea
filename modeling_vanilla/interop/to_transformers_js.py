"""Export for transformers.js, which translates in Node and in a browser, and loads the folder as a MarianMT.

onnx/encoder_model.onnx, onnx/decoder_model_merged.onnx and their forms in 8 bits, *_quantized.onnx, are the graphs of
to_onnx. The library hands the encoder's last_hidden_state to the decoder as it is, and begins with an empty past, so
that a decoder of one branch is enough.
"""

import copy
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ..modeling_vanilla import VanillaForConditionalGeneration
from .exports import POSITIONS, save_tokenizer
from .to_marian import marian_config, marian_search
from .to_onnx import export_graphs, quantize


def to_transformers_js(
    model: VanillaForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> list[str]:
    """Write a model and its tokenizer to an existing folder. It takes up to a minute or two.

    Returns:
        A line for each setting of the search that transformers.js lacks, with what is written instead.

    Raises:
        ValueError: if the tokenizer has no tokenizer.json.
    """
    if not tokenizer.is_fast:
        raise ValueError(f"transformers.js needs a tokenizer.json, which a {type(tokenizer).__name__} does not have")
    paths = [folder / "onnx" / f"{name}.onnx" for name in ("encoder_model", "decoder_model_merged")]
    paths[0].parent.mkdir()
    export_graphs(model, *paths)
    for path in paths:
        quantize(path, path.with_stem(f"{path.stem}_quantized"))
    config, search = model.config, copy.deepcopy(model.generation_config)
    positions = config.max_position_embeddings if config.position_embedding_type == "learned" else POSITIONS
    marian_config(config, positions).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    beams = search.num_beams or 1
    search.update(num_beams=1, length_penalty=1.0, early_stopping=False, num_return_sequences=1)
    search, notes = marian_search(search, positions)
    search.save_pretrained(folder)
    if beams > 1:
        notes.append(f"num_beams {beams}: transformers.js takes the best token at each step; 1 instead")
    return notes

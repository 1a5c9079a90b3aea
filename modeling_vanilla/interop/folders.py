"""Whole folders, model and tokenizer: converted from another library, or exported to another format."""

from importlib import import_module
from pathlib import Path

from transformers import AutoConfig, GenerationConfig

from ..files import check_unused, whole_folder
from ..hub.model_card import results_of, source_metadata, write_card_of_run, write_model_card
from ..inference import load_translator
from .from_fairseq import fairseq_tokenizer, from_fairseq
from .from_fsmt import from_fsmt, fsmt_tokenizer
from .from_marian import from_marian, marian_tokenizer
from .weights import MARIAN_NORM_EPS

LIBRARIES = {
    "marian": (from_marian, marian_tokenizer),
    "fsmt": (from_fsmt, fsmt_tokenizer),
    "fairseq": (from_fairseq, fairseq_tokenizer),
}


def convert(library: str, source: str, destination: Path) -> None:
    """Write a model of one of LIBRARIES, its tokenizer and a model card as a folder that from_pretrained loads.

    Args:
        source: a folder, or a name on the Hub.

    Raises:
        ValueError: if `destination` holds something, `source` cannot be converted, or its tokenizer does not fit it.
        OSError: if `destination` cannot be written, or the Hub not be reached.
    """
    check_unused("destination", destination)
    load_model, load_tokenizer = LIBRARIES[library]
    model, tokenizer = load_model(source), load_tokenizer(source)
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(f"{source}: the tokenizer has {len(tokenizer)} tokens, the model {model.config.vocab_size}")
    folder = Path(source).parent if Path(source).is_file() else Path(source)
    with whole_folder(destination) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        write_model_card(part, model, source={"base_model": folder.absolute().name, **source_metadata(folder)})


def export(
    to: str,
    source: str | Path,
    destination: Path,
    revision: str | None = None,
    licence: str | None = None,
    model_id: str | None = None,
    **settings,
) -> list[str]:
    """Write the model and the tokenizer of the folder `source`, or of this name on the Hub, in another format.

    The formats are those of `vanilla export`.

    Args:
        revision: of a name on the Hub.
        licence: of the weights, for the model card, by default that of what the model was made from.
        model_id: what people will load it by, for the card.
        settings: of to_ctranslate2, to_onnx or to_marian; to_transformers_js has none.

    Returns:
        A line for each setting that the format cannot express, with what is written instead.

    Raises:
        ValueError: if `destination` holds something, `source` cannot be loaded, or for a setting or a model that the
            format cannot express.
        OSError: if `destination` cannot be written.
    """
    library = import_module(f".to_{to.replace('.', '_')}", __package__)
    check_unused("destination", destination)
    model, tokenizer = load_translator([source], "cpu", revision=revision)
    notes: list[str] = []
    with whole_folder(destination) as part:
        if to == "onnx":
            library.to_onnx(model, part, show_progress=True, **settings)
            model.config.save_pretrained(part)
            model.generation_config.save_pretrained(part)
            tokenizer.save_pretrained(part)
        elif to == "ctranslate2":
            library.to_ctranslate2(model, tokenizer, part, **settings)
        elif to == "transformers.js":
            notes = library.to_transformers_js(model, tokenizer, part, show_progress=True)
        else:
            notes = library.to_marian(model, tokenizer, part, **settings)
            model.generation_config = GenerationConfig.from_pretrained(part, length_penalty_type="length")
            model.config.layer_norm_eps = MARIAN_NORM_EPS
            model.config.max_position_embeddings = AutoConfig.from_pretrained(part).max_position_embeddings
            card = {"licence": licence, "model_id": model_id, "use": library.USE}
            write_card_of_run(part, model, source, results_of(source), **card)
    return notes

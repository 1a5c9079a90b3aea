"""Folders of a model and its tokenizer: converted from another library, or exported to another format."""

from importlib import import_module
from pathlib import Path

from transformers import GenerationConfig

from .. import loading
from ..files import check_unused, whole_folder
from ..hub.model_card import source_metadata, write_card_of_run, write_model_card
from ..spans_vanilla import RESERVED
from .from_fairseq import fairseq_tokenizer, from_fairseq
from .from_fsmt import from_fsmt, fsmt_tokenizer
from .from_marian import from_marian, marian_tokenizer

LIBRARIES = {
    "marian": (from_marian, marian_tokenizer),
    "fsmt": (from_fsmt, fsmt_tokenizer),
    "fairseq": (from_fairseq, fairseq_tokenizer),
}
FORMATS = ("ctranslate2", "onnx", "marian", "transformers.js")


def convert(library: str, source: str, destination: Path) -> None:
    """Write a model of one of LIBRARIES, its tokenizer and a model card as a folder that from_pretrained loads.

    Args:
        source: a folder, or a name on the Hub; of fairseq a folder or its checkpoint.

    Raises:
        ValueError: if `destination` holds something, or `source` cannot be converted.
        OSError: if `destination` cannot be written, or the Hub cannot be reached.
    """
    check_unused("destination", destination)
    load_model, load_tokenizer = LIBRARIES[library]
    model, tokenizer = load_model(source), load_tokenizer(source)
    folder = Path(source).parent if Path(source).is_file() else Path(source)
    with whole_folder(destination) as part:
        model.save_pretrained(part)
        loading.save_tokenizer(tokenizer, part)
        write_model_card(part, model, source=source_metadata(folder))


def export(
    to: str,
    source: str | Path,
    destination: Path,
    revision: str | None = None,
    card: dict[str, str | None] | None = None,
    **options,
) -> list[str]:
    """Write the model and the tokenizer of the folder `source`, or of this name on the Hub, in another format.

    Args:
        to: one of FORMATS.
        revision: of a name on the Hub.
        card: licence and model_id for the model card of a MarianMT, as `write_model_card` has them.
        options: quantization and positions, if the function to_* of the format takes them.

    Returns:
        A line for each setting that the format cannot express, with what is written instead.

    Raises:
        ValueError: if `destination` holds something, `source` cannot be loaded, or the format cannot express a setting
            or the model.
        OSError: if `destination` cannot be written.
    """
    if to not in FORMATS:
        raise ValueError(f"format: {to!r} is none of {', '.join(FORMATS)}")
    name = f"to_{to.replace('.', '_')}"
    write = getattr(import_module(f".{name}", __package__), name)  # a library that it needs may be missing
    check_unused("destination", destination)
    folder = loading.model_folder(source, revision)
    model, tokenizer = loading.load_model(folder), loading.load_tokenizer(folder)
    with whole_folder(destination) as part:
        notes = write(model, tokenizer, part, **options)
        if model.config.protected_spans:
            kinds, tokens = ", ".join(model.config.protected_spans), f"{RESERVED[0]} to {RESERVED[-1]}"
            notes.append(f"protected_spans: {tokens} stand for {kinds}; put them in, and back, as Translator does")
        if to == "marian":
            model.generation_config = GenerationConfig.from_pretrained(part, length_penalty_type="length")
            write_card_of_run(part, model, source, is_marian=True, **(card or {}))
    return notes

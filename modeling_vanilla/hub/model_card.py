"""The model card, README.md, from the configuration, the run and the model that this one was made from."""

import re
import sys
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData, metadata_load
from transformers import PreTrainedModel
from transformers.utils import cached_file

from ..files import read_json, write_text
from ..generation_vanilla import follows_the_source, generation_config_of
from ..loading import HUB_NAME

TEMPLATE = Path(__file__).with_name("model_card.md")
# What a model inherits from the one that it was made from.
INHERITED = ("base_model", "license", "license_name", "license_link", "language", "datasets")
_METRICS = {"bleu": "sacreBLEU", "bleu_compound_split": "tokenised BLEU, compounds split", "chrf": "chrF"}


def write_model_card(
    folder: Path,
    model: PreTrainedModel,
    results: dict | None = None,
    source: dict | None = None,
    model_id: str = "path/to/this/folder",
    licence: str | None = None,
    is_marian: bool = False,
    how_made: str = "Converted",
) -> None:
    """Write folder/README.md: model_card.md, filled in.

    No path, file name or sentence of the training data is published: a data set or a model is named only by its name on
    the Hub.

    Args:
        results: what train_translation returns; None for a model that was converted and not trained.
        source: `source_metadata` of the model that this one was made from; None if it was trained from scratch.
        model_id: what people will load it by.
        licence: of the weights, by default that of the source. The data decide it, so the card claims no other.
        is_marian: whether it is exported as a MarianMT, which is loaded without code of its own.
        how_made: from the source, if there are no results: "Converted", "Fine-tuned" or, if nobody knows, "Made".
    """
    how_made = "Fine-tuned" if results else how_made
    inherited = dict(source or {})
    bases = " and ".join(map(_escape, _as_list(inherited.get("base_model", []))))
    licences = _as_list(inherited.get("license_name") or inherited.get("license") or [])
    languages = codes = _as_list(inherited.pop("language", []))
    dataset = None
    if results is not None:
        data = results["settings"]["data"]
        if of_run := [data[name] for name in ("source_lang", "target_lang") if data.get(name)]:
            languages, codes = of_run, _language_codes(of_run)
        name = results.get("dataset")
        dataset = name if name and re.fullmatch(rf"{HUB_NAME}|\w[\w.-]*", name) else None  # not a folder's path
    if licence:
        inherited = {name: value for name, value in inherited.items() if not name.startswith("license")}
        inherited["license"] = licence
    card_data = ModelCardData(
        library_name="transformers",
        pipeline_tag="translation",
        tags=["translation", "vanilla-transformer"],
        **{"language": codes or None, "license": None, **inherited},
    )
    card = ModelCard.from_template(
        card_data,
        template_path=str(TEMPLATE),
        plain=_escape,
        config=model.config,
        fields=[name for name in type(model.config).__annotations__ if not name.endswith(("_id", "_spans"))],
        spans=_escape(", ".join(model.config.protected_spans or ())),
        parameters=model.num_parameters(),
        search=generation_config_of(model),
        follows_the_source=follows_the_source(model.generation_config, {}),
        run=results,
        training=results and results["settings"]["training"],
        dataset=dataset,
        metrics=_METRICS,
        version=sys.modules[__name__.partition(".")[0]].__version__,
        pair=_escape(" to ".join(languages)) if len(languages) == 2 else None,
        origin=bases or ("another model" if source is not None and how_made == "Fine-tuned" else None),
        model_id=model_id,
        is_marian=is_marian,
        how_made=how_made,
        licence=licence,
        inherited=_escape(", ".join(licences)),
    )
    write_text(folder / "README.md", str(card) + "\n")


def write_card_of_run(folder: Path, model: PreTrainedModel, made_from: str | Path, **options) -> None:
    """As write_model_card, by the results.json beside the model/ of a run, if there is one.

    Args:
        made_from: the folder of the model or its name on the Hub, whose card says what a model that was converted or
            fine-tuned was made from.

    Raises:
        ValueError: if these results are not as `vanilla train` writes them.
    """
    own = Path(made_from).resolve()
    results = own.with_name("results.json")
    facts = read_json(results) if own.name in ("model", "best") and results.is_file() else {}
    if "settings" not in facts:  # there are none, or those of another program
        # It may be the copy of a run's model, or a checkpoint: only a base_model says that there was another one.
        write_model_card(folder, model, None, source_metadata(made_from), how_made="Made", **options)
        return
    try:
        is_tuned = facts["settings"]["model"]["model"] is not None
        source = source_metadata(own) if is_tuned else None
        own_facts = facts if own.name == "model" else None  # best/ has other scores
        write_model_card(folder, model, own_facts, source, how_made="Fine-tuned", **options)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{results}: not as `vanilla train` writes it: {error!r}") from error


def source_metadata(model: str | Path) -> dict:
    """What a model inherits of INHERITED from the one that it is made from: its metadata on the Hub.

    base_model is the model's name on the Hub or, for a folder, that model's base_model. Fields that its README.md
    lacks, or that are not text, are left out.

    Args:
        model: a folder, or a name on the Hub.
    """
    # Of a run's folders only model/ has a card.
    is_of_run = re.fullmatch(r"best|checkpoint-\d+", Path(model).name) and Path(model).with_name("run.json").is_file()
    card_of = Path(model).absolute().with_name("model") if is_of_run else model
    try:
        front_matter = metadata_load(str(cached_file(str(card_of), "README.md"))) or {}
    except Exception:  # there may be none, and the YAML of somebody else may be anything
        front_matter = {}
    if "language" in front_matter:  # YAML takes the code of Norwegian for False
        front_matter["language"] = ["no" if code is False else code for code in _as_list(front_matter["language"])]
    metadata = {
        name: value
        for name, value in front_matter.items()
        if name in INHERITED and all(isinstance(part, str) for part in _as_list(value))
    }
    if not Path(model).is_dir() and re.fullmatch(HUB_NAME, str(model)):
        metadata["base_model"] = str(model)
    return metadata


def _as_list(value) -> list:
    return value if isinstance(value, list) else [value]


def _language_codes(names: list[str]) -> list[str]:
    """The codes of ISO 639 with which names such as pt_BR and eng_Latn begin; the Hub takes no other."""
    return [match[0] for name in names if (match := re.match(r"[a-z]{2,3}(?![a-z])", name))]


def _escape(value) -> str:
    """A value as plain text of Markdown: on one line, with none of its characters taken for markup."""
    return re.sub(r"([\\`*_{}\[\]()<>#|!~])", r"\\\1", " ".join(str(value).split()))

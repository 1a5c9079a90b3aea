"""The README.md of a model folder: what its configuration, its run and the model that it was made from say of it."""

import re
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData, metadata_load
from transformers import PreTrainedModel
from transformers.utils import cached_file

from ..files import read_json, write_text
from ..inference.loading import HUB_NAME

TEMPLATE = Path(__file__).with_name("model_card.md")
# What a model inherits from the one that it was made from.
INHERITED = ("base_model", "license", "license_name", "license_link", "language", "datasets")
_METRICS = {"bleu": "sacreBLEU", "bleu_compound_split": "tokenised BLEU, compounds split", "chrf": "chrF"}
# What the card says of a run: of its results, and of its settings.
_FACTS = ("training_pairs", "steps", "tokens", "train_seconds", "processes", "device", "test_sentences")
_SETTINGS = ("tokens_per_update", "warmup_steps", "learning_rate_scale", "seed", "average_checkpoints")


def write_model_card(
    folder: Path,
    model: PreTrainedModel,
    results: dict | None = None,
    source: dict | None = None,
    model_id: str | None = None,
    licence: str | None = None,
    use: str | None = None,
) -> None:
    """Write folder/README.md: model_card.md, filled in.

    No path, file name or sentence of the training data is published: a data set or a model is named only by its name on
    the Hub.

    Args:
        results: what train_translation returns; None for a model that was converted and not trained.
        source: `source_metadata` of the model that this one was made from; None if it was trained from scratch.
        model_id: what people will load it by, by default a path to fill in.
        licence: of the weights, by default that of the source. The data decide it, so nothing else is claimed unless
            you say so.
        use: how to load it, where {model_id} stands for its name, in place of the pipeline that needs its code.
    """
    model_id = model_id or "path/to/this/folder"
    data = {} if results is None else results["settings"]["data"]
    inherited = dict(source or {})
    inherited_languages = _as_list(inherited.pop("language", []))
    languages = [data[name] for name in ("source_lang", "target_lang") if data.get(name)] or inherited_languages
    if licence:
        inherited = {name: value for name, value in inherited.items() if not name.startswith("license")}
        inherited["license"] = licence
    card_data = ModelCardData(
        library_name="transformers",
        pipeline_tag="translation",
        tags=["translation", "vanilla-transformer"],
        model_name="-".join(["transformer", *languages]),
        eval_results=_eval_results(results) if results and results["test_sentences"] else None,
        **{"language": languages or None, "license": None, **inherited},
    )
    run = {}
    if results is not None:
        training = results["settings"]["training"]
        run = {name: results[name] for name in _FACTS} | {name: training[name] for name in _SETTINGS}
        run |= {"learning_rate": training.get("learning_rate"), "dataset": _dataset(results)}
    fields = [name for name in type(model.config).__annotations__ if not name.endswith("_id")]
    card = ModelCard.from_template(
        card_data,
        template_path=str(TEMPLATE),
        plain=_escape,
        config=model.config,
        search=model.generation_config,
        run=run,
        metrics=_METRICS,
        results=results,
        pair=_escape(" to ".join(languages)) if len(languages) == 2 else None,
        origin=None if source is None else _origin(source),
        model_id=model_id,
        use=use and use.format(model_id=model_id),
        fields=fields,
        parameters=model.num_parameters(),
        licence=licence,
        inherited=_licence(source or {}),
    )
    write_text(folder / "README.md", str(card) + "\n")


def write_card_of_run(
    folder: Path, model: PreTrainedModel, made_from: str | Path, results: Path | None, **options
) -> None:
    """As write_model_card, by the results.json of the run that trained the model.

    Args:
        made_from: the folder of the model or its name on the Hub, whose card says what a model that was converted or
            fine-tuned was made from.
        results: None for a model that was converted and not trained.

    Raises:
        ValueError: there are no such results, they are of another model, or `vanilla train` has not written them.
    """
    facts = None if results is None else _read_results(results, model)
    try:
        is_made = facts is None or facts["settings"]["model"]["model"] is not None
        # A folder without a card, such as a run's best/, does not say what it was made from.
        source = (source_metadata(made_from) or None) if is_made else None
        write_model_card(folder, model, facts, source, **options)
    except KeyError as error:
        raise ValueError(f"{results}: lacks {error}, which `vanilla train` writes") from error
    except TypeError as error:
        raise ValueError(f"{results}: not as `vanilla train` writes it: {error}") from error


def results_of(model: str | Path) -> Path | None:
    """results.json of the run whose model/ this is; None for another folder, such as best/, which has other scores."""
    own = Path(model).resolve()
    beside = own.with_name("results.json")
    return beside if own.name == "model" and beside.is_file() else None


def _read_results(path: Path, model: PreTrainedModel) -> dict:
    if not path.is_file():
        raise ValueError(f"{path}: no such file, which the model card is filled from")
    facts = read_json(path)
    if facts.get("parameters") != model.num_parameters():
        raise ValueError(
            f"{path}: of a model of {facts.get('parameters')} parameters; this one has {model.num_parameters()}"
        )
    return facts


def source_metadata(model: str | Path) -> dict:
    """What a model inherits of INHERITED from the one that it is made from: its metadata on the Hub.

    base_model is its own name on the Hub: as given, as the Hub's cache or its config.json has it; or else the name of
    what it was made from itself. What its README.md does not say, or not in words, is left out.

    Args:
        model: a folder, or a name on the Hub.
    """
    metadata = {name: value for name, value in _front_matter(model).items() if name in INHERITED and _is_text(value)}
    name = _name_on_hub(model)
    return metadata | ({"base_model": name} if name else {})


def _front_matter(model: str | Path) -> dict:
    """The metadata of a model's README.md; nothing if it has none that can be read."""
    try:
        return metadata_load(str(cached_file(str(model), "README.md"))) or {}
    except Exception:  # there may be none, and the YAML of somebody else may be anything
        return {}


def _name_on_hub(model: str | Path) -> str | None:
    """OWNER/NAME of a model, or None."""
    if not Path(model).is_dir():
        return str(model) if re.fullmatch(HUB_NAME, str(model)) else None
    if cached := re.search(r"models--([^/\\]+?)--([^/\\]+)[/\\]snapshots", str(Path(model).absolute())):
        return f"{cached[1]}/{cached[2]}"
    file = Path(model, "config.json")
    name = read_json(file).get("_name_or_path") if file.is_file() else None
    return name if isinstance(name, str) and re.fullmatch(HUB_NAME, name) else None


def _is_text(value) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, str) for part in value))


def _as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _origin(source: dict) -> str:
    """What the model was made from, with a link to each that has a name on the Hub."""
    names = [
        f"[{_escape(name)}](https://huggingface.co/{name})" if re.fullmatch(HUB_NAME, name) else _escape(name)
        for name in _as_list(source.get("base_model", []))
    ]
    return " and ".join(names) or "another model"


def _licence(source: dict) -> str:
    """The licence of what the model was made from, with its link."""
    name, link = _as_list(source.get("license_name") or source.get("license") or []), source.get("license_link")
    return _escape(", ".join(name)) + (f" ({_escape(link)})" if name and isinstance(link, str) else "")


def _escape(value) -> str:
    """A value as plain text of Markdown: on one line, with none of its characters taken for markup."""
    return re.sub(r"([\\`*_{}\[\]()<>#|!~])", r"\\\1", " ".join(str(value).split()))


def _dataset(results: dict) -> str | None:
    """The name of the data set on the Hub; None for files and for a folder of the machine that trained."""
    name = results.get("dataset")
    return name if name and re.fullmatch(rf"{HUB_NAME}|\w[\w.-]*", name) else None


def _eval_results(results: dict) -> list[EvalResult]:
    return [
        EvalResult(
            task_type="translation",
            dataset_type=_dataset(results) or "text",
            dataset_name=_dataset(results) or "held-out test set",
            metric_type=metric,
            metric_value=round(results[metric], 2),
            metric_name=f"{metric} ({results[f'{metric}_signature']})",
        )
        for metric in ("bleu", "chrf")
    ]

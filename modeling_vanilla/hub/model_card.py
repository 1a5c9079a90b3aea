"""The README.md of a model folder: what its configuration, its run and the model that it was made from say of it."""

import re
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData, metadata_load
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.utils import cached_file

from ..files import read_json, write_text

TEMPLATE = Path(__file__).with_name("model_card.md")
# What a model inherits from the one that it was made from.
INHERITED = ("base_model", "license", "license_name", "license_link", "language", "datasets")
_METRICS = {"bleu": "sacreBLEU", "bleu_compound_split": "tokenised BLEU, compounds split", "chrf": "chrF"}
_HUB_NAME = r"\w[\w.-]*/\w[\w.-]*"


def write_model_card(
    folder: Path,
    model: PreTrainedModel,
    results: dict | None = None,
    source: dict | None = None,
    model_id: str = "path/to/this/folder",
    licence: str | None = None,
    use: str | None = None,
) -> None:
    """Write folder/README.md.

    No path, file name or sentence of the training data is published: a data set or a model is named only by its name on
    the Hub.

    Args:
        results: what train_translation returns; None for a model that was converted and not trained.
        source: `source_metadata` of the model that this one was made from; None if it was trained from scratch.
        model_id: what people will load it by, if it goes to the Hub.
        licence: of the weights, by default that of the source. The data decide it, so nothing else is claimed unless
            you say so.
        use: how to load it, where {model_id} stands for its name, in place of the pipeline that needs its code.
    """
    data = {} if results is None else results["settings"]["data"]
    inherited = dict(source or {})
    inherited_languages = _as_list(inherited.pop("language", []))
    languages = [data[name] for name in ("source_lang", "target_lang") if data.get(name)] or inherited_languages
    if licence:
        inherited = {name: value for name, value in inherited.items() if not name.startswith("license")}
        inherited["license"] = licence
    pair = _escape(" to ".join(languages)) if len(languages) == 2 else None
    card_data = ModelCardData(
        library_name="transformers",
        pipeline_tag="translation",
        tags=["translation", "vanilla-transformer"],
        model_name="-".join(["transformer", *languages]),
        eval_results=_eval_results(results) if results and results["test_sentences"] else None,
        **{"language": languages or None, "license": None, **inherited},
    )
    config = model.config
    card = ModelCard.from_template(
        card_data,
        template_path=str(TEMPLATE),
        title=f"Transformer, {pair}" if pair else "Transformer",
        architecture=_architecture(config),
        languages=f"It translates {pair}. " if pair else "",
        origin="" if source is None else f"{_origin(source, 'Fine-tuned' if results else 'Converted')} ",
        model_id=model_id,
        use=use and use.format(model_id=model_id),
        model_rows=[("parameters", model.num_parameters()), *_fields(config)],
        search=_search(model.generation_config),
        training=_training(results) if results else "None since it was converted.",
        results=_results(results) if results and results["test_sentences"] else "Not tested.",
        licence=_licence(licence, source or {}),
    )
    write_text(folder / "README.md", str(card) + "\n")


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
    quiet = ("gated_repo", "missing_entries", "connection_errors")
    try:
        file = cached_file(str(model), "README.md", **{f"_raise_exceptions_for_{what}": False for what in quiet})
        return (file and metadata_load(file)) or {}
    except Exception:  # the YAML of somebody else may be anything
        return {}


def _name_on_hub(model: str | Path) -> str | None:
    """OWNER/NAME of a model, or None."""
    if not Path(model).is_dir():
        return str(model) if re.fullmatch(_HUB_NAME, str(model)) else None
    if cached := re.search(r"models--([^/\\]+?)--([^/\\]+)[/\\]snapshots", str(Path(model).absolute())):
        return f"{cached[1]}/{cached[2]}"
    file = Path(model, "config.json")
    name = read_json(file).get("_name_or_path") if file.is_file() else None
    return name if isinstance(name, str) and re.fullmatch(_HUB_NAME, name) else None


def _is_text(value) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, str) for part in value))


def _as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _fields(config: PretrainedConfig) -> list[tuple[str, object]]:
    """The fields of VanillaConfig that are set, but for the special tokens."""
    fields = [(name, getattr(config, name)) for name in type(config).__annotations__ if not name.endswith("_id")]
    return [(name, value) for name, value in fields if value is not None]


def _architecture(config: PretrainedConfig) -> str:
    """The architecture, by what it has and the paper's base and big models have not."""
    departures = {
        "a matrix each for source, target and output (3.4 has one)": not config.tie_word_embeddings,
        "biases in the projections of attention (3.2.2 has none)": config.attention_bias,
        "a bias of the output projection (3.4 has none)": config.output_bias,
        f"a table of {config.max_position_embeddings} positions (3.5 has the sinusoid)": (
            config.position_embedding_type == "learned"
        ),
        f"{config.activation_function} in the feed-forward networks (3.3 has ReLU)": (
            config.activation_function != "relu"
        ),
        f"self-attention to {config.attention_window} positions (section 4)": config.attention_window is not None,
    }
    present = [departure for departure, holds in departures.items() if holds]
    if present:
        return f"a post-LN encoder-decoder. It departs from the paper in this: {'; '.join(present)}."
    return "as the paper has it: post-LN encoder-decoder, one matrix for both embeddings and the output projection."


def _origin(source: dict, verb: str) -> str:
    """What the model was made from, with a link to each that has a name on the Hub."""
    names = [
        f"[{_escape(name)}](https://huggingface.co/{name})" if re.fullmatch(_HUB_NAME, name) else _escape(name)
        for name in _as_list(source.get("base_model", []))
    ]
    return f"{verb} from {' and '.join(names) or 'another model'}."


def _licence(licence: str | None, source: dict) -> str:
    inherited = _escape(", ".join(_as_list(source.get("license_name") or source.get("license") or [])))
    link = source.get("license_link", "")
    if inherited:
        inherited += f" ({_escape(link)})" if isinstance(link, str) and link else ""
        theirs = f"The model that it was made from is under {inherited}; whoever passes it on names its authors, too."
        return f"{_escape(licence)}. {theirs}" if licence else theirs
    return _escape(licence) if licence else _NO_LICENCE


def _search(settings: GenerationConfig) -> str:
    """The search of generate() as the generation configuration has it."""
    beams, alpha = _escape(settings.num_beams or 1), _escape(settings.length_penalty)
    limit = settings.max_new_tokens or settings.max_length
    extra = getattr(settings, "max_extra_tokens", None)
    if settings.do_sample:
        how = "draws tokens at random"
    elif beams == "1":
        how = "takes the most probable token at each step (greedy search)"
    elif (getattr(settings, "length_penalty_type", None) or "gnmt") == "gnmt":
        how = f"searches with {beams} beams by log P / ((5 + length) / 6)^{alpha}, GNMT's length penalty"
    else:
        how = f"searches with {beams} beams by log P / length^{alpha}"
    if extra is not None:
        return f"`generate()` {how}; the output has at most {_escape(extra)} tokens more than the source."
    return f"`generate()` {how}" + (f"; the output has at most {_escape(limit)} tokens." if limit else ".")


_NO_LICENCE = "Not stated. The training data decide what may be done with the weights."


def _escape(value) -> str:
    """A value as plain text of Markdown: on one line, with none of its characters taken for markup."""
    return re.sub(r"([\\`*_{}\[\]()<>#|!~])", r"\\\1", " ".join(str(value).split()))


def _dataset(results: dict) -> str | None:
    """The name of the data set on the Hub; None for files and for a folder of the machine that trained."""
    name = results.get("dataset")
    return name if name and re.fullmatch(rf"{_HUB_NAME}|\w[\w.-]*", name) else None


def _training(results: dict) -> str:
    training, dataset = results["settings"]["training"], _dataset(results)
    peak = training.get("learning_rate")
    rate = f"scale {training['learning_rate_scale']}" if peak is None else f"{peak} at its peak"
    return (
        f"{results['training_pairs']} sentence pairs{f' of {_escape(dataset)}' if dataset else ''}, "
        f"{results['steps']} updates of about {training['tokens_per_update']} tokens a side, {results['tokens']} "
        f"tokens in all, in {results['train_seconds'] / 60:.1f} minutes on {results['processes']} "
        f"{_escape(results['device'])} process(es). Adam, {training['warmup_steps']} warm-up steps, "
        f"learning rate {rate}, seed {training['seed']}; the average of the last "
        f"{training['average_checkpoints']} checkpoints at the most."
    )


def _results(results: dict) -> str:
    # In a table, "|" ends a cell even inside code.
    rows = [
        f"| {name} | {results[key]:.2f} | {_escape(results[f'{key}_signature'])} |" for key, name in _METRICS.items()
    ]
    return "\n".join(
        [
            f"On {results['test_sentences']} test sentences, by the search above:",
            "",
            "| metric | score | signature |",
            "|---|---|---|",
            *rows,
        ]
    )


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

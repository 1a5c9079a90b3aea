"""The README.md of a model folder, filled from the template model_card.md and the results of a run."""

import re
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..files import write_text

TEMPLATE = Path(__file__).with_name("model_card.md")
_SIZES = (
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "dropout",
    "label_smoothing",
    "position_embedding_type",
)
_METRICS = {"bleu": "sacreBLEU", "bleu_compound_split": "tokenised BLEU, compounds split", "chrf": "chrF"}


def write_model_card(
    folder: Path,
    config,
    results: dict,
    model_id: str | None = None,
    licence: str | None = None,
    example: str | None = None,
) -> None:
    """Write folder/README.md.

    No path, file name or sentence of the training data is published: a data set is named only by its name on the Hub.

    Args:
        config: the model's VanillaConfig.
        results: what train_translation returns.
        model_id: what people will load it by, if it goes to the Hub.
        licence: of the weights. The data decide it, so nothing is claimed unless you say so.
        example: a source sentence for the snippet of code.
    """
    data = results["settings"]["data"]
    languages = [language for language in (data["source_lang"], data["target_lang"]) if language]
    pair = _escape(" to ".join(languages)) if len(languages) == 2 else None
    card_data = ModelCardData(
        language=languages or None,
        license=licence,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["translation", "vanilla-transformer"],
        model_name="-".join(["transformer", *languages]),
        eval_results=_eval_results(results),
    )
    card = ModelCard.from_template(
        card_data,
        template_path=str(TEMPLATE),
        title=f"Transformer, {pair}" if pair else "Transformer",
        languages=f"It translates {pair}. " if pair else "",
        model_id=model_id or "path/to/this/folder",
        example=example or "Hello.",
        model_rows=[("parameters", results["parameters"]), ("vocabulary", results["vocabulary"])]
        + [(name, getattr(config, name)) for name in _SIZES],
        training=_training(results),
        results=_results(results),
        licence=_escape(licence) if licence else _NO_LICENCE,
    )
    write_text(folder / "README.md", str(card) + "\n")


_NO_LICENCE = "Not stated. The training data decide what may be done with the weights."


def _escape(value) -> str:
    """A value as plain text of Markdown: on one line, with none of its characters taken for markup."""
    return re.sub(r"([\\`*_{}\[\]()<>#|!~])", r"\\\1", " ".join(str(value).split()))


def _dataset(results: dict) -> str | None:
    """The name of the data set on the Hub; None for files and for a folder of the machine that trained."""
    name = results.get("dataset")
    return name if name and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) else None


def _training(results: dict) -> str:
    training, dataset = results["settings"]["training"], _dataset(results)
    return (
        f"{results['training_pairs']} sentence pairs{f' of {_escape(dataset)}' if dataset else ''}, "
        f"{results['steps']} updates of about {training['tokens_per_update']} tokens a side, {results['tokens']} "
        f"tokens in all, in {results['train_seconds'] / 60:.1f} minutes on {results['processes']} "
        f"{_escape(results['device'])} process(es). Adam, {training['warmup_steps']} warm-up steps, "
        f"learning rate scale {training['learning_rate_scale']}, seed {training['seed']}; the average of the last "
        f"{training['average_checkpoints']} checkpoints at the most."
    )


def _results(results: dict) -> str:
    if not results["test_sentences"]:
        return "Not tested."
    # In a table, "|" ends a cell even inside code.
    rows = [
        f"| {name} | {results[key]:.2f} | {_escape(results[f'{key}_signature'])} |" for key, name in _METRICS.items()
    ]
    return "\n".join(
        [
            f"On {results['test_sentences']} test sentences, beam search with GNMT's length penalty:",
            "",
            "| metric | score | signature |",
            "|---|---|---|",
            *rows,
        ]
    )


def _eval_results(results: dict) -> list[EvalResult] | None:
    if not results["test_sentences"]:
        return None
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

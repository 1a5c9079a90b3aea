"""The README.md of a model folder, filled from the template model_card.md and the results of a run."""

from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData

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


def write_model_card(
    folder: Path, config, results: dict, model_id: str | None = None, licence: str | None = None
) -> None:
    """Write folder/README.md.

    Args:
        config: the model's VanillaConfig.
        results: what train_translation returns.
        model_id: what people will load it by, if it goes to the Hub.
        licence: of the weights. The data decide it, so nothing is claimed unless you say so.
    """
    data, training = results["settings"]["data"], results["settings"]["training"]
    source, target = data["source_lang"], data["target_lang"]
    card_data = ModelCardData(
        language=[source, target],
        license=licence,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["translation", "vanilla-transformer"],
        model_name=f"transformer-{source}-{target}",
        eval_results=_eval_results(results),
    )
    card = ModelCard.from_template(
        card_data,
        template_path=str(TEMPLATE),
        title=f"Transformer, {source} to {target}",
        source_lang=source,
        target_lang=target,
        model_id=model_id or "path/to/this/folder",
        example=results.get("example") or "Hello.",
        model_rows=[("parameters", results["parameters"]), ("vocabulary", results["vocabulary"])]
        + [(name, getattr(config, name)) for name in _SIZES],
        training=_training(data, training, results),
        results=_results(results),
        licence=licence or "Not stated. The training data decide what may be done with the weights.",
    )
    card.save(folder / "README.md")


def _training(data: dict, training: dict, results: dict) -> str:
    # A file's place on the machine that trained is nobody's business, and means nothing elsewhere.
    files = [Path(data[name]).name for name in ("train_file", "train_source", "train_target") if data[name]]
    named = data["dataset_name"] or " and ".join(files)
    return (
        f"{results['training_pairs']} sentence pairs ({named}), {results['steps']} updates of about "
        f"{training['tokens_per_update']} tokens a side, {results['tokens']} tokens in all, in "
        f"{results['train_seconds'] / 60:.1f} minutes on {results['processes']} {results['device']} process(es). Adam, "
        f"{training['warmup_steps']} warm-up steps, learning rate scale {training['learning_rate_scale']}, seed "
        f"{training['seed']}; the average of the last {training['average_checkpoints']} checkpoints at the most."
    )


def _results(results: dict) -> str:
    if not results["test_sentences"]:
        return "Not tested."
    return "\n".join(
        [
            f"On {results['test_sentences']} test sentences, beam search with GNMT's length penalty:",
            "",
            "| metric | score | signature |",
            "|---|---|---|",
            *(
                f"| {name} | {results[key]:.2f} | `{results[key + '_signature']}` |"
                for name, key in (
                    ("sacreBLEU", "bleu"),
                    ("tokenised BLEU, compounds split", "bleu_compound_split"),
                    ("chrF", "chrf"),
                )
            ),
        ]
    )


def _eval_results(results: dict) -> list[EvalResult] | None:
    if not results["test_sentences"]:
        return None
    return [
        EvalResult(
            task_type="translation",
            dataset_type=results["settings"]["data"]["dataset_name"] or "text",
            dataset_name=results["settings"]["data"]["dataset_name"] or "held-out test file",
            metric_type=kind,
            metric_value=round(results[kind], 2),
            metric_name=f"{kind} ({results[kind + '_signature']})",
        )
        for kind in ("bleu", "chrf")
    ]

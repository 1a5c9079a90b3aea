"""Fine-tune a saved model on sentence pairs with transformers' Seq2SeqTrainer.

    python examples/finetune_seq2seq_trainer.py --model runs/mine/model --train_file train.jsonl \\
        --validation_file validation.jsonl --test_file test.jsonl --output_dir runs/tuned --max_steps 500

The files and the other options for data are those of `vanilla train`; every option of Seq2SeqTrainingArguments is one
here. The loss is the model's own, smoothed by the label_smoothing of its configuration. Writes to --output_dir: model/
(the checkpoint of the best validation BLEU), results.json (BLEU of the test data before and after) and the Trainer's
checkpoints. --resume continues from the last of these.
"""

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from modeling_vanilla import Translator
from modeling_vanilla.cli.parser import CommandParser
from modeling_vanilla.corpus.data import load_pairs
from modeling_vanilla.corpus.tokenized import tokenize_pairs, tokenize_training_pairs
from modeling_vanilla.errors import one_line_errors
from modeling_vanilla.files import check_unused, whole_folder, write_json
from modeling_vanilla.loading import save_model
from modeling_vanilla.metrics import translation_scores
from modeling_vanilla.progress import set_quiet
from modeling_vanilla.spans_vanilla import span_pattern
from modeling_vanilla.training import DataOptions


@dataclass
class FinetuningArguments(Seq2SeqTrainingArguments):
    """Seq2SeqTrainingArguments with a model to start from, and validation by BLEU, also before the first step.

    Batches are drawn at random: those of train_sampling_strategy="group_by_length" have less padding, but depend on the
    random numbers that dropout has used, so that a resumed run sees others.
    """

    model: str = field(kw_only=True, metadata={"help": "The saved model folder to start from."})
    resume: bool = field(default=False, metadata={"help": "Continue from the last checkpoint of output_dir."})
    per_device_train_batch_size: int = 32
    warmup_steps: float = 100
    eval_strategy: str = "steps"
    eval_steps: float | None = 100
    eval_on_start: bool = True
    save_steps: float = 100
    save_total_limit: int | None = 2
    predict_with_generate: bool = True
    load_best_model_at_end: bool = True
    metric_for_best_model: str | None = "bleu"
    report_to: str | None = "none"


def finetune(data: DataOptions, arguments: FinetuningArguments) -> dict:
    """Fine-tune, and write the model and results.json to arguments.output_dir. Returns what results.json holds.

    Raises:
        ValueError: for bad data, settings or a bad model folder, before anything is written.
        OSError: if a file cannot be written.
    """
    run, checkpoint = Path(arguments.output_dir), None
    if not arguments.resume:
        check_unused("output_dir", run)
    elif (checkpoint := get_last_checkpoint(run) if run.is_dir() else None) is None:
        raise ValueError(f"resume: {run} holds no checkpoint")
    translator = Translator.from_pretrained(arguments.model, device="cpu")  # the Trainer moves the model
    model, tokenizer = translator.model, translator.tokenizer
    search = copy.deepcopy(model.generation_config)
    with arguments.main_process_first():
        pairs = load_pairs(data)
        if "validation" not in pairs:
            raise ValueError("no validation data: give validation_file, by whose BLEU the best checkpoint is chosen")
        spans = span_pattern(model.config.protected_spans)
        corpus = tokenize_training_pairs(pairs["train"], tokenizer, data, spans)
        validation_data = tokenize_pairs(pairs["validation"], tokenizer, spans)

    def bleu(prediction) -> dict[str, float]:
        sides = (prediction.predictions, prediction.label_ids)  # both with reserved tokens for spans
        filled = (np.where(ids < 0, tokenizer.pad_token_id, ids) for ids in sides)
        texts, references = (tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in filled)
        return {"bleu": translation_scores(texts, references)["bleu"]}

    def test_scores() -> dict | None:
        if "test" not in pairs:
            return None
        return translation_scores(translator.translate(pairs["test"]["source"][:]), pairs["test"]["target"][:])

    trainer = Seq2SeqTrainer(
        model,
        arguments,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model),
        train_dataset=corpus.rows,
        eval_dataset=validation_data,
        processing_class=tokenizer,
        compute_metrics=bleu if arguments.predict_with_generate else None,
    )
    before = test_scores()
    trainer.train(resume_from_checkpoint=checkpoint)
    model.generation_config = search  # the Trainer's evaluation fills it with transformers' defaults
    results = {
        "before": before,
        "after": test_scores(),
        "best_metric": trainer.state.best_metric,
        "best_checkpoint": trainer.state.best_model_checkpoint and Path(trainer.state.best_model_checkpoint).name,
        "steps": trainer.state.global_step,
        "training_pairs": len(corpus.rows),
        "removed": corpus.removed,
        "model": arguments.model,
    }
    if trainer.is_world_process_zero():
        with whole_folder(run / "model") as part:
            save_model(model, tokenizer, part)
        write_json(run / "results.json", results)
    return results


def main() -> None:
    parser = CommandParser(__doc__, (DataOptions, FinetuningArguments))
    options = vars(parser.parse_args())
    with one_line_errors():  # VANILLA_DEBUG=1 shows a traceback; --debug is one of the Trainer's options
        data, arguments = parser.parse_dict(options)
        set_quiet(bool(arguments.disable_tqdm))
        print(json.dumps(finetune(data, arguments), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()

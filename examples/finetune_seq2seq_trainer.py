"""Fine-tune a saved model on sentence pairs with transformers' Seq2SeqTrainer.

    python examples/finetune_seq2seq_trainer.py --model runs/mine/model --train_file train.jsonl \\
        --validation_file validation.jsonl --test_file test.jsonl --output_dir runs/tuned --max_steps 500

The files hold JSON lines {"translation": {"en": "...", "de": "..."}}; text files and data sets of the Hub are given as
to `vanilla train`. Every option of Seq2SeqTrainingArguments is an option here; other defaults have those of the
optimizer (section 5.3 of the paper) and those that keep the checkpoint of the best validation BLEU. Batches hold
--tokens_per_batch tokens a side, of pairs of similar length; --gradient_accumulation_steps of them make an update.

The loss is the model's own, smoothed by the label_smoothing of its configuration (--label_smoothing replaces it).
--output_dir then holds model/ (the best checkpoint), results.json (BLEU of the test data before and after) and the
Trainer's checkpoints. --resume continues from the last of these.
"""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from modeling_vanilla.cli.parser import CommandParser
from modeling_vanilla.inference import load_translator, translate
from modeling_vanilla.io import check_unused, one_line_errors, whole_folder, write_json
from modeling_vanilla.training import DataOptions
from modeling_vanilla.training.checkpoints import save_model
from modeling_vanilla.training.data import (
    collate,
    load_pairs,
    pair_lengths,
    token_batches,
    tokenize_pairs,
    tokenize_training_pairs,
)
from modeling_vanilla.training.metrics import translation_scores


@dataclass
class FinetuningOptions:
    """What the Trainer does not ask for."""

    model: str = field(metadata={"help": "The saved model folder to go on from."})
    tokens_per_batch: int = field(
        default=2500, metadata={"help": "Tokens of a batch on either side, padding included."}
    )
    label_smoothing: float | None = field(
        default=None, metadata={"help": "Smoothing of the loss; by default the model's."}
    )
    resume: bool = field(default=False, metadata={"help": "Go on from the last checkpoint of output_dir."})


@dataclass
class FinetuningArguments(Seq2SeqTrainingArguments):
    """Seq2SeqTrainingArguments with the optimizer of section 5.3, judged by the BLEU of what the model generates."""

    learning_rate: float = 5e-4
    warmup_steps: float = 100
    adam_beta2: float = 0.98
    adam_epsilon: float = 1e-9
    eval_strategy: str = "steps"
    eval_steps: float | None = 100
    save_steps: float = 100
    save_total_limit: int | None = 2
    predict_with_generate: bool = True
    load_best_model_at_end: bool = True
    metric_for_best_model: str | None = "bleu"
    greater_is_better: bool | None = True
    report_to: str | None = "none"


class TokenBatchTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer that trains on batches by tokens: those of our own loop, dealt out to the processes in turn."""

    def __init__(self, *args, tokens_per_batch: int, **kwargs):
        super().__init__(*args, **kwargs)
        lengths = pair_lengths(self.train_dataset)
        self.epoch_batches = partial(token_batches, *lengths, tokens_per_batch, self.args.seed)

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(
            self.train_dataset.select_columns(["input_ids", "labels"]),
            batch_sampler=TokenBatches(self),
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type == "cuda",
        )


class TokenBatches:
    """This process's batches of the epoch that the Trainer is in.

    All processes have as many; the few batches that are too many for that wait for another epoch.
    """

    def __init__(self, trainer: TokenBatchTrainer):
        self.trainer = trainer

    def __len__(self) -> int:
        return len(self.trainer.epoch_batches(epoch=0)) // self.trainer.args.world_size

    def __iter__(self) -> Iterator[np.ndarray]:
        arguments = self.trainer.args
        batches = self.trainer.epoch_batches(epoch=int(self.trainer.state.epoch or 0))
        whole = len(batches) // arguments.world_size * arguments.world_size
        yield from batches[arguments.process_index : whole : arguments.world_size]


def bleu_of(references: list[str], tokenizer) -> Callable[..., dict[str, float]]:
    """What Trainer asks of the translations of the validation data: their BLEU against the references' text."""

    def compute_metrics(prediction) -> dict[str, float]:
        ids = np.where(prediction.predictions < 0, tokenizer.pad_token_id, prediction.predictions)
        return {"bleu": translation_scores(tokenizer.batch_decode(ids, skip_special_tokens=True), references)["bleu"]}

    return compute_metrics


def check(options: FinetuningOptions, arguments: FinetuningArguments) -> None:
    """Raise ValueError for what cannot go together, before anything is read or written."""
    if arguments.label_smoothing_factor:
        raise ValueError(
            f"label_smoothing_factor: {arguments.label_smoothing_factor} would smooth a second time what the model's "
            "loss smooths already; set label_smoothing"
        )
    if options.tokens_per_batch < 1:
        raise ValueError(f"tokens_per_batch must be at least 1, not {options.tokens_per_batch}")
    run = Path(arguments.output_dir)
    if options.resume and not list(run.glob("checkpoint-*")):
        raise ValueError(f"resume: {run} has no checkpoint")
    if not options.resume:
        check_unused("output_dir", run)


def finetune(data: DataOptions, options: FinetuningOptions, arguments: FinetuningArguments) -> dict:
    """Fine-tune, and leave the model and results.json in arguments.output_dir. Returns what results.json holds.

    Raises:
        ValueError: for bad data, settings or a bad model folder, before anything is written.
        OSError: if a file cannot be written.
    """
    check(options, arguments)
    with arguments.main_process_first():
        pairs = load_pairs(data)
    if "validation" not in pairs:
        raise ValueError("no validation data: give validation_file, by whose BLEU the best checkpoint is chosen")
    model, tokenizer = load_translator([options.model])
    if options.label_smoothing is not None:
        model.config.label_smoothing = options.label_smoothing
        model.config.check()
    # Trainer's evaluation writes its own default, 20, over the model's limit on the length.
    search = copy.deepcopy(model.generation_config)
    with arguments.main_process_first():
        training_data, left_out = tokenize_training_pairs(pairs["train"], tokenizer, data)
        validation_data = tokenize_pairs(pairs["validation"], tokenizer)
    trainer = TokenBatchTrainer(
        model,
        arguments,
        data_collator=partial(collate, pad_token_id=tokenizer.pad_token_id),
        train_dataset=training_data,
        eval_dataset=validation_data,
        processing_class=tokenizer,
        compute_metrics=bleu_of(pairs["validation"]["target"][:], tokenizer),
        tokens_per_batch=options.tokens_per_batch,
    )
    # Their number, and whether each pair fits in a batch, show before the first step.
    len(TokenBatches(trainer))

    def test_scores() -> dict | None:
        if "test" not in pairs:
            return None
        bar = arguments.process_index == 0
        found = translate(trainer.model, tokenizer, pairs["test"]["source"][:], show_progress=bar)
        return translation_scores(found, pairs["test"]["target"][:])

    before = test_scores()
    trainer.train(resume_from_checkpoint=options.resume or None)
    model.generation_config = search
    results = {
        "before": before,
        "after": test_scores(),
        "best_validation_bleu": trainer.state.best_metric,
        "best_checkpoint": trainer.state.best_model_checkpoint and Path(trainer.state.best_model_checkpoint).name,
        "steps": trainer.state.global_step,
        "training_pairs": len(training_data),
        "left_out": left_out,
        "model": options.model,
    }
    if trainer.is_world_process_zero():
        run = Path(arguments.output_dir)
        with whole_folder(run / "model") as part:
            save_model(trainer.accelerator.unwrap_model(trainer.model), tokenizer, part)
        write_json(run / "results.json", results)
    return results


def main() -> None:
    parser = CommandParser(__doc__, (DataOptions, FinetuningOptions, FinetuningArguments))
    options = vars(parser.parse_args())
    with one_line_errors():  # VANILLA_DEBUG=1 shows a traceback; --debug is one of the Trainer's options
        results = finetune(*parser.parse_dict(options))
        print(json.dumps(results, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()

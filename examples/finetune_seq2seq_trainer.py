"""Fine-tune a saved model on sentence pairs with transformers' Seq2SeqTrainer.

    python examples/finetune_seq2seq_trainer.py --model runs/mine/model --train_file train.jsonl \\
        --validation_file validation.jsonl --test_file test.jsonl --output_dir runs/tuned --max_steps 500

The files and the other options for data are those of `vanilla train`. Every option of Seq2SeqTrainingArguments is one
here, but for those of batches by sentences. Batches hold --tokens_per_batch tokens a side, of similar length;
--gradient_accumulation_steps of them make an update.

The loss is the model's own, smoothed by the label_smoothing of its configuration (--label_smoothing replaces it).
Writes to --output_dir: model/ (the checkpoint of the best validation BLEU), results.json (BLEU of the test data before
and after) and the Trainer's checkpoints. --resume continues from the last of these.
"""

import copy
import json
import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
from safetensors.torch import load_file
from torch.utils.data import DataLoader
from transformers import PrinterCallback, ProgressCallback, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerState

from modeling_vanilla.cli.parser import CommandParser
from modeling_vanilla.errors import one_line_errors
from modeling_vanilla.files import check_unused, new_parents, whole_folder, write_json
from modeling_vanilla.inference import load_translator, translate
from modeling_vanilla.progress import set_quiet
from modeling_vanilla.training import DataOptions
from modeling_vanilla.training.batches import collate, epoch_batches
from modeling_vanilla.training.checkpoints import save_model
from modeling_vanilla.training.data import load_pairs
from modeling_vanilla.training.metrics import translation_scores
from modeling_vanilla.training.preprocessing import pair_lengths, tokenize_pairs, tokenize_training_pairs

TRAINER_STATE = "trainer_state.json"
# Options of Seq2SeqTrainingArguments that would do nothing here, and what is there instead.
REPLACED = {
    **dict.fromkeys(("per_device_train_batch_size", "auto_find_batch_size"), "tokens_per_batch"),
    **dict.fromkeys(("train_sampling_strategy", "dataloader_drop_last"), "tokens_per_batch, of pairs of like length"),
    "label_smoothing_factor": "label_smoothing, as the model's own loss is smoothed already",
    "resume_from_checkpoint": "resume",
}


@dataclass
class FinetuningOptions:
    """What Seq2SeqTrainingArguments do not have."""

    model: str = field(metadata={"help": "The saved model folder to start from."})
    tokens_per_batch: int = field(
        default=2500, metadata={"help": "Tokens of a batch on either side, padding included."}
    )
    label_smoothing: float | None = field(
        default=None, metadata={"help": "Smoothing of the loss; by default the model's."}
    )
    resume: bool = field(default=False, metadata={"help": "Continue from the last checkpoint of output_dir."})
    quiet: bool = field(default=False, metadata={"help": "Say nothing but the result, warnings and errors."})


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

    def __post_init__(self):
        # transformers takes the others, and then trains not at all, for ever or to NaN, or fails after the training.
        at_least_1 = ("gradient_accumulation_steps", "save_total_limit", "per_device_eval_batch_size")
        above_0 = ("num_train_epochs", "learning_rate", "save_steps", "eval_steps", "logging_steps", "adam_epsilon")
        not_below_0 = ("warmup_steps", "weight_decay", "max_grad_norm", "seed")
        for names, is_right, what in (
            (("max_steps",), lambda value: value >= 1 or value == -1, "at least 1, or -1 for num_train_epochs"),
            (at_least_1, lambda value: value >= 1, "at least 1"),
            (above_0, lambda value: 0 < value < math.inf, "above 0 and finite"),
            (not_below_0, lambda value: 0 <= value < math.inf, "at least 0 and finite"),
            (("adam_beta1", "adam_beta2"), lambda value: 0 <= value < 1, "at least 0 and below 1"),
            (("predict_with_generate",), bool, "true, as BLEU is that of generated text"),
            (("metric_for_best_model",), lambda value: value.removeprefix("eval_") in ("bleu", "loss"), "bleu or loss"),
        ):
            for name in names:
                value = getattr(self, name)
                if value is not None and not is_right(value):
                    raise ValueError(f"{name} must be {what}, not {value}")
        for option in fields(self):
            if option.name in REPLACED and getattr(self, option.name) != option.default:
                raise ValueError(f"{option.name} does nothing here; there is {REPLACED[option.name]}")
        if self.disable_tqdm is None:
            self.disable_tqdm = not sys.stderr.isatty()
        super().__post_init__()


class TokenBatches:
    """This process's batches in the current epoch of a Trainer.

    All processes have the same number; the few batches beyond it are dropped in this epoch.
    """

    def __init__(self, trainer: Seq2SeqTrainer, tokens_per_batch: int):
        self.trainer = trainer
        lengths = pair_lengths(trainer.train_dataset)
        self.batches = partial(epoch_batches, *lengths, tokens_per_batch, trainer.args.seed)

    def __len__(self) -> int:
        return len(self.batches(epoch=0)) // self.trainer.args.world_size

    def __iter__(self) -> Iterator[np.ndarray]:
        rank, world = self.trainer.args.process_index, self.trainer.args.world_size
        batches = self.batches(epoch=int(self.trainer.state.epoch or 0))
        yield from batches[rank : len(batches) // world * world : world]


class TokenBatchTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer that trains on batches by tokens."""

    def __init__(self, *args, tokens_per_batch: int, **kwargs):
        super().__init__(*args, **kwargs)
        self.token_batches = TokenBatches(self, tokens_per_batch)
        len(self.token_batches)  # raises ValueError, before the first step, if a pair does not fit in a batch

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(
            self.train_dataset,
            batch_sampler=self.token_batches,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
        )


def bleu(prediction, tokenizer, references: list[str]) -> dict[str, float]:
    """The compute_metrics of a Trainer: BLEU of the generated ids against the text of the references."""
    ids = np.where(prediction.predictions < 0, tokenizer.pad_token_id, prediction.predictions)
    return {"bleu": translation_scores(tokenizer.batch_decode(ids, skip_special_tokens=True), references)["bleu"]}


def last_checkpoint(run: Path) -> str | None:
    """The newest checkpoint that Trainer finished, or None: the last file that it writes is trainer_state.json.

    Raises:
        ValueError: if there is no checkpoint, not even half of one.
    """
    found = sorted(run.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)
    if not found:
        raise ValueError(f"resume: {run} holds no checkpoint")
    for checkpoint in found:
        with suppress(OSError, ValueError):
            json.loads((checkpoint / TRAINER_STATE).read_text(encoding="utf-8"))
            return str(checkpoint)
    return None


def is_finished(checkpoint: str, arguments: FinetuningArguments) -> bool:
    """Whether there is no step left after a checkpoint; the Trainer would take one more."""
    state = TrainerState.load_from_json(str(Path(checkpoint, TRAINER_STATE)))
    if arguments.max_steps > 0:
        return state.global_step >= arguments.max_steps
    return (state.epoch or 0) >= arguments.num_train_epochs


def restore_best(trainer: Seq2SeqTrainer, checkpoint: str) -> None:
    """Give a Trainer the state of a checkpoint and the weights of the best one, as at the end of its training."""
    trainer.state = TrainerState.load_from_json(str(Path(checkpoint, TRAINER_STATE)))
    best = Path(checkpoint).with_name(Path(trainer.state.best_model_checkpoint or checkpoint).name)
    trainer.model.load_state_dict(load_file(best / "model.safetensors"), strict=False)
    trainer.model.tie_weights()


def finetune(data: DataOptions, options: FinetuningOptions, arguments: FinetuningArguments) -> dict:
    """Fine-tune, and write the model and results.json to arguments.output_dir. Returns what results.json holds.

    Raises:
        ValueError: for bad data, settings or a bad model folder, before anything is written.
        OSError: if a file cannot be written.
    """
    run = Path(arguments.output_dir)
    checkpoint = last_checkpoint(run) if options.resume else None
    if not options.resume:
        check_unused("output_dir", run)
    model, tokenizer = load_translator([options.model], "cpu")  # Trainer moves it
    if options.label_smoothing is not None:
        model.config.label_smoothing = options.label_smoothing
        model.config.check()
    with arguments.main_process_first():
        pairs = load_pairs(data)
        if "validation" not in pairs:
            raise ValueError("no validation data: give validation_file, by whose BLEU the best checkpoint is chosen")
        training_data, removed = tokenize_training_pairs(pairs["train"], tokenizer, data)
        validation_data = tokenize_pairs(pairs["validation"], tokenizer)
    trainer = TokenBatchTrainer(
        model,
        arguments,
        data_collator=partial(collate, pad_token_id=tokenizer.pad_token_id),
        train_dataset=training_data,
        eval_dataset=validation_data,
        processing_class=tokenizer,
        compute_metrics=partial(bleu, tokenizer=tokenizer, references=pairs["validation"]["target"][:]),
        tokens_per_batch=options.tokens_per_batch,
    )
    if options.quiet:
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)

    def test_scores() -> dict | None:
        if "test" not in pairs:
            return None
        return translation_scores(translate(model, tokenizer, pairs["test"]["source"][:]), pairs["test"]["target"][:])

    before = test_scores()
    search = copy.deepcopy(model.generation_config)
    if checkpoint is not None and is_finished(checkpoint, arguments):
        restore_best(trainer, checkpoint)
    else:
        try:
            trainer.train(resume_from_checkpoint=checkpoint)
        except UnpicklingError as error:  # the Trainer keeps its optimizer in a pickle, of which it takes tensors alone
            raise ValueError(f"resume: {checkpoint} cannot be read: {str(error).splitlines()[0]}") from error
    model.generation_config = search  # Trainer's evaluation replaces the limit on the length by its own default, 20
    results = {
        "before": before,
        "after": test_scores(),
        "best_validation_bleu": trainer.state.best_metric,
        "best_checkpoint": trainer.state.best_model_checkpoint and Path(trainer.state.best_model_checkpoint).name,
        "steps": trainer.state.global_step,
        "training_pairs": len(training_data),
        "removed": removed,
        "model": options.model,
    }
    if trainer.is_world_process_zero():
        with whole_folder(run / "model") as part:
            save_model(model, tokenizer, part)
        write_json(run / "results.json", results)
    return results


def summary(results: dict, run: str) -> str:
    """The main figures as JSON, and where the others and the model are."""
    bleu = {f"bleu_{when}": results[when]["bleu"] for when in ("before", "after") if results[when]}
    figures = {**bleu, "best_validation_bleu": results["best_validation_bleu"]}
    shown = {name: value and round(value, 2) for name, value in figures.items()}
    paths = {"model": str(Path(run) / "model"), "results": str(Path(run) / "results.json")}
    return json.dumps({**shown, "steps": results["steps"], **paths}, indent=1, ensure_ascii=False)


def main() -> None:
    parser = CommandParser(__doc__, (DataOptions, FinetuningOptions, FinetuningArguments))
    options = vars(parser.parse_args())
    set_quiet(options["quiet"])
    with one_line_errors():  # VANILLA_DEBUG=1 shows a traceback; --debug is one of the Trainer's options
        data, finetuning, arguments = parser.parse_dict(options)
        with new_parents(Path(arguments.output_dir) / "model"):  # Trainer makes the folder before the first error
            results = finetune(data, finetuning, arguments)
        print(summary(results, arguments.output_dir))


if __name__ == "__main__":
    main()

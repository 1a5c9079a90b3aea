"""MarianMT of the tiny size by transformers' Seq2SeqTrainer, on the pairs and with the vocabulary of `vanilla train`.

    export OMP_NUM_THREADS=1
    python benchmarks/seq2seq_trainer.py --tokenizer runs/mine/model --output_dir runs/peer --max_steps 3000 \\
        --train_source train.en --train_target train.de --validation_source valid.en --validation_target valid.de \\
        --test_source test.en --test_target test.de --learning_rate 1e-3

The files and the other options for data are those of `vanilla train`; every option of Seq2SeqTrainingArguments is one
here. What is not given is as usual: AdamW, a rate that falls to 0, label smoothing, batches of pairs of like length.
Writes to --output_dir: validation.json (scores, tokens of both sides and seconds of training, which leave validation
out, at each validation), and test.txt, the translations of the test sources.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

import common
import numpy as np
from torch.utils.data import SequentialSampler
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback, set_seed

from modeling_vanilla.cli.parser import CommandParser
from modeling_vanilla.corpus.data import load_pairs
from modeling_vanilla.corpus.tokenized import tokenize_pairs, tokenize_training_pairs
from modeling_vanilla.errors import one_line_errors
from modeling_vanilla.files import check_unused, write_json, write_text
from modeling_vanilla.loading import load_vocabulary
from modeling_vanilla.metrics import translation_scores
from modeling_vanilla.training import DataOptions
from modeling_vanilla.training.device import bound_kernel_caches, keep_freed_memory


@dataclass
class PeerArguments(Seq2SeqTrainingArguments):
    tokenizer: str = field(kw_only=True, metadata={"help": "A saved tokenizer, for example of a run of vanilla train."})
    dims: str = field(default="tiny", metadata={"help": f"The size: {', '.join(common.DIMS)}."})
    per_device_train_batch_size: int = 64
    per_device_eval_batch_size: int = 64
    train_sampling_strategy: str = "group_by_length"
    learning_rate: float = 1e-3
    warmup_steps: float = 0.1
    label_smoothing_factor: float = 0.1
    eval_strategy: str = "steps"
    eval_steps: float | None = 0.2
    save_strategy: str = "no"
    predict_with_generate: bool = True
    generation_num_beams: int | None = 4
    generation_max_length: int | None = 256
    report_to: str | None = "none"


class Clock(TrainerCallback):
    """Seconds of training, from the first batch on, without validation; logged with its scores."""

    def on_train_begin(self, *_, **__):
        self.seconds, self.start = 0.0, time.monotonic()

    def on_step_end(self, *_, **__):
        now = time.monotonic()
        self.seconds, self.start = self.seconds + now - self.start, now

    def on_evaluate(self, arguments, state, *_, **__):
        state.log_history[-1]["seconds"] = self.seconds
        self.start = time.monotonic()


class Trainer(Seq2SeqTrainer):
    """Seq2SeqTrainer that evaluates in the order of the data, where group_by_length sorts those batches, too."""

    def _get_eval_sampler(self, eval_dataset) -> SequentialSampler:
        return SequentialSampler(eval_dataset)


def train_peer(data: DataOptions, arguments: PeerArguments) -> list[dict]:
    """Train, and return what validation.json holds."""
    run, clock = Path(arguments.output_dir), Clock()
    check_unused("output_dir", run)
    tokenizer, pairs = load_vocabulary(Path(arguments.tokenizer)), load_pairs(data)
    if "validation" not in pairs:
        raise ValueError("no validation data: give validation_file, or validation_source with validation_target")
    keep_freed_memory()  # both as vanilla train does
    bound_kernel_caches()
    set_seed(arguments.seed)
    model = common.random_marian(*common.DIMS[arguments.dims][:-1], len(tokenizer))
    model.set_attn_implementation("eager")  # whose gradient is faster on a CPU than that of sdpa
    tokenized = tokenize_training_pairs(pairs["train"], tokenizer, data)
    tokens = sum(int(lengths.sum()) for lengths in tokenized.lengths)  # of an epoch

    def texts(ids: np.ndarray) -> list[str]:
        return tokenizer.batch_decode(np.where(ids < 0, tokenizer.pad_token_id, ids), skip_special_tokens=True)

    trainer = Trainer(
        model,
        arguments,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model),
        train_dataset=tokenized.rows,
        eval_dataset=tokenize_pairs(pairs["validation"], tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda found: translation_scores(texts(found.predictions), pairs["validation"]["target"][:]),
        callbacks=[clock],
    )
    trainer.train()
    if "test" in pairs:
        trainer.compute_metrics = None  # whose references are those of the validation
        translations = texts(trainer.predict(tokenize_pairs(pairs["test"], tokenizer)).predictions)
        write_text(run / "test.txt", "".join(f"{line}\n" for line in translations))
    validations = [entry for entry in trainer.state.log_history if "eval_bleu" in entry]
    return [{**entry, "tokens": round(entry["epoch"] * tokens)} for entry in validations]


def main() -> None:
    parser = CommandParser(__doc__, (DataOptions, PeerArguments))
    options = vars(parser.parse_args())
    with one_line_errors():
        data, arguments = parser.parse_dict(options)
        validations = train_peer(data, arguments)
        write_json(Path(arguments.output_dir, "validation.json"), {"validations": validations})


if __name__ == "__main__":
    main()

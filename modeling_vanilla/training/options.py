"""What a run is told: one dataclass each for its data, its model and its training."""

import math
from dataclasses import dataclass, field

from .metrics import TOKENIZE, check_tokenize


def _option(default, help: str):
    return field(default=default, metadata={"help": help})


@dataclass
class TrainingOptions:
    """How to train. The defaults are the paper's base model's (5.1, 5.3, 6.1)."""

    output_dir: str = field(metadata={"help": "Folder of this run: its checkpoints, its model, its results."})
    max_steps: int = _option(100_000, "Updates to train for.")
    max_minutes: float | None = _option(None, "Stop after this many minutes of training, if that comes first.")
    tokens_per_update: int = _option(25_000, "Tokens of an update on either side, whatever the number of processes.")
    tokens_per_batch: int = _option(
        3125, "Tokens of a batch on either side, padding included: what a device holds at a time. 3125 is an eighth."
    )
    fit_batch: bool = _option(False, "Lower tokens_per_batch until a step fits in the device's memory.")
    warmup_steps: int = _option(4000, "Steps for which the learning rate rises.")
    learning_rate_scale: float = _option(1.0, "Factor of the paper's learning rate.")
    max_grad_norm: float | None = _option(None, "Clip the gradient's norm to this. The paper does not.")
    mixed_precision: str | None = _option(
        None, "no, bf16 or fp16; by default what accelerate launch was told, else no."
    )
    compile: bool = _option(False, "Compile the training step by torch.compile.")
    validate_steps: int = _option(1000, "Validate every so many updates, and at the end.")
    early_stopping: int | None = _option(None, "Stop when so many validations in a row have not raised the best BLEU.")
    checkpoint_steps: int | None = _option(
        None,
        "Write a checkpoint every so many updates; by default 1.5% of max_steps, but at least 10: 1500 of the base "
        "model's 100000, the paper's 10 minutes.",
    )
    checkpoint_minutes: float | None = _option(
        10.0, "Write one every so many minutes, too, to resume from; it is not averaged."
    )
    keep_checkpoints: int = _option(5, "Keep the last so many checkpoints. The best model by validation BLEU is apart.")
    average_checkpoints: int = _option(5, "The final model is the average of the last so many checkpoints.")
    bleu_tokenize: str = _option(TOKENIZE, "sacreBLEU's tokeniser: 13a, or none for text that is tokenised already.")
    seed: int = _option(0, "Of initialisation, data order and dropout.")
    data_workers: int = _option(0, "Processes that prepare batches for each training process.")
    sustained_tflops: float | None = _option(
        None, "What one device sustains, for the cost as Table 2 estimates it; by default measured."
    )

    def __post_init__(self):
        for name in (
            "max_steps",
            "tokens_per_update",
            "tokens_per_batch",
            "warmup_steps",
            "validate_steps",
            "early_stopping",
            "checkpoint_steps",
            "keep_checkpoints",
            "average_checkpoints",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        for name in (
            "max_minutes",
            "learning_rate_scale",
            "max_grad_norm",
            "checkpoint_minutes",
            "sustained_tflops",
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, not {value}")
        for name in ("seed", "data_workers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        if self.average_checkpoints > self.keep_checkpoints:
            raise ValueError(
                f"average_checkpoints {self.average_checkpoints} is more than keep_checkpoints {self.keep_checkpoints}"
            )
        check_tokenize(self.bleu_tokenize, "bleu_tokenize")
        if self.mixed_precision not in (None, "no", "bf16", "fp16"):
            raise ValueError(f"mixed_precision must be no, bf16 or fp16, not {self.mixed_precision!r}")

    @property
    def checkpoint_interval(self) -> int:
        """Updates from one checkpoint to the next.

        The paper averages checkpoints written every 10 minutes (6.1), which are 1500 of the base model's updates of
        0.4 s (5.2). Counted in updates, as by the clock no two runs would average the same; as a share of the run, so
        that the last ones lie as near its end in a short run; but at least 10, as writing one takes time, too.
        """
        return self.checkpoint_steps or max(10, round(0.015 * self.max_steps))

    def warnings(self) -> list[str]:
        """A line for each setting that can be trained with but does not fit the length of the run."""
        lines = []
        if self.warmup_steps > self.max_steps / 2:
            lines.append(
                f"warmup_steps: the learning rate rises for {self.warmup_steps} of {self.max_steps} updates and hardly "
                "falls; set fewer"
            )
        if self.max_minutes is not None and self.checkpoint_steps is None:
            lines.append(
                f"checkpoint_steps: a checkpoint every {self.checkpoint_interval} updates, 1.5% of max_steps "
                f"{self.max_steps}; set fewer if {self.max_minutes:g} minutes end the run much sooner"
            )
        return lines

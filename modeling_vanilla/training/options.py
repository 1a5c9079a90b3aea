"""The options of a training: a dataclass each for its data, its model, the model's fields and the training itself.

transformers' HfArgumentParser makes command line options of their fields, a group for each dataclass.
"""

import inspect
import math
import re
from dataclasses import dataclass, field, fields, make_dataclass
from typing import get_args

from ..configuration_vanilla import VanillaConfig
from ..corpus.options import option
from ..metrics import TOKENIZE, TOKENIZERS, check_tokenize
from ..protect import PROTECT, span_table

# Fields of a saved model's configuration that shape none of its weights, so that they may be others in fine-tuning.
REGULARISATION = {"dropout", "attention_dropout", "activation_dropout", "label_smoothing"}


@dataclass
class ModelOptions:
    """The model to train and its vocabulary. With neither preset nor model a recipe chooses."""

    _argument_group_name = "model"

    preset: str | None = option(None, "base, big, tiny, parsing or a row of Table 3, such as A-h1.")
    model: str | None = option(None, "Fine-tune this saved model, a folder or a name on the Hub, with its vocabulary.")
    revision: str | None = option(None, "Branch, tag or commit of a model on the Hub.")
    tokenizer: str | None = option(None, "Use this saved tokenizer instead of training one on the training data.")
    tokenizer_algorithm: str = option("bpe", "The algorithm of a tokenizer that is trained: bpe or wordpiece.")
    protect: str | None = option(None, f"Spans that are copied: {PROTECT} (default: the recipe's).")

    def __post_init__(self):
        for name in ("preset", "tokenizer", "protect"):
            if self.model is not None and getattr(self, name) is not None:
                raise ValueError(f"{name} {getattr(self, name)}: model {self.model} has its own")
        if self.revision is not None and self.model is None:
            raise ValueError(f"revision {self.revision}: needs model, which it is a revision of")
        if self.tokenizer_algorithm not in ("bpe", "wordpiece"):
            raise ValueError(f"tokenizer_algorithm must be bpe or wordpiece, not {self.tokenizer_algorithm}")
        self.spans()

    def spans(self) -> dict[str, str] | None:
        """The table of spans that `protect` asks for."""
        return span_table(self.protect) if self.protect else None


def _field_texts() -> dict[str, str]:
    """The first sentence on each field in the docstring of VanillaConfig."""
    arguments = (inspect.getdoc(VanillaConfig) or "").partition("\nArgs:\n")[2].split("\n\n")[0]
    texts: dict[str, str] = {}
    for entry in re.split(r"^ {4}(?=\S)", arguments, flags=re.MULTILINE)[1:]:
        names, text = entry.split(":", 1)
        texts |= dict.fromkeys(names.split(", "), " ".join(text.split()).split(". ")[0].removesuffix(".") + ".")
    return texts


def _model_fields() -> list[tuple]:
    """The fields of VanillaConfig that shape a model; transformers, the vocabulary and the data decide the others."""
    texts = _field_texts()
    return [
        (name, (get_args(annotation) or (annotation,))[0], option(None, texts.get(name, "")))
        for name, annotation in VanillaConfig.__annotations__.items()
        if not name.endswith("_token_id")
        and not name.startswith(("is_", "use_", "max_source_", "source_", "protected_"))
    ]


def _overrides(model_options) -> dict:
    """The fields that were given."""
    return {name: value for name, value in vars(model_options).items() if value is not None}


_GROUP = {"_argument_group_name": "fields of the model's configuration (default: the preset's)"}
ConfigOptions = make_dataclass("ConfigOptions", _model_fields(), namespace={"overrides": _overrides, **_GROUP})
ConfigOptions.__doc__ = "Fields of VanillaConfig that replace the preset's; train_translation takes overrides()."


def _by_recipe(help: str):
    """An option that is None until recipe.complete_options gives it a value."""
    return option(None, f"{help} (default: the recipe's)")


@dataclass
class TrainingOptions:
    """How to train. A field that is None has its type once recipe.py has completed it."""

    _argument_group_name = "training"

    output_dir: str = field(metadata={"help": "Folder of this run: its checkpoints, its model, its results."})
    resume: bool = option(False, "Go on from the last checkpoint of output_dir.")
    max_steps: int = _by_recipe("Updates to train for.")
    minutes: float | None = option(None, "Or minutes that the run may take on this machine, as a trial estimates.")
    tokens_per_update: int = _by_recipe("Tokens of an update on either side, on all processes together.")
    tokens_per_batch: int = _by_recipe("Tokens of a batch on either side, padding included, on one device.")
    join_batches: bool = _by_recipe("Join batches of an update whose lengths are near, into larger ones.")
    optim: str = _by_recipe("Optimizer: adam, the paper's, or muon.")
    lr_scheduler_type: str = _by_recipe("The rate after its peak: inverse_sqrt, as in Eq. 3, or linear, to 0.")
    learning_rate: float | None = _by_recipe("Peak of the learning rate.")
    learning_rate_scale: float | None = option(None, "Or its factor in Eq. 3: 1 is the paper's rate.")
    warmup_steps: int = _by_recipe("Updates for which the learning rate rises.")
    max_grad_norm: float | None = option(None, "Clip the gradient's norm to this. The paper does not.")
    mixed_precision: str | None = _by_recipe("no, bf16 or fp16.")
    compile: bool = option(False, "Compile the training step by torch.compile.")
    validate_steps: int = _by_recipe("Validate every so many updates, and at the end.")
    early_stopping: int | None = _by_recipe("Stop when so many validations in a row have not raised the best BLEU.")
    checkpoint_steps: int = option(None, "Updates between checkpoints (default: a share of max_steps, at least 10).")
    keep_checkpoints: int = _by_recipe("Keep the last so many checkpoints, at least those to average.")
    average_checkpoints: int = _by_recipe("The final model is the average of the last so many checkpoints.")
    bleu_tokenize: str = option(TOKENIZE, f"sacreBLEU's tokeniser: {', '.join(TOKENIZERS)}.")
    report_to: str = option("tensorboard", "Trackers of accelerate: tensorboard, wandb, trackio, mlflow, ... or none.")
    push_to_hub: str | None = option(None, "Publish the model as this name when it is trained.")
    hub_private_repo: bool = option(True, "Whether only its owner sees what push_to_hub creates.")
    seed: int = option(0, "Seed of initialisation, data order and dropout.")

    def __post_init__(self):
        for each in fields(self):
            value, least = getattr(self, each.name), int(each.name != "seed")
            if value is None:
                continue
            if each.type in (int, int | None) and value < least:
                raise ValueError(f"{each.name} must be at least {least}, not {value}")
            if each.type in (float, float | None) and not 0 < value < math.inf:
                raise ValueError(f"{each.name} must be above 0 and finite, not {value}")
        for one, other in (("learning_rate", "learning_rate_scale"), ("max_steps", "minutes")):
            if None not in (getattr(self, one), getattr(self, other)):
                raise ValueError(f"{one} and {other} set the same: give one")
        kinds = {"optim": ("adam", "muon"), "lr_scheduler_type": ("inverse_sqrt", "linear")}
        kinds["mixed_precision"] = ("no", "bf16", "fp16")
        for name, values in kinds.items():
            if getattr(self, name) not in (None, *values):
                raise ValueError(f"{name} must be {' or '.join(values)}, not {getattr(self, name)}")
        check_tokenize(self.bleu_tokenize, "bleu_tokenize")

    def trackers(self) -> list[str]:
        return [] if self.report_to == "none" else self.report_to.split(",")

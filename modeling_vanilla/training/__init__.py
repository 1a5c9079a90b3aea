"""Section 5, in this order: options, read, look at the corpus, tokenise, batch, train, validate and score."""

from .options import DataOptions, ModelOptions, TrainingOptions, TranslationOptions
from .results import summary
from .run import train_translation
from .trainer import train

__all__ = [
    "DataOptions",
    "ModelOptions",
    "TrainingOptions",
    "TranslationOptions",
    "summary",
    "train",
    "train_translation",
]

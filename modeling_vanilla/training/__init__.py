"""Section 5, in this order: options, read, look at the corpus, tokenise, batch, train, validate and score."""

from .options import DataOptions, ModelOptions, TrainingOptions, TranslationOptions
from .trainer import train
from .translation import summary, train_translation

__all__ = [
    "DataOptions",
    "ModelOptions",
    "TrainingOptions",
    "TranslationOptions",
    "summary",
    "train",
    "train_translation",
]

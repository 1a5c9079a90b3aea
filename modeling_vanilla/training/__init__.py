"""Section 5: train.py reads from top to bottom; the other files are its parts, in the order in which it calls them."""

from .options import DataOptions, ModelOptions, TrainingOptions, TranslationOptions
from .results import summary
from .train import train_translation

__all__ = [
    "DataOptions",
    "ModelOptions",
    "TrainingOptions",
    "TranslationOptions",
    "summary",
    "train_translation",
]

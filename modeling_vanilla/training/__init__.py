"""Section 5: data, batches, optimiser, training loop, checkpoints and metrics."""

from .data import DataOptions
from .options import TrainingOptions
from .trainer import train
from .translation import ModelOptions, TranslationOptions, train_translation

__all__ = ["DataOptions", "ModelOptions", "TrainingOptions", "TranslationOptions", "train", "train_translation"]

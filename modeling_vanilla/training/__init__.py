"""Section 5: train.py is the loop and its update, run.py the run around it; the other files are their parts."""

from ..corpus.options import DataOptions
from .options import ConfigOptions, ModelOptions, TrainingOptions
from .results import summary
from .run import train_translation

__all__ = [
    "ConfigOptions",
    "DataOptions",
    "ModelOptions",
    "TrainingOptions",
    "summary",
    "train_translation",
]

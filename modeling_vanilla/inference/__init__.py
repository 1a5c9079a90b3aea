"""Translate, score and align text with trained models."""

from .alignment import pharaoh, word_alignments
from .ensemble import Ensemble
from .translation import load_translator, score_pairs, split_long, translate, translate_nbest

__all__ = [
    "Ensemble",
    "load_translator",
    "pharaoh",
    "score_pairs",
    "split_long",
    "translate",
    "translate_nbest",
    "word_alignments",
]

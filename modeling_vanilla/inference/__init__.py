"""Translate, score and align text with trained models."""

from .alignment import pharaoh, word_alignments
from .ensemble import Ensemble
from .loading import load_translator
from .scoring import score_pairs
from .terms import read_terms
from .translation import translate, translate_nbest

__all__ = [
    "Ensemble",
    "load_translator",
    "pharaoh",
    "read_terms",
    "score_pairs",
    "translate",
    "translate_nbest",
    "word_alignments",
]

"""Translate, score and align text with trained models."""

from .alignment import pharaoh
from .ensemble import Ensemble
from .terms import read_terms
from .translator import Translator

__all__ = ["Ensemble", "Translator", "pharaoh", "read_terms"]

"""Models of other libraries, brought in as this package's own."""

from .marian import from_marian, marian_tokenizer

__all__ = ["from_marian", "marian_tokenizer"]

"""Models to and from other libraries: from_* imports a model, to_* exports one and needs the library."""

from .from_fairseq import fairseq_tokenizer, from_fairseq
from .from_fsmt import from_fsmt, fsmt_tokenizer
from .from_marian import from_marian

__all__ = ["fairseq_tokenizer", "from_fairseq", "from_fsmt", "from_marian", "fsmt_tokenizer"]

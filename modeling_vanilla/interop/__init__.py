"""Models of other libraries, brought in as this package's own.

The modules to_marian, to_ctranslate2, to_onnx and to_transformers_js take a model out; they need those libraries.
"""

from .from_fairseq import fairseq_tokenizer, from_fairseq
from .from_fsmt import from_fsmt, fsmt_tokenizer
from .from_marian import from_marian

__all__ = ["fairseq_tokenizer", "from_fairseq", "from_fsmt", "from_marian", "fsmt_tokenizer"]

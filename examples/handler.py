"""handler.py of a model on Hugging Face Inference Endpoints: put it into the model's repository, beside the weights.

A request is {"inputs": TEXT or [TEXT, ...], "parameters": {...}}, the parameters those of pipeline("translation"); the
answer is [{"translation_text": TEXT}, ...].
"""

from typing import Any

import torch
from transformers import pipeline

MAX_CHARACTERS = 20_000  # of a request, in all its texts


class EndpointHandler:
    """What the endpoint makes once, with the folder of the model, and calls with each request."""

    def __init__(self, path: str = ""):
        device = 0 if torch.cuda.is_available() else -1
        # The code that it trusts lies in the same folder as this file.
        self.translator = pipeline("translation", model=path, trust_remote_code=True, device=device)

    def __call__(self, data: dict[str, Any]) -> list[dict[str, str]]:
        texts = data["inputs"]
        size = len(texts) if isinstance(texts, str) else sum(map(len, texts))
        if size > MAX_CHARACTERS:
            raise ValueError(f"inputs: {size} characters, at most {MAX_CHARACTERS} are translated at once")
        return self.translator(texts, **data.get("parameters", {}))

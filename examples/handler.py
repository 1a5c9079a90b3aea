"""handler.py of a model on Hugging Face Inference Endpoints: put it into the model's repository, beside the weights.

A request is {"inputs": TEXT or [TEXT, ...], "parameters": {...}}, the parameters those of BOUNDS and LANGUAGES; the
answer is [{"translation_text": TEXT}, ...], each with "differing", a list, if it has other numbers than its source,
other spans that are copied, or a phrase repeated without end. Any other request is a ValueError of one line, which the
endpoint answers with HTTP 400.
"""

import re
from typing import Any

import torch
from transformers import pipeline

MAX_CHARACTERS, MAX_LINES = 20_000, 256  # of a request, in all its texts; each line is translated apart
BATCH_SIZE = 16  # texts translated at once
# The least and the most of what a request may set. generate() takes more, such as the name of code to run.
BOUNDS: dict[str, tuple[Any, Any]] = {
    "num_beams": (1, 8),
    "max_new_tokens": (1, 512),
    "length_penalty": (0.0, 2.0),
}
LANGUAGES = ("src_lang", "tgt_lang")  # of a model of several


class EndpointHandler:
    """What the endpoint makes once, with the folder of the model, and calls with each request."""

    def __init__(self, path: str = ""):
        device = 0 if torch.cuda.is_available() else -1
        # The code that it trusts lies in the same folder as this file.
        options: dict = {"trust_remote_code": True, "device": device, "batch_size": BATCH_SIZE}
        self.translator = pipeline("translation", model=path, **options)

    def __call__(self, data: dict[str, Any]) -> list[dict[str, Any]]:
        texts, parameters = check_request(data)
        return self.translator(texts, **parameters)


def check_request(data: Any) -> tuple[list[str], dict[str, Any]]:
    """The texts and the parameters of a request; ValueError for what it may not have. Messages quote it in ASCII."""
    if not isinstance(data, dict) or not isinstance(data.get("parameters", {}), dict):
        raise ValueError('a request is {"inputs": TEXT or [TEXT, ...], "parameters": {...}}')
    inputs, parameters = data.get("inputs"), data.get("parameters", {})
    for name in [*(data.keys() - {"inputs", "parameters"}), *(parameters.keys() - {*BOUNDS, *LANGUAGES})]:
        known = ", ".join((*BOUNDS, *LANGUAGES))
        raise ValueError(f"{name[:60]!a} is unknown: a request has inputs and parameters, which are {known}")
    texts: list[Any] = inputs if isinstance(inputs, list) else [inputs]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("inputs must be a text or a list of texts")
    characters, lines = sum(map(len, texts)), sum(text.count("\n") + 1 for text in texts)
    for size, most, what in ((characters, MAX_CHARACTERS, "characters"), (lines, MAX_LINES, "lines")):
        if size > most:
            raise ValueError(f"inputs: {size} {what}, at most {most} are translated at once")
    for name, value in parameters.items():
        least, most = BOUNDS.get(name, (None, None))
        if name in LANGUAGES and not (isinstance(value, str) and re.fullmatch(r"[A-Za-z_-]{2,20}", value)):
            raise ValueError(f"{name} must be a language such as de or deu_Latn, not {ascii(value)[:60]}")
        if name in BOUNDS and not (type(value) in (int, type(least)) and least <= value <= most):
            kind = "a whole number" if isinstance(least, int) else "a number"
            raise ValueError(f"{name} must be {kind} from {least} to {most}, not {ascii(value)[:60]}")
    return texts, parameters

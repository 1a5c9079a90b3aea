"""The keyword arguments of every forward() here: either name of the cache, and no unknown tensor in silence.

transformers 5.24 renamed `past_key_values` to `cache`, its name here; only this file knows the other one.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import Seq2SeqLMOutput

OLD_NAME = "past_key_values"
# The name in the installed transformers: a field of outputs, and an argument in generation.
CACHE = "cache" if "cache" in {field.name for field in fields(Seq2SeqLMOutput)} else OLD_NAME
# The arguments by which transformers chooses the outputs of forward().
PASSED_ON = {"output_attentions", "output_hidden_states", "return_dict"}


def named_cache(arguments: dict, name: str) -> dict:
    """Rename the cache, given by either name; ValueError if it is given by both.

    A cache for self-attention alone gets an empty one for cross-attention.
    """
    given = [arguments[key] for key in ("cache", OLD_NAME) if arguments.get(key) is not None]
    if len(given) == 2:
        raise ValueError(f"cache and {OLD_NAME} are two names of one argument: give one")
    named = {key: value for key, value in arguments.items() if key not in ("cache", OLD_NAME)}
    if given:
        (cache,) = given
        named[name] = cache if isinstance(cache, EncoderDecoderCache) else EncoderDecoderCache(cache, DynamicCache())
    return named


def named_arguments(forward: Callable) -> Callable:
    """Decorate forward(): it takes the cache by either name. An unknown tensor or cache is a ValueError.

    Any other unknown argument is ignored, as by the models of transformers.
    """
    known = {*inspect.signature(forward).parameters, *PASSED_ON}

    @functools.wraps(forward)
    def wrapper(self, *args, **kwargs):
        kwargs = named_cache(kwargs, "cache")
        for name in kwargs.keys() - known:
            if isinstance(kwargs.pop(name), Tensor | Cache):
                raise ValueError(f"{type(self).__name__}.forward does not know the argument {name}")
        return forward(self, *args, **kwargs)

    return wrapper

"""What forward() of every model here takes by keyword: the cache by either of its names, nothing unknown in silence.

transformers 5.24 renamed `past_key_values` to `cache`, as it is here; this file alone knows the other name.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils import logging

logger = logging.get_logger(__name__)

OLD_NAME = "past_key_values"
# The name in the installed transformers, of the field of outputs and of the argument in generation.
CACHE = "cache" if "cache" in {field.name for field in fields(Seq2SeqLMOutput)} else OLD_NAME
# What transformers itself passes to forward() to choose its outputs.
PASSED_ON = {"output_attentions", "output_hidden_states", "return_dict"}


def named_cache(arguments: dict, name: str) -> dict:
    """Arguments in which the cache, given by either name, has this one; ValueError if it is given by both.

    A cache of the decoder's self-attention alone is completed by an empty one for cross-attention.
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
    """Decorate forward(): it takes the cache by either name; ValueError for an unknown tensor or cache.

    Of anything else that it does not know it warns once, where the models of transformers are silent.
    """
    known = {*inspect.signature(forward).parameters, *PASSED_ON}

    @functools.wraps(forward)
    def wrapper(self, *args, **kwargs):
        kwargs = named_cache(kwargs, "cache")
        for name in kwargs.keys() - known:
            value = kwargs.pop(name)
            if isinstance(value, Tensor | Cache):
                raise ValueError(f"{type(self).__name__}.forward does not know the argument {name}")
            if value is not None:
                logger.warning_once(f"{type(self).__name__}.forward ignores the unknown argument {name}")
        return forward(self, *args, **kwargs)

    return wrapper

"""The Transformer of "Attention Is All You Need" for Hugging Face transformers.

Importing this package registers the model with AutoConfig, AutoModel and AutoModelForSeq2SeqLM, and
pipeline("translation") with transformers.
"""

from typing import TYPE_CHECKING

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .configuration_vanilla import VanillaConfig
from .modeling_vanilla import VanillaForConditionalGeneration, VanillaModel
from .pipeline_vanilla import TranslationPipeline, register_translation
from .presets import PRESETS, preset_config

if TYPE_CHECKING:
    from .inference import Translator

__version__ = "0.1.0"

AutoConfig.register("vanilla", VanillaConfig)
AutoModel.register(VanillaConfig, VanillaModel)
AutoModelForSeq2SeqLM.register(VanillaConfig, VanillaForConditionalGeneration)
register_translation()

# save_pretrained then copies the flat files beside the weights, for people who load without this package.
VanillaConfig.register_for_auto_class()
VanillaModel.register_for_auto_class("AutoModel")
VanillaForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = [
    "PRESETS",
    "TranslationPipeline",
    "Translator",
    "VanillaConfig",
    "VanillaForConditionalGeneration",
    "VanillaModel",
    "preset_config",
]


def __getattr__(name: str):
    if name == "Translator":  # imported when asked for: few who load a model need its dependencies
        from .inference import Translator

        return Translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

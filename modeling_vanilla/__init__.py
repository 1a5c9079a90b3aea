"""The Transformer of "Attention Is All You Need" for Hugging Face transformers.

Importing this package registers the model with AutoConfig, AutoModel and AutoModelForSeq2SeqLM, and
pipeline("translation") with transformers.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .configuration_vanilla import PRESETS, VanillaConfig
from .modeling_vanilla import VanillaForConditionalGeneration, VanillaModel
from .pipeline_vanilla import TranslationPipeline, register_translation

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
    "VanillaConfig",
    "VanillaForConditionalGeneration",
    "VanillaModel",
]

"""The tests that transformers holds its own models to, run on ours, from the sources of the installed version.

An editable install of transformers brings its tests along. Otherwise TRANSFORMERS_TESTS names the folder that has them:

    git clone --depth 1 --branch v5.24.0 https://github.com/huggingface/transformers
    TRANSFORMERS_TESTS=transformers/tests python -m pytest -o addopts= -rs tests/test_transformers_common.py

They need `parameterized`.
"""

import importlib
import os
import sys
import unittest
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest
import torch
import transformers
from transformers.models.auto import modeling_auto

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration, VanillaModel

FOLDER = Path(os.environ.get("TRANSFORMERS_TESTS") or Path(transformers.__file__).parents[2] / "tests")
if not (FOLDER / "generation").is_dir():  # the source distribution lacks it
    if "TRANSFORMERS_TESTS" in os.environ:
        raise ValueError(f"TRANSFORMERS_TESTS: {FOLDER} has no folder generation")
    pytest.skip("transformers is installed without its tests; set TRANSFORMERS_TESTS", allow_module_level=True)
pytest.importorskip("parameterized")
PACKAGE = "transformers_tests"  # under a name of its own: our tests are a folder "tests", too
package = sys.modules[PACKAGE] = ModuleType(PACKAGE)
package.__path__ = [str(FOLDER)]
GenerationTesterMixin = importlib.import_module(f"{PACKAGE}.generation.test_utils").GenerationTesterMixin
ModelTesterMixin = importlib.import_module(f"{PACKAGE}.test_modeling_common").ModelTesterMixin


class Sizes:
    """What the common tests ask a tester for: sizes, a small configuration, and a batch of 13 sentence pairs."""

    batch_size, seq_length, encoder_seq_length, decoder_seq_length = 13, 7, 7, 7
    hidden_size, num_hidden_layers, num_attention_heads = 16, 2, 4
    is_training = True

    def get_config(self) -> VanillaConfig:
        sizes = {"vocab_size": 99, "d_model": self.hidden_size, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
        for stack in ("encoder", "decoder"):
            sizes |= {f"{stack}_layers": self.num_hidden_layers, f"{stack}_attention_heads": self.num_attention_heads}
        return VanillaConfig(**sizes, label_smoothing=0.0)  # the tests compare the loss with plain cross-entropy

    def prepare_config_and_inputs_for_common(self) -> tuple[VanillaConfig, dict]:
        source, target = torch.randint(3, 99, (2, self.batch_size, self.seq_length))
        return self.get_config(), {
            "input_ids": source,
            "attention_mask": torch.ones_like(source),
            "decoder_input_ids": target,
            "decoder_attention_mask": torch.ones_like(target),
        }


class TestVanilla(ModelTesterMixin, GenerationTesterMixin, unittest.TestCase):
    all_model_classes = (VanillaModel, VanillaForConditionalGeneration)
    is_encoder_decoder = True

    def setUp(self):
        self.model_tester = Sizes()
        # By these tables the tests know which class takes labels; what is registered from outside is not in them.
        for table, model in (
            (modeling_auto.MODEL_MAPPING_NAMES, VanillaModel),
            (modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, VanillaForConditionalGeneration),
        ):
            self.enterContext(patch.dict(table, vanilla=model.__name__))

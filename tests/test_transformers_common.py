"""The tests that transformers holds its own models to, run on ours. They are read from transformers' sources, if there.

    pip download --no-deps --no-binary :all: transformers==5.23.0
    tar xzf transformers-5.23.0.tar.gz
    TRANSFORMERS_TESTS=transformers-5.23.0/tests python -m pytest -o addopts= -rs tests/test_transformers_common.py

The version is the one that is installed; `parameterized` must be, too. The source distribution has no tests/generation,
and what comes from there is then left out; a clone of transformers' repository, at the tag of that version, has it.
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
from transformers.models.auto import modeling_auto

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration, VanillaModel

FOLDER = os.environ.get("TRANSFORMERS_TESTS")
if not FOLDER:
    pytest.skip("TRANSFORMERS_TESTS names no tests folder of transformers' sources", allow_module_level=True)
pytest.importorskip("parameterized")
PACKAGE = "transformers_tests"  # under a name of its own: our tests are a folder "tests", too
# What the common tests import, and the source distribution lacks.
LACKING = {"generation.test_utils": "GenerationTesterMixin", "exporters.test_export": "ExportTesterMixin"}
COMPLETE = (Path(FOLDER) / "generation").is_dir()


def common(name: str) -> ModuleType:
    """A module of transformers' tests."""
    return importlib.import_module(f"{PACKAGE}.{name}")


def add_package(name: str, folder: Path | None = None) -> ModuleType:
    module = sys.modules[f"{PACKAGE}.{name}".rstrip(".")] = ModuleType(name)
    module.__path__ = [str(folder)] if folder else []
    return module


if not (Path(FOLDER) / "test_modeling_common.py").is_file():
    raise ValueError(f"TRANSFORMERS_TESTS: {FOLDER} holds no test_modeling_common.py")
add_package("", Path(FOLDER))
for lacking, mixin in LACKING.items():
    folder = lacking.split(".")[0]
    if not (Path(FOLDER) / folder).is_dir():
        add_package(folder)
        setattr(add_package(lacking), mixin, type(mixin, (), {}))

GenerationTesterMixin = common("generation.test_utils").GenerationTesterMixin
ModelTesterMixin = common("test_modeling_common").ModelTesterMixin


class Sizes:
    """What the common tests ask a tester for: sizes, a small configuration, and a batch of 13 sentence pairs."""

    batch_size, seq_length, encoder_seq_length, decoder_seq_length = 13, 7, 7, 7
    vocab_size, hidden_size, num_hidden_layers, num_attention_heads = 99, 16, 2, 4
    is_training = True

    def get_config(self) -> VanillaConfig:
        return VanillaConfig(
            vocab_size=self.vocab_size,
            d_model=self.hidden_size,
            encoder_layers=self.num_hidden_layers,
            decoder_layers=self.num_hidden_layers,
            encoder_attention_heads=self.num_attention_heads,
            decoder_attention_heads=self.num_attention_heads,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            label_smoothing=0.0,  # the tests compare the loss with plain cross-entropy
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[VanillaConfig, dict]:
        def tokens() -> torch.Tensor:
            return torch.randint(3, self.vocab_size, (self.batch_size, self.seq_length))

        source, target = tokens(), tokens()
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

    @unittest.skipUnless(COMPLETE, "these sources have no tests/generation")
    def test_generation_tester_mixin_inheritance(self):
        super().test_generation_tester_mixin_inheritance()

"""A program that uses the public interface, for mypy alone: `make check` holds its types to those of the package."""

from pathlib import Path
from typing import assert_type

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.inference import load_translator, score_pairs, translate, word_alignments
from modeling_vanilla.inference.scoring import PairScore
from modeling_vanilla.inference.translation import Hypothesis, translate_nbest
from modeling_vanilla.training import DataOptions, TrainingOptions, TranslationOptions, train_translation

config = VanillaConfig.preset("tiny", vocab_size=1000, dropout=0.1)
assert_type(config, VanillaConfig)
model = VanillaForConditionalGeneration(config)

loaded, tokenizer = load_translator([Path("model"), "other"], device="cpu", dtype=torch.float32)
assert_type(loaded, PreTrainedModel)
assert_type(tokenizer, PreTrainedTokenizerBase)
assert_type(translate(loaded, tokenizer, ["A dog."], num_beams=4), list[str])
assert_type(translate_nbest(loaded, tokenizer, ["A dog."], nbest=2), list[list[Hypothesis]])
assert_type(score_pairs(loaded, tokenizer, ["a"], ["b"]), list[PairScore])
assert_type(word_alignments(loaded, tokenizer, ["a"], ["b"], layer=1), list[list[tuple[int, int]]])

data, training = DataOptions(train_file="train.jsonl"), TrainingOptions(output_dir="runs/mine")
assert_type(train_translation(data, training, TranslationOptions(preset="tiny"), {}), dict)

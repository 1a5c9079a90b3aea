"""The tools that users of transformers have already, each as the real library, with our model."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import free_port, run_python
from torch import nn
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from modeling_vanilla import VanillaForConditionalGeneration


@pytest.fixture
def batch(batch):
    batch["input_ids"][1, -3:] = 0
    return {**batch, "attention_mask": (batch["input_ids"] != 0).long()}


@torch.no_grad()
def logits_of(model, batch) -> torch.Tensor:
    return model.eval()(**batch).logits


# Trainer


def test_trainer_evaluates_without_generation(model, batch, tmp_path):
    """And predicts: what it gathers of each batch are the logits, not the cache."""
    pairs = zip(batch["input_ids"], batch["decoder_input_ids"], strict=True)
    rows = [{"input_ids": source, "labels": target} for source, target in pairs]
    settings = {"per_device_eval_batch_size": 3, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    trainer = Seq2SeqTrainer(model, Seq2SeqTrainingArguments(tmp_path, **settings), eval_dataset=rows)
    with torch.no_grad():
        expected = model(batch["input_ids"], labels=batch["decoder_input_ids"])
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.loss.item(), rel=1e-5)
    logits, hidden = trainer.predict(rows).predictions
    torch.testing.assert_close(torch.tensor(logits), expected.logits)
    torch.testing.assert_close(torch.tensor(hidden), expected.encoder_last_hidden_state)


@pytest.mark.parametrize("accumulated", [1, 3])
def test_the_first_loss_of_a_trainer_is_the_models_own_over_all_tokens(model, batch, tmp_path, accumulated):
    """In one batch, and accumulated over three of unequal numbers of labels."""
    labels = batch["decoder_input_ids"].clone()
    labels[1, 4:] = labels[2, 1:] = -100
    expected = model.train()(batch["input_ids"], batch["attention_mask"], labels=labels).loss.item()
    given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels}
    rows = [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]
    sizes = {"per_device_train_batch_size": 3 // accumulated, "gradient_accumulation_steps": accumulated}
    settings = {"max_steps": 1, "logging_steps": 1, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    trainer = Seq2SeqTrainer(model, Seq2SeqTrainingArguments(tmp_path, **sizes, **settings), train_dataset=rows)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, abs=1e-4)


# PEFT


def test_lora_adapts_every_projection_of_attention_is_saved_reloaded_and_merged(folder, model, batch, tmp_path):
    peft = pytest.importorskip("peft")
    projections = ["qkv_proj", "q_proj", "kv_proj", "out_proj"]
    config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=projections, init_lora_weights=False)
    adapted = peft.get_peft_model(copy.deepcopy(model), config)
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    # Two matrices for each: 2 in an encoder layer, 2 + 3 in a decoder layer.
    assert len(trained) == 2 * (2 * 2 + 3 * 5)
    adapted.save_pretrained(tmp_path / "adapter")
    base = VanillaForConditionalGeneration.from_pretrained(folder)
    reloaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    expected = logits_of(adapted, batch)
    torch.testing.assert_close(logits_of(reloaded, batch), expected)
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    assert reloaded.generate(**source).tolist() == adapted.generate(**source).tolist()
    merged = reloaded.merge_and_unload()
    torch.testing.assert_close(logits_of(merged, batch), expected, rtol=1e-4, atol=1e-4)


def test_an_adapted_output_projection_is_not_bypassed(model, batch):
    """The fused loss takes the weight of a plain projection; with an adapter it must call the module instead."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["lm_head"], init_lora_weights=False)
    adapted = peft.get_peft_model(copy.deepcopy(model), config)
    batch["labels"] = batch.pop("decoder_input_ids")
    with torch.no_grad():
        loss = adapted.train()(**batch).loss
        logits = adapted.eval()(**batch).logits.flatten(0, 1)
        plain = model.train()(**batch).loss
    expected = nn.functional.cross_entropy(logits, batch["labels"].flatten(), label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)
    assert abs(loss - plain) > 1e-3


@pytest.mark.parametrize("beams", (1, 3))
def test_a_tuned_prefix_counts_in_every_search(make_model, batch, beams):
    peft = pytest.importorskip("peft", "0.21")  # older ones leave it out
    model = make_model(decoder_attention_heads=4, decoder_layers=2)  # PEFT takes the encoder's numbers for both
    prefix = peft.PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3)
    adapted = peft.get_peft_model(copy.deepcopy(model), prefix).eval()
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    given = {"num_beams": beams, "max_new_tokens": 5, "return_dict_in_generate": True, "output_logits": True}
    output = adapted.generate(**source, **given)
    with torch.no_grad():
        logits = adapted(**source, decoder_input_ids=output.sequences[:, :-1]).logits
        plain = model(**source, decoder_input_ids=output.sequences[:, :-1]).logits
    assert not torch.allclose(logits, plain, atol=1e-2)
    for step, found in enumerate(output.logits):
        path = torch.arange(len(logits)) if beams == 1 else output.beam_indices[:, step]
        going = path >= 0
        torch.testing.assert_close(found[path[going]], logits[going, step], rtol=1e-4, atol=1e-4)


# FSDP

SHARDED = """
import os
import torch
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from modeling_vanilla import VanillaForConditionalGeneration

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = VanillaForConditionalGeneration.from_pretrained("model")
source = torch.tensor([[[5, 2]], [[9, 8, 7, 6, 2]]][rank])
given = {"num_beams": 3, "max_new_tokens": [2, 9][rank]}
expected = model.generate(source, **given).tolist()
for layer in [*model.model.encoder.layers, *model.model.decoder.layers]:
    fully_shard(layer)
fully_shard(model)
register_fsdp_forward_method(model, "generate")
for synced in (None, True):  # Seq2SeqTrainer gives True
    assert model.generate(source, **given, synced_gpus=synced).tolist() == expected
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_beams_of_processes_that_share_the_weights_wait_for_each_other(model, tmp_path):
    """One ends after two steps, the other after up to nine."""
    model.save_pretrained(tmp_path / "model")
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    with ThreadPoolExecutor() as pool:
        started = [pool.submit(run_python, "-c", SHARDED, cwd=tmp_path, **group, RANK=rank) for rank in ("0", "1")]
        assert [process.result().succeeded.code for process in started] == [0, 0]

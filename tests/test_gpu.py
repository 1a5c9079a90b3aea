"""What takes another path on a GPU than on a CPU, beside the same on the CPU: `make gpu`."""

import pytest
import torch
from helpers import SAME_ANYWHERE, as_options, assert_same_weights, read_json, run_python, write_toy_corpus
from safetensors.torch import load_file

from modeling_vanilla.loss_vanilla import IGNORED

CPU, GPU = torch.device("cpu"), torch.device("cuda")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.fixture
def batch():
    """Sources and targets of several lengths. The masks are tensors, so that all can be moved."""
    torch.manual_seed(1)
    labels = torch.randint(4, 41, (6, 9))
    labels[1, 6:] = labels[2, 2:] = IGNORED
    mask = torch.ones(6, 7, dtype=torch.long)
    mask[0, 4:] = mask[3, :2] = 0
    return {"input_ids": torch.randint(4, 41, (6, 7)), "attention_mask": mask, "labels": labels}


def moved(batch, device):
    return {name: value.to(device) for name, value in batch.items()}


def training_step(model, batch, device, dtype=None):
    """Loss and gradients, on the CPU, in 64 bits; `dtype` is that of autocast."""
    model = model.to(device).train()
    model.zero_grad()
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        loss = model(**moved(batch, device)).loss
    loss.backward()
    return [loss.detach().double().cpu(), *(p.grad.double().cpu() for p in model.parameters())]


def assert_near(actual, expected, tolerance):
    for value, other in zip(actual, expected, strict=True):
        assert (value - other).norm() <= tolerance * other.norm() + tolerance * 1e-3


@pytest.mark.parametrize("attn", ["eager", "sdpa", "flex_attention"])
def test_back_ends_take_the_step_of_the_cpu(make_model, batch, attn):
    sizes = {"d_model": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 2}  # flex attention's least
    expected = training_step(make_model(attn="eager", **sizes), batch, CPU)
    assert_near(training_step(make_model(attn=attn, **sizes), batch, GPU), expected, 1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.1), (torch.float16, 0.02)])
def test_16_bits_are_near_32(make_model, batch, dtype, tolerance):
    steps = []
    for place, kind in ((GPU, dtype), (CPU, None)):
        loss, *gradients = training_step(make_model(), batch, place, kind)
        # Of all gradients together: that of a single bias may be all rounding.
        steps.append([loss, torch.cat([gradient.flatten() for gradient in gradients])])
    assert_near(*steps, tolerance)


@pytest.mark.parametrize("beams", [1, 4])
def test_static_cache_finds_what_the_dynamic_one_finds(make_model, batch, beams):
    """And both what the CPU finds."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    options = {"num_beams": beams, "max_new_tokens": 8, "do_sample": False}
    model = make_model()
    expected = model.generate(**inputs, **options).tolist()
    model.to(GPU)
    for cache in (None, "static"):
        output = model.generate(**moved(inputs, GPU), **options, cache_implementation=cache)
        assert output.tolist() == expected


@pytest.fixture
def train(tmp_path):
    """Run `vanilla train` by accelerate's launcher, on a toy corpus: the folder of its run."""
    data = write_toy_corpus(tmp_path, train=120, validation=6, test=6)

    def train(name, *flags, **settings):
        told = {**data, **SAME_ANYWHERE, **settings, "output_dir": tmp_path / name}
        launcher = ["-m", "accelerate.commands.launch", *flags]
        assert run_python(*launcher, "-m", "modeling_vanilla", "train", *as_options(told), cwd=tmp_path).succeeded
        return tmp_path / name

    return train


@pytest.mark.parametrize("processes", [1, 2])
def test_ddp_trains_as_one_process_on_the_cpu(train, processes):
    if torch.cuda.device_count() < processes:
        pytest.skip(f"fewer than {processes} GPUs")
    several = ["--multi_gpu"] if processes > 1 else []
    run = train("gpu", *several, "--num_processes", processes, "--mixed_precision", "no")
    expected = train("cpu", "--cpu", "--num_processes", 1, "--mixed_precision", "no")
    assert_same_weights(run / "model", expected / "model", atol=1e-3)
    assert 0 < read_json(run / "results.json")["mfu"] < 1


def test_fp16_trains_with_its_scaler_and_resumes(train):
    flags = ["--num_processes", 1, "--mixed_precision", "no"]
    whole = train("whole", *flags, mixed_precision="fp16")
    run = train("part", *flags, mixed_precision="fp16", max_steps=2)
    train("part", *flags, mixed_precision="fp16", resume=True)
    assert_same_weights(run / "checkpoint-3", whole / "checkpoint-3", atol=1e-4)
    assert all(value.isfinite().all() for value in load_file(whole / "model" / "model.safetensors").values())

"""onnxruntime computes and decodes what the model does that was exported to ONNX."""

import pytest
import torch
from helpers import call, make_tokenizer, save_folder
from transformers import AutoTokenizer

from modeling_vanilla.cli import export

np = pytest.importorskip("numpy")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

from modeling_vanilla.interop.onnx import DECODER, ENCODER, to_onnx  # noqa: E402

SIZES = [(1, 1, 1), (1, 7, 2), (3, 4, 5), (5, 16, 1), (2, 30, 20)]  # sentences, source and target length


class Exported:
    """The two graphs of a folder, behind onnxruntime."""

    def __init__(self, folder):
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(folder / name, providers=["CPUExecutionProvider"])
            for name in (ENCODER, DECODER)
        )

    def encode(self, source: torch.Tensor, mask: torch.Tensor) -> dict:
        """What the decoder wants to know: the encoder's output for every layer, and a past of no positions."""
        outputs = self.encoder.run(None, {"input_ids": source.numpy(), "attention_mask": mask.numpy()})
        names = [output.name for output in self.encoder.get_outputs()]
        state = {"encoder_attention_mask": mask.numpy(), **dict(zip(names[1:], outputs[1:], strict=True))}
        for put in self.decoder.get_inputs():
            if put.name.startswith("past"):
                _, heads, _, width = put.shape
                state[put.name] = np.zeros((len(source), heads, 0, width), dtype=np.float32)
        return state

    def decode(self, state: dict, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of some more tokens; the state goes on behind them."""
        logits, *present = self.decoder.run(None, {"input_ids": tokens.numpy(), **state})
        names = [output.name for output in self.decoder.get_outputs()][1:]
        state.update({name.replace("present", "past"): value for name, value in zip(names, present, strict=True)})
        return torch.from_numpy(logits)


def make_batch(rows: int, source_length: int, target_length: int):
    generator = torch.Generator().manual_seed(rows)
    source = torch.randint(4, 41, (rows, source_length), generator=generator)
    mask = torch.ones_like(source)
    for row in range(rows):
        mask[row, max(1, source_length - row) :] = 0
    return source * mask, mask, torch.randint(4, 41, (rows, target_length), generator=generator)


def assert_same_logits(model, exported: Exported) -> None:
    for sizes in SIZES:
        source, mask, target = make_batch(*sizes)
        with torch.no_grad():
            expected = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        whole = exported.decode(exported.encode(source, mask), target)
        torch.testing.assert_close(whole, expected, rtol=0, atol=1e-4)
        state = exported.encode(source, mask)
        steps = [exported.decode(state, token) for token in target.split(1, dim=1)]
        torch.testing.assert_close(torch.cat(steps, dim=1), expected, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"d_k": 5, "d_v": 3, "attention_window": 3},
        {"position_embedding_type": "learned", "tie_word_embeddings": False, "output_bias": True},
    ],
    ids=lambda overrides: ", ".join(overrides) or "the paper's",
)
def test_the_logits_are_the_same_at_every_size_and_step(make_model, tmp_path, overrides):
    model = make_model(encoder_layers=1, decoder_layers=2, **overrides)
    before = model.config._attn_implementation
    to_onnx(model, tmp_path)
    assert model.config._attn_implementation == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [DECODER, ENCODER]
    assert_same_logits(model, Exported(tmp_path))


@pytest.mark.slow
def test_the_script_writes_a_folder_that_translates_as_generate_does(make_model, tmp_path):
    """A greedy search in numpy, token by token, against generate(num_beams=1)."""
    texts = ["a small house", "the dog runs across the green meadow"]
    tokenizer = make_tokenizer(texts)
    model = make_model(vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=1)
    destination = tmp_path / "new" / "onnx"
    call(export.main, "--to", "onnx", save_folder(tmp_path / "model", model, tokenizer), destination)
    assert [path.name for path in destination.parent.iterdir()] == ["onnx"]
    inputs = AutoTokenizer.from_pretrained(destination)(texts, padding=True, return_tensors="pt")
    exported = Exported(destination)
    state = exported.encode(inputs.input_ids, inputs.attention_mask)
    tokens = torch.full((2, 1), 1)
    for _ in range(12):
        logits = exported.decode(state, tokens[:, -1:])
        tokens = torch.cat((tokens, logits[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
    expected = model.generate(**inputs, num_beams=1, length_penalty=1.0, max_new_tokens=12)
    assert expected.shape[1] == 13
    assert tokens.tolist() == expected.tolist()

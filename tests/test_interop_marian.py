"""MarianMT models, brought in, compute and search as transformers' MarianMTModel does."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    MarianConfig,
    MarianModel,
    MarianMTModel,
    T5Config,
    pipeline,
)

from modeling_vanilla import VanillaForConditionalGeneration
from modeling_vanilla.cli import convert as convert_checkpoint
from modeling_vanilla.interop import from_marian, marian_tokenizer

VOCAB = 40
# As opus-mt has it: EOS is 0, the last token pads and starts the decoder, and is never to be generated.
OPUS = {
    "activation_function": "swish",
    "pad_token_id": VOCAB - 1,
    "decoder_start_token_id": VOCAB - 1,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
}
TINY = {
    "activation_function": "relu",
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "forced_eos_token_id": None,
}


def make_marian(seed: int = 0, **overrides) -> MarianMTModel:
    """A small MarianMT in evaluation mode, every weight moved off its initial value (norms and biases are 1 and 0)."""
    torch.manual_seed(seed)
    settings = {
        "vocab_size": VOCAB,
        "d_model": 24,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 36,
        "decoder_ffn_dim": 28,
        "max_position_embeddings": 64,
        "scale_embedding": True,
        **OPUS,
    }
    marian = MarianMTModel(MarianConfig(**{**settings, **overrides}))
    with torch.no_grad():
        for name, parameter in marian.named_parameters():
            if "embed_positions" not in name:
                parameter += 0.2 * torch.randn_like(parameter)
        marian.final_logits_bias.normal_()
    marian.generation_config.bad_words_ids = [[marian.config.pad_token_id]]
    return marian.eval()


def make_batch(marian: MarianMTModel, rows: int = 4, longest: int = 11) -> dict[str, torch.Tensor]:
    """Sources of unequal lengths, padded on the right, that end in EOS; and what the decoder has read so far."""
    generator = torch.Generator().manual_seed(5)
    config = marian.config
    source = torch.randint(4, VOCAB - 1, (rows, longest), generator=generator)
    target = torch.randint(4, VOCAB - 1, (rows, longest - 3), generator=generator)
    mask = torch.ones_like(source)
    for row in range(rows):
        length = longest - 2 * row
        source[row, length - 1] = config.eos_token_id
        source[row, length:] = config.pad_token_id
        mask[row, length:] = 0
    target[:, 0] = config.decoder_start_token_id
    return {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target}


def assert_same_logits(ours: nn.Module, marian: nn.Module, batch: dict[str, torch.Tensor], tolerance: float = 1e-5):
    with torch.no_grad():
        theirs = marian(**batch).logits
        torch.testing.assert_close(ours(**batch).logits, theirs, rtol=0, atol=tolerance)
    assert theirs.std() > 0.5  # else the comparison says little


# Logits


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        TINY,
        {"activation_function": "gelu", "d_model": 18, "encoder_attention_heads": 1, "decoder_attention_heads": 6},
        # The sines are one more than the cosines.
        {"d_model": 15, "encoder_attention_heads": 5, "decoder_attention_heads": 3},
    ],
    ids=["opus-mt", "relu, decoder starts with <s>", "gelu, other heads", "odd d_model"],
)
def test_the_logits_are_marians(overrides):
    marian = make_marian(**overrides)
    ours = from_marian(marian)
    assert type(ours) is VanillaForConditionalGeneration and not ours.training
    batch = make_batch(marian)
    assert_same_logits(ours, marian, batch)
    # Padded targets: what is no padding is the same.
    mask = torch.ones_like(batch["decoder_input_ids"])
    mask[1, 5:] = mask[3, 2:] = 0
    with torch.no_grad():
        theirs = marian(**batch, decoder_attention_mask=mask).logits[mask.bool()]
        logits = ours(**batch, decoder_attention_mask=mask).logits[mask.bool()]
    torch.testing.assert_close(logits, theirs, rtol=0, atol=1e-5)


def test_the_attention_weights_and_hidden_states_are_marians():
    marian = make_marian()
    ours = from_marian(marian)
    ours.set_attn_implementation("eager")
    marian.set_attn_implementation("eager")
    batch = make_batch(marian)
    wanted = {"output_attentions": True, "output_hidden_states": True}
    with torch.no_grad():
        theirs, own = marian(**batch, **wanted), ours(**batch, **wanted)
    # The residual stream: Marian's sines stand at our even places, its cosines at the odd ones.
    half = marian.config.d_model // 2
    for hidden, expected in zip(own.decoder_hidden_states, theirs.decoder_hidden_states, strict=True):
        torch.testing.assert_close(hidden[..., 0::2], expected[..., :half], rtol=0, atol=1e-5)
        torch.testing.assert_close(hidden[..., 1::2], expected[..., half:], rtol=0, atol=1e-5)
    for kind in ("decoder_attentions", "cross_attentions"):
        for weights, expected in zip(own[kind], theirs[kind], strict=True):
            torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)


def test_the_search_beyond_marians_table_of_positions_goes_on():
    marian = make_marian(max_position_embeddings=8)
    batch = make_batch(marian)
    with pytest.raises(IndexError):
        marian(**batch)
    assert from_marian(marian)(**batch).logits.isfinite().all()


def test_a_bias_of_zeros_is_left_out():
    marian = make_marian()
    assert from_marian(marian).lm_head.bias is not None
    marian.final_logits_bias.zero_()
    ours = from_marian(marian)
    assert ours.lm_head.bias is None and ours.config.output_bias is False
    assert_same_logits(ours, marian, make_batch(marian))


def test_the_embedding_stays_one_matrix_and_no_weight_is_added():
    marian = make_marian()
    ours = from_marian(marian)
    matrix = ours.get_input_embeddings().weight
    assert ours.lm_head.weight is matrix and ours.model.decoder.embed_tokens.weight is matrix
    trained = sum(parameter.numel() for parameter in marian.parameters() if parameter.requires_grad)
    assert sum(parameter.numel() for parameter in ours.parameters()) == trained + marian.final_logits_bias.numel()


def test_the_configuration_is_marians():
    marian = make_marian(dropout=0.3, attention_dropout=0.2, activation_dropout=0.1)
    config = from_marian(marian).config
    for field in ("vocab_size", "d_model", "decoder_layers", "dropout", "attention_dropout", "activation_dropout"):
        assert getattr(config, field) == getattr(marian.config, field)
    special = (config.pad_token_id, config.bos_token_id, config.eos_token_id, config.decoder_start_token_id)
    assert special == (VOCAB - 1, 0, 0, VOCAB - 1)
    assert config.label_smoothing == 0.1


def test_the_given_model_is_left_as_it_is():
    marian = make_marian().train()
    before = {name: tensor.clone() for name, tensor in marian.state_dict().items()}
    ours = from_marian(marian)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    assert marian.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in marian.state_dict().items())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-5), (torch.bfloat16, 0.5)])
def test_the_type_of_the_weights_is_kept(dtype, tolerance):
    marian = make_marian().to(dtype)
    ours = from_marian(marian)
    assert {parameter.dtype for parameter in ours.parameters()} == {dtype}
    assert_same_logits(ours, marian, make_batch(marian), tolerance)


# Search


def make_talkative(seed: int, eos_bias: float, **overrides) -> tuple[MarianMTModel, dict[str, torch.Tensor]]:
    """A model whose sentences end now and then, and that would like to generate the pad token; and sources."""
    marian = make_marian(seed=seed, **overrides)
    marian.final_logits_bias[0, marian.config.eos_token_id] += eos_bias
    marian.final_logits_bias[0, marian.config.pad_token_id] += 3
    batch = make_batch(marian, rows=5)
    del batch["decoder_input_ids"]
    return marian, batch


@pytest.mark.parametrize(
    ("seed", "eos_bias", "overrides"), [(1, 1.5, {}), (3, 2.0, {}), (6, 2.0, TINY)], ids=["opus-mt", "other", "relu"]
)
def test_greedy_translations_are_marians(seed, eos_bias, overrides):
    marian, batch = make_talkative(seed, eos_bias, **overrides)
    settings = {"num_beams": 1, "max_new_tokens": 12, "forced_eos_token_id": None}
    eos, pad = marian.config.eos_token_id, marian.config.pad_token_id
    theirs = sentences(marian.generate(**batch, **settings), eos)
    assert len({len(sentence) for sentence in theirs}) > 1
    assert not any(pad in sentence for sentence in theirs)
    ours = from_marian(marian)
    ours.generation_config.length_penalty = None  # or transformers says that it is not used
    assert sentences(ours.generate(**batch, **settings), eos) == theirs


@pytest.mark.parametrize("overrides", [{}, TINY], ids=["opus-mt", "relu"])
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
def test_beam_search_finds_what_marian_finds(alpha, early_stopping, overrides):
    """By the formula and the rules of transformers, which an imported model keeps. A limit ends some sentences."""
    for seed in range(4):
        marian, batch = make_talkative(seed, 1.5, **overrides)
        eos = marian.config.eos_token_id
        settings = {"num_beams": 4, "length_penalty": alpha, "early_stopping": early_stopping}
        settings |= {"max_new_tokens": 12, "forced_eos_token_id": None, "num_return_sequences": 3}
        ours = from_marian(marian)
        theirs = sentences(marian.generate(**batch, **settings), eos)
        assert sentences(ours.generate(**batch, **settings), eos) == theirs
        settings |= {"return_dict_in_generate": True, "output_scores": True}
        theirs, ours = marian.generate(**batch, **settings), ours.generate(**batch, **settings)
        torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, rtol=0, atol=1e-4)


def test_the_papers_penalty_is_a_setting_away():
    marian, batch = make_talkative(0, 1.5)
    ours = from_marian(marian)
    settings = {"num_beams": 4, "length_penalty": 1.0, "return_dict_in_generate": True, "output_scores": True}
    gnmt = ours.generate(**batch, **settings, length_penalty_type="gnmt")
    own = ours.generate(**batch, **settings)
    for output, penalty in ((gnmt, lambda length: (5 + length) / 6), (own, lambda length: length)):
        lengths = penalty((output.beam_indices >= 0).sum(dim=1))
        steps = ours.compute_transition_scores(output.sequences, output.scores, output.beam_indices).sum(dim=1)
        torch.testing.assert_close(output.sequences_scores * lengths, steps, rtol=0, atol=1e-4)


def sentences(rows: torch.Tensor, eos: int) -> list[list[int]]:
    """What stands between the decoder's start token and EOS."""
    rows = [row[1:] for row in rows.tolist()]
    return [row[: row.index(eos)] if eos in row else row for row in rows]


def test_the_search_is_marians_but_for_its_limits():
    marian = make_marian()
    marian.generation_config.update(num_beams=6, max_length=512, length_penalty=1.3, renormalize_logits=True)
    ours = from_marian(marian).generation_config
    assert (ours.num_beams, ours.length_penalty, ours.max_extra_tokens) == (6, 1.3, 50)
    assert ours.length_penalty_type == "length"
    assert ours.max_length is None and ours.max_new_tokens is None and ours.forced_eos_token_id is None
    assert ours.bad_words_ids == [[VOCAB - 1]] and ours.renormalize_logits is True
    assert (ours.pad_token_id, ours.eos_token_id, ours.decoder_start_token_id) == (VOCAB - 1, 0, VOCAB - 1)
    for beams in (None, 1):
        marian.generation_config.num_beams = beams
        assert from_marian(marian).generation_config.num_beams == 4


def test_a_translation_does_not_depend_on_its_batch_mates():
    """Not even when it is cut at its limit, where Marian forces an EOS on the longest sentence alone."""
    marian = make_marian()
    marian.final_logits_bias[0, 0] = -50  # EOS never comes unasked
    ours = from_marian(marian)
    ours.generation_config.max_extra_tokens = 2
    batch = make_batch(marian, rows=3)
    del batch["decoder_input_ids"]
    together = ours.generate(**batch).tolist()
    for row, length in enumerate(batch["attention_mask"].sum(dim=1).tolist()):
        alone = ours.generate(input_ids=batch["input_ids"][row : row + 1, :length])[0].tolist()
        assert len(alone) == 1 + length + 2
        assert together[row][: len(alone)] == alone
        assert set(together[row][len(alone) :]) <= {VOCAB - 1}


# Folders


@pytest.fixture(scope="module")
def marian() -> MarianMTModel:
    marian = make_marian(seed=3)
    marian.final_logits_bias[0, 0] = -9  # no empty translation
    return marian


@pytest.fixture(scope="module")
def marian_folder(marian, tmp_path_factory) -> Path:
    """A MarianMT model with no tokenizer but a tokenizer.json, which appends no EOS."""
    folder = tmp_path_factory.mktemp("marian")
    marian.save_pretrained(folder)
    words = ["</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz".upper(), *"abcdefghijk", "<pad>"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["</s>", "<unk>", "<pad>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_gives_the_same_as_the_model(marian, marian_folder, kind):
    ours, expected = from_marian(kind(marian_folder)).state_dict(), from_marian(marian).state_dict()
    assert ours.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in ours.items())


@pytest.fixture(scope="module")
def converted(marian_folder, tmp_path_factory) -> Path:
    """What examples/convert_checkpoint.py makes of the folder."""
    folder = tmp_path_factory.mktemp("converted") / "new" / "model"
    convert_checkpoint.main(["--from", "marian", str(marian_folder), str(folder)])
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    return folder


def test_the_converted_folder_loads_with_its_tokenizer(marian, marian_folder, converted):
    model = AutoModelForSeq2SeqLM.from_pretrained(converted)
    assert_same_logits(model, marian, make_batch(marian))
    assert model.generation_config.bad_words_ids == [[VOCAB - 1]]
    assert model.generation_config.to_dict() == from_marian(marian).generation_config.to_dict()
    tokenizer = AutoTokenizer.from_pretrained(converted)
    encoded = tokenizer(["A c", "D"], padding=True)
    assert encoded.input_ids == marian_tokenizer(marian_folder)(["A c", "D"], padding=True).input_ids
    assert encoded.input_ids == [[2, 30, 0], [5, 0, VOCAB - 1]]
    assert encoded.attention_mask == [[1, 1, 1], [1, 1, 0]]
    assert tokenizer.decode(encoded.input_ids[0], skip_special_tokens=True) == "Ac"
    translation = pipeline("translation", model=str(converted))("A B C", max_new_tokens=4)[0]["translation_text"]
    assert translation and "<" not in translation


ELSEWHERE = """
import sys
sys.modules["modeling_vanilla"] = None  # an import of the package fails, as where it is not installed
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
with torch.no_grad():
    save_file({"logits": model(**load_file(sys.argv[2])).logits}, sys.argv[3])
"""


def test_the_converted_folder_loads_without_this_package(marian, converted, tmp_path):
    batch = make_batch(marian)
    save_file(batch, tmp_path / "batch.safetensors")
    paths = [str(path) for path in (converted, tmp_path / "batch.safetensors", tmp_path / "logits.safetensors")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    environment.pop("HF_MODULES_CACHE", None)
    process = subprocess.run(
        [sys.executable, "-P", "-c", ELSEWHERE, *paths],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    with torch.no_grad():
        theirs = marian(**batch).logits
    torch.testing.assert_close(load_file(tmp_path / "logits.safetensors")["logits"], theirs, rtol=0, atol=1e-5)


def test_marians_own_tokenizer_is_carried_over(tmp_path):
    """opus-mt's: two sentencepiece models and one vocabulary."""
    sentencepiece = pytest.importorskip("sentencepiece")
    for side, text in (("source", "a small house stands there"), ("target", "ein kleines haus steht dort")):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([text] * 20),
            model_prefix=str(tmp_path / side),
            vocab_size=20,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (tmp_path / f"{side}.model").rename(tmp_path / f"{side}.spm")
    pieces = ["</s>", "<unk>"]
    for side in ("source", "target"):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / f"{side}.spm"))
        pieces += [piece for piece in map(processor.id_to_piece, range(len(processor))) if piece not in pieces]
    pieces.append("<pad>")
    (tmp_path / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (tmp_path / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "de"}')
    last = len(pieces) - 1
    make_marian(vocab_size=len(pieces), pad_token_id=last, decoder_start_token_id=last).save_pretrained(tmp_path)
    convert_checkpoint.main(["--from", "marian", str(tmp_path), str(tmp_path / "converted")])
    theirs = AutoTokenizer.from_pretrained(tmp_path)("a house", text_target="ein haus")
    ours = AutoTokenizer.from_pretrained(tmp_path / "converted")("a house", text_target="ein haus")
    assert dict(ours) == dict(theirs)
    assert ours.input_ids[-1] == ours["labels"][-1] == 0


# What cannot be brought in


@pytest.mark.parametrize(
    ("field", "overrides"),
    [
        ("scale_embedding", {"scale_embedding": False}),
        ("share_encoder_decoder_embeddings", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 50}),
        ("tie_word_embeddings", {"tie_word_embeddings": False}),
    ],
)
def test_what_the_papers_model_cannot_be_is_refused(field, overrides):
    with pytest.raises(ValueError, match=rf"^{field} is False.*\(3\.4\)$"):
        from_marian(make_marian(**overrides))


def test_positions_that_are_no_sinusoid_are_refused():
    marian = make_marian()
    with torch.no_grad():
        marian.model.decoder.embed_positions.weight[7, 3] += 0.1
    with pytest.raises(ValueError, match=r"decoder.embed_positions.weight .* is not the sinusoid"):
        from_marian(marian)


@pytest.fixture
def copy(marian_folder, tmp_path) -> Path:
    return Path(shutil.copytree(marian_folder, tmp_path / "copy"))


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def incomplete(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.decoder.layers.1.fc1.bias"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def truncated(folder: Path) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])


def resized(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "encoder_ffn_dim": 20}))


def of_another_type(folder: Path) -> None:
    T5Config().save_pretrained(folder)


def with_a_larger_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["more"])
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "neither a folder with a config.json nor a model of the Hub"),
        (lambda folder: (folder / "config.json").unlink(), "a folder without a config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no MarianMT model could be loaded"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer could be loaded"),
        (pickled, "pytorch_model.bin is a pickle"),
        (incomplete, "the weights lack model.decoder.layers.1.fc1.bias"),
        (truncated, "no MarianMT model could be loaded"),
        (resized, "no MarianMT model could be loaded"),
        (of_another_type, "model_type in config.json is 't5', not 'marian'"),
        (with_a_larger_tokenizer, "the tokenizer has 41 tokens, the model 40"),
    ],
)
def test_bad_folders_get_one_line_and_leave_nothing(copy, tmp_path, capfd, spoil, message):
    spoil(copy)
    before = set(tmp_path.iterdir())
    with pytest.raises(SystemExit) as stopped:
        convert_checkpoint.main(["--from", "marian", str(copy), str(tmp_path / "out")])
    assert stopped.value.code == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {copy}: {message}")
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("given", [None, 3, {}])
def test_what_is_neither_folder_nor_model_is_refused(given):
    with pytest.raises(ValueError, match=rf"not {type(given).__name__}$"):
        from_marian(given)


def test_a_model_without_its_head_is_refused(marian):
    with pytest.raises(ValueError, match=r"not MarianModel$"):
        from_marian(MarianModel(marian.config))


# The bias of the output projection


@pytest.mark.parametrize("tied", [True, False])
def test_the_output_bias_is_drawn_as_zeros_and_trained(make_model, tied):
    """The loss with a bias is the one of its logits, in training as in evaluation."""
    model = make_model(output_bias=True, tie_word_embeddings=tied)
    fresh = VanillaForConditionalGeneration(model.config)
    assert torch.equal(fresh.lm_head.bias, torch.zeros(41))
    torch.manual_seed(1)
    source, labels = torch.randint(4, 41, (2, 5)), torch.randint(4, 41, (2, 4))
    expected = nn.functional.cross_entropy(
        model(input_ids=source, labels=labels).logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1
    )
    torch.testing.assert_close(model(input_ids=source, labels=labels).loss, expected)
    outputs = model.train()(input_ids=source, labels=labels)
    torch.testing.assert_close(outputs.loss, expected)
    outputs.loss.backward()
    probabilities = outputs.logits.softmax(dim=-1).mean(dim=(0, 1))
    wanted = 0.9 * nn.functional.one_hot(labels, 41).float().mean(dim=(0, 1)) + 0.1 / 41
    torch.testing.assert_close(model.lm_head.bias.grad, probabilities - wanted)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("tokens", [48, 30])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_output_bias_follows_the_vocabulary(make_model, tmp_path, tied, tokens):
    model = make_model(output_bias=True, tie_word_embeddings=tied)
    batch = {"input_ids": torch.tensor([[5, 9, 2]]), "decoder_input_ids": torch.tensor([[1, 7]])}
    with torch.no_grad():
        before = model(**batch).logits
        model.resize_token_embeddings(tokens)
        after = model(**batch).logits
    kept = min(41, tokens)
    assert after.shape[-1] == tokens and model.lm_head.bias.shape == (tokens,)
    torch.testing.assert_close(after[..., :kept], before[..., :kept])
    model.train()(**batch, labels=torch.tensor([[7, 2]])).loss.backward()
    model.eval().save_pretrained(tmp_path)
    loaded, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.equal(loaded(**batch).logits, after)

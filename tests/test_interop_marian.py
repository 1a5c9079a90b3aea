"""MarianMT models, brought in, compute and search as transformers' MarianMTModel does."""

import copy
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from helpers import call
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    MarianConfig,
    MarianModel,
    MarianMTModel,
    PretrainedConfig,
    PreTrainedModel,
    T5Config,
    pipeline,
)

from modeling_vanilla import VanillaForConditionalGeneration
from modeling_vanilla.cli import convert
from modeling_vanilla.interop import from_marian, marian_tokenizer

VOCAB = 40
SIZES = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 36, "d_model": 24}
SIZES |= {"decoder_layers": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 28, "max_position_embeddings": 64}
# As opus-mt has it: EOS is 0, the last token pads and starts the decoder, and is never to be generated.
OPUS = {"pad_token_id": VOCAB - 1, "decoder_start_token_id": VOCAB - 1, "bos_token_id": 0, "eos_token_id": 0}
OPUS |= {"activation_function": "swish", "forced_eos_token_id": 0}
TINY = {"pad_token_id": 0, "decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2}
TINY |= {"activation_function": "relu", "forced_eos_token_id": None}


def randomise(model: PreTrainedModel) -> None:
    """Move every weight off its initial value (norms and biases are 1 and 0)."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter += 0.2 * torch.randn_like(parameter)


def make_marian(seed: int = 0, **overrides) -> MarianMTModel:
    """A small MarianMT of random weights in evaluation mode."""
    torch.manual_seed(seed)
    marian = MarianMTModel(MarianConfig(**{"vocab_size": VOCAB, "scale_embedding": True, **SIZES, **OPUS, **overrides}))
    randomise(marian)
    marian.final_logits_bias.normal_()
    marian.generation_config.bad_words_ids = [[marian.config.pad_token_id]]
    return marian.eval()


def make_batch(config: PretrainedConfig, rows: int = 4, longest: int = 11) -> dict[str, torch.Tensor]:
    """Sources of unequal lengths, padded on the right, that end in EOS; and what the decoder has read so far."""
    generator = torch.Generator().manual_seed(5)
    source = torch.randint(4, VOCAB - 1, (rows, longest), generator=generator)
    target = torch.randint(4, VOCAB - 1, (rows, longest - 3), generator=generator)
    for row, length in enumerate(range(longest, longest - 2 * rows, -2)):
        source[row, length - 1], source[row, length:] = config.eos_token_id, config.pad_token_id
    target[:, 0] = config.decoder_start_token_id
    mask = (source != config.pad_token_id).long()
    return {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target}


def assert_same_logits(ours: nn.Module, model: nn.Module, batch: dict[str, torch.Tensor], tolerance: float = 1e-5):
    with torch.no_grad():
        theirs = model(**batch, use_cache=False).logits  # with a cache, FSMT hides no later position
        torch.testing.assert_close(ours(**batch).logits, theirs, rtol=0, atol=tolerance)
    assert theirs.std() > 0.5  # else the comparison says little


# Logits


HEADS = {"activation_function": "gelu", "d_model": 18, "encoder_attention_heads": 1, "decoder_attention_heads": 6}
# The sines are one more than the cosines.
ODD = {"d_model": 15, "encoder_attention_heads": 5, "decoder_attention_heads": 3}


@pytest.mark.parametrize("overrides", [{}, TINY, HEADS, ODD], ids=["opus-mt", "<s>", "other heads", "odd d_model"])
def test_the_logits_are_marians(overrides):
    marian = make_marian(**overrides)
    ours = from_marian(marian)
    assert type(ours) is VanillaForConditionalGeneration and not ours.training
    batch = make_batch(marian.config)
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
    batch = make_batch(marian.config)
    wanted = {"output_attentions": True, "output_hidden_states": True}
    with torch.no_grad():
        theirs, own = marian(**batch, **wanted), ours(**batch, **wanted)
    # The residual stream: Marian's sines stand at our even places, its cosines at the odd ones.
    hidden = tuple(x.unflatten(-1, (2, -1)).mT.flatten(-2) for x in theirs.decoder_hidden_states)
    theirs = (hidden, theirs.decoder_attentions, theirs.cross_attentions)
    own = (own.decoder_hidden_states, own.decoder_attentions, own.cross_attentions)
    torch.testing.assert_close(own, theirs, rtol=0, atol=1e-5)


def test_the_search_beyond_marians_table_of_positions_goes_on():
    marian = make_marian(max_position_embeddings=8)
    batch = make_batch(marian.config)
    with pytest.raises(IndexError):
        marian(**batch)
    assert from_marian(marian)(**batch).logits.isfinite().all()


def test_a_bias_of_zeros_is_left_out():
    marian = make_marian()
    marian.final_logits_bias.zero_()
    ours = from_marian(marian)
    assert ours.lm_head.bias is None and ours.config.output_bias is False
    assert_same_logits(ours, marian, make_batch(marian.config))


def test_the_embedding_stays_one_matrix_and_no_weight_is_added():
    marian = make_marian()
    ours = from_marian(marian)
    assert ours.lm_head.weight is ours.model.decoder.embed_tokens.weight is ours.get_input_embeddings().weight
    trained = sum(parameter.numel() for parameter in marian.parameters() if parameter.requires_grad)
    assert sum(parameter.numel() for parameter in ours.parameters()) == trained + marian.final_logits_bias.numel()


def test_the_configuration_is_marians():
    marian = make_marian(dropout=0.3, attention_dropout=0.2, activation_dropout=0.1)
    config, theirs = from_marian(marian).config.to_dict(), marian.config.to_dict()
    fields = {"vocab_size", "d_model", "decoder_layers", "dropout", "attention_dropout", "activation_dropout"}
    fields |= {"pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"}
    assert config == config | {field: theirs[field] for field in fields} | {"label_smoothing": 0.1}


def test_the_given_model_is_left_as_it_is():
    marian = make_marian().train()
    before = copy.deepcopy(marian.state_dict())
    with torch.no_grad():
        for parameter in from_marian(marian).parameters():
            parameter.zero_()
    assert marian.training
    torch.testing.assert_close(marian.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-5), (torch.bfloat16, 0.5)])
def test_the_type_of_the_weights_is_kept(dtype, tolerance):
    marian = make_marian().to(dtype)
    ours = from_marian(marian)
    assert {parameter.dtype for parameter in ours.parameters()} == {dtype}
    assert_same_logits(ours, marian, make_batch(marian.config), tolerance)


# Search


def make_talkative(seed: int, eos_bias: float, **overrides) -> tuple[MarianMTModel, dict[str, torch.Tensor]]:
    """A model whose sentences end now and then, and that would like to generate the pad token; and sources."""
    marian = make_marian(seed=seed, **overrides)
    marian.final_logits_bias[0, marian.config.eos_token_id] += eos_bias
    marian.final_logits_bias[0, marian.config.pad_token_id] += 3
    batch = make_batch(marian.config, rows=5)
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
@pytest.mark.parametrize("alpha", [-1, 0.0, 0.6, 1.0, 2.0])
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
        torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, rtol=1e-5, atol=1e-4)


def test_the_papers_penalty_is_a_setting_away():
    marian, batch = make_talkative(0, 1.5)
    ours = from_marian(marian)
    settings = {"num_beams": 4, "length_penalty": 1.0, "return_dict_in_generate": True, "output_scores": True}
    for rule, penalty in (("gnmt", lambda length: (5 + length) / 6), (None, lambda length: length)):
        output = ours.generate(**batch, **settings, **({"length_penalty_type": rule} if rule else {}))
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
    expected = {"num_beams": 6, "length_penalty": 1.3, "length_penalty_type": "length", "max_extra_tokens": 50}
    expected |= {"max_length": None, "max_new_tokens": None, "forced_eos_token_id": None, "renormalize_logits": True}
    expected |= {"bad_words_ids": [[VOCAB - 1]], "pad_token_id": VOCAB - 1, "decoder_start_token_id": VOCAB - 1}
    ours = vars(from_marian(marian).generation_config)
    assert ours == ours | expected | {"eos_token_id": 0}
    for beams in (None, 1):
        marian.generation_config.num_beams = beams
        assert from_marian(marian).generation_config.num_beams == 4


def test_a_translation_does_not_depend_on_its_batch_mates():
    """Not even when it is cut at its limit, where Marian forces an EOS on the longest sentence alone."""
    marian = make_marian()
    marian.final_logits_bias[0, 0] = -50  # EOS never comes unasked
    ours = from_marian(marian)
    ours.generation_config.max_extra_tokens = 2
    batch = make_batch(marian.config, rows=3)
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


def test_a_folder_gives_the_same_as_the_model(marian, marian_folder):
    ours, expected = from_marian(str(marian_folder)).state_dict(), from_marian(marian).state_dict()
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)


def test_the_converted_folder_loads_with_its_tokenizer(marian, marian_folder, tmp_path):
    converted = tmp_path / "new" / "model"
    call(convert.main, "--from", "marian", marian_folder, converted)
    assert [path.name for path in converted.parent.iterdir()] == ["model"]
    model = AutoModelForSeq2SeqLM.from_pretrained(converted)
    assert (converted / "modeling_vanilla.py").is_file()  # with its code, as test_hub.py loads folders by
    assert_same_logits(model, marian, make_batch(marian.config))
    assert model.generation_config.to_dict() == from_marian(marian).generation_config.to_dict()
    tokenizer = AutoTokenizer.from_pretrained(converted)
    encoded = tokenizer(["A c", "D"], padding=True)
    assert encoded.input_ids == marian_tokenizer(marian_folder)(["A c", "D"], padding=True).input_ids
    assert encoded.input_ids == [[2, 30, 0], [5, 0, VOCAB - 1]]
    assert encoded.attention_mask == [[1, 1, 1], [1, 1, 0]]
    assert tokenizer.decode(encoded.input_ids[0], skip_special_tokens=True) == "Ac"
    translation = pipeline("translation", model=str(converted))("A B C", max_new_tokens=4)[0]["translation_text"]
    assert translation and "<" not in translation


def test_marians_own_tokenizer_is_carried_over(tmp_path):
    """opus-mt's: two sentencepiece models and one vocabulary."""
    sentencepiece = pytest.importorskip("sentencepiece")
    for side, text in (("source", "a small house stands there"), ("target", "ein kleines haus steht dort")):
        options = {"vocab_size": 20, "hard_vocab_limit": False, "minloglevel": 2, "model_prefix": str(tmp_path / side)}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter([text] * 20), **options)
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
    call(convert.main, "--from", "marian", tmp_path, tmp_path / "converted")
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


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def incomplete(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.decoder.layers.1.fc1.bias"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def truncated(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size // 2)


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
        (incomplete, "no MarianMT model could be loaded: the weights lack model.decoder.layers.1.fc1.bias"),
        (truncated, "no MarianMT model could be loaded"),
        (lambda folder: MarianConfig(d_model=32).save_pretrained(folder), "no MarianMT model could be loaded"),
        (lambda folder: T5Config().save_pretrained(folder), "model_type in config.json is 't5', not 'marian'"),
        (with_a_larger_tokenizer, "the tokenizer has 41 tokens, the model 40"),
    ],
)
def test_bad_folders_get_one_line_and_leave_nothing(marian_folder, tmp_path, spoil, message):
    spoiled = Path(shutil.copytree(marian_folder, tmp_path / "spoiled"))
    spoil(spoiled)
    error = call(convert.main, "--from", "marian", spoiled, tmp_path / "out").error
    assert error.startswith(f"{spoiled}: {message}") and not (tmp_path / "out").exists()


@pytest.mark.parametrize("given", [None, MarianModel(MarianConfig(vocab_size=VOCAB, **SIZES, **OPUS))])
def test_what_is_neither_folder_nor_model_is_refused(given):
    with pytest.raises(ValueError, match=rf"not {type(given).__name__}$"):
        from_marian(given)

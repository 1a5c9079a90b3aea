"""Every option of every command with values that it cannot have: one line names it, and nothing is written."""

import pytest
from trial import PROGRAMS, check

ANY = ("x", "", "1e3x")
COUNT = ("0", "-5", "1.5", *ANY)  # of what there is at least one
SIZE = (*COUNT, "99999999999999999999")  # of what takes memory
INDEX = ("-1", "1.5", *ANY)
ABOVE = ("0", "-1", "nan", "inf", *ANY)  # a number above 0
NOT_BELOW = ("-1", "nan", "inf", *ANY)  # 0 or above
SHARE = ("-0.1", "1.5", "nan", "inf", *ANY)
NUMBER = ("nan", "inf", "-inf", *ANY)
STRATEGIES = ("IntervalStrategy", "SaveStrategy", "algorithm")
CHOICE = ("nothing", "", "\udcff")
FILE = ("missing", "model", "missing/file", "a\nb", "\udcff")
FOLDER = ("source.txt", "run", "source.txt/new", "/proc/new")

TRAINING = {
    **dict.fromkeys(("max_steps", "tokens_per_update", "tokens_per_batch", "warmup_steps", "validate_steps"), COUNT),
    **dict.fromkeys(("early_stopping", "checkpoint_steps", "keep_checkpoints", "average_checkpoints"), COUNT),
    **dict.fromkeys(("max_minutes", "learning_rate_scale", "max_grad_norm", "checkpoint_minutes"), ABOVE),
    "seed": (*INDEX, str(2**32)),
    "data_workers": INDEX,
    **dict.fromkeys(("mixed_precision", "bleu_tokenize", "preset", "tokenizer_algorithm"), CHOICE),
    **dict.fromkeys(("model", "tokenizer"), ("missing", "source.txt", "corpus", "\udcff")),
    **dict.fromkeys(("train_file", "validation_file", "test_file"), FILE),
    **dict.fromkeys(("max_source_tokens", "max_target_tokens"), ("0", "-5", "1", *ANY)),
    "dataset_name": ("missing", "source.txt", "some body/data"),
    "max_train_pairs": COUNT,
    "output_dir": FOLDER,
    **dict.fromkeys(("train_source", "validation_target"), ("source.txt", "missing")),
    **dict.fromkeys(("source_lang", "target_lang"), ("fr",)),
}
MODEL = {
    **dict.fromkeys(("d_model", "d_k", "d_v", "encoder_attention_heads", "decoder_attention_heads"), SIZE),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim", "vocab_size"), SIZE),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "label_smoothing"), SHARE),
    **dict.fromkeys(("activation_function", "position_embedding_type", "tie_word_embeddings"), CHOICE),
    **dict.fromkeys(("attention_window", "max_position_embeddings"), ("0", "-5", *ANY)),
    "init_std": NOT_BELOW,
    "layer_norm_eps": ABOVE,
}
# Of the fine-tuning, what transformers itself refuses or this package reads.
TUNING = {
    **dict.fromkeys(("optim", "lr_scheduler_type", "eval_strategy", "save_strategy"), CHOICE),
    **dict.fromkeys(("train_file", "validation_file", "test_file"), FILE),
    **dict.fromkeys(("max_steps", "num_train_epochs", "learning_rate", "save_steps"), ANY),
    "model": ("missing", "source.txt", "fairseq", "\udcff"),
    "output_dir": FOLDER,
    "deepspeed": ("missing",),
}
TRANSLATING = {
    **dict.fromkeys(("nbest", "num_beams"), (*SIZE, "100000")),
    **dict.fromkeys(("max_source_tokens", "tokens_per_batch"), COUNT),
    "length_penalty": (*NUMBER, "1000", "-1e308"),
    "max_extra_tokens": INDEX,
    "device": ("nothing", "meta", "cuda:99", ""),
    "input": FILE,
    "reference": FILE,
    "alignments": ("out.txt", "./out.txt", "missing/file"),
    "output": ("model", "source.txt/file", "\udcff/file"),
    "bleu_tokenize": CHOICE,
}
SCORING = {name: TRANSLATING[name] for name in ("tokens_per_batch", "device", "input", "alignments", "output")}
DRAWING = {
    "device": TRANSLATING["device"],
    **dict.fromkeys(("layer", "head"), ("-1", "7", "1.5", *ANY)),
    "kind": CHOICE,
    "sentence": ("", " ", "a\nb", "dog " * 200, "\udcff"),
    "target": ("", " ", "a\nb", "Hund " * 200, "\udcff"),
    "output_dir": ("source.txt", "source.txt/new", "/proc/new"),
}
CORPUS = ("train_file", "validation_file", "test_file", "dataset_name", "max_train_pairs", "tokenizer", "output_dir")
OPTIONS = {
    "check": {name: TRAINING[name] for name in (*CORPUS, "train_source", "source_lang")} | {"max_length_ratio": ABOVE},
    "train": TRAINING | MODEL,
    "finetune": TUNING,
    "translate": TRANSLATING,
    "score": SCORING | {"target": FILE},
    "attention": DRAWING,
    "average --last": {"last": ("0", "-5", "1.5", *ANY)},
    "convert marian": {"from": CHOICE},
    "export ctranslate2": {"quantization": CHOICE, "positions": (*SIZE, "1000000000000"), "to": CHOICE},
    "export marian": {"quantization": ("int8",), "positions": (*SIZE, "1000000000000")},
    "export onnx": {"quantization": CHOICE, "positions": ("9",)},
    "export transformers.js": {"quantization": ("int8",), "positions": ("9",)},
    "demo": {"port": ("0", "65536", *ANY), "max_characters": COUNT, "examples": FILE},
    "push": {"results": (*FILE, "model/config.json"), "licence": ("\udcff",)},
    "push --static": {"results": ("run/results.json",), "examples": FILE},
}
CASES = [
    (program, option, value)
    for program, options in OPTIONS.items()
    for option, values in options.items()
    for value in dict.fromkeys(values)
]


def name_case(case):
    return "-".join(map(ascii, case))


@pytest.mark.parametrize("case", CASES, ids=name_case)
def test_one_line_names_the_option(trial, folder, case):
    program, option, value = case
    # The line names a file by its path. What transformers refuses, it names by the value.
    names = [" ".join(value.split())] if value.strip() and value not in ANY else STRATEGIES
    check(trial.run([*PROGRAMS[program].split(), f"--{option}={value}"], folder), option.split("_")[0], *names)

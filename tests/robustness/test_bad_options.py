"""Every option of every command with values that it cannot have: one line names it, and nothing is written."""

import pytest
from trial import DATA, PROGRAMS, check

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
    **dict.fromkeys(("sustained_tflops",), ABOVE),
    **dict.fromkeys(("seed", "data_workers"), INDEX),
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
    "export onnx": {"quantization": ("int8",), "positions": ("9",)},
    "push": {"results": (*FILE, "model/config.json"), "licence": ("\udcff",)},
    "toy_corpus": {
        **dict.fromkeys(("train", "validation", "test"), SIZE),
        "domain": CHOICE,
        "seed": ("1.5", *ANY),
        "output_dir": ("source.txt", "source.txt/new", "/proc/new"),
    },
    "quickstart": {"max_steps": COUNT, "output_dir": FOLDER},
    "figures": {"output_dir": ("source.txt", "/proc/new"), "seed": ANY},
    "table1": {"output_dir": ("source.txt", "/proc/new"), "seed": ANY},
    "table2": {"output_dir": ("source.txt", "/proc/new"), "runs": ("missing", "model", "source.txt")},
    "table3": {"rows": ("nothing",), "scale": ("nothing",), "output_dir": ("run", "source.txt"), "seed": ANY},
    "table4": {"scale": ("nothing",), "output_dir": ("run",), "num_beams": COUNT, "trees": ("missing",), "seed": ANY},
    "report": {"output_dir": ("source.txt", "/proc/new")},
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


# Arguments that are wrong as a whole, and what the line must name.
USAGE = {
    "vanilla": {
        "check": "no training data",
        "train": "output_dir",
        "score model": "--target",
        "score model --input source.txt --target target.txt --alignment_layer 1": "--alignments",
        "push you/model": "MODEL",
        "train --max_s 5 --output_dir new": "max_s",
        "train --output_dir new": "no training data",
        "train --output_dir new --model model --d_model 8": "d_model",
        "translate model --interactive --input source.txt": "--input",
        "translate model --nbest 9 --input source.txt": "nbest",
        "translate model marian --input source.txt": "marian",
        "translate model --input source.txt --reference train.jsonl": "train.jsonl",
        "score model --input source.txt --target train.jsonl": "train.jsonl",
        "translate model --input source.txt --output source.txt/x": "source.txt",
        "translate model --input source.txt --alignments al.txt --alignment_layer 9": "layer",
        "convert --from marian missing new": "missing",
        "convert --from marian model new": "model",
        "convert --from fsmt marian new": "marian",
        "convert --from fairseq marian new": "marian",
        "convert --from marian marian model": "model",
        "convert --from marian marian source.txt/new": "source.txt",
        "export --to onnx missing new": "missing",
        "export --to onnx model run": "run",
        "export --to ctranslate2 marian new": "marian",
        "export --to ctranslate2 model source.txt/new": "source.txt",
        "attention missing --sentence dog": "missing",
        "attention marian --sentence dog": "marian",
        "push run/model a-model": "a-model",
        "push missing somebody/model": "missing",
    },
    "finetune_seq2seq_trainer": {
        "": "model",
        "--model model --output_dir new": "no training data",
        "--model model --output_dir new --train_file train.jsonl": "validation",
        f"--model model --output_dir new {DATA} --resume": "resume",
        f"--model model --output_dir model {DATA} --resume": "resume",
        f"--model model --output_dir new {DATA} --none": "--none",
        f"--model model --output_dir new {DATA} --save_strategy no": "save_strategy",
        f"--model model --output_dir new {DATA} --eval_steps 3 --save_steps 2": "steps",
        f"--model model --output_dir new {DATA} --no_predict_with_generate": "predict_with_generate",
    },
    "toy_corpus": {"": "output_dir", "--output_dir": "output_dir", "--output_dir new extra": "extra"},
    "quickstart": {"extra": "extra", "--none": "--none"},
    "figures": {"--none": "--none"},
    "table1": {"--none": "--none"},
    "table2": {"": "output_dir", "--none --output_dir new": "--none"},
    "table3": {"": "output_dir", "--output_dir new --none": "--none"},
    "report": {"--none": "--none"},
}
USAGES = [(program, line, names) for program, lines in USAGE.items() for line, names in lines.items()]


@pytest.mark.parametrize("usage", USAGES, ids=name_case)
def test_one_line_says_what_is_missing_or_too_much(trial, folder, usage):
    program, line, names = usage
    check(trial.run([program, *line.split()] if line else [program], folder), names)

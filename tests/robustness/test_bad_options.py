"""Every option of every command with values that it cannot have: one line names it, and nothing is written."""

import shlex

import pytest
from trial import PROGRAMS, check

HUGE = 10**20
# Of each program its options, and behind a colon what none of them can be.
OPTIONS = {
    "check": """
        train_file validation_file test_file: missing model
        dataset_name tokenizer train_source: missing source.txt
        max_train_pairs max_length_ratio: 0 x
        output_dir: source.txt run
        source_lang: fr
    """,
    "train": """
        max_steps tokens_per_update tokens_per_batch warmup_steps validate_steps early_stopping: 0 1.5
        checkpoint_steps keep_checkpoints average_checkpoints max_train_pairs: 0 x
        max_minutes learning_rate_scale max_grad_norm checkpoint_minutes: 0 nan x
        seed data_workers: -1 1.5
        mixed_precision bleu_tokenize preset tokenizer_algorithm: nothing
        model tokenizer: missing source.txt
        train_file validation_file test_file dataset_name train_source validation_target: missing model
        max_source_length max_target_length: 0 1
        source_lang: fr
        output_dir: source.txt run /proc/new
        d_model d_k encoder_attention_heads decoder_layers encoder_ffn_dim vocab_size: 0 x
        dropout attention_dropout activation_dropout label_smoothing: -0.1 1.5 nan
        activation_function position_embedding_type tie_word_embeddings: nothing
        attention_window max_position_embeddings: 0 x
        init_std layer_norm_eps: -1 nan
    """,
    "finetune": """
        optim eval_strategy train_file model: missing
        max_steps learning_rate: x
        output_dir: source.txt run
        deepspeed: missing
    """,
    "translate": """
        nbest num_beams: 0 x
        max_source_tokens tokens_per_batch: 0 x
        length_penalty: nan x
        max_extra_tokens: -1 x
        device: nothing meta cuda:99
        input reference prefix terms: missing model
        alignments: out.txt missing/file
        output: model source.txt/file
    """,
    "score": """
        tokens_per_batch: 0 x
        device: nothing
        input target: missing model
        output: model
        alignments: out.txt missing/file
    """,
    "attention": """
        device kind: nothing
        layer head: -1 7 x
        sentence target: ''
        output_dir: source.txt /proc/new
    """,
    "average --last": "last: 0 x",
    "convert marian": "from: nothing",
    "export ctranslate2": f"quantization to: nothing\npositions: x {HUGE}",
    "export marian": f"quantization: int8\npositions: 0 x {HUGE}",
    "export onnx": "quantization: nothing\npositions: 9",
    "export transformers.js": "quantization: int8\npositions: 9",
    "demo": "port: 0 65536 x\nmax_characters: 0 x\nexamples: missing model",
    "push": "results: missing model/config.json",
    "push --static": "results: run/results.json\nexamples: missing model",
}
CASES = [
    (program, option, value)
    for program, table in OPTIONS.items()
    for options, _, values in (line.partition(":") for line in table.strip().splitlines())
    for option in options.split()
    for value in shlex.split(values)
]


@pytest.mark.parametrize(("program", "option", "value"), CASES)
def test_one_line_names_the_option(trial, folder, program, option, value):
    done = trial.run([*shlex.split(PROGRAMS[program]), f"--{option}={value}"], folder)
    # The line names a file by its path, and what transformers refuses by the value.
    check(done, option.split("_")[0], value or "empty")

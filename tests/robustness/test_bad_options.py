"""The options of every command with values that they cannot have: one line names them, and nothing is written."""

import shlex

import pytest
from trial import PROGRAMS, check

# Of each program its options, and behind a colon what none of them can be.
OPTIONS = {
    "check": """
        train_file dataset_name train_source: missing source.txt
        output_dir: source.txt run new\udcff
        source_lang: fr
    """,
    "train": """
        max_steps tokens_per_update validate_steps early_stopping max_train_pairs: 0 1.5 100000000000000000000
        learning_rate_scale max_grad_norm: 0 nan x
        seed: -1 1.5 100000000000000000000
        mixed_precision bleu_tokenize preset tokenizer_algorithm activation_function: nothing
        model tokenizer train_file validation_file dataset_name train_source validation_target: missing
        max_source_length d_model d_k encoder_attention_heads decoder_layers vocab_size attention_window: 0 x
        output_dir: source.txt run /proc/new
        dropout label_smoothing: -0.1 nan
    """,
    "translate": """
        nbest num_beams max_source_tokens tokens_per_batch inter_threads: 0 x 100000000000000000000
        length_penalty: nan x
        max_extra_tokens: -1 x 100000000000000000000
        device: nothing cuda:99
        input reference prefix terms: missing model
        alignments: out.txt missing/file
        output: model source.txt/file
    """,
    "score": "tokens_per_batch: 0 x\ninput target: missing model\noutput: model\nalignments: out.txt missing/file",
    "attention": "output_dir: source.txt /proc/new",
    "average --last": "last: 0 x",
    "convert marian": "from: nothing",
    "export ctranslate2": "quantization to: nothing",
    **{f"export {library}": "quantization: int8" for library in ("marian", "onnx", "transformers.js")},
    "demo": "port: 0 65536 x\nexamples: missing model",
}
CASES = [
    (program, option, value)
    for program, table in OPTIONS.items()
    for options, _, values in (line.partition(":") for line in table.strip().splitlines())
    for option in options.split()
    for value in shlex.split(values)
]


@pytest.mark.parametrize(("program", "option", "value"), CASES)
def test_one_line_names_the_option(folder, program, option, value):
    # The line names a file by its path, and what transformers refuses by the value.
    check(PROGRAMS[program], folder, option.split("_")[0], value or "empty", option=f"--{option}={value}")

"""Table 3: train every row, (A) to (E) and big, at any scale, and write the table in the paper's form.

    python examples/reproduce/table3.py --train_file train.jsonl --validation_file validation.jsonl \\
        --output_dir runs/table3

--scale names a JSON file of factors and settings, the fields of `Scale`: scales/two_cores.json by default,
scales/paper.json for the paper's own. Run again, it continues where it stopped.
Leaves in --output_dir: table3.md, table3.json, the tokenizer of all rows, and a folder for each row.
"""

from argparse import Namespace
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

from common import PAPER, markdown_table, write_results

from modeling_vanilla import preset_config
from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.corpus.data import load_pairs
from modeling_vanilla.corpus.tokenizer import check_vocabulary_size, train_tokenizer, vocabulary_texts
from modeling_vanilla.files import check_unused, read_json, whole_folder, write_json
from modeling_vanilla.metrics import TOKENIZE
from modeling_vanilla.progress import progress_bar
from modeling_vanilla.training import DataOptions, ModelOptions, TrainingOptions, train_translation
from modeling_vanilla.training.run import process_group
from modeling_vanilla.training.run_record import is_begun

# As the paper prints them, None for what it leaves out.
ROWS = {
    row: {name: printed.get(name) for name in ("steps", "PPL", "BLEU", "params")}
    for row, printed in PAPER["table3"].items()
}
CHANCE = {"PPL": 0.01, "BLEU": 0.5}  # what the seed may change: a share of the perplexity, points of BLEU
SCALES = Path(__file__).resolve().parent / "scales"


@dataclass(frozen=True)
class Scale:
    """Factors of the widths (d_model, d_ff, d_k, d_v), of N and of the updates, and settings common to all rows."""

    width: float
    depth: float
    steps: float
    vocab_size: int
    training: dict


def read_scale(path: Path) -> Scale:
    """The scale of a JSON file.

    Raises:
        ValueError: if the file cannot be read or holds no Scale; the message names the file.
    """
    values = read_json(path)
    try:
        TrainingOptions(output_dir="", **values["training"])
        return Scale(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"scale: {path}: {error}") from error


def scaled(row: str, scale: Scale) -> dict:
    """The fields of the row's configuration that the scale changes."""
    config = preset_config(row)
    widths = ["d_model", "encoder_ffn_dim", "decoder_ffn_dim"]
    widths += [name for name in ("d_k", "d_v") if getattr(config, name)]  # elsewhere they follow from d_model and h
    factors = dict.fromkeys(widths, scale.width) | dict.fromkeys(("encoder_layers", "decoder_layers"), scale.depth)
    sizes = {name: max(1, round(getattr(config, name) * factor)) for name, factor in factors.items()}
    return {**sizes, "vocab_size": scale.vocab_size}


def steps_of(row: str, scale: Scale) -> int:
    return max(1, round(ROWS[row]["steps"] * scale.steps))


def training_of(run: Path, scale: Scale, options: Namespace) -> TrainingOptions:
    """The training of the row that the folder is named after."""
    steps = steps_of(run.name, scale)
    # BLEU on the validation set with the search of 6.1, without averaging of checkpoints, as in the paper.
    return TrainingOptions(
        **{"validate_steps": steps, "checkpoint_steps": max(1, steps // 4), **scale.training},
        output_dir=str(run), max_steps=steps, bleu_tokenize=options.bleu_tokenize, seed=options.seed,
        average_checkpoints=1, keep_checkpoints=1,
    )  # fmt: skip


def check_same_table(output: Path, settings: dict) -> None:
    """Write the settings to a new folder; raise ValueError if it has rows of other settings, or other files."""
    path = output / "settings.json"
    if not path.is_file():
        check_unused("output_dir", output)
        output.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)
    for name, value in read_json(path).items():
        if value != settings.get(name):
            raise ValueError(f"output_dir: {output} holds rows of {name} {value}, not {settings.get(name)}")


def describe(row: str, scale: Scale, **results) -> dict:
    """The row's settings as the table prints them, with its results and the paper's."""
    config = preset_config(row, **scaled(row, scale))
    d_k, d_v = config.head_dims(config.encoder_attention_heads)
    return {
        "row": row, "N": config.encoder_layers, "d_model": config.d_model, "d_ff": config.encoder_ffn_dim,
        "h": config.encoder_attention_heads, "d_k": d_k, "d_v": d_v, "P_drop": config.dropout,
        "eps_ls": config.label_smoothing, "steps": steps_of(row, scale), **results,
        "paper": ROWS[row],
    }  # fmt: skip


def judge(entries: list[dict]) -> list[list[str]]:
    """For each ordering of the paper: what it says, and whether perplexity and BLEU have it here, and in the paper.

    Here rows may be "too close" to tell.
    """
    here = {entry["row"]: entry for entry in entries}
    verdicts = []
    for what, order in PAPER["orderings"].items():
        if set(order) <= set(here):
            verdict = [f"{what} ({' > '.join(order)})"]
            for table, factor in ((here, 1), (ROWS, 0)):
                pairs = [(table[better], table[worse]) for better, worse in pairwise(order)]
                by_perplexity = min(worse["PPL"] / better["PPL"] - 1 for better, worse in pairs)
                by_bleu = min(better["BLEU"] - worse["BLEU"] for better, worse in pairs)
                for gain, chance in ((by_perplexity, CHANCE["PPL"]), (by_bleu, CHANCE["BLEU"])):
                    close = abs(gain) < factor * chance
                    verdict.append("too close" if close else "holds" if gain > 0 else "does not")
            verdicts.append(verdict)
    return verdicts


def as_markdown(entries: list[dict], verdicts: list[list[str]], title: str) -> str:
    names = ["row", "N", "d_model", "d_ff", "h", "d_k", "d_v", "P_drop", "eps_ls", "steps"]
    forms = {"PPL": ".2f", "BLEU": ".2f", "params": ".2f", "minutes": ".1f"}
    rows = []
    for entry in entries:
        paper = [entry["paper"][name] for name in ("PPL", "BLEU", "params")]
        ours = [format(entry[name], form) for name, form in forms.items()]
        rows.append([*(entry[name] for name in names), *ours, *("" if value is None else value for value in paper)])
    head = [*names, "PPL", "BLEU", "params (M)", "minutes", "paper: PPL", "BLEU", "params (M)"]
    parts = [f"# {title}\n", markdown_table(head, rows)]
    if verdicts:
        head = ["what the paper finds", "by perplexity", "by BLEU", "in the paper: by perplexity", "by BLEU"]
        parts.append(markdown_table(head, verdicts))
    return "\n".join(parts)


def reproduce(options: Namespace, scale: Scale, data: DataOptions) -> None:
    """Train the rows that have no results yet, and write the table of all rows in the folder after each.

    Raises:
        ValueError: for bad data or settings, before anything is written.
        OSError: if a file cannot be written.
    """
    output, state = options.output_dir, process_group()
    check_vocabulary_size(scale.vocab_size, "bpe")
    for row in options.rows:  # or the folder would be bound to settings that cannot be trained
        training_of(output / row, scale, options)
        preset_config(row, **scaled(row, scale))
    tokenizer = output / "tokenizer"  # of all rows
    with state.main_process_first():
        pairs = load_pairs(data)
        if "validation" not in pairs:
            raise ValueError("validation_file: Table 3 is measured on validation data, and none are given")
        settings = {**asdict(data), "bleu_tokenize": options.bleu_tokenize, "seed": options.seed, **asdict(scale)}
        check_same_table(output, settings)
        if not tokenizer.is_dir():
            with whole_folder(tokenizer) as part:
                texts = vocabulary_texts(pairs["train"])
                train_tokenizer(texts, vocab_size=scale.vocab_size).save_pretrained(part)
    for row in progress_bar(options.rows, desc="rows of Table 3", disable=not state.is_main_process):
        if not (output / row / "results.json").is_file():
            fields = {name: value for name, value in scaled(row, scale).items() if name != "vocab_size"}
            training = replace(training_of(output / row, scale, options), resume=is_begun(output / row))
            train_translation(data, training, ModelOptions(preset=row, tokenizer=str(tokenizer)), fields)
        if state.is_main_process:
            write_table(output, scale, f"Table 3, seed {options.seed}")
        state.wait_for_everyone()
    state.print((output / "table3.md").read_text(encoding="utf-8"))


def write_table(output: Path, scale: Scale, title: str) -> None:
    """Write the table of the rows that have results."""
    entries = []
    for row in ROWS:
        path = output / row / "results.json"
        if path.is_file():
            results = read_json(path)
            scores = {"PPL": results["validation"]["perplexity"], "BLEU": results["validation"]["bleu"]}
            costs = {"params": results["parameters"] / 1e6, "minutes": results["train_seconds"] / 60}
            entries.append(describe(row, scale, **scores, **costs, steps=results["steps"]))
    verdicts = judge(entries)
    numbers = {"rows": entries, "orderings": verdicts}
    write_results(output, "table3", numbers, as_markdown(entries, verdicts, title))


def main() -> None:
    parser = CommandParser(__doc__, (DataOptions,))
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of the table and of a run for each row")
    parser.add_argument("--scale", type=Path, default=SCALES / "two_cores.json", help="file of a scale")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS], metavar="ROW", help="rows to train")
    parser.add_argument("--bleu_tokenize", default=TOKENIZE, help="sacreBLEU's tokeniser")
    parser.add_argument("--seed", type=int, default=0, help="seed of every row")

    def run(options: Namespace) -> None:
        (data,) = parser.parse_dict(vars(options), allow_extra_keys=True)
        reproduce(options, read_scale(options.scale), data)

    run_command(parser, run)


if __name__ == "__main__":
    main()

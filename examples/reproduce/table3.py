"""Table 3: train every row, (A) to (E) and big, at any scale, and write the table in the paper's form.

    python examples/reproduce/table3.py --train_file train.jsonl --validation_file validation.jsonl \\
        --output_dir runs/table3

--scale names a file of factors: of widths (d_model, d_ff, d_k, d_v), depths (N) and updates, the size of the
vocabulary, and how to train. scales/two_cores.json is the default, scales/paper.json is the paper's own; --dry_run
shows what either would train. Started again, it goes on where it stopped. Leaves in --output_dir: table3.md,
table3.json, table3.png, the tokenizer that all rows share, and a folder for each row.
"""

import hashlib
import itertools
import json
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from datasets import Dataset, DatasetDict
from matplotlib.figure import Figure
from tqdm.auto import tqdm
from transformers import HfArgumentParser

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.io import one_line_errors, whole_folder, write_json, write_text
from modeling_vanilla.training import DataOptions, TrainingOptions, TranslationOptions, train_translation
from modeling_vanilla.training.metrics import TOKENIZE
from modeling_vanilla.training.reading import load_pairs
from modeling_vanilla.training.tokenizer import train_tokenizer
from modeling_vanilla.visualization.attention import save_figure

# What the paper prints for each row: updates, perplexity per word piece and BLEU on newstest2013, million parameters.
PAPER = {
    "base": (100_000, 4.92, 25.8, 65),
    "A-h1": (100_000, 5.29, 24.9, None),
    "A-h4": (100_000, 5.00, 25.5, None),
    "A-h16": (100_000, 4.91, 25.8, None),
    "A-h32": (100_000, 5.01, 25.4, None),
    "B-dk16": (100_000, 5.16, 25.1, 58),
    "B-dk32": (100_000, 5.01, 25.4, 60),
    "C-N2": (100_000, 6.11, 23.7, 36),
    "C-N4": (100_000, 5.19, 25.3, 50),
    "C-N8": (100_000, 4.88, 25.5, 80),
    "C-d256": (100_000, 5.75, 24.5, 28),
    "C-d1024": (100_000, 4.66, 26.0, 168),
    "C-ff1024": (100_000, 5.12, 25.4, 53),
    "C-ff4096": (100_000, 4.75, 26.2, 90),
    "D-drop0.0": (100_000, 5.77, 24.6, None),
    "D-drop0.2": (100_000, 4.95, 25.5, None),
    "D-ls0.0": (100_000, 4.67, 25.3, None),
    "D-ls0.2": (100_000, 5.47, 25.7, None),
    "E-learned": (100_000, 4.92, 25.7, None),
    "big": (300_000, 4.33, 26.4, 213),
}
# What the paper concludes: each of these rows is better than the next.
ORDERINGS = {
    "one head is worse": ("base", "A-h1"),
    "too many heads are worse": ("base", "A-h32"),
    "a small d_k is worse": ("base", "B-dk32", "B-dk16"),
    "deeper is better": ("C-N8", "base", "C-N4", "C-N2"),
    "a wider model is better": ("C-d1024", "base", "C-d256"),
    "a wider feed-forward network is better": ("C-ff4096", "base", "C-ff1024"),
    "dropout helps": ("base", "D-drop0.0"),
    "label smoothing helps BLEU": ("base", "D-ls0.0"),
    "big is better": ("big", "base"),
}
SET_BY_THE_TABLE = {"output_dir", "max_steps", "bleu_tokenize", "seed", "average_checkpoints", "keep_checkpoints"}
SCALES = Path(__file__).resolve().parent / "scales"


@dataclass
class Table3Options:
    """Which rows, at which scale."""

    output_dir: str = field(metadata={"help": "Folder of the table and of a run for each row."})
    scale: str = field(default=str(SCALES / "two_cores.json"), metadata={"help": "File of factors."})
    rows: list[str] | None = field(default=None, metadata={"help": f"Only these, of {', '.join(PAPER)}."})
    bleu_tokenize: str = field(default=TOKENIZE, metadata={"help": "sacreBLEU's tokeniser: 13a, or none."})
    seed: int = field(default=0, metadata={"help": "Of every row."})
    dry_run: bool = field(default=False, metadata={"help": "Show what would be trained, and train nothing."})


def read_scale(path: str | Path) -> dict:
    """The factors of a scale file.

    Raises:
        ValueError: if it is no JSON object of exactly the known fields, a factor is not above 0, vocab_size is no whole
            number, or training sets what is no option or one that the table sets; it names the file.
    """
    try:
        scale = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"scale: {path} is no JSON, {error}") from None
    names = {"width", "depth", "steps", "vocab_size", "training"}
    if not isinstance(scale, dict) or set(scale) != names:
        raise ValueError(f"scale: {path} must hold exactly {', '.join(sorted(names))}")
    for name in ("width", "depth", "steps", "vocab_size"):
        if not isinstance(scale[name], int | float) or not scale[name] > 0:
            raise ValueError(f"scale: {name} in {path} must be above 0, not {scale[name]!r}")
    if scale["vocab_size"] != int(scale["vocab_size"]):
        raise ValueError(f"scale: vocab_size in {path} must be a whole number, not {scale['vocab_size']!r}")
    free = {option.name for option in fields(TrainingOptions)} - SET_BY_THE_TABLE
    if not isinstance(scale["training"], dict) or set(scale["training"]) - free:
        raise ValueError(f"scale: training in {path} must hold options of training alone, not {scale['training']!r}")
    return scale


def check_rows(rows: list[str] | None) -> list[str]:
    """The rows asked for, in the paper's order; ValueError names one that is not in the table."""
    unknown = [row for row in rows or [] if row not in PAPER]
    if unknown:
        raise ValueError(f"rows: {unknown[0]!r} is not in Table 3; its rows are {', '.join(PAPER)}")
    return [row for row in PAPER if rows is None or row in rows]


def scaled(row: str, scale: dict) -> dict:
    """The fields of the row's configuration that scaling changes."""
    config = VanillaConfig.preset(row)

    def times(value: int, factor: str) -> int:
        return max(1, round(value * scale[factor]))

    widths = {name: times(getattr(config, name), "width") for name in ("d_model", "encoder_ffn_dim", "decoder_ffn_dim")}
    # Where the row sets d_k and d_v; elsewhere they follow from d_model and the heads.
    widths |= {name: times(getattr(config, name), "width") for name in ("d_k", "d_v") if getattr(config, name)}
    depths = {name: times(getattr(config, name), "depth") for name in ("encoder_layers", "decoder_layers")}
    return {**widths, **depths, "vocab_size": scale["vocab_size"]}


def steps_of(row: str, scale: dict) -> int:
    return max(1, round(PAPER[row][0] * scale["steps"]))


def train_row(row: str, scale: dict, data: DataOptions, tokenizer: Path, options: Table3Options) -> None:
    """Train a row, or go on with it."""
    run = Path(options.output_dir) / row
    steps = steps_of(row, scale)
    # BLEU on the validation set, by the search of 6.1 but of the last weights alone, as the paper has it.
    training = TrainingOptions(
        **{"validate_steps": steps, "checkpoint_steps": max(1, steps // 4), **scale["training"]},
        output_dir=str(run), max_steps=steps, bleu_tokenize=options.bleu_tokenize, seed=options.seed,
        average_checkpoints=1, keep_checkpoints=1,
    )  # fmt: skip
    model = TranslationOptions(preset=row, tokenizer=str(tokenizer), resume=(run / "run.json").is_file())
    overrides = {name: value for name, value in scaled(row, scale).items() if name != "vocab_size"}
    train_translation(data, training, model, overrides)


def shared_tokenizer(pairs: Dataset, vocab_size: int, folder: Path) -> Path:
    """Trained once for all rows, or the one that is there."""
    if not folder.is_dir():
        texts = (text for rows in pairs.iter(1000) for side in ("source", "target") for text in rows[side])
        with whole_folder(folder) as part:
            train_tokenizer(texts, vocab_size=vocab_size).save_pretrained(part)
    return folder


def digest(pairs: DatasetDict) -> str:
    """A short hash of all texts to train on and to validate on, by which a folder knows its data again."""
    result = hashlib.sha256()
    for split in ("train", "validation"):
        for rows in pairs[split].iter(1000):
            result.update("\n".join(rows["source"] + rows["target"]).encode())
    return result.hexdigest()[:16]


def check_same_table(output: Path, settings: dict) -> None:
    """Raise ValueError if the folder holds rows of other settings; else note them there."""
    path = output / "settings.json"
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        for name, now in settings.items():
            if before.get(name) != now:
                raise ValueError(f"output_dir: {output} holds rows of {name} {before.get(name)}, not {now}")
    elif output.exists() and any(output.iterdir()):
        raise ValueError(f"output_dir: {output} holds something else, as it has no settings.json")
    output.mkdir(parents=True, exist_ok=True)
    write_json(path, settings)


def describe(row: str, scale: dict, **measured) -> dict:
    """The row's settings as the table prints them, with what was measured and what the paper has."""
    config = VanillaConfig.preset(row, **scaled(row, scale))
    d_k, d_v = config.head_dims(config.encoder_attention_heads)
    updates, perplexity, bleu, parameters = PAPER[row]
    return {
        "row": row, "N": config.encoder_layers, "d_model": config.d_model, "d_ff": config.encoder_ffn_dim,
        "h": config.encoder_attention_heads, "d_k": d_k, "d_v": d_v, "P_drop": config.dropout,
        "eps_ls": config.label_smoothing, "steps": steps_of(row, scale), **measured,
        "paper": {"steps": updates, "PPL": perplexity, "BLEU": bleu, "params": parameters},
    }  # fmt: skip


def measured(results: dict) -> dict:
    last = results["validation"]
    return {
        "PPL": last["perplexity"],
        "BLEU": last["bleu"],
        "params": results["parameters"] / 1e6,
        "minutes": results["train_seconds"] / 60,
    }


def judge(entries: list[dict]) -> list[tuple[str, str, str]]:
    """For each ordering of the paper whether it holds here: (what, by perplexity, by BLEU). Lower perplexity is better.

    The paper's last, that learned positions are as good as sinusoids, is by a difference of at most 0.5 BLEU.
    """
    found = {entry["row"]: entry for entry in entries}
    verdicts = []
    for what, rows in ORDERINGS.items():
        if not all(row in found for row in rows):
            continue
        chain = " > ".join(rows)
        pairs = list(itertools.pairwise(rows))
        by_perplexity = all(found[a]["PPL"] < found[b]["PPL"] for a, b in pairs)
        by_bleu = all(found[a]["BLEU"] > found[b]["BLEU"] for a, b in pairs)
        verdicts.append((f"{what} ({chain})", _yes(by_perplexity), _yes(by_bleu)))
    if {"base", "E-learned"} <= set(found):
        difference = found["E-learned"]["BLEU"] - found["base"]["BLEU"]
        verdicts.append(
            ("learned = sinusoidal (within 0.5 BLEU)", "", f"{_yes(abs(difference) <= 0.5)}, {difference:+.2f}")
        )
    return verdicts


def _yes(holds: bool) -> str:
    return "holds" if holds else "does not"


def as_markdown(entries: list[dict], verdicts: list[tuple[str, str, str]], title: str) -> str:
    names = ["row", "N", "d_model", "d_ff", "h", "d_k", "d_v", "P_drop", "eps_ls", "steps"]
    lines = [
        f"# {title}",
        "",
        "| " + " | ".join([*names, "PPL", "BLEU", "params (M)", "minutes", "paper: PPL", "BLEU", "params (M)"]) + " |",
        "|" + "---|" * (len(names) + 7),
    ]
    for entry in entries:
        ours = (f"{entry['PPL']:.2f}", f"{entry['BLEU']:.2f}", f"{entry['params']:.2f}", f"{entry['minutes']:.1f}")
        theirs = [entry["paper"][name] for name in ("PPL", "BLEU", "params")]
        cells = [*(entry[name] for name in names), *ours, *("" if value is None else value for value in theirs)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    if verdicts:
        lines += ["", "| what the paper finds | by perplexity | by BLEU |", "|---|---|---|"]
        lines += [f"| {' | '.join(verdict)} |" for verdict in verdicts]
    return "\n".join(lines) + "\n"


def plot(entries: list[dict], path: Path) -> None:
    """Perplexity and BLEU of every row, in the paper and here; the base model's as a line."""
    figure = Figure(figsize=(11, 1.5 + 0.25 * len(entries)), layout="constrained")
    panels = figure.subplots(1, 4, sharey=True)
    rows = [entry["row"] for entry in entries]
    for axes, (name, where) in zip(panels, itertools.product(("PPL", "BLEU"), ("paper", "here")), strict=True):
        values = [(entry["paper"] if where == "paper" else entry)[name] for entry in entries]
        axes.scatter(values, rows, color=[f"C{'bABCDE'.find(row[0])}" for row in rows])
        if "base" in rows:
            axes.axvline(values[rows.index("base")], color="grey", linewidth=0.8)
        axes.set_title(
            f"{name}, {'newstest2013, in the paper' if where == 'paper' else 'validation, here'}", fontsize=9
        )
        axes.grid(axis="x", alpha=0.3)
    panels[0].invert_yaxis()
    save_figure(figure, path)


def dry_run(rows: list[str], scale: dict) -> None:
    """Print each row's sizes and updates; its parameters are counted on a model without memory."""
    for row in rows:
        with torch.device("meta"):
            model = VanillaForConditionalGeneration(VanillaConfig.preset(row, **scaled(row, scale)))
        entry = describe(row, scale, params=round(model.num_parameters() / 1e6, 2))
        print("  ".join(f"{name} {value}" for name, value in entry.items() if name != "paper"))


def reproduce(options: Table3Options, data: DataOptions) -> None:
    """Train what is missing, and write the table anew after each row, with all that are in the folder.

    Raises:
        ValueError: for bad data or settings, before anything is written.
        OSError: if a file cannot be written.
    """
    scale, rows, output = read_scale(options.scale), check_rows(options.rows), Path(options.output_dir)
    limits = {"max_source_tokens": data.max_source_tokens, "max_target_tokens": data.max_target_tokens}
    # Unless told, accelerate would take processes on CPUs for as many runs of their own.
    state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))
    with state.main_process_first():
        pairs = load_pairs(data)
        if "validation" not in pairs:
            raise ValueError("validation_file: Table 3 is measured on validation data, and none are given")
        same = {"data": digest(pairs), **limits, **scale, "bleu_tokenize": options.bleu_tokenize, "seed": options.seed}
        check_same_table(output, same)
        tokenizer = shared_tokenizer(pairs["train"], scale["vocab_size"], output / "tokenizer")
    for row in tqdm(rows, desc="rows of Table 3", disable=not state.is_main_process):
        if not (output / row / "results.json").is_file():
            train_row(row, scale, data, tokenizer, options)
        if state.is_main_process:
            write_table(output, scale, f"Table 3, seed {options.seed}")
        state.wait_for_everyone()


def write_table(output: Path, scale: dict, title: str) -> None:
    """Write the table of every row that is done."""
    done = {row: output / row / "results.json" for row in PAPER}
    entries = [
        describe(row, scale, **measured(json.loads(path.read_text(encoding="utf-8"))))
        for row, path in done.items()
        if path.is_file()
    ]
    verdicts = judge(entries)
    write_json(output / "table3.json", {"rows": entries, "orderings": verdicts})
    write_text(output / "table3.md", as_markdown(entries, verdicts, title))
    plot(entries, output / "table3.png")


def main() -> None:
    parser = HfArgumentParser((Table3Options, DataOptions), description=__doc__)
    with one_line_errors():
        options, data = parser.parse_args_into_dataclasses()
        if options.dry_run:
            dry_run(check_rows(options.rows), read_scale(options.scale))
            return
        reproduce(options, data)
        PartialState().print((Path(options.output_dir) / "table3.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()

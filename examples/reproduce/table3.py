"""Table 3: train every row, (A) to (E) and big, at any scale, and write the table in the paper's form.

    python examples/reproduce/table3.py --train_file train.jsonl --validation_file validation.jsonl \\
        --output_dir runs/table3

--scale names a JSON file of factors and settings, the fields of `Scale`: scales/two_cores.json by default,
scales/paper.json for the paper's own. --dry_run prints what would be trained. Run again, it continues where it stopped.
Leaves in --output_dir: table3.md, table3.json, table3.png, the tokenizer of all rows, and a folder for each row.
"""

import hashlib
import itertools
import json
from argparse import Namespace
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch
from accelerate import PartialState
from common import markdown_table
from datasets import Dataset, DatasetDict
from matplotlib.figure import Figure

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import read_json, whole_folder, write_json, write_text
from modeling_vanilla.options import TOKENIZE
from modeling_vanilla.progress import progress_bar
from modeling_vanilla.training import DataOptions, TrainingOptions, TranslationOptions, train_translation
from modeling_vanilla.training.data import load_pairs
from modeling_vanilla.training.run import process_group
from modeling_vanilla.training.tokenizer import train_tokenizer
from modeling_vanilla.visualization.attention import save_figure

# The paper's figures of each row: updates, perplexity per word piece and BLEU on newstest2013, million parameters.
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
# The paper's conclusions, by one of its two measures at least: each of these rows is better than the next.
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
    scale: str = field(default=str(SCALES / "two_cores.json"), metadata={"help": "File of a scale."})
    rows: list[str] | None = field(default=None, metadata={"help": f"Rows to train, of {', '.join(PAPER)}; or all."})
    bleu_tokenize: str = field(default=TOKENIZE, metadata={"help": "sacreBLEU's tokeniser: 13a, none, zh or char."})
    seed: int = field(default=0, metadata={"help": "Seed of every row."})
    dry_run: bool = field(default=False, metadata={"help": "Print sizes and updates of each row, and train nothing."})


@dataclass(frozen=True)
class Scale:
    """Factors of the widths (d_model, d_ff, d_k, d_v), of N and of the updates, and settings common to all rows.

    Raises:
        ValueError: for a factor that is no number above 0, a vocab_size that is no whole number, or an unknown option
            of training or one that the table sets.
    """

    width: float
    depth: float
    steps: float
    vocab_size: int
    training: dict

    def __post_init__(self):
        kinds = {**dict.fromkeys(("width", "depth", "steps"), (int, float)), "vocab_size": int, "training": dict}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or (kind is not dict and value <= 0):
                raise ValueError(f"{name} cannot be {value!r}")
        free = {option.name for option in fields(TrainingOptions)} - SET_BY_THE_TABLE
        if unknown := set(self.training) - free:
            raise ValueError(f"training cannot set {min(unknown)}")


def read_scale(path: str | Path) -> Scale:
    """The scale of a JSON file.

    Raises:
        ValueError: if the file is not JSON or holds no Scale; it names the file.
    """
    try:
        return Scale(**json.loads(Path(path).read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"scale: {path}: {error}") from error


def check_rows(rows: list[str] | None) -> list[str]:
    """The chosen rows, or all, in the paper's order; ValueError names one that is not in the table."""
    unknown = [row for row in rows or [] if row not in PAPER]
    if unknown:
        raise ValueError(f"rows: {unknown[0]!r} is not in Table 3; its rows are {', '.join(PAPER)}")
    return [row for row in PAPER if rows is None or row in rows]


def scaled(row: str, scale: Scale) -> dict:
    """The fields of the row's configuration that the scale changes."""
    config = VanillaConfig.preset(row)
    widths = ["d_model", "encoder_ffn_dim", "decoder_ffn_dim"]
    widths += [name for name in ("d_k", "d_v") if getattr(config, name)]  # elsewhere they follow from d_model and h
    factors = dict.fromkeys(widths, scale.width) | dict.fromkeys(("encoder_layers", "decoder_layers"), scale.depth)
    sizes = {name: max(1, round(getattr(config, name) * factor)) for name, factor in factors.items()}
    return {**sizes, "vocab_size": scale.vocab_size}


def steps_of(row: str, scale: Scale) -> int:
    return max(1, round(PAPER[row][0] * scale.steps))


def train_row(row: str, scale: Scale, data: DataOptions, tokenizer: Path, options: Table3Options) -> None:
    """Train a row, or continue its training."""
    run = Path(options.output_dir) / row
    steps = steps_of(row, scale)
    # BLEU on the validation set with the search of 6.1, without averaging of checkpoints, as in the paper.
    training = TrainingOptions(
        **{"validate_steps": steps, "checkpoint_steps": max(1, steps // 4), **scale.training},
        output_dir=str(run), max_steps=steps, bleu_tokenize=options.bleu_tokenize, seed=options.seed,
        average_checkpoints=1, keep_checkpoints=1,
    )  # fmt: skip
    model = TranslationOptions(preset=row, tokenizer=str(tokenizer), resume=(run / "run.json").is_file())
    overrides = {name: value for name, value in scaled(row, scale).items() if name != "vocab_size"}
    train_translation(data, training, model, overrides)


def shared_tokenizer(pairs: Dataset, vocab_size: int, folder: Path) -> Path:
    """The tokenizer of all rows, trained unless the folder has it."""
    if not folder.is_dir():
        texts = (text for rows in pairs.iter(1000) for side in ("source", "target") for text in rows[side])
        with whole_folder(folder) as part:
            train_tokenizer(texts, vocab_size=vocab_size).save_pretrained(part)
    return folder


def digest(pairs: DatasetDict) -> str:
    """A short hash of all texts of training and validation."""
    result = hashlib.sha256()
    for split in ("train", "validation"):
        for rows in pairs[split].iter(1000):
            result.update("\n".join(rows["source"] + rows["target"]).encode())
    return result.hexdigest()[:16]


def check_same_table(output: Path, settings: dict) -> None:
    """Write the settings to a new folder; raise ValueError if it has rows of other settings, or other files."""
    path = output / "settings.json"
    if path.is_file():
        before = read_json(path)
        for name, now in settings.items():
            if before.get(name) != now:
                raise ValueError(f"output_dir: {output} holds rows of {name} {before.get(name)}, not {now}")
        return
    if output.exists() and any(output.iterdir()):
        raise ValueError(f"output_dir: {output} holds no Table 3, as it has no settings.json")
    output.mkdir(parents=True, exist_ok=True)
    write_json(path, settings)


def describe(row: str, scale: Scale, **results) -> dict:
    """The row's settings as the table prints them, with its results and the paper's."""
    config = VanillaConfig.preset(row, **scaled(row, scale))
    d_k, d_v = config.head_dims(config.encoder_attention_heads)
    updates, perplexity, bleu, parameters = PAPER[row]
    return {
        "row": row, "N": config.encoder_layers, "d_model": config.d_model, "d_ff": config.encoder_ffn_dim,
        "h": config.encoder_attention_heads, "d_k": d_k, "d_v": d_v, "P_drop": config.dropout,
        "eps_ls": config.label_smoothing, "steps": steps_of(row, scale), **results,
        "paper": {"steps": updates, "PPL": perplexity, "BLEU": bleu, "params": parameters},
    }  # fmt: skip


def judge(entries: list[dict]) -> list[tuple[str, str, str]]:
    """For each ordering of the paper whether it holds here: (what, by perplexity, by BLEU).

    The last, that learned positions are as good as sinusoids, holds if their BLEU differs by at most 0.5.
    """
    by_row = {entry["row"]: entry for entry in entries}
    verdicts = []
    for what, rows in ORDERINGS.items():
        if set(rows) <= set(by_row):
            pairs = [(by_row[better], by_row[worse]) for better, worse in itertools.pairwise(rows)]
            by_perplexity = all(better["PPL"] < worse["PPL"] for better, worse in pairs)
            by_bleu = all(better["BLEU"] > worse["BLEU"] for better, worse in pairs)
            verdicts.append((f"{what} ({' > '.join(rows)})", _verdict(by_perplexity), _verdict(by_bleu)))
    if {"base", "E-learned"} <= set(by_row):
        difference = by_row["E-learned"]["BLEU"] - by_row["base"]["BLEU"]
        by_bleu = f"{_verdict(abs(difference) <= 0.5)}, {difference:+.2f}"
        verdicts.append(("learned = sinusoidal (within 0.5 BLEU)", "", by_bleu))
    return verdicts


def _verdict(holds: bool) -> str:
    return "holds" if holds else "does not"


def as_markdown(entries: list[dict], verdicts: list[tuple[str, ...]], title: str) -> str:
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


def plot(entries: list[dict], path: Path) -> None:
    """Draw perplexity and BLEU of every row, in the paper and here, with a line at the base model's."""
    figure = Figure(figsize=(11, 1.5 + 0.25 * len(entries)), layout="constrained")
    panels = figure.subplots(1, 4, sharey=True)
    rows = [entry["row"] for entry in entries]
    titles = {"paper": "newstest2013, in the paper", "here": "validation, here"}
    for axes, (name, where) in zip(panels, itertools.product(("PPL", "BLEU"), titles), strict=True):
        values = [(entry["paper"] if where == "paper" else entry)[name] for entry in entries]
        axes.scatter(values, rows, color=[f"C{'bABCDE'.find(row[0])}" for row in rows])
        if "base" in rows:
            axes.axvline(values[rows.index("base")], color="grey", linewidth=0.8)
        axes.set_title(f"{name}, {titles[where]}", fontsize=9)
        axes.grid(axis="x", alpha=0.3)
    panels[0].invert_yaxis()
    save_figure(figure, path)


def dry_run(rows: list[str], scale: Scale) -> None:
    """Print each row's sizes and updates; its parameters are counted on the meta device."""
    for row in rows:
        with torch.device("meta"):
            model = VanillaForConditionalGeneration(VanillaConfig.preset(row, **scaled(row, scale)))
        entry = describe(row, scale, params=round(model.num_parameters() / 1e6, 2))
        print("  ".join(f"{name} {value}" for name, value in entry.items() if name != "paper"))


def reproduce(options: Table3Options, data: DataOptions) -> None:
    """Train the rows that have no results yet, and write the table of all rows in the folder after each.

    Raises:
        ValueError: for bad data or settings, before anything is written.
        OSError: if a file cannot be written.
    """
    scale, rows, output = read_scale(options.scale), check_rows(options.rows), Path(options.output_dir)
    state = process_group()
    with state.main_process_first():
        pairs = load_pairs(data)
        if "validation" not in pairs:
            raise ValueError("validation_file: Table 3 is measured on validation data, and none are given")
        settings = {name: getattr(data, name) for name in ("max_source_tokens", "max_target_tokens")}
        settings |= {"bleu_tokenize": options.bleu_tokenize, "seed": options.seed, **asdict(scale)}
        check_same_table(output, {"data": digest(pairs), **settings})
        tokenizer = shared_tokenizer(pairs["train"], scale.vocab_size, output / "tokenizer")
    for row in progress_bar(rows, desc="rows of Table 3", disable=not state.is_main_process):
        if not (output / row / "results.json").is_file():
            train_row(row, scale, data, tokenizer, options)
        if state.is_main_process:
            write_table(output, scale, f"Table 3, seed {options.seed}")
        state.wait_for_everyone()


def write_table(output: Path, scale: Scale, title: str) -> None:
    """Write the table of the rows that have results."""
    entries = []
    for row in PAPER:
        path = output / row / "results.json"
        if path.is_file():
            results = read_json(path)
            scores = {"PPL": results["validation"]["perplexity"], "BLEU": results["validation"]["bleu"]}
            costs = {"params": results["parameters"] / 1e6, "minutes": results["train_seconds"] / 60}
            entries.append(describe(row, scale, **scores, **costs, steps=results["steps"]))
    papers = judge([{"row": entry["row"], **entry["paper"]} for entry in entries])
    verdicts = [(*here, *paper) for here, (_, *paper) in zip(judge(entries), papers, strict=True)]
    write_json(output / "table3.json", {"rows": entries, "orderings": verdicts})
    write_text(output / "table3.md", as_markdown(entries, verdicts, title))
    plot(entries, output / "table3.png")


def main() -> None:
    parser = CommandParser(__doc__, (Table3Options, DataOptions))

    def run(given: Namespace) -> None:
        options, data = parser.parse_dict(vars(given), allow_extra_keys=True)
        if options.dry_run:
            dry_run(check_rows(options.rows), read_scale(options.scale))
            return
        reproduce(options, data)
        PartialState().print((Path(options.output_dir) / "table3.md").read_text(encoding="utf-8"))

    run_command(parser, run)


if __name__ == "__main__":
    main()

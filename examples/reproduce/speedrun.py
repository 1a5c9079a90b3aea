"""The record for Multi30k, English to German: from the files to the test BLEU by the recipe alone, for several seeds.

    python examples/reproduce/speedrun.py --data FOLDER --output_dir runs/speedrun

FOLDER has the lower-cased, normalised, tokenised files of github.com/multi30k/dataset, data/task1/tok.
docs/notebook/speedrun.md says how the record is made. Run again, it continues where it stopped.
Leaves in --output_dir: speedrun.md, speedrun.json, and for each seed its run, which has the translations in test.de.
"""

import hashlib
from pathlib import Path
from statistics import mean

from common import markdown_table, write_results

from modeling_vanilla import Translator
from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import read_json, read_lines, write_text
from modeling_vanilla.metrics import translation_scores
from modeling_vanilla.training import DataOptions, TrainingOptions, train_translation
from modeling_vanilla.training.run_record import is_begun

SEARCH = {"num_beams": 5, "length_penalty": 1.0}  # the plain row's in docs/results/translation.md
LANGUAGES = {"source": "en", "target": "de"}


def path_of(folder: Path, split: str, side: str) -> str:
    """The file of a side of a split, by the data set's own name of the split."""
    return str(folder / f"{split}.lc.norm.tok.{LANGUAGES[side]}.gz")


def run_seed(data: Path, run: Path, seed: int) -> dict:
    """Train with a seed, then translate and score the test set once. What is there already is taken."""
    if not (run / "results.json").is_file():
        training = TrainingOptions(str(run), resume=is_begun(run), seed=seed, bleu_tokenize="none")
        splits = {"train": "train", "validation": "val"}
        files = {f"{split}_{side}": path_of(data, splits[split], side) for split in splits for side in LANGUAGES}
        train_translation(DataOptions(**files), training)
    results = read_json(run / "results.json")
    sources, references = ([*read_lines(path_of(data, "test_2016_flickr", side))] for side in LANGUAGES)
    if not (run / "test.de").is_file():
        translator = Translator.from_pretrained(run / "model")
        translations = translator.translate(sources, show_progress=True, **SEARCH)
        write_text(run / "test.de", "".join(f"{line}\n" for line in translations))
    text = (run / "test.de").read_text(encoding="utf-8")
    return {
        "seed": seed,
        "updates": results["steps"],
        "tokens": results["tokens"],
        "minutes": results["train_seconds"] / 60,
        "validation": results["validation"]["bleu"],
        "test": translation_scores(text.split("\n")[:-1], references, "none")["bleu"],
        "sha256": hashlib.sha256(text.encode()).hexdigest()[:16],
    }


def as_markdown(rows: list[dict]) -> str:
    forms = {"tokens": ",", "minutes": ".1f", "validation": ".2f", "test": ".2f"}
    cells = [[format(value, forms.get(name, "")) for name, value in row.items()] for row in rows]
    tests = [row["test"] for row in rows]
    head = ["seed", "updates", "tokens", "minutes", "validation BLEU (beam 4, alpha 0.6)", "test2016 BLEU", "SHA-256"]
    search = "beam {num_beams}, alpha {length_penalty}".format(**SEARCH)
    last = f"test2016 by {search}: mean {mean(tests):.2f}, {min(tests):.2f} to {max(tests):.2f}\n"
    return "\n".join([markdown_table(head, cells), last])


def main() -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the files")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of the table and of a run for each seed")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED", help="seeds to train with")

    def run(options) -> None:
        rows = []
        for seed in options.seeds:
            rows.append(run_seed(options.data, options.output_dir / f"seed-{seed}", seed))
            write_results(options.output_dir, "speedrun", {"seeds": rows}, as_markdown(rows))
        print(as_markdown(rows))

    run_command(parser, run)


if __name__ == "__main__":
    main()

"""Table 4: English constituency parsing as translation from words to bracketed trees (section 6.3).

Reads bracketed trees, cleans them, trains the "parsing" preset on their linear form, parses the development and the
test sentences from their words alone (beam 21, alpha 0.3, input + 300), and scores labelled brackets as EVALB does:
searching among trees alone, which is always a tree, and without that constraint, where outputs that are no tree are
repaired; beside a right-branching baseline and a plain PCFG. On trees of a toy grammar, in about a minute:

    python examples/reproduce/table4.py --output_dir runs/table4-smoke

On a sample of the Penn Treebank, a tenth of its files each for development and test:

    python examples/reproduce/table4.py --scale sample --trees wsj.mrg.gz --output_dir runs/table4

At the paper's scale, sections 02-21, 22 and 23 of the Wall Street Journal:

    python examples/reproduce/table4.py --scale paper \\
        --train_trees wsj/0[2-9]/*.mrg wsj/1?/*.mrg wsj/2[01]/*.mrg \\
        --validation_trees wsj/22/*.mrg --test_trees wsj/23/*.mrg --output_dir runs/table4-paper

Several such runs of different --seed as one parser, by the mean of their probabilities:

    python examples/reproduce/table4.py --scale sample --trees wsj.mrg.gz \\
        --ensemble runs/table4-0 runs/table4-1 runs/table4-2 --output_dir runs/table4-ensemble

--scale sets defaults (parsing/scales/*.json), which options override. (6.3 says of training only that all but a few
settings, chosen on section 22, stayed as for the base model.) Leaves in --output_dir: results.json, table.md, parses/
(parses and gold trees in the format that EVALB reads), training/ (the run, with the model) and data/, the last two not
for an ensemble.
"""

import json
import math
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from common import PAPER, check_least, check_settings, digest, markdown_table
from nltk import Tree
from parsing.baseline import right_branching, right_branching_labels
from parsing.evalb import score
from parsing.linear import delinearise, is_well_formed
from parsing.pairs import parsing_vocabulary, split_files, training_pairs
from parsing.pcfg import Grammar
from parsing.search import write_trees
from parsing.toy_trees import toy_treebank
from parsing.trees import bracketed, read_treebank, with_words_of
from parsing.words import Lexicon
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from modeling_vanilla import VanillaConfig
from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import check_unused, read_json, whole_folder, write_json, write_text
from modeling_vanilla.inference import load_translator
from modeling_vanilla.training import DataOptions, ModelOptions, TrainingOptions, TranslationOptions, train_translation
from modeling_vanilla.training.recipe import complete

SCALES = Path(__file__).resolve().parent / "parsing" / "scales"  # for each scale, its defaults of options and model
# The ways of parsing by their names in results.json, and in the table.
PARSERS = {
    "constrained": "**this run**, among trees alone",
    "unconstrained": "**this run**, outputs repaired",
    "right_branching": "right-branching",
    "pcfg": "PCFG",
}


@dataclass
class ParsingOptions:
    """Which trees, and how to search. Without any trees, those of a toy grammar."""

    scale: Literal["smoke", "sample", "paper"] = HfArg(
        default="smoke", help="Sets the defaults of model and training: for a minute, two hours, or the paper's."
    )
    trees: list[str] = HfArg(
        default_factory=list,
        help="Files of bracketed trees, plain or .gz, to split by file into training and the others.",
    )
    train_trees: list[str] = HfArg(default_factory=list, help="Files of trees to train on.")
    validation_trees: list[str] = HfArg(default_factory=list, help="Files of trees to develop on.")
    test_trees: list[str] = HfArg(default_factory=list, help="Files of trees to test on.")
    ensemble: list[str] = HfArg(
        default_factory=list, help="Finished runs on these trees to parse with together; none is trained."
    )
    copies: int = HfArg(default=1, help="How often each tree is trained on in an epoch, changed anew each time.")
    constituents: float = HfArg(
        default=0.0, help="The probability that a constituent of a copy is trained on as a sentence, too."
    )
    substitution: float = HfArg(
        default=0.0, help="The probability that a constituent is another of its label in later copies."
    )
    num_beams: int = HfArg(default=21, help="Beam size (6.3).")
    length_penalty: float = HfArg(default=0.3, help="Alpha (6.3).")
    max_extra_tokens: int = HfArg(default=300, help="The longest output, in tokens more than its input.")
    resume: bool = HfArg(default=False, help="Go on with the run in output_dir.")

    def __post_init__(self):
        given = [name for name in ("train_trees", "validation_trees", "test_trees") if getattr(self, name)]
        if given and (self.trees or len(given) < 3):
            raise ValueError(
                f"{given[0]} is given {'beside trees' if self.trees else 'without the others'}: give trees, which are "
                "then split, or all three of train_trees, validation_trees and test_trees"
            )
        if self.ensemble and self.resume:
            raise ValueError("resume: an ensemble is not trained, so there is nothing to go on with")
        check_least(self, {"copies": 1, "num_beams": 1, "max_extra_tokens": 3})
        for name in ("constituents", "substitution"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {getattr(self, name)}")
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty must be a finite number, not {self.length_penalty}")
        if self.substitution and self.copies == 1:
            raise ValueError(f"substitution {self.substitution}: the first copy stays as it is, and copies is 1")


def reproduce(options: ParsingOptions, training: TrainingOptions, overrides: dict | None = None) -> dict:
    """Train, parse and score, and write all that the docstring of this file names to training.output_dir.

    Args:
        overrides: fields of VanillaConfig to change from the preset "parsing".

    Returns:
        What results.json holds.

    Raises:
        ValueError: for bad trees or settings, before anything is written.
        OSError: if a file cannot be written.
    """
    run = Path(training.output_dir)
    if not options.resume:
        check_unused("output_dir", run)
    vocab_size = VanillaConfig.preset("parsing", **(overrides or {})).vocab_size
    splits = read_splits(options)
    longest = max(len(tree.leaves()) for split in ("validation", "test") for tree in splits[split])
    if longest + 2 > options.max_extra_tokens:
        raise ValueError(f"max_extra_tokens {options.max_extra_tokens}: {longest} words need {longest + 2}")
    lexicon, tokenizer = parsing_vocabulary(splits["train"], vocab_size)
    trained = None
    if options.ensemble:
        model = load_ensemble(options.ensemble, tokenizer)
        set_search(model, options)
    else:
        prepare(run, splits, lexicon, tokenizer, options)
        trained = train(run, training, overrides or {})
        folder = run / "training" / "model"
        model, _ = load_translator([folder])
        set_search(model, options)
        model.generation_config.save_pretrained(folder)  # so that it searches as here wherever it is loaded
    results = {
        **evaluate(run, model, tokenizer, lexicon, splits),
        "train_sentences": len(splits["train"]),
        "parameters": model.num_parameters(),
        "training": trained,
        "options": asdict(options),
    }
    write_json(run / "results.json", results)
    write_text(run / "table.md", table(results))
    return results


def train(run: Path, training: TrainingOptions, overrides: dict) -> dict:
    """Train on what `prepare` has written, or go on with that."""
    overrides = {name: value for name, value in overrides.items() if name != "vocab_size"}  # the tokenizer has its own
    # Pairs longer than a batch are left out of training, and reported.
    limits = dict.fromkeys(("max_source_tokens", "max_target_tokens"), complete(training).tokens_per_batch)
    resume = (run / "training" / "run.json").is_file()
    return train_translation(
        DataOptions(train_file=str(run / "data" / "train.jsonl"), source_lang="en", target_lang="tree", **limits),
        replace(training, output_dir=str(run / "training")),
        TranslationOptions(preset="parsing", tokenizer=str(run / "data" / "tokenizer"), resume=resume),
        overrides,
    )


def load_ensemble(runs: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The models of several runs as one.

    Raises:
        ValueError: if a run holds no model, or was trained on other trees or with another vocab_size.
    """
    model, trained = load_translator([Path(run) / "training" / "model" for run in runs])
    if trained.get_vocab() != tokenizer.get_vocab():
        raise ValueError(f"ensemble: {runs[0]} has another vocabulary than these trees with this vocab_size")
    return model


def read_splits(options: ParsingOptions) -> dict[str, list[Tree]]:
    """The cleaned trees, by "train", "validation" and "test".

    Raises:
        ValueError: if a file is no file of trees, or there are too few files to split.
    """
    if not options.train_trees:
        return split_files(_read(options.trees) if options.trees else toy_treebank())
    files = {split: _read(getattr(options, f"{split}_trees")) for split in ("train", "validation", "test")}
    return {split: [tree for trees in read for tree in trees] for split, read in files.items()}


def _read(paths: Sequence[str]) -> list[list[Tree]]:
    return [trees for path in paths for trees in read_treebank(path)]


def set_search(model: PreTrainedModel, options: ParsingOptions) -> None:
    """Let the model search as the options say."""
    search = {name: getattr(options, name) for name in ("num_beams", "length_penalty", "max_extra_tokens")}
    model.generation_config.update(**search)


def prepare(
    run: Path,
    splits: dict[str, list[Tree]],
    lexicon: Lexicon,
    tokenizer: PreTrainedTokenizerBase,
    options: ParsingOptions,
) -> None:
    """Write run/data: the training pairs, the tokenizer, and the settings of both with a digest of all trees.

    Raises:
        ValueError: when resuming, if there is no run or it was started with other trees or settings.
    """
    lines = [f"{split} {bracketed(tree)}" for split, trees in splits.items() for tree in trees]
    changes = {name: getattr(options, name) for name in ("copies", "constituents", "substitution")}
    settings = {"trees": digest(["\n".join(lines)]), "vocabulary": len(tokenizer), **changes}
    known = run / "data" / "settings.json"
    if options.resume:
        if not known.is_file():
            raise ValueError(f"resume: {run} holds no parsing run, as it has no data/settings.json")
        check_settings(known, settings, f"resume: {run} was started with")
        return
    run.mkdir(parents=True, exist_ok=True)
    with whole_folder(run / "data") as part:
        tokenizer.save_pretrained(part / "tokenizer")
        with (part / "train.jsonl").open("w", encoding="utf-8") as file:
            for pair in training_pairs(splits["train"], lexicon, **changes):
                file.write(json.dumps({"translation": pair}, ensure_ascii=False) + "\n")
        write_json(part / "settings.json", settings)


def evaluate(
    run: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lexicon: Lexicon,
    splits: dict[str, list[Tree]],
) -> dict:
    """Parse the development and the test sentences in each of several ways, and score the parses.

    Writes run/parses: gold trees and parses, one tree a line, and the raw output of the model.

    Returns:
        For "validation" and "test" the scores of PARSERS; of those that search, also the share of well-formed outputs
        in percent, and seconds.
    """
    labels, grammar = right_branching_labels(splits["train"]), Grammar(splits["train"], lexicon)
    results: dict[str, dict] = {}
    written: dict[str, list[str]] = {}
    for split in ("validation", "test"):
        gold = splits[split]
        words = [tree.leaves() for tree in gold]
        sentences = list(map(lexicon.read, words))
        branching = [right_branching(sentence, *labels) for sentence in words]
        parses = {"right_branching": branching}
        parses["pcfg"] = [grammar.parse(sentence) or other for sentence, other in zip(words, branching, strict=True)]
        results[split] = {}
        for name in ("constrained", "unconstrained"):
            start = time.monotonic()
            outputs = write_trees(model, tokenizer, sentences, name == "constrained")
            pairs = list(zip(outputs, sentences, strict=True))
            parses[name] = [delinearise(*pair) for pair in pairs]
            well_formed = 100 * sum(is_well_formed(*pair) for pair in pairs) / len(gold)
            results[split][name] = {"well_formed": well_formed, "seconds": time.monotonic() - start}
            written[f"{split}.{name}.output"] = list(map(" ".join, outputs))
        written[f"{split}.gold"] = list(map(bracketed, gold))
        for name, trees in parses.items():
            # EVALB recognises punctuation by its tags, so parses get the gold ones; no parser has seen them.
            trees = [with_words_of(*pair) for pair in zip(trees, gold, strict=True)]
            results[split][name] = {**score(gold, trees), **results[split].get(name, {})}
            written[f"{split}.{name}"] = list(map(bracketed, trees))
    with whole_folder(run / "parses") as part:
        for name, lines in written.items():
            (part / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return results


def table(results: dict) -> str:
    """Table 4 with this run below it, in Markdown."""
    printed = PAPER["table4"].items()
    rows = [[parser, kind, "WSJ 23", f1, "", "", ""] for kind, scores in printed for parser, f1 in scores.items()]
    trained_on = f"{results['train_sentences']} sentences"
    for split, name in (("validation", "development"), ("test", "test")):
        for parser, title in PARSERS.items():
            scores = results[split][parser]
            figures = [f"{scores[figure]:.1f}" for figure in ("f1", "precision", "recall")]
            well_formed = f"{scores['well_formed']:.1f}%" if "well_formed" in scores else ""
            rows.append([title, trained_on, f"{name}, {scores['sentences']} sentences", *figures, well_formed])
    head = ["Parser", "Training", "evaluated on", "F1", "precision", "recall", "well-formed outputs"]
    options, training = results["options"], results["training"]
    source = (
        f"{training['train_seconds'] / 60:.1f} minutes of training" if training else " + ".join(options["ensemble"])
    )
    note = (
        f"Figures of other parsers: the paper's Table 4. This run: {results['parameters']:,} parameters, {source}; "
        f"beam {options['num_beams']}, alpha {options['length_penalty']}, input + {options['max_extra_tokens']}."
    )
    return f"{markdown_table(head, rows)}\n{note}\n"


def main() -> None:
    parser = CommandParser(__doc__, (ParsingOptions, TrainingOptions, ModelOptions))
    first = ArgumentParser(add_help=False, allow_abbrev=False)  # so that --help shows the scale's defaults
    first.add_argument("--scale", default=ParsingOptions.scale)
    defaults = SCALES / f"{first.parse_known_args()[0].scale}.json"
    if defaults.is_file():  # or the parser below says which scales there are
        parser.set_defaults(**read_json(defaults))

    def run(given: Namespace) -> None:
        options, training, model = parser.parse_dict(vars(given), allow_extra_keys=True)
        reproduce(options, training, model.overrides())
        print((Path(training.output_dir) / "table.md").read_text(encoding="utf-8"))

    run_command(parser, run)


if __name__ == "__main__":
    main()

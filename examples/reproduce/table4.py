"""Table 4: English constituency parsing as translation from words to bracketed trees (section 6.3).

Reads bracketed trees, cleans them, trains the "parsing" preset on their linear form, parses the development and the
test sentences from their words alone (beam 21, alpha 0.3, input + 300), and scores labelled brackets as EVALB does:
searching among trees alone, which is always a tree, and without that constraint, where outputs that are no tree are
repaired; beside a right-branching baseline and a plain PCFG, which is right-branching where it has no tree. On trees of
a toy grammar, in about a minute:

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

With --text also sentences without trees are parsed, into silver.mrg, from which --silver_trees teaches another parser.
An ensemble of such parsers is given the same --silver_trees, as their words are in the vocabulary.

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
from dataclasses import replace
from itertools import chain
from pathlib import Path

from common import PAPER, check_settings, digest, markdown_table
from nltk import Tree
from parsing.baseline import right_branching, right_branching_labels
from parsing.evalb import score
from parsing.linear import delinearise, is_well_formed
from parsing.pairs import parsing_vocabulary, split_files, training_pairs
from parsing.pcfg import Grammar
from parsing.search import write_trees
from parsing.toy_trees import toy_treebank
from parsing.trees import bracketed, read_sentences, read_treebank, with_words_of
from parsing.words import Lexicon
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME

from modeling_vanilla import VanillaConfig
from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import check_unused, read_json, whole_folder, write_json, write_text
from modeling_vanilla.hub.model_card import write_model_card
from modeling_vanilla.inference import load_translator
from modeling_vanilla.training import DataOptions, ModelOptions, TrainingOptions, TranslationOptions, train_translation
from modeling_vanilla.training.recipe import complete

SCALES = Path(__file__).resolve().parent / "parsing" / "scales"  # for each scale, its defaults of options and model
SPLITS = {split: f"{split}_trees" for split in ("train", "validation", "test")}  # the option of each
# The ways of parsing by their names in results.json, and in the table.
PARSERS = {
    "constrained": "**this run**, among trees alone",
    "unconstrained": "**this run**, outputs repaired",
    "right_branching": "right-branching",
    "pcfg": "PCFG",
}


def check(options: Namespace) -> None:
    """Raise ValueError for options that do not go together, or are not in their range."""
    given = [name for name in SPLITS.values() if getattr(options, name)]
    if given and (options.trees or len(given) < 3):
        raise ValueError(
            f"{given[0]} is given {'beside trees' if options.trees else 'without the others'}: give trees, which are "
            "then split, or all three of train_trees, validation_trees and test_trees"
        )
    if options.ensemble and options.resume:
        raise ValueError("resume: an ensemble is not trained, so there is nothing to go on with")
    if options.early_stopping is not None:
        raise ValueError(f"early_stopping {options.early_stopping}: parsers are not validated while they train")
    if options.push_to_hub:
        raise ValueError("push_to_hub: publish training/model by vanilla push, when it has the search of a parser")
    if min(options.copies, options.num_beams) < 1:
        raise ValueError(f"copies and num_beams must be at least 1, not {options.copies} and {options.num_beams}")
    for name in ("constituents", "substitution"):
        if not 0 <= getattr(options, name) <= 1:
            raise ValueError(f"{name} must be from 0 to 1, not {getattr(options, name)}")
    if not math.isfinite(options.length_penalty):
        raise ValueError(f"length_penalty must be a finite number, not {options.length_penalty}")
    if options.substitution and options.copies == 1:
        raise ValueError(f"substitution {options.substitution}: the first copy stays as it is, and copies is 1")


def reproduce(options: Namespace, training: TrainingOptions, overrides: dict | None = None) -> dict:
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
    text = [words for path in options.text for words in read_sentences(path)]
    longest = max(map(len, text + [tree.leaves() for split in ("validation", "test") for tree in splits[split]]))
    if longest + 2 > options.max_extra_tokens:
        raise ValueError(f"max_extra_tokens {options.max_extra_tokens}: {longest} words need {longest + 2}")
    lexicon, tokenizer = parsing_vocabulary(splits["train"] + splits["silver"], vocab_size)
    if options.ensemble:
        model, trained = load_ensemble(options.ensemble, tokenizer), None
    else:
        prepare(run, splits, lexicon, tokenizer, options)
        for name in ("results.json", "table.md"):  # of the shorter run that this one goes on with
            (run / name).unlink(missing_ok=True)
        trained = train(run, training, overrides or {})
        model, _ = load_translator([run / "training" / "model"])
    search = {name: getattr(options, name) for name in ("num_beams", "length_penalty", "max_extra_tokens")}
    model.generation_config.update(**search)
    if trained:  # so that it searches as here wherever it is loaded
        folder = run / "training" / "model"
        write_text(folder / GENERATION_CONFIG_NAME, model.generation_config.to_json_string())
        write_model_card(folder, model, trained)
    results = {
        **evaluate(run, model, tokenizer, lexicon, splits),
        "train_sentences": len(splits["train"]),
        "silver_sentences": len(splits["silver"]),
        "parameters": model.num_parameters(),
        "training": trained,
        "options": vars(options),
    }
    if text:
        trees = parse(text, model, tokenizer, lexicon)
        write_text(run / "silver.mrg", "".join(f"{bracketed(tree)}\n" for tree in trees))
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


def read_splits(options: Namespace) -> dict[str, list[Tree]]:
    """The cleaned trees, by "train", "validation" and "test", and those of "silver".

    Raises:
        ValueError: if a file is no file of trees, or there are too few files to split.
    """

    def read(name: str) -> list[list[Tree]]:
        return [trees for path in getattr(options, name) for trees in read_treebank(path)]

    if options.train_trees:
        splits = {split: [*chain(*read(name))] for split, name in SPLITS.items()}
    else:
        splits = split_files(read("trees") if options.trees else toy_treebank())
    return {**splits, "silver": [*chain(*read("silver_trees"))]}


def prepare(
    run: Path,
    splits: dict[str, list[Tree]],
    lexicon: Lexicon,
    tokenizer: PreTrainedTokenizerBase,
    options: Namespace,
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
            unchanged = training_pairs(splits["silver"], lexicon, copies=1, constituents=0.0, substitution=0.0)
            for pair in chain(training_pairs(splits["train"], lexicon, **changes), unchanged):
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
    training = splits["train"] + splits["silver"]
    labels, grammar = right_branching_labels(training), Grammar(training, lexicon)
    results: dict[str, dict] = {}
    written: dict[str, list[str]] = {}
    for split in ("validation", "test"):
        gold, results[split] = splits[split], {}
        words = [tree.leaves() for tree in gold]
        sentences = list(map(lexicon.read, words))
        parses = {"right_branching": [right_branching(sentence, *labels) for sentence in words]}
        parses["pcfg"] = [grammar.parse(sentence) or right_branching(sentence, *labels) for sentence in words]
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


def parse(
    text: Sequence[list[str]], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lexicon: Lexicon
) -> list[Tree]:
    """A tree over the words of each sentence."""
    sentences = list(map(lexicon.read, text))
    outputs = write_trees(model, tokenizer, sentences, constrained=True)
    trees = [delinearise(*pair) for pair in zip(outputs, sentences, strict=True)]
    for tree, words in zip(trees, text, strict=True):
        for position, word in zip(tree.treepositions("leaves"), words, strict=True):
            tree[position] = word
    return trees


def table(results: dict) -> str:
    """Table 4 with this run below it, in Markdown."""
    printed = PAPER["table4"].items()
    rows = [[parser, kind, "WSJ 23", f1, "", "", ""] for kind, scores in printed for parser, f1 in scores.items()]
    silver = results["silver_sentences"]
    trained_on = f"{results['train_sentences']} sentences" + f" and {silver} silver trees" * bool(silver)
    for split, name in (("validation", "development"), ("test", "test")):
        for parser, title in PARSERS.items():
            scores = results[split][parser]
            figures = [f"{scores[figure]:.1f}" for figure in ("f1", "precision", "recall")]
            well_formed = f"{scores['well_formed']:.1f}%" if "well_formed" in scores else ""
            rows.append([title, trained_on, f"{name}, {scores['sentences']} sentences", *figures, well_formed])
    head = ["Parser", "Training", "evaluated on", "F1", "precision", "recall", "well-formed outputs"]
    options, training = results["options"], results["training"]
    minutes = f"{training['train_seconds'] / 60:.1f} minutes of training" if training else ""
    note = (
        "Figures of other parsers: the paper's Table 4. This run: "
        f"{results['parameters']:,} parameters, {minutes or ' + '.join(options['ensemble'])}; "
        f"beam {options['num_beams']}, alpha {options['length_penalty']}, input + {options['max_extra_tokens']}."
    )
    return f"{markdown_table(head, rows)}\n{note}\n"


def main() -> None:
    parser = CommandParser(__doc__, (TrainingOptions, ModelOptions))
    add = parser.add_argument
    add("--scale", choices=["smoke", "sample", "paper"], default="smoke", help="a minute, two hours, or the paper's")
    add("--trees", nargs="+", default=[], help="files of bracketed trees, plain or .gz, to split by file")
    for split, name in SPLITS.items():
        add(f"--{name}", nargs="+", default=[], help=f"files of {split} trees instead")
    add("--text", nargs="+", default=[], help="files of sentences without trees to parse, one a line, words apart")
    add("--silver_trees", nargs="+", default=[], help="files of more training trees, parses of text; as they are, once")
    add("--ensemble", nargs="+", default=[], help="finished runs on these trees to parse with together, not to train")
    add("--copies", type=int, default=1, help="how often each tree is in an epoch, changed anew each time")
    add("--constituents", type=float, default=0.0, help="probability that a constituent is a sentence of its own, too")
    add("--substitution", type=float, default=0.0, help="probability that a constituent of later copies is another one")
    add("--num_beams", type=int, default=21, help="beam size (6.3)")
    add("--length_penalty", type=float, default=0.3, help="alpha (6.3)")
    add("--max_extra_tokens", type=int, default=300, help="the longest output, in tokens more than its input")
    add("--resume", action="store_true", help="go on with the run in output_dir")
    first = ArgumentParser(add_help=False, allow_abbrev=False)  # so that --help shows the scale's defaults
    first.add_argument("--scale", nargs="?")
    defaults = SCALES / f"{first.parse_known_args()[0].scale or 'smoke'}.json"
    if defaults.is_file():  # or the parser below says which scales there are
        parser.set_defaults(**read_json(defaults))

    def run(options: Namespace) -> None:
        check(options)
        training, model = parser.parse_dict(vars(options), allow_extra_keys=True)
        reproduce(options, training, model.overrides())
        print((Path(training.output_dir) / "table.md").read_text(encoding="utf-8"))

    run_command(parser, run)


if __name__ == "__main__":
    main()

"""Table 4: English constituency parsing as translation from words to bracketed trees (section 6.3).

Reads bracketed trees, cleans them, trains the "parsing" preset on their linear form, parses the development and the
test sentences from their words alone (beam 21, alpha 0.3, input + 300), and scores labelled brackets as EVALB does:
searching among trees alone, and freely, where an output that is no tree counts as a sentence without brackets.
On trees of a toy grammar, in a few minutes:

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
(parses and gold trees in the format that EVALB reads), and of a run that is trained training/ (with the model) and
data/. The same command goes on with a training that was interrupted.
"""

import json
import time
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from itertools import chain
from pathlib import Path

from common import PAPER, markdown_table
from nltk import Tree
from parsing.evalb import score
from parsing.linear import delinearise, without_brackets
from parsing.pairs import parsing_vocabulary, split_files, training_pairs
from parsing.search import write_trees
from parsing.toy_trees import toy_treebank
from parsing.trees import bracketed, read_treebank, with_words_of
from parsing.words import Lexicon
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from modeling_vanilla import Translator, preset_config
from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import check_unused, json_text, read_json, whole_folder, write_json, write_text
from modeling_vanilla.training import ConfigOptions, DataOptions, ModelOptions, TrainingOptions, train_translation
from modeling_vanilla.training.recipe import complete
from modeling_vanilla.training.run_record import is_begun

SCALES = Path(__file__).resolve().parent / "parsing" / "scales"  # for each scale, its defaults of options and model
SPLITS = {split: f"{split}_trees" for split in ("train", "validation", "test")}  # the option of each
MADE_WITH = ("trees", *SPLITS.values(), "copies", "constituents", "substitution")  # the options that make the data
PARSERS = {
    True: ("constrained", "**this run**, among trees alone"),
    False: ("unconstrained", "**this run**, searching freely"),
}


def reproduce(options: Namespace, training: TrainingOptions, overrides: dict) -> dict:
    """Train, parse and score, and write all that the docstring of this file names to training.output_dir.

    Args:
        overrides: fields of VanillaConfig to change from the preset "parsing".

    Returns:
        What results.json holds.

    Raises:
        ValueError: for bad trees or settings; the same command with better ones begins or goes on.
        OSError: if a file cannot be written.
    """
    run = Path(training.output_dir)
    begun = (run / "data" / "options.json").is_file()  # which is written first
    goes_on = begun and not (options.ensemble or (run / "results.json").exists())
    made_with = {name: getattr(options, name) for name in MADE_WITH}
    if not goes_on:
        check_unused("output_dir", run)
    elif read_json(run / "data" / "options.json") != made_with:
        raise ValueError(f"output_dir: {run} was begun with other trees or other copies of them")
    splits = read_splits(options)
    longest = max(len(tree.leaves()) for split in ("validation", "test") for tree in splits[split])
    if longest + 2 > options.max_extra_tokens:  # which the search would say after hours of training
        raise ValueError(f"max_extra_tokens {options.max_extra_tokens}: {longest} words need {longest + 2}")
    vocab_size = preset_config("parsing", **overrides).vocab_size
    lexicon, tokenizer = parsing_vocabulary(splits["train"], vocab_size)
    if options.ensemble:
        trained = {}
        translator = Translator.from_pretrained(*(Path(run) / "training" / "model" for run in options.ensemble))
        if translator.tokenizer.get_vocab() != tokenizer.get_vocab():
            raise ValueError(f"ensemble: {options.ensemble[0]} has another vocabulary than these trees")
    else:
        with whole_folder(run / "data") as part:
            tokenizer.save_pretrained(part / "tokenizer")
            pairs = training_pairs(splits["train"], lexicon, options.copies, options.constituents, options.substitution)
            lines = (json.dumps({"translation": pair}, ensure_ascii=False) + "\n" for pair in pairs)
            (part / "train.jsonl").write_text("".join(lines), encoding="utf-8")
            (part / "options.json").write_text(json_text(made_with), encoding="utf-8")
        trained = train(run, training, overrides)
        translator = Translator.from_pretrained(run / "training" / "model")
    model = translator.model
    model.generation_config.update(
        num_beams=options.num_beams,
        length_penalty=options.length_penalty,
        max_extra_tokens=options.max_extra_tokens,
    )
    if trained:  # so that it searches as here wherever it is loaded
        model.generation_config.save_pretrained(run / "training" / "model")
    results = {
        **evaluate(run, model, tokenizer, lexicon, splits),
        "train_sentences": len(splits["train"]),
        "parameters": model.num_parameters(),
        "training": trained,
        "options": vars(options),
    }
    write_json(run / "results.json", results)
    write_text(run / "table.md", table(results))
    return results


def read_splits(options: Namespace) -> dict[str, list[Tree]]:
    """The cleaned trees, by "train", "validation" and "test".

    Raises:
        ValueError: if a file is no file of trees, there are too few files to split, or a split is not given.
    """
    given = [name for name in SPLITS.values() if getattr(options, name)]
    if not given:
        files = chain(*map(read_treebank, options.trees)) if options.trees else toy_treebank()
        return split_files([*files])
    if options.trees or len(given) < len(SPLITS):
        raise ValueError("give trees, which are split, or all of train_trees, validation_trees and test_trees")
    return {
        split: [tree for path in getattr(options, name) for trees in read_treebank(path) for tree in trees]
        for split, name in SPLITS.items()
    }


def train(run: Path, training: TrainingOptions, overrides: dict) -> dict:
    """Train on run/data, from the last checkpoint if the run was interrupted."""
    overrides = {name: value for name, value in overrides.items() if name != "vocab_size"}  # the tokenizer has its own
    # Pairs longer than a batch are left out of training, and reported.
    limits = dict.fromkeys(("max_source_length", "max_target_length"), complete(training).tokens_per_batch)
    return train_translation(
        DataOptions(train_file=str(run / "data" / "train.jsonl"), source_lang="en", target_lang="tree", **limits),
        replace(training, output_dir=str(run / "training"), resume=is_begun(run / "training")),
        ModelOptions(preset="parsing", tokenizer=str(run / "data" / "tokenizer")),
        overrides,
    )


def evaluate(
    run: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lexicon: Lexicon,
    splits: dict[str, list[Tree]],
) -> dict:
    """Parse the development and the test sentences, with the search held to trees and without, and score the parses.

    Writes run/parses: gold trees and parses, one tree a line, and the raw output of the model.

    Returns:
        For "validation" and "test", "constrained" and "unconstrained": the scores, the share of outputs that are trees
        in percent, and seconds.
    """
    results: dict[str, dict] = {}
    written: dict[str, list[str]] = {}
    for split in ("validation", "test"):
        gold, results[split] = splits[split], {}
        words = [tree.leaves() for tree in gold]
        written[f"{split}.gold"] = list(map(bracketed, gold))
        for constrained, (name, _) in PARSERS.items():
            start = time.monotonic()
            outputs = write_trees(model, tokenizer, list(map(lexicon.read, words)), constrained)
            seconds = time.monotonic() - start
            trees = [delinearise(*pair) for pair in zip(outputs, words, strict=True)]
            well_formed = 100 * sum(tree is not None for tree in trees) / len(gold)
            trees = [tree or without_brackets(sentence) for tree, sentence in zip(trees, words, strict=True)]
            # EVALB recognises punctuation by its tags, so parses get the gold ones; no parser has seen them.
            trees = [with_words_of(*pair) for pair in zip(trees, gold, strict=True)]
            results[split][name] = {**score(gold, trees), "well_formed": well_formed, "seconds": seconds}
            written[f"{split}.{name}"] = list(map(bracketed, trees))
            written[f"{split}.{name}.output"] = list(map(" ".join, outputs))
    with whole_folder(run / "parses") as part:
        for name, lines in written.items():
            (part / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return results


def table(results: dict) -> str:
    """Table 4 with this run below it, in Markdown."""
    printed = PAPER["table4"].items()
    rows = [[parser, kind, "WSJ 23", f1, "", "", ""] for kind, scores in printed for parser, f1 in scores.items()]
    for split, name in (("validation", "development"), ("test", "test")):
        for parser, title in PARSERS.values():
            scores = results[split][parser]
            figures = [f"{scores[figure]:.1f}" for figure in ("f1", "precision", "recall")]
            sentences = f"{results['train_sentences']} sentences", f"{name}, {scores['sentences']} sentences"
            rows.append([title, *sentences, *figures, f"{scores['well_formed']:.1f}%"])
    head = ["Parser", "Training", "evaluated on", "F1", "precision", "recall", "outputs that are trees"]
    options, training = results["options"], results["training"]
    minutes = f"{training['train_seconds'] / 60:.1f} minutes of training" if training else ""
    note = (
        "Figures of other parsers: the paper's Table 4. This run: "
        f"{results['parameters']:,} parameters, {minutes or ' + '.join(options['ensemble'])}; "
        f"beam {options['num_beams']}, alpha {options['length_penalty']}, input + {options['max_extra_tokens']}."
    )
    return f"{markdown_table(head, rows)}\n{note}\n"


def main() -> None:
    parser = CommandParser(__doc__, (TrainingOptions, ConfigOptions))
    add = parser.add_argument
    add("--scale", choices=["smoke", "sample", "paper"], default="smoke", help="minutes, two hours, or the paper's")
    add("--trees", nargs="+", default=[], help="files of bracketed trees, plain or .gz, to split by file")
    for split, name in SPLITS.items():
        add(f"--{name}", nargs="+", default=[], help=f"files of {split} trees instead")
    add("--ensemble", nargs="+", default=[], help="finished runs on these trees to parse with together, not to train")
    add("--copies", type=int, default=1, help="how often each tree is in an epoch, changed anew each time")
    add("--constituents", type=float, default=0.0, help="probability that a constituent is a sentence of its own, too")
    add("--substitution", type=float, default=0.0, help="probability that a constituent of later copies is another one")
    add("--num_beams", type=int, default=21, help="beam size (6.3)")
    add("--length_penalty", type=float, default=0.3, help="alpha (6.3)")
    add("--max_extra_tokens", type=int, default=300, help="the longest output, in tokens more than its input")
    first = ArgumentParser(add_help=False, allow_abbrev=False)  # so that --help shows the scale's defaults
    first.add_argument("--scale", nargs="?")
    defaults = SCALES / f"{first.parse_known_args()[0].scale or 'smoke'}.json"
    if defaults.is_file():  # or the parser below says which scales there are
        parser.set_defaults(**read_json(defaults))

    def run(options: Namespace) -> None:
        training, model = parser.parse_dict(vars(options), allow_extra_keys=True)
        reproduce(options, training, model.overrides())
        print((Path(training.output_dir) / "table.md").read_text(encoding="utf-8"))

    run_command(parser, run)


if __name__ == "__main__":
    main()

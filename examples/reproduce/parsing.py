"""Table 4: English constituency parsing as translation from words to bracketed trees (section 6.3).

Reads bracketed trees, cleans them, trains the "parsing" preset on their linear form, parses the development and the
test sentences from their words alone (beam 21, alpha 0.3, input + 300), repairs what is no tree, and scores labelled
brackets as EVALB does, beside a right-branching baseline. In about a minute, on trees of a toy grammar:

    python examples/reproduce/parsing.py --output_dir runs/parsing-smoke

On a sample of the Penn Treebank, which is split by its files, a tenth each for development and test:

    python examples/reproduce/parsing.py --scale sample --trees wsj.mrg.gz --output_dir runs/parsing

At the paper's scale, sections 02-21, 22 and 23 of the Wall Street Journal:

    python examples/reproduce/parsing.py --scale paper --train_trees wsj/0[2-9]/*.mrg wsj/1?/*.mrg wsj/2[01]/*.mrg \\
        --validation_trees wsj/22/*.mrg --test_trees wsj/23/*.mrg --output_dir runs/parsing-paper

--scale sets defaults only; every option can be given besides. Leaves in --output_dir: results.json, table.md, parses/
(the parses and the gold trees, as EVALB itself reads them), training/ (the run, with the model) and data/.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from baseline import right_branching, right_branching_labels
from evalb import Scores, score
from tokenizers import AddedToken
from toy_trees import toy_treebank
from transformers import HfArgumentParser, PreTrainedTokenizerBase
from trees import (
    Node,
    below,
    bracketed,
    delinearise,
    is_well_formed,
    leaves,
    linearise,
    read_treebank,
    with_tags,
    words,
)

from modeling_vanilla.configuration_vanilla import PRESETS
from modeling_vanilla.inference.translation import load_translator, translate
from modeling_vanilla.io import check_unused, one_line_errors, whole_folder, write_json, write_text
from modeling_vanilla.training import DataOptions, ModelOptions, TrainingOptions, TranslationOptions, train_translation
from modeling_vanilla.training.options import check_model_options
from modeling_vanilla.training.tokenizer import MIN_VOCAB_SIZE, train_tokenizer

# What each scale sets otherwise than the options and the preset do. (6.3 says of training only that all but a few
# things, chosen on section 22, stayed as for the base model.)
SCALES: dict[str, dict] = {
    "smoke": {
        "d_model": 64,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128,
        "vocab_size": 500,
        "dropout": 0.0,
        "max_steps": 1000,
        "max_minutes": 1.0,
        "tokens_per_update": 800,
        "tokens_per_batch": 800,
        "warmup_steps": 200,
        "learning_rate_scale": 0.4,
        "checkpoint_steps": 50,
        "checkpoint_minutes": None,
        "max_extra_tokens": 60,  # a toy tree has no more brackets and tags; a model that has learnt little never ends
    },
    "sample": {
        "constituents": True,
        "d_model": 128,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 512,
        "decoder_ffn_dim": 512,
        "vocab_size": 3000,
        "mixed_precision": "bf16",
        "max_steps": 8000,
        "tokens_per_update": 1200,
        "tokens_per_batch": 1200,
        "warmup_steps": 400,
        "learning_rate_scale": 0.5,
        "checkpoint_steps": 50,
        "checkpoint_minutes": None,
        "keep_checkpoints": 10,
        "average_checkpoints": 10,
    },
    "paper": {},
}

# Table 4 as the paper has it: F1 on section 23 of the Wall Street Journal.
PAPER = [
    ("Vinyals & Kaiser et al. (2014)", "WSJ only, discriminative", 88.3),
    ("Petrov et al. (2006)", "WSJ only, discriminative", 90.4),
    ("Zhu et al. (2013)", "WSJ only, discriminative", 90.4),
    ("Dyer et al. (2016)", "WSJ only, discriminative", 91.7),
    ("Transformer (4 layers)", "WSJ only, discriminative", 91.3),
    ("Zhu et al. (2013)", "semi-supervised", 91.3),
    ("Huang & Harper (2009)", "semi-supervised", 91.3),
    ("McClosky et al. (2006)", "semi-supervised", 92.1),
    ("Vinyals & Kaiser et al. (2014)", "semi-supervised", 92.1),
    ("Transformer (4 layers)", "semi-supervised", 92.7),
    ("Luong et al. (2015)", "multi-task", 93.0),
    ("Dyer et al. (2016)", "generative", 93.3),
]


@dataclass
class ParsingOptions:
    """Which trees, and how to search. Without any trees, those of a toy grammar."""

    scale: Literal["smoke", "sample", "paper"] = field(
        default="smoke",
        metadata={"help": "Sets the defaults of model and training: a minute, half an hour, or the paper's."},
    )
    trees: list[str] = field(
        default_factory=list,
        metadata={"help": "Files of bracketed trees, plain or .gz, to split by file into training and the others."},
    )
    train_trees: list[str] = field(
        default_factory=list, metadata={"help": "Files of trees to train on, if they are split already."}
    )
    validation_trees: list[str] = field(
        default_factory=list, metadata={"help": "Files of trees to develop on, if they are split already."}
    )
    test_trees: list[str] = field(
        default_factory=list, metadata={"help": "Files of trees to test on, if they are split already."}
    )
    constituents: bool = field(
        default=False,
        metadata={"help": "Train on every constituent of two words or more as a sentence of its own, too."},
    )
    num_beams: int = field(default=21, metadata={"help": "Beam size (6.3)."})
    length_penalty: float = field(default=0.3, metadata={"help": "Alpha (6.3)."})
    max_extra_tokens: int = field(default=300, metadata={"help": "An output is at most so much longer than its input."})
    resume: bool = field(default=False, metadata={"help": "Go on with the run in output_dir."})

    def __post_init__(self):
        given = [name for name in ("train_trees", "validation_trees", "test_trees") if getattr(self, name)]
        if given and (self.trees or len(given) < 3):
            raise ValueError(
                f"{given[0]} is given {'beside trees' if self.trees else 'without the others'}: give trees, which are "
                "then split, or all three of train_trees, validation_trees and test_trees"
            )
        if self.num_beams < 1:
            raise ValueError(f"num_beams must be at least 1, not {self.num_beams}")
        if self.max_extra_tokens < 0:
            raise ValueError(f"max_extra_tokens must be at least 0, not {self.max_extra_tokens}")


def reproduce(options: ParsingOptions, training: TrainingOptions, overrides: dict | None = None) -> dict:
    """The whole of Table 4 in training.output_dir; see the top of this file for what it leaves there.

    Args:
        overrides: fields of VanillaConfig to set otherwise than the preset "parsing" does.

    Returns:
        What results.json holds.

    Raises:
        ValueError: for bad trees or settings, before anything is written.
        OSError: if a file cannot be written.
    """
    run = Path(training.output_dir)
    overrides = dict(overrides or {})
    if not options.resume:
        check_unused("output_dir", run)
    check_model_options(TranslationOptions(preset="parsing"), overrides)
    splits = read_splits(options)
    prepare(run, splits, overrides.pop("vocab_size", PRESETS["parsing"]["vocab_size"]), options)
    # Pairs longer than a batch are left out of training, and said to be.
    limits = {"max_source_tokens": training.tokens_per_batch, "max_target_tokens": training.tokens_per_batch}
    trained = train_translation(
        DataOptions(train_file=str(run / "data" / "train.jsonl"), source_lang="en", target_lang="tree", **limits),
        replace(training, output_dir=str(run / "training")),
        TranslationOptions(
            preset="parsing",
            tokenizer=str(run / "data" / "tokenizer"),
            resume=(run / "training" / "run.json").is_file(),
        ),
        overrides,
    )
    search = {name: getattr(options, name) for name in ("num_beams", "length_penalty", "max_extra_tokens")}
    results = {
        **evaluate(run, splits, search),
        "train_sentences": len(splits["train"]),
        "search": search,
        "training": trained,
        "options": asdict(options),
    }
    write_json(run / "results.json", results)
    write_text(run / "table.md", table(results))
    return results


# Data


def read_splits(options: ParsingOptions) -> dict[str, list[Node]]:
    """The cleaned trees to train on, to develop on and to test on, by "train", "validation" and "test".

    Raises:
        ValueError: if a file is not as it should be, or there are too few to split.
    """
    if options.train_trees:
        return {split: _flat(_read(getattr(options, f"{split}_trees"))) for split in ("train", "validation", "test")}
    return split_files(_read(options.trees) if options.trees else toy_treebank())


def split_files(files: Sequence[list[Node]]) -> dict[str, list[Node]]:
    """The first files to train on, then those to develop on, the last to test on, about 8 : 1 : 1 of the sentences.

    A file is an article, so that no article is in two splits. They stay in their order, as the sections of the
    treebank do in the usual split.

    Raises:
        ValueError: if there are fewer than three.
    """
    if len(files) < 3:
        raise ValueError(f"trees: {len(files)} files of trees cannot be split into three (a blank line begins a file)")
    total, before = sum(map(len, files)), 0
    splits: dict[str, list[list[Node]]] = {"train": [], "validation": [], "test": []}
    for index, trees in enumerate(files):
        middle = (before + len(trees) / 2) / total
        before += len(trees)
        # Whatever their sizes, the first file is for training, the last for testing, and one before it for development.
        if index == 0 or (middle < 0.8 and index < len(files) - 2):
            splits["train"].append(trees)
        elif index < len(files) - 1 and (middle < 0.9 or not splits["validation"]):
            splits["validation"].append(trees)
        else:
            splits["test"].append(trees)
    return {split: _flat(parts) for split, parts in splits.items()}


def _read(paths: Sequence[str]) -> list[list[Node]]:
    return [trees for path in paths for trees in read_treebank(path)]


def _flat(files: Sequence[list[Node]]) -> list[Node]:
    return [tree for trees in files for tree in trees]


def prepare(run: Path, splits: dict[str, list[Node]], vocab_size: int, options: ParsingOptions) -> None:
    """Write run/data: the training pairs, the tokenizer, and the settings of both with a digest of all trees.

    Raises:
        ValueError: on resuming, if there is nothing to resume or it was started with other pairs; or for a vocab_size
            too small for the labels.
    """
    lines = [f"{split} {bracketed(tree)}" for split, trees in splits.items() for tree in trees]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    settings = {"trees": digest, "constituents": options.constituents, "vocab_size": vocab_size}
    known = run / "data" / "settings.json"
    if options.resume:
        if not known.is_file():
            raise ValueError(f"resume: {run} holds no parsing run, as it has no data/settings.json")
        before = json.loads(known.read_text(encoding="utf-8"))
        for name, now in settings.items():
            if before.get(name) != now:
                raise ValueError(f"resume: {run} was started with {name} {before.get(name)}, not {now}")
        return
    tokenizer = parsing_tokenizer(splits["train"], vocab_size)
    run.mkdir(parents=True, exist_ok=True)
    with whole_folder(run / "data") as part:
        tokenizer.save_pretrained(part / "tokenizer")
        pairs = training_pairs(splits["train"], options.constituents)
        text = "".join(json.dumps({"translation": pair}, ensure_ascii=False) + "\n" for pair in pairs)
        (part / "train.jsonl").write_text(text, encoding="utf-8")
        write_json(part / "settings.json", settings)


def training_pairs(trees: Sequence[Node], constituents: bool) -> Iterator[dict[str, str]]:
    """A pair of source and target for each tree.

    With constituents, each that has at least two words follows its tree, once in all. Few trees are ten times as many
    pairs then, most of them short, in which every phrase is met at many positions: without it a small treebank is
    learnt by heart. (The paper does not do so.)
    """
    seen = set()
    for tree in trees:
        for part in [tree, *below(tree)] if constituents else [tree]:
            pair = source(part), target(part)
            if part is tree or (len(words(part)) > 1 and pair not in seen):
                yield {"en": pair[0], "tree": pair[1]}
            seen.add(pair)


def source(tree: Node) -> str:
    """The sentence as the model reads it."""
    return " ".join(words(tree))


def target(tree: Node) -> str:
    """The linear form as the model writes it: the blank before a bracket is part of its token, and the tokenizer sets
    one before the word that follows."""
    return "".join(f" {token}" if token[0] in "()" else token for token in linearise(tree))


def parsing_tokenizer(training: Sequence[Node], vocab_size: int) -> PreTrainedTokenizerBase:
    """One vocabulary for words and linear forms: BPE learnt from the sentences, and each bracket with its label whole.

    Raises:
        ValueError: if vocab_size does not hold the bytes and the labels.
    """
    labels = sorted({token for tree in training for token in linearise(tree) if token[0] in "()"})
    if vocab_size < MIN_VOCAB_SIZE + len(labels):
        raise ValueError(
            f"vocab_size must be at least {MIN_VOCAB_SIZE + len(labels)}, not {vocab_size}: "
            f"there are {len(labels)} labelled brackets"
        )
    tokenizer = train_tokenizer(map(source, training), vocab_size=vocab_size - len(labels))
    tokenizer.add_tokens([AddedToken(f" {label}", normalized=False, special=False) for label in labels])
    return tokenizer


# Parsing and scoring


def evaluate(run: Path, splits: dict[str, list[Node]], search: dict) -> dict:
    """Parse the development and the test sentences, and score the parses beside the baseline.

    Writes run/parses: gold trees, parses and baseline of each, a tree a line, and the raw output of the model.

    Returns:
        For "validation" and "test": the scores, those of the baseline, the share of well-formed outputs in percent,
        sentences and seconds.
    """
    folder = run / "training" / "model"
    model, tokenizer = load_translator([folder])
    model.generation_config.update(**search)
    model.generation_config.save_pretrained(folder)  # so that the folder parses as Table 4 does, wherever it is loaded
    root, inner = right_branching_labels(splits["train"])
    results: dict[str, dict] = {"baseline_labels": {"root": root, "inner": inner}}
    written: dict[str, list[str]] = {}
    for split in ("validation", "test"):
        gold = splits[split]
        start = time.monotonic()
        outputs = translate(model, tokenizer, list(map(source, gold)), show_progress=True)
        seconds = time.monotonic() - start
        sentences, tokens = list(map(words, gold)), [output.split() for output in outputs]
        parses = [tagged(delinearise(*pair), tree) for *pair, tree in zip(tokens, sentences, gold, strict=True)]
        baseline = [tagged(right_branching(words(tree), root, inner), tree) for tree in gold]
        well_formed = [is_well_formed(*pair) for pair in zip(tokens, sentences, strict=True)]
        results[split] = {
            **summary(score(gold, parses)),
            "well_formed": 100 * sum(well_formed) / len(gold),
            "baseline": summary(score(gold, baseline)),
            "seconds": seconds,
        }
        for name, trees in (("gold", gold), ("parsed", parses), ("baseline", baseline)):
            written[f"{split}.{name}"] = list(map(bracketed, trees))
        written[f"{split}.output"] = outputs
    with whole_folder(run / "parses") as part:
        part.mkdir()
        for name, lines in written.items():
            (part / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return results


def tagged(parse: Node, gold: Node) -> Node:
    """A parse with the tags of the gold tree, by which EVALB knows punctuation. No parser has seen them."""
    return with_tags(parse, [leaf.tag for leaf in leaves(gold)])


def summary(scores: Scores) -> dict:
    """The scores as results.json has them: percentages and counts."""
    shares = ("f1", "precision", "recall", "complete_match")
    return {**{name: getattr(scores, name) for name in shares}, **asdict(scores)}


def table(results: dict) -> str:
    """Table 4 with this run below it, in Markdown."""
    rows = [f"| {parser} | {kind} | WSJ 23 | {f1} | |" for parser, kind, f1 in PAPER]
    trained_on = f"{results['train_sentences']} sentences"
    for split in ("validation", "test"):
        scores, name = results[split], {"validation": "development", "test": "test"}[split]
        on = f"{name}, {scores['sentences']} sentences"
        rows.append(f"| **this run** | {trained_on} | {on} | {scores['f1']:.1f} | {scores['well_formed']:.1f}% |")
        rows.append(f"| right-branching | its two labels | {on} | {scores['baseline']['f1']:.1f} | |")
    head = ["| Parser | Training | evaluated on | F1 | well-formed outputs |", "|---|---|---|---|---|"]
    search = results["search"]
    note = (
        f"Figures of other parsers: the paper's Table 4. This run: {results['training']['parameters']:,} parameters, "
        f"{results['training']['train_seconds'] / 60:.1f} minutes of training; beam {search['num_beams']}, "
        f"alpha {search['length_penalty']}, input + {search['max_extra_tokens']}."
    )
    return "\n".join([*head, *rows, "", note, ""])


def main() -> None:
    scale = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    scale.add_argument("--scale", choices=SCALES, default="smoke")
    parser = HfArgumentParser((ParsingOptions, TrainingOptions, ModelOptions), description=__doc__, allow_abbrev=False)
    parser.set_defaults(**SCALES[scale.parse_known_args()[0].scale])
    with one_line_errors():
        options, training, model = parser.parse_args_into_dataclasses()
        reproduce(options, training, model.overrides())
        print((Path(training.output_dir) / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()

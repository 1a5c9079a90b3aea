"""Translate a file or stdin, line by line: one line in, one line out, in the same order.

    vanilla translate runs/mine/model --input test.en --output test.out --reference test.de
    vanilla translate runs/mine/model < test.en | head -1
    vanilla translate runs/one/model runs/two/model --lines_per_block 1 --quiet

MODEL is a folder with a model and its tokenizer, or their name on the Hub. Several models of one vocabulary translate
as an ensemble, by the mean of their probabilities at every step. A line ends at "\\n" alone; blanks around a text,
marks of lists, and lines without letters are copied. Of --lines_per_block lines those of similar length form batches;
with 1, each line is answered at once.

Of a catalogue, .po or .xliff (pip install translate-toolkit), the empty units are filled and marked for review.

With --output FILE, blocks that are done are kept in the folder FILE.blocks until FILE is whole. If the process is
killed, the same command goes on with the first block that is missing.

--engine ctranslate2 (pip install ctranslate2) translates several times as fast as torch, which searches exactly as the
paper does. CTranslate2 drops a hypothesis that ends outside the best --num_beams, and stops when --num_beams
hypotheses have ended: about one translation in a hundred differs. It has no ensembles, and terms only of a model
trained with --protect. MODEL may be a folder that `vanilla export --to ctranslate2` wrote.

The default search is the model's own: the paper's has beam 4, alpha 0.6 and at most 50 tokens more than the source. A
line that is longer than what the model has seen in training, in tokens or sentences, is translated sentence by
sentence. With --max_source_tokens N, lines up to N tokens are translated whole, and longer ones in pieces that end with
a sentence, if need be at blanks. A warning names the lines.

--nbest K writes K lines for each line of input, "LINE ||| TRANSLATION ||| SCORE", best first, LINE counted from 0. The
score is log P / ((5 + length) / 6)^alpha, or log P / length^alpha of a model that searches so, natural logarithm; the
scores of pieces add up. A line without letters has one translation, itself, of score 0.

--sample draws samples, for back-translation. The engine torch draws those of a line by --seed and the line alone, so
that blocks change nothing, and equal lines have equal samples; ctranslate2 takes --seed once, when the
process begins, so that the same command draws the same with --inter_threads 1. With --nbest K a line has K samples.

--json writes each translation as a line of JSON: "translation", its "score" as above, its "tokens" with EOS, the
"log_probs" of these, natural logarithm, the word "alignment", pairs [source word, target word], from 0, and what is
"differing", as below.

--terms FILE has in each line a source term, a tab, and its translation. If a line of the input contains the source term
as whole words, its translation contains the target term. If terms overlap, the first one counts, then the longest. A
warning names a term that is lost; the translation is then the best without it.

--protect names the spans that are copied, such as %d or <b>, in place of the model's own. Of the hypotheses, one with
all spans and numbers of the line is taken, if there is one. --differing FILE has the number of each line, from 1, whose
translation has others, a tab, and these; so it has a phrase that a translation repeats without end.

--prefix FILE gives, line by line, what the translations begin with; a line of it may be blank.

--alignments FILE writes the word alignment of each line in the Pharaoh format, "SOURCE-TARGET ...", words separated by
white space and counted from 0. It is read from the cross-attention of the best translations, averaged over the heads of
one decoder layer, at the step whose input is the target token (Chen et al. 2020, arXiv:2004.14837); which layer is best
depends on the model.

Exit code: 0; 2 for bad input, with one line that says what is wrong; 130 after Ctrl-C; 141 if nobody reads the output.
"""

import itertools
import json
import logging
import re
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import starmap
from pathlib import Path

from tqdm import std

from ..corpus.units import CATALOGUES, empty_units, open_catalogue
from ..decoding_vanilla import Translation
from ..errors import RowError
from ..files import ending, read_lines
from ..inference import Translator, pharaoh, read_terms
from ..inference.alignment import Links
from ..progress import inform, progress_bar
from ..protect import PROTECT, span_table
from .blocks import Block, keep_blocks, record_of_blocks, take_blocks
from .parser import CommandParser, run_command
from .streams import (
    add_shared_options,
    check_outputs,
    count_lines,
    is_file,
    output_streams,
    translator_of,
    write_lines,
)

LINES_PER_BLOCK = 100_000
DIFFERING = "differ from their sources in spans or numbers, or repeat a phrase without end"
SAMPLING = {"temperature": 1.0, "top_k": 0, "seed": 0}  # the options of --sample


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__)
    add = parser.add_argument
    add_shared_options(parser)
    add("--terms", type=Path, metavar="FILE", help="lines of source term, tab, target term, which are kept to")
    add("--protect", metavar="SPANS", help=f"what is copied, in place of the model's own: {PROTECT}")
    add("--differing", type=Path, metavar="FILE", help="write the lines whose spans or numbers differ to FILE")
    add("--prefix", type=Path, metavar="FILE", help="lines with which the translations of the input's lines begin")
    add("--tgt_lang", help="language to translate to, of a model of several: the tag of lines that have none")
    add("--nbest", type=int, metavar="K", help="write K translations of each line, with scores")
    add("--json", action="store_true", help="write translations as JSON, with tokens, scores and word alignment")
    scores = "print BLEU against the lines of FILE to stderr; of several files, each line has a reference in each"
    add("--reference", type=Path, nargs="+", default=[], metavar="FILE", help=scores)
    add("--bleu_tokenize", metavar="NAME", help="sacreBLEU's tokeniser (default: 13a)")
    add("--sample", action="store_true", help="draw each token by its probability instead of searching")
    add("--temperature", type=float, metavar="X", help="of --sample: above 1 more even probabilities (default: 1)")
    add("--top_k", type=int, metavar="K", help="of --sample: from the K most probable tokens (default: 0, from all)")
    add("--seed", type=int, metavar="N", help="of --sample (default: 0)")
    add("--num_beams", type=int, metavar="N", help="beams of the search (default: the model's)")
    add("--length_penalty", type=float, metavar="X", help="alpha of the search (default: the model's)")
    add("--max_extra_tokens", type=int, metavar="N", help="most tokens beyond the source's (default: the model's)")
    size = "lines that are read, sorted by length and translated together"
    add("--lines_per_block", type=int, default=LINES_PER_BLOCK, metavar="N", help=size)
    add("--max_source_tokens", type=int, metavar="N", help="the most tokens of a line that is translated whole")
    run_command(parser, translate, arguments)


def translate(options: Namespace) -> None:
    """Check the options, and translate a catalogue or a file."""
    if options.json and options.nbest is not None:
        raise ValueError("--json cannot be combined with --nbest")
    for name in ("num_beams",) if options.sample else SAMPLING:
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} {'cannot be combined with' if options.sample else 'needs'} --sample")
    is_catalogue = options.input and ending(options.input.name) in CATALOGUES
    (translate_catalogue if is_catalogue else translate_file)(options)


def translate_catalogue(options: Namespace) -> None:
    """Fill the empty units of a catalogue, and write it when all are done."""
    for name in ("alignments", "differing", "json", "nbest", "prefix", "reference"):
        if getattr(options, name):
            raise ValueError(f"--{name} has no meaning for a catalogue, as {options.input} is one")
    check_outputs(options, [("--input", options.input), ("--terms", options.terms)])
    catalogue = open_catalogue(str(options.input))
    empty = [*empty_units(str(options.input), catalogue)]
    terms = read_terms(options.terms) if options.terms else []
    translator = translator_of(options, aligned=False)
    texts = [text for unit in empty for text in unit.sources]
    with progress_bar(total=len(texts), unit=" texts") as bar:
        found = in_order(translator, texts, bar, terms=terms, **search_options(options))
    filled, best = 0, (one.hypotheses[0].text for one in found)
    for unit in empty:
        filled += unit.fill(itertools.islice(best, len(unit.sources)))
    with output_streams(options) as streams:
        catalogue.serialize(streams["output"])
    differing = sum(bool(one.differing) for one in found)
    lacking = f"{len(empty) - filled} stay empty, as inline elements are lost"
    inform(f"{filled} units filled, to be reviewed; {lacking}; {differing} texts {DIFFERING}")


def translate_file(options: Namespace) -> None:
    """Translate the lines of the input block by block, and score the translations if there are references."""
    inputs = [("--input", options.input), ("--prefix", options.prefix)]
    inputs += [("--reference", path) for path in options.reference]
    check_outputs(options, [*inputs, ("--terms", options.terms)])
    if options.lines_per_block < 1:
        raise ValueError(f"--lines_per_block must be at least 1, not {options.lines_per_block}")
    references = read_references(options)
    terms = read_terms(options.terms) if options.terms else []
    translator = translator_of(options, bool(options.alignments or options.json))
    with progress_bar(total=count_lines(options.input), unit=" lines") as bar:
        blocks = take_blocks(options.input, options.prefix, references, options.lines_per_block, bar)
        outputs_of = partial(translate_block, options, translator, terms, bar)
        if is_file(options.output):
            folder = options.output.with_name(f"{options.output.name}.blocks")
            record = record_of_blocks(options, terms)
            best, differing = keep_blocks(folder, record, blocks, outputs_of, partial(write_blocks, options))
        else:
            best, differing = write_blocks(options, starmap(outputs_of, blocks))
    if differing:
        inform(f"{differing} lines {DIFFERING}; --differing FILE names them")
    if references and best:
        print_scores(best, references, options.bleu_tokenize)


def read_references(options: Namespace) -> dict[Path, list[str]]:
    """The lines of each file of --reference."""
    if options.reference:
        # Imported here, as it needs a package that translation does not.
        from ..metrics import TOKENIZE, check_tokenize

        check_tokenize(options.bleu_tokenize or TOKENIZE, "bleu_tokenize")
    return {path: list(read_lines(path)) for path in options.reference}


def print_scores(best: list[str], references: dict[Path, list[str]], tokenize: str | None) -> None:
    """Print BLEU to stderr."""
    from ..metrics import TOKENIZE, translation_scores

    scores = translation_scores(best, [*zip(*references.values(), strict=True)], tokenize or TOKENIZE)
    for name in ("bleu", "bleu_compound_split"):
        print(f"{name} {scores[name]:.2f} {scores[name + '_signature']}", file=sys.stderr, flush=True)


def translate_block(
    options: Namespace, translator: Translator, terms: list, bar: std.tqdm, number: int, block: Block
) -> Block:
    """The lines of each output of a block: "output", "alignments", "differing" and, for scores, "best"."""
    sources, first = block["input"], number * options.lines_per_block
    given = {"terms": terms, "prefix": block.get("prefix", ""), **search_options(options)}
    with located(options, first):
        found = in_order(translator, sources, bar, **given)
    outputs: Block = {}
    links: list[Links] = []
    if options.alignments or options.json:
        how = {"layer": options.alignment_layer, "tokens_per_batch": options.tokens_per_batch}
        links = translator.align_translations(sources, found, **how)
    if options.alignments:
        outputs["alignments"] = [*map(pharaoh, links)]
    outputs["output"] = [*(map(as_json, found, links) if options.json else as_lines(found, options.nbest, first))]
    outputs["differing"] = [
        f"{number}\t{on_one_line(' '.join(differing))}"
        for number, translation in enumerate(found, start=first + 1)
        if (differing := translation.differing)
    ]
    if options.reference:
        outputs["best"] = [on_one_line(translation.hypotheses[0].text) for translation in found]
    return outputs


def in_order(translator: Translator, texts: list[str], bar: std.tqdm, **given) -> list[Translation]:
    """The translations of texts; the bar shows those that are done."""
    found: dict[int, Translation] = {}
    for rows, translations in translator.translations(texts, **given):
        found.update(zip(rows, translations, strict=True))
        bar.update(len(rows))
    return [found[row] for row in range(len(texts))]


def write_blocks(options: Namespace, blocks: Iterable[Block]) -> tuple[list[str], int]:
    """Write the outputs of the blocks; return the best translations, if they are scored, and how many lines differ.

    The lines themselves would grow in memory with the input.
    """
    best: list[str] = []
    differing = 0
    with output_streams(options) as streams:
        for block in blocks:
            for name, stream in streams.items():
                write_lines(block[name], stream)
            best += block.get("best", [])
            differing += len(block.get("differing", []))
    return best, differing


def search_options(options: Namespace) -> dict:
    """The search that the options ask for; what they leave open is the model's own."""
    names = ("num_beams", "length_penalty", "max_extra_tokens", "max_source_tokens", "nbest", "tgt_lang")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.sample:
        given |= {"do_sample": True, "num_beams": 1, **SAMPLING}
        given |= {name: getattr(options, name) for name in SAMPLING if getattr(options, name) is not None}
    if options.protect is not None:
        given["protect"] = span_table(options.protect)
    with_scores = options.json or options.nbest is not None
    return given | {"with_scores": with_scores, "tokens_per_batch": options.tokens_per_batch}


@contextmanager
def located(options: Namespace, first: int) -> Iterator[None]:
    """Let errors and warnings about rows name their file and lines; the first text is line `first` + 1."""
    files = {"text": options.input or "stdin", "prefix": options.prefix, "term": options.terms}

    def place(what: str, rows: Sequence[int]) -> str:
        start = 1 if what == "term" else first + 1
        return f"{files[what]}, line {', '.join(str(start + row) for row in rows[:3])}: "

    def add_place(record: logging.LogRecord) -> bool:
        if hasattr(record, "rows"):
            record.msg = place(record.what, record.rows) + record.msg  # type: ignore[attr-defined]
        return True

    handlers = logging.getLogger("modeling_vanilla").handlers
    for handler in handlers:
        handler.addFilter(add_place)
    try:
        yield
    except RowError as error:
        raise ValueError(place(error.what, [error.row]) + error.message) from error
    finally:
        for handler in handlers:
            handler.removeFilter(add_place)


def as_lines(found: list[Translation], nbest: int | None, first: int = 0) -> Iterator[str]:
    """The best translation of each line, or its n best with number and score."""
    for number, translation in enumerate(found, start=first):
        for hypothesis in translation.hypotheses:
            text = on_one_line(hypothesis.text)
            yield text if nbest is None else f"{number} ||| {text} ||| {hypothesis.score:.6f}"


def on_one_line(text: str) -> str:
    """The text with each line end that the model generated as a blank."""
    return re.sub(r"[\r\n]+", " ", text)


def as_json(translation: Translation, links: Links) -> str:
    """The best translation of a line as a line of JSON."""
    (best,) = translation.hypotheses
    values = {"translation": best.text, "score": best.score, "tokens": best.tokens, "log_probs": best.log_probs}
    return json.dumps({**values, "alignment": links, "differing": translation.differing}, ensure_ascii=False)

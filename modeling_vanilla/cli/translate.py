"""Translate a file or stdin, line by line: one line in, one line out, in the same order.

    vanilla translate runs/mine/model --input test.en --output test.out --reference test.de
    vanilla translate runs/mine/model < test.en | head -1
    vanilla translate runs/one/model runs/two/model --interactive

MODEL is a folder with a model and its tokenizer. Several models of one vocabulary translate as an ensemble, by the
mean of their probabilities at every step. A line ends at "\\n" alone; an empty line stays empty. The whole input is
read before it is translated, because sentences of similar length form a batch; --interactive answers each line at once.

The default search is the model's own: the paper's has beam 4, alpha 0.6 and at most 50 tokens more than the source. A
source longer than --max_source_tokens is split at the ends of sentences, if need be at clause marks or blanks, and
translated piece by piece; a warning names the line.

--nbest K writes K lines for each line of input, "LINE ||| TRANSLATION ||| SCORE", best first, LINE counted from 0. The
score is log P / ((5 + length) / 6)^alpha, natural logarithm; the scores of pieces add up. An empty line has one
translation, the empty one, of score 0.

--json writes each translation as a line of JSON: "translation", its "score" as above, its "tokens" with EOS, the
"log_probs" of these, natural logarithm, and the word "alignment", pairs [source word, target word], from 0.

--terms FILE has a source term and, behind a tab, its translation in each line. Where the source term is in a line of
the input, as whole words, the longest first, the translation contains the target term; lines of one source term are
alternatives. A warning names a term that cannot be met within the limit; the translation is then the best without it.

--prefix FILE has in each line what the translation of that line of the input begins with, or nothing.

--alignments FILE writes the word alignment of each line in the Pharaoh format, "SOURCE-TARGET ...", words separated by
white space and counted from 0. It is read from the cross-attention of the best translations, averaged over the heads of
one decoder layer, at the step whose input is the target token (Chen et al. 2020, arXiv:2004.14837); which layer is best
depends on the model.

Exit code: 0; 2 for bad input, with one line that says what is wrong; 130 after Ctrl-C; 141 if nobody reads the output.
"""

import json
import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
from transformers.utils import logging

from ..files import decode_lines, disk_errors, read_lines, whole_file
from ..inference import load_translator, split_long
from ..inference.alignment import Links, align_pieces, check_alignable, pharaoh
from ..inference.batching import TOKENS_PER_BATCH
from ..inference.translation import Hypothesis, join_nbest, read_terms, translate_pieces, translate_pieces_nbest
from ..splitting_vanilla import MAX_SOURCE_TOKENS, join_pieces
from ..terminology_vanilla import Terminology
from .parser import CommandParser, add_device, run_command, standard_stream, warn


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__)
    add = parser.add_argument
    add_shared_options(parser)
    add("--input", type=Path, metavar="FILE", help="UTF-8 text, plain or .gz (default: stdin)")
    add("--output", type=Path, metavar="FILE", help="written when all is translated (default: stdout)")
    add("--interactive", action="store_true", help="answer each line of stdin at once")
    add("--terms", type=Path, metavar="FILE", help="lines of source term, tab, target term, which are kept to")
    add("--prefix", type=Path, metavar="FILE", help="lines with which the translations of the input's lines begin")
    add("--nbest", type=int, metavar="K", help="write K translations of each line, with scores")
    add("--json", action="store_true", help="write translations as JSON, with tokens, scores and word alignment")
    add("--reference", type=Path, metavar="FILE", help="print BLEU against the lines of FILE to stderr")
    add("--bleu_tokenize", choices=("13a", "none", "zh", "char"), default="13a", help="how BLEU splits words")
    add("--num_beams", type=int, help="beams of the search (default: the model's)")
    add("--length_penalty", type=float, help="alpha of the search (default: the model's)")
    add("--max_extra_tokens", type=int, help="most tokens beyond the source's (default: the model's)")
    add("--max_source_tokens", type=int, default=MAX_SOURCE_TOKENS, help="longer sources are translated in pieces")
    add("--tokens_per_batch", type=int, default=TOKENS_PER_BATCH, help="source tokens of a batch, times the beams")
    add("--compile", action="store_true", help="compile the decoding step: slow to start, then faster")
    run_command(parser, run, arguments)


def add_shared_options(parser: CommandParser) -> None:
    """What `vanilla score` takes, too: the models, how they compute, and word alignments."""
    add = parser.add_argument
    add("model", nargs="+", metavar="MODEL", help="folder of a model; several make an ensemble")
    add("--alignments", type=Path, metavar="FILE", help="write word alignments to FILE")
    add("--alignment_layer", type=int, default=0, metavar="N", help="decoder layer of the word alignments")
    add("--bf16", action="store_true", help="compute in bfloat16")
    add_device(parser)


def run(options: Namespace) -> None:
    for name in ("input", "output", "reference", "alignments", "prefix", "json"):
        if options.interactive and getattr(options, name):
            raise ValueError(f"--{name} cannot be combined with --interactive")
    if options.json and options.nbest is not None:
        raise ValueError("--json cannot be combined with --nbest")
    if options.alignment_layer and not (options.alignments or options.json):
        raise ValueError("--alignment_layer needs --alignments or --json")
    if options.bleu_tokenize != "13a" and not options.reference:
        raise ValueError("--bleu_tokenize needs --reference")
    with closed_pipe():
        if options.interactive:
            translate_interactively(options)
        else:
            translate_file(options)


def translate_file(options: Namespace) -> None:
    sources = list(input_lines(options))
    references = options.reference and parallel_lines(options.reference, sources)
    prefixes = options.prefix and parallel_lines(options.prefix, sources)
    if references is not None:
        # Imported only when needed, as its libraries take seconds to load; now, as one may be missing.
        from ..training.metrics import translation_scores
    model, tokenizer = load(options)
    if options.alignments or options.json:
        check_alignable(model, tokenizer, options.alignment_layer)
    with output_streams(options) as (output, alignments):
        pieces = split(model, tokenizer, sources, options)
        terms = Terminology(read_terms(options.terms) if options.terms else [], tokenizer)
        found = search(model, tokenizer, pieces, options, terms, prefixes, show_progress=True)
        best = [[piece[0].text for piece in line] for line in found]
        warn_of_missing(terms, pieces, best, options)
        links: list[Links] = []
        if options.alignments or options.json:
            settings = (options.alignment_layer, options.tokens_per_batch)
            links = align_pieces(model, tokenizer, sources, pieces, best, *settings)
        if options.alignments:
            write(format_links(links), alignments, options.alignments)
        lines = (format_line(number, line, options.nbest) for number, line in enumerate(found))
        write(map(format_json, found, links) if options.json else lines, output, options.output)
    if references is not None:
        scores = translation_scores([join_pieces(line) for line in best], references, options.bleu_tokenize)
        for name in ("bleu", "bleu_compound_split", "bleu_compound_split_quotes"):
            print(f"{name} {scores[name]:.2f} {scores[name + '_signature']}", file=sys.stderr, flush=True)


def translate_interactively(options: Namespace) -> None:
    model, tokenizer = load(options)
    terms = Terminology(read_terms(options.terms) if options.terms else [], tokenizer)
    for number, source in enumerate(input_lines(options)):
        pieces = split(model, tokenizer, [source], options, first_line=number + 1)
        (found,) = search(model, tokenizer, pieces, options, terms, None, show_progress=False)
        warn_of_missing(terms, pieces, [[piece[0].text for piece in found]], options, first_line=number + 1)
        write([format_line(number, found, options.nbest)], standard_stream("stdout"), None)


def load(options: Namespace):
    logging.disable_progress_bar()  # for the weights, not for the sentences
    return load_translator(options.model, options.device, torch.bfloat16 if options.bf16 else torch.float32)


def split(model, tokenizer, sources: list[str], options: Namespace, first_line: int = 1) -> list[list[str]]:
    """The pieces of each line, with a warning for each line that is split."""
    pieces = split_long(model, tokenizer, sources, options.max_source_tokens)
    for number, parts in enumerate(pieces, start=first_line):
        if len(parts) > 1:
            name = options.input or "stdin"
            warn(f"{name}, line {number}: too long, translated in {len(parts)} pieces")
    return pieces


def warn_of_missing(terms: Terminology, pieces, translations, options: Namespace, first_line: int = 1) -> None:
    """A warning for each term that a line's translation lacks."""
    for number, pairs in enumerate(map(zip, pieces, translations), start=first_line):
        for term in (term for piece, translation in pairs for term in terms.missing(piece, translation)):
            warn(f"{options.input or 'stdin'}, line {number}: the term {term!r} could not be met")


def search(
    model, tokenizer, lines: list[list[str]], options, terms: Terminology, prefixes, show_progress: bool
) -> list[list[list[Hypothesis]]]:
    """The n best translations of each piece of each line; without --nbest or --json the best alone, without score."""
    settings = {name: getattr(options, name) for name in ("num_beams", "length_penalty", "max_extra_tokens")}
    settings = {name: value for name, value in settings.items() if value is not None}
    settings |= {"terms": terms, "prefixes": prefixes, "compile": options.compile}
    shared = {"tokens_per_batch": options.tokens_per_batch, "show_progress": show_progress, **settings}
    if options.nbest is None and not options.json:
        found = translate_pieces(model, tokenizer, lines, **shared)
        return [[[Hypothesis(text, 0.0)] for text in line] for line in found]
    return translate_pieces_nbest(model, tokenizer, lines, 1 if options.nbest is None else options.nbest, **shared)


def write(lines: Iterable[bytes], stream: BinaryIO, path: Path | None) -> None:
    """Write lines to the stream of a file or, for None, of stdout, which an error of the disk names."""
    try:
        with disk_errors(path or Path("stdout")):
            stream.writelines(lines)
            stream.flush()
    except OSError:
        if path is None:
            # The rest of the buffer goes nowhere, or Python would report it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


def format_links(links: Iterable) -> Iterator[bytes]:
    return (f"{pharaoh(line)}\n".encode() for line in links)


def format_line(number: int, pieces: list[list[Hypothesis]], nbest: int | None) -> bytes:
    """What is written for a line of input."""
    if nbest is None:
        return f"{one_line(join_pieces(piece[0].text for piece in pieces))}\n".encode()
    found = join_nbest(pieces, nbest)
    return "".join(f"{number} ||| {one_line(one.text)} ||| {one.score:.6f}\n" for one in found).encode()


def format_json(pieces: list[list[Hypothesis]], links: Links) -> bytes:
    """The best translation of a line of input, as a line of JSON."""
    (best,) = join_nbest(pieces, 1)
    values = {"translation": best.text, "score": best.score, "tokens": best.tokens, "log_probs": best.log_probs}
    return f"{json.dumps({**values, 'alignment': links}, ensure_ascii=False)}\n".encode()


def one_line(text: str) -> str:
    """The text with each line end that the model generated as a blank."""
    return re.sub(r"[\r\n]+", " ", text)


def input_lines(options: Namespace) -> Iterator[str]:
    return read_lines(options.input) if options.input else decode_lines(standard_stream("stdin"), "stdin")


def parallel_lines(path: Path, sources: list[str]) -> list[str]:
    """The lines of a file.

    Raises:
        ValueError: if there are more or fewer than sources.
    """
    lines = list(read_lines(path))
    if len(lines) != len(sources):
        raise ValueError(f"{path} has {len(lines)} lines, the input {len(sources)}")
    return lines


@contextmanager
def output_streams(options: Namespace) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The streams of --output and --alignments; ValueError if these are one file."""
    if options.output and options.alignments and options.output.resolve() == options.alignments.resolve():
        raise ValueError(f"--output and --alignments are both {options.output}")
    with output_stream(options.output) as output, output_stream(options.alignments) as alignments:
        yield output, alignments


@contextmanager
def output_stream(path: Path | None) -> Iterator[BinaryIO]:
    """A stream to a file that appears under its name when all is written; stdout for None."""
    if path is None:
        yield standard_stream("stdout")
    elif path.exists() and not path.is_file():  # such as /dev/null or a named pipe
        with path.open("wb") as stream:
            yield stream
    else:
        with whole_file(path) as part, part.open("wb") as stream:
            yield stream


@contextmanager
def closed_pipe() -> Iterator[None]:
    """End the process quietly when nobody reads its output any more, with the exit code of a SIGPIPE."""
    try:
        yield
    except BrokenPipeError:
        sys.exit(141)

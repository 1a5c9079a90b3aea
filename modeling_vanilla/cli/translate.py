"""Translate a file or stdin, line by line: one line in, one line out, in the same order.

    python examples/translate.py runs/mine/model --input test.en --output test.out --reference test.de
    python examples/translate.py runs/mine/model < test.en | head -1
    python examples/translate.py runs/one/model runs/two/model --interactive

MODEL is a folder with a model and its tokenizer. Several models of one vocabulary translate together: at every step
the mean of their probabilities decides. A line ends at "\\n" alone, an empty line stays empty, and the whole input is
read before it is translated, as sentences of like length go together (not with --interactive).

By default the model's own search is used: of the paper, beam 4, alpha 0.6 and at most 50 tokens more than the source.
A source that is longer than --max_source_tokens is cut at sentence ends, if need be at clause marks or blanks, and
its pieces are translated each by itself; a warning names the line.

--nbest K writes K lines for each line of input, "LINE ||| TRANSLATION ||| SCORE", lines counted from 0, best first.
The score is log P / ((5 + length) / 6)^alpha, natural logarithm; the scores of pieces add up. An empty line has one
translation, the empty one, of score 0.

--score FILE does not translate. It writes for each pair of an input line and a line of FILE: log P, the perplexity
per token and the number of tokens, EOS counted, tabs between; the figures of all pairs together go to stderr.

--alignments FILE writes for each line its word links in the Pharaoh format, "SOURCE-TARGET ...", words from 0, as
white space separates them. They are read off the cross attention, mean of all heads of one decoder layer, at the step
that reads the target token as input (Chen et al. 2020, arXiv:2004.14837); which layer serves best depends on the
model. With --score they are those of the given pairs, else those of the best translations.

Exit code: 0; 2 for bad input, with one line that says what is wrong; 130 after Ctrl-C; 141 if nobody reads the output.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers.utils import logging

from ..inference import load_translator, score_pairs, split_long, word_alignments
from ..inference.alignment import align_pieces, pharaoh
from ..inference.scoring import PairScore
from ..inference.translation import Hypothesis, join_nbest, translate_pieces, translate_pieces_nbest
from ..io import one_line_errors, read_lines
from ..splitting_vanilla import MAX_SOURCE_TOKENS, join_pieces


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    with one_line_errors(), closed_pipe():
        if options.interactive:
            interact(options)
        elif options.score:
            score(options)
        else:
            translate_all(options)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="+", metavar="MODEL", help="folder of a model; several make an ensemble")
    parser.add_argument("--input", type=Path, metavar="FILE", help="UTF-8 text, plain or .gz (default: stdin)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="written when all is done (default: stdout)")
    parser.add_argument("--interactive", action="store_true", help="answer each line of stdin at once")
    parser.add_argument("--nbest", type=int, metavar="K", help="write K translations of each line, with scores")
    parser.add_argument("--score", type=Path, metavar="FILE", help="score the lines of FILE as translations")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="print BLEU against the lines of FILE to stderr")
    parser.add_argument(
        "--bleu_tokenize", choices=("13a", "none"), default="13a", help="none for tokenised text (default: %(default)s)"
    )
    parser.add_argument("--alignments", type=Path, metavar="FILE", help="write word links to FILE")
    parser.add_argument(
        "--alignment_layer",
        type=int,
        default=0,
        metavar="N",
        help="decoder layer of --alignments (default: %(default)s)",
    )
    parser.add_argument("--num_beams", type=int, help="beams of the search (default: the model's)")
    parser.add_argument("--length_penalty", type=float, help="alpha of the search (default: the model's)")
    parser.add_argument("--max_extra_tokens", type=int, help="most tokens beyond the source's (default: the model's)")
    parser.add_argument(
        "--max_source_tokens",
        type=int,
        default=MAX_SOURCE_TOKENS,
        help="longer sources are translated in pieces (default: %(default)s)",
    )
    parser.add_argument(
        "--tokens_per_batch",
        type=int,
        default=4096,
        help="source tokens of a batch, padding included, times the beams (default: %(default)s)",
    )
    parser.add_argument("--device", default="cpu", help='such as "cuda" (default: %(default)s)')
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    options = parser.parse_args(arguments)
    for mode, excluded in (
        ("interactive", ("input", "output", "score", "reference", "alignments")),
        ("score", ("nbest", "reference")),
    ):
        for name in excluded:
            if getattr(options, mode) and getattr(options, name) is not None:
                parser.error(f"--{name} cannot go with --{mode}")
    return options


def translate_all(options: argparse.Namespace) -> None:
    sources = input_lines(options)
    references = options.reference and lines_beside(options.reference, sources)
    model, tokenizer = load(options)
    with whole_file(options.output) as output, whole_file(options.alignments) as alignments:
        pieces = cut(model, tokenizer, sources, str(options.input or "stdin"), options)
        found = search(model, tokenizer, pieces, options, show_progress=True)
        best = [[piece[0].text for piece in line] for line in found]
        if options.alignments:
            settings = (options.alignment_layer, options.tokens_per_batch)
            write_links(align_pieces(model, tokenizer, sources, pieces, best, *settings), alignments)
        for number, line in enumerate(found):
            output.write(answer(number, line, options.nbest))
        output.flush()
    if references is not None:
        report_bleu([join_pieces(line) for line in best], references, options.bleu_tokenize)


def interact(options: argparse.Namespace) -> None:
    model, tokenizer = load(options)
    for number, source in enumerate(stdin_lines()):
        pieces = cut(model, tokenizer, [source], "stdin", options, first_line=number + 1)
        (found,) = search(model, tokenizer, pieces, options, show_progress=False)
        sys.stdout.buffer.write(answer(number, found, options.nbest))
        sys.stdout.buffer.flush()


def score(options: argparse.Namespace) -> None:
    sources = input_lines(options)
    targets = lines_beside(options.score, sources)
    model, tokenizer = load(options)
    with whole_file(options.output) as output, whole_file(options.alignments) as alignments:
        scores = score_pairs(model, tokenizer, sources, targets, options.tokens_per_batch, show_progress=True)
        if options.alignments:
            settings = (options.alignment_layer, options.tokens_per_batch)
            write_links(word_alignments(model, tokenizer, sources, targets, *settings), alignments)
        for pair in scores:
            output.write(f"{pair.log_prob:.6f}\t{pair.perplexity:.6g}\t{pair.tokens}\n".encode())
        output.flush()
    if scores:
        total = PairScore(sum(pair.log_prob for pair in scores), sum(pair.tokens for pair in scores))
        report(f"log P {total.log_prob:.6f}, perplexity {total.perplexity:.6g}, {total.tokens} tokens")


def load(options: argparse.Namespace):
    logging.disable_progress_bar()  # of the weights; the one of the sentences stays
    return load_translator(options.model, options.device, torch.bfloat16 if options.bf16 else torch.float32)


def cut(model, tokenizer, sources: list[str], name: str, options, first_line: int = 1) -> list[list[str]]:
    """The pieces of each line, with a warning for each that is cut."""
    pieces = split_long(model, tokenizer, sources, options.max_source_tokens)
    for number, parts in enumerate(pieces, start=first_line):
        if len(parts) > 1:
            report(f"warning: {name}, line {number}: too long, translated in {len(parts)} pieces")
    return pieces


def search(model, tokenizer, lines: list[list[str]], options, show_progress: bool) -> list[list[list[Hypothesis]]]:
    """For each piece of each line its n best translations; without --nbest the best alone, whose score is not asked."""
    settings = {
        name: value
        for name in ("num_beams", "length_penalty", "max_extra_tokens")
        if (value := getattr(options, name)) is not None
    }
    shared = {"tokens_per_batch": options.tokens_per_batch, "show_progress": show_progress, **settings}
    if options.nbest is None:
        found = translate_pieces(model, tokenizer, lines, **shared)
        return [[[Hypothesis(text, 0.0)] for text in line] for line in found]
    return translate_pieces_nbest(model, tokenizer, lines, options.nbest, **shared)


def write_links(links: Iterable, stream) -> None:
    stream.writelines(f"{pharaoh(line)}\n".encode() for line in links)


def answer(number: int, pieces: list[list[Hypothesis]], nbest: int | None) -> bytes:
    """What is written for a line of input. A line end that a model has written becomes a blank."""
    if nbest is None:
        return f"{one_line(join_pieces(piece[0].text for piece in pieces))}\n".encode()
    found = join_nbest(pieces, nbest)
    return "".join(f"{number} ||| {one_line(text)} ||| {score:.6f}\n" for text, score in found).encode()


def one_line(text: str) -> str:
    return re.sub(r"[\r\n]+", " ", text)


def report_bleu(translations: list[str], references: list[str], tokenize: str) -> None:
    # Only where it is asked for: the metrics' libraries take seconds to load.
    from ..training.metrics import translation_scores

    scores = translation_scores(translations, references, tokenize)
    for name in ("bleu", "bleu_compound_split"):
        report(f"{name} {scores[name]:.2f} {scores[name + '_signature']}")


def report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def input_lines(options: argparse.Namespace) -> list[str]:
    return list(read_lines(options.input) if options.input else stdin_lines())


def stdin_lines() -> Iterator[str]:
    """The lines of stdin as they come, without their line ends.

    Raises:
        ValueError: if one is not UTF-8.
    """
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.rstrip(b"\r\n").decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"stdin, line {number}: not UTF-8, {error.reason} at byte {error.start}") from None


def lines_beside(path: Path, sources: list[str]) -> list[str]:
    """The lines of a file that must have as many as there are sources."""
    lines = list(read_lines(path))
    if len(lines) != len(sources):
        raise ValueError(f"{path} has {len(lines)} lines, the input {len(sources)}")
    return lines


@contextmanager
def whole_file(path: Path | None):
    """A file to write bytes to that appears under its name when all is written; stdout for None."""
    if path is None:
        yield sys.stdout.buffer
    elif path.exists() and not path.is_file():  # such as /dev/null or a named pipe
        with path.open("wb") as stream:
            yield stream
    else:
        path = path.resolve()  # of a link, what it points to
        part = path.with_name(path.name + ".part")
        try:
            with part.open("wb") as stream:
                yield stream
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def closed_pipe() -> Iterator[None]:
    """Ends the program when nobody reads its output any more, quietly, with the exit code of a SIGPIPE."""
    try:
        yield
    except BrokenPipeError:
        # What is still in the buffer goes nowhere, or Python would complain of it when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


if __name__ == "__main__":
    main()

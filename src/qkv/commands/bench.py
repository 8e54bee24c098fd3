"""Run our benchmarks on this machine, side by side with the peers that are installed; without a name, all of them.

Sides take turns (A B A B); a figure is the median of its turns, its range beside it, and a ratio is that of two
medians: above 1, qkv is the better one. Nothing else should run meanwhile. Peers and texts that are not there are named
and left out: Hugging Face transformers where it is installed, nanoGPT where --nanogpt names a checkout, texts where
--data names a folder that holds them (tinyshakespeare/input.txt, enwikinews/articles.jsonl.gz, sst2/train.tsv,
wikitext-2/train.txt, bert-vocab/vocab.txt).

Example:
  qkv bench --quick
  qkv bench step
  qkv bench masked --data data --json
  qkv bench curve my.txt --minutes 1 --nanogpt nanoGPT --tune
  qkv bench time-to-loss --data data --until-loss 1.558 --minutes 4 --seeds 1
  qkv bench step --device cuda
"""

import argparse
import sys
import time
from pathlib import Path

from qkv import words
from qkv.commands.arguments import add_json, option, positive, split_words, whole
from qkv.commands.printing import screen
from qkv.errors import ConfigError, unknown

_OF = dict.fromkeys(("source", "nanogpt", "tokenizer", "minutes", "seeds"), ("curve", "time-to-loss")) | {
    "data": ("start", "masked", "curve", "time-to-loss"),
    "until_loss": ("time-to-loss",),
    "tune": ("curve",),
    "rounds": ("start", "step", "masked", "memory", "generation"),
    "device": ("step", "time-to-loss"),
}
"""Option -> the benchmarks that read it."""


def configure(parser: argparse.ArgumentParser) -> None:
    from qkv.benchmarks import BENCHMARKS

    width = max(map(len, BENCHMARKS))
    parser.description = f"{parser.description}\n\n" + "\n".join(
        f"  {name:<{width}}  {line}" for name, line in BENCHMARKS.items()
    )
    option(parser, "name NAME", "one of the above; several are joined by commas", nargs="?")
    option(parser, "source SOURCE", "the text of curve and time-to-loss", nargs="?")
    option(parser, "--data DIR", "folder that holds the texts", Path)
    option(parser, "--nanogpt DIR", "a checkout of karpathy/nanoGPT", Path)
    option(parser, "--tokenizer KIND", "of curve (its default is train's) and time-to-loss (char)")
    option(parser, "--minutes M", "budgets of curve, joined by commas; the cap of time-to-loss", action="append")
    option(parser, "--until-loss X", "target of time-to-loss in nats (1.88; with --quick 2.6)", positive)
    option(parser, "--tune", "curve: also search nanoGPT's learning rate")
    option(parser, "--rounds N", "turns of each side that count (5; with --quick 3)", whole(1))
    option(parser, "--seeds N", "trainings of curve and time-to-loss (3; with --quick 1)", whole(1))
    parser.add_argument("--device", choices=("cpu", "cuda"), help="of step and time-to-loss, on both sides (cpu)")
    option(parser, "--quick", "small sizes: shows that all runs, figures are rough")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    from qkv.benchmarks import BENCHMARKS
    from qkv.data.config import DataConfig
    from qkv.data.sources.source import open_source

    names = split_words([args.name]) if args.name else list(BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS:
            raise ConfigError(unknown("benchmark", name, BENCHMARKS))
    for given, of in _OF.items():
        if getattr(args, given) and not set(of) & set(names):
            typed = f"the text {args.source}" if given == "source" else f"--{given.replace('_', '-')}"
            raise ConfigError(f"{typed} is of {words.listed(of)}, not of {words.listed(names)}; leave it out")
    if args.source:
        open_source(DataConfig(source=args.source))  # tells of a text that cannot be read before anything is measured
    if args.device == "cuda":
        from qkv.training.precision import check_device

        check_device("cuda", "leave --device out, or run this where there is one")
    asked = _asked(args)
    if len(asked.minutes) > 1 and "time-to-loss" in names:
        raise ConfigError("time-to-loss takes one --minutes, its cap; give one, or name curve alone for several")
    from qkv.benchmarks.processes import machine
    from qkv.benchmarks.session import Session

    began, here = time.monotonic(), machine()
    session = Session(asked, lambda sentence: print(sentence, file=sys.stderr, flush=True))
    if not args.json:
        print(here)
    measured = {}
    for name in names:
        measured[name] = session.run(name)
        if not args.json:
            _print(name, BENCHMARKS[name], measured[name])
    if args.json:
        results = {name: [figure._asdict() for figure in figures] for name, figures in measured.items()}
        told = {"machine": here, "results": results, "left_out": session.left_out}
        return screen.print_json(told | {"seconds": time.monotonic() - began})
    for sentence in session.left_out:
        print(f"left out: {sentence}")


def _asked(args: argparse.Namespace):  # noqa: ANN202
    """What was typed; an option that was not given keeps the library's default."""
    from qkv.benchmarks.session import Asked

    names = ("data", "source", "tokenizer", "tune", "rounds", "seeds", "device", "quick")
    given = {name: getattr(args, name) for name in names} | {
        "nanogpt": None if args.nanogpt is None else args.nanogpt.absolute(),
        "minutes": tuple(positive_minutes(word) for word in split_words(args.minutes)) if args.minutes else None,
        "until": args.until_loss,
    }
    return Asked(**{name: value for name, value in given.items() if value is not None})


def positive_minutes(word: str) -> float:
    """A budget. Raises ConfigError for what is none."""
    try:
        return positive(word)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"--minutes: {error}") from None


def _print(name: str, line: str, figures) -> None:  # noqa: ANN001
    """One table a case."""
    print(f"\n{name}: {line}")
    for case in dict.fromkeys(figure.case for figure in figures):
        rows = [
            (
                figure.side,
                words.figure(figure.median),
                f"{words.figure(figure.low)} to {words.figure(figure.high)} of {figure.rounds}",
                "" if figure.ratio is None else f"{figure.ratio:.2f} x",
                figure.note,
            )
            for figure in figures
            if figure.case == case
        ]
        unit = next(figure.unit for figure in figures if figure.case == case)
        print()
        screen.print_table([case, unit, "range", "ratio", ""], rows)
    sys.stdout.flush()

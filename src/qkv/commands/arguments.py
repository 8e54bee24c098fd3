"""Kinds of option values, and how options that take several values are split.

An option that takes several values may be repeated, and each time may hold several, joined by commas. A wrong value is
one sentence that repeats what was typed and says what was expected.
"""

import argparse
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.errors import ConfigError, UserError, missing_file, unknown
from qkv.folder.run_folder import RunFolder, runs_in

if TYPE_CHECKING:
    from qkv.inspection.answers.answer import Answer
    from qkv.run import Run


def whole(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """A whole number of at least `least`, and at most `most` where that is given."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            expected = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {expected}")
        return value

    return convert


def step_or_span(text: str) -> int | tuple[int, int]:
    """A step, or two of them as `A..B` with A below B."""
    first, dots, last = text.partition("..")
    if first.isdecimal() and (last.isdecimal() if dots else True) and (not dots or int(first) < int(last)):
        return (int(first), int(last)) if dots else int(first)
    raise argparse.ArgumentTypeError(f"{text!r} is not a step, or two steps as 0..500")


def number(expected: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    """A number that `fits`; NaN never does."""

    def convert(text: str) -> float:
        """Raises ArgumentTypeError for any other."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not fits(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
        return value

    return convert


positive = number("a number above 0", lambda value: 0 < value < math.inf)
share = number("a number above 0 and at most 1", lambda value: 0 < value <= 1)
at_least_zero = number("a number of at least 0", lambda value: 0 <= value < math.inf)


@dataclass(frozen=True)
class Words:
    """A value that is one of some words, which a shell can offer."""

    words: tuple[str, ...]
    only: bool
    """Whether another is a mistake here; else the library says which are right."""

    def __call__(self, text: str) -> str:
        if self.only and text not in self.words:
            raise argparse.ArgumentTypeError(unknown("value", text, self.words))
        return text


def one_of(*options: str) -> Words:
    """One of these words; another is answered with the nearest."""
    return Words(options, True)


def usually(*options: str) -> Words:
    """Any word, and these are offered."""
    return Words(options, False)


class Joined(argparse.Action):
    """An option that may be repeated; its values are one, with commas between."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Puts a value behind those before it."""
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, f"{before},{values}" if before else values)


class a_run(str):  # noqa: N801 - named as the other kinds of values
    """The folder of a run, or one of Hugging Face."""

    def check(self) -> None:
        """Raises RunFolderError for another folder, before anything is loaded."""
        if not (Path(self) / "config.json").is_file():
            RunFolder.open(self)


class a_run_or_many(a_run):  # noqa: N801
    """The same, or a folder that holds runs."""

    def check(self) -> None:
        """Raises RunFolderError for another folder."""
        if not runs_in(Path(self)):
            super().check()


class a_source(str):  # noqa: N801
    """Data to read. Names with a colon are left to their reader."""

    def check(self) -> None:
        """Raises SourceError for a path that is not there."""
        if self and ":" not in self and not Path(self).exists():
            raise missing_file(self)


def option(
    to: "argparse._ActionsContainer", typed: str, about: str, kind: Callable[..., object] | None = None, **more: object
) -> None:
    """An option or argument as help texts spell it: `--steps N` takes a value, `--json` is a switch.

    `kind` makes the value of what was typed; `more` goes to argparse.
    """
    name, _, value = typed.partition(" ")
    what = {"metavar": value, "type": kind} if value else {"action": "store_true"}
    to.add_argument(name, help=about, **{**what, **more})


def add_run(parser: argparse.ArgumentParser) -> None:
    """The run that a command is about."""
    option(parser, "run RUN", "a run folder", a_run)


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Which weights of the run are taken."""
    parser.add_argument("--weights", type=one_of("best", "last"), default="best", help="best (default) or last")


def add_research(parser: argparse.ArgumentParser) -> None:
    """Measures of research, and what they are asked of."""
    option(parser, "--research", "composition of heads, gradient noise scale and CKA")
    option(parser, "--source SOURCE", "with --research: measure on this text", a_source)
    option(parser, "--pairs FILE", "with --research: attribution patching over pairs, TEXT<tab>OTHER per line")
    option(parser, "--exact", "with --pairs: also patch exactly, for comparison")
    option(
        parser,
        "--against RUN",
        "with --research: compare with this run, such as another seed (repeatable)",
        a_run,
        action="append",
        default=[],
    )


def research_of(run: "Run", args: argparse.Namespace) -> "list[Answer]":
    """What `add_research` asks of a run; nothing where it asks nothing.

    Raises UserError for options that have no effect.
    """
    if not args.research:
        if args.source or args.pairs or args.exact or args.against:
            raise UserError("--source, --pairs, --exact and --against tell --research what to measure; add --research")
        return []
    from qkv import api

    if args.exact and not args.pairs:
        raise UserError("--exact compares with what --pairs estimates; add --pairs FILE")
    against = [api.load(path, weights=run.weights) for path in args.against]
    return run.research(args.source, pairs=args.pairs or (), exact=args.exact, against=against)


def add_json(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """What every command that prints can print instead."""
    option(parser, "--json", "print one JSON object on stdout")


def settings(assignments: Iterable[str]) -> dict[str, str]:
    """`["a=1", "b.c=2,d=3"]` as `{"a": "1", "b.c": "2", "d": "3"}`; a comma that starts no `name=` stays in the value.
    Only in a mark that ends documents does white space at its ends count.

    Raises ConfigError for one without `=`.
    """
    values: dict[str, str] = {}
    for assignment in assignments:
        for part in re.split(r",(?=[A-Za-z_][\w.]*=)", assignment):
            path, equals, value = part.partition("=")
            if not equals or not path:
                raise ConfigError(f"--set takes path=value, e.g. --set d_model=128; given: {part!r}")
            values[path.strip()] = value if path.strip().endswith("document_end") else value.strip()
    return values


def split_changes(given: Iterable[str]) -> list[str]:
    """Every single `SEL=op(args)@from..to` of `given`.

    A comma inside brackets or parentheses splits nothing; one before the `=` joins selectors:
    `"W_E,W_pos=freeze,L0.W_Q=random(0.02,train=true)"` is two changes.
    """
    from qkv.models.addresses import split_outside  # here, because the room it lies in loads torch

    changes: list[str] = []
    for text in given:
        selector: list[str] = []
        for part in split_outside(text, ","):
            selector.append(part)
            if len(split_outside(part, "=")) > 1:
                changes.append(",".join(selector))
                selector = []
        if selector:
            changes.append(",".join(selector))
    return changes


def split_words(given: Iterable[str]) -> list[str]:
    """The comma-separated words of a repeated option, e.g. `["a,b", "c"]` as `["a", "b", "c"]`."""
    return [word for text in given for word in text.split(",") if word]

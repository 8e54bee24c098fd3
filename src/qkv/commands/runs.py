"""List the runs in a folder: in which settings they differ, their loss beside that of the best n-gram, and their state.

Example:
  qkv runs
  qkv runs experiments --sort loss --where d_model=64
  qkv runs --json
"""

import argparse
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.commands.arguments import add_json, one_of, option
from qkv.commands.printing import screen
from qkv.words import figure, many

if TYPE_CHECKING:
    from qkv.telemetry.runs import Listed

_COLUMNS = ("run", "task", "loss", "n-gram", "steps", "written", "state", "what differs")
_TO_THE_LEFT = ("run", "task", "written", "state", "what differs")
_SORTS: Mapping[str, Callable[["Listed"], tuple[float, str]]] = {
    "loss": lambda run: (math.inf if run.loss is None else run.loss, ""),
    "name": lambda run: (0.0, run.path.name),
    "steps": lambda run: (-run.steps, ""),
    "when": lambda run: (0.0, ""),
}
"""Name -> key to sort by; runs come the newest first."""


def configure(parser: argparse.ArgumentParser) -> None:
    option(parser, "folder FOLDER", "what holds the runs (default: runs)", nargs="?", default="runs")
    option(parser, "--where SETTING=VALUE", "only runs with this setting; repeatable", action="append", default=[])
    option(parser, "--sort BY", f"{', '.join(_SORTS)} (default: when)", one_of(*_SORTS), default="when")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    from qkv.telemetry.runs import TARGETS, differing, incomparable, listed, where

    runs = sorted(where(listed(Path(args.folder)), args.where), key=_SORTS[args.sort])
    paths = differing(runs)
    if args.json:
        return screen.print_json({"folder": args.folder, "differing": paths, "runs": [run.to_json() for run in runs]})
    if not runs:
        print(f"{args.folder} holds no run{' like that' if args.where else '; qkv train my.txt makes one'}.")
        return
    rows = [_COLUMNS, *(_row(run, paths) for run in runs)]
    for line in _lines(rows, shutil.get_terminal_size((160, 24)).columns):
        print(screen.shown(line))
    units = " or ".join(dict.fromkeys(TARGETS.get(run.task, "target") for run in runs if run.task)) or "token"
    alone = " (of regress, of attention alone)" * any(run.task == "regress" for run in runs)
    print(f"\n{many(len(runs), 'run')}; losses are the lowest on validation data, in nats per {units}{alone}.")
    if caution := incomparable(runs):
        print(caution)


def _row(run: "Listed", paths: Sequence[str]) -> tuple[str, ...]:
    differs = (f"{path.rpartition('.')[2]}={_short(run.settings[path])}" for path in paths if path in run.settings)
    loss, ngram = ("" if value is None else figure(value) for value in (run.loss, run.ngram))
    steps = f"{run.steps:,}"
    return run.path.name, run.task, loss, ngram, steps, run.when, run.state, ", ".join(differs)


def _short(value: str) -> str:
    """A file by its name alone."""
    return value.rpartition("/")[2] if value.startswith(("/", "~", ".")) else value


def _lines(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Rows as lines of at most so many columns; what differs comes last and is cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.ljust(wide) if name in _TO_THE_LEFT else cell.rjust(wide)
            for name, cell, wide in zip(_COLUMNS, row, widths, strict=True)
        )
        line = "  ".join(cells).rstrip()
        lines.append(line if len(line) <= width else line[: width - 1] + "…")
    return lines

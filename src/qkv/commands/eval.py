"""Validation loss and other figures of a run, on all its validation data or on other data, also with changed matrices.

A change applies to the loaded weights only; the run folder stays as it is.

Example:
  qkv eval runs/my-1
  qkv eval runs/my-1 other.txt --by-position
  qkv eval runs/reviews-1 more.tsv --label-column stars --json
  qkv eval runs/my-1 --change "L0.H1.W_V=zero"
"""

import argparse
from typing import TYPE_CHECKING

from qkv.commands.arguments import Joined, a_source, add_json, add_run, add_weights, option, split_changes
from qkv.commands.printing import screen
from qkv.errors import UserError
from qkv.words import figure

if TYPE_CHECKING:
    from qkv.tasks.figures import AtPosition
    from qkv.tasks.task import Task


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    option(parser, "source SOURCE", "another text to score", a_source, nargs="?")
    option(parser, "--change SEL=OP", "what to do to matrices first", action="append", default=[])
    option(parser, "--text-column NAME", "the column of SOURCE that holds the text, or several", action=Joined)
    option(parser, "--label-column NAME", "the column of SOURCE that holds the label")
    add_weights(parser)
    option(parser, "--by-position", "the loss by place in the window as well (texts)")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    from qkv import api

    changes = split_changes(args.change)
    loaded = api.load(args.run, weights=args.weights)
    columns = {"text_column": args.text_column, "label_column": args.label_column}
    result = loaded.evaluate(args.source, changes=changes, **columns)
    if args.by_position and not result.by_position:
        name = loaded.task.name
        raise UserError(f"--by-position is for the tokens of a text; the targets of the task {name} have no order")
    made = loaded.changed(changes)[1] if changes else []
    if args.json:
        about = {"run": str(loaded.path), "task": loaded.task.name, "weights": args.weights, "changes": changes}
        about |= {"changes_made": made} if made else {}
        return screen.print_json(about | result.as_json())
    for sentence in made:
        print(sentence)
    rows = [("loss, nats per target", figure(result.loss), _interval(result.loss_interval))]
    there = [found for found in result.figures.values() if found.value is not None]
    rows += [(found.label, figure(found.value), _interval(found.interval)) for found in there]
    screen.print_table(["validation", "", "95% interval"], rows)
    for found in result.figures.values():
        if found.missing:
            print(f"{found.label}: none; {found.missing}")
    if args.by_position:
        _print_places(result.by_position, loaded.task)
    items = loaded.task.items or loaded.task.examples
    over = f"{result.n_targets:,} targets in {result.n_windows:,} {items}"
    print(f"\nThese are means over {over}, with the {args.weights} weights.")


def _print_places(places: "tuple[AtPosition, ...]", task: "Task") -> None:
    rows = [
        (str(place.first) if place.first == place.last else f"{place.first} to {place.last}",
         figure(place.loss), _interval(place.interval), f"{place.n_targets:,}")
        for place in places
    ]  # fmt: skip
    print()
    place = "positions read" if task.stack == "decoder" else "place in the window"
    screen.print_table([place, "nats per target", "95% interval", "targets"], rows)


def _interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f"{figure(bounds[0])} to {figure(bounds[1])}"

"""One step of gradient descent on one text: how far each matrix would move, and how much the loss would change.

It also shows the step that the run's own optimizer would make, with the state of its newest checkpoint and its peak
rate: another direction, whose cosine with the negative gradient is given. Nothing is written.

Example:
  qkv step runs/my-1 "the cat sat on the mat"
  qkv step runs/my-1 "the cat sat on the mat" --on L0.W_Q
  qkv step runs/my-1 "the cat sat on the mat" --on 'L*.H*.W_[QK]' --json
"""

import argparse
from typing import TYPE_CHECKING

from qkv.commands.arguments import a_run, add_json, option, positive
from qkv.commands.printing import screen
from qkv.jsontypes import JsonObject
from qkv.words import figure, many, number, signed

if TYPE_CHECKING:
    from qkv.inspection.gradient_step import Move, OneStep


def configure(parser: argparse.ArgumentParser) -> None:
    option(parser, "run RUN", "a run folder; its last weights are used", a_run)
    option(parser, "text TEXT", "the text whose loss is lowered")
    option(parser, "--on SEL", "which matrices, heads or rows may move (all)", default="**")
    option(
        parser,
        "--rate ETA",
        "learning rate of gradient descent (default: lowers the loss by 0.001 nats to first order)",
        positive,
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    from qkv import api
    from qkv.commands.printing.gradient_table import path_json, print_path

    loaded = api.load(args.run, weights="last")
    found = loaded.step(args.text, on=args.on, rate=args.rate)
    assert loaded.tokenizer is not None, "a run without one has no step on a text"
    if args.json:
        shown = {"run": str(loaded.path)} | as_json(found)
        shown["optimizer"] = loaded.config.training.optimizer.kind if found.own else None
        return screen.print_json(shown | {"gradient_path": path_json(found.path, loaded.tokenizer)})
    _print(found, loaded.config.training.optimizer.kind)
    print()
    print_path(found.path, loaded.tokenizer)


def as_json(step: "OneStep") -> JsonObject:
    """Every number of a step."""

    def move(one: "Move | None") -> dict[str, float | None] | None:
        return None if one is None else dict(vars(one))

    parts = [vars(part) | {"descent": move(part.descent), "own": move(part.own)} for part in step.parts]
    whole = {"loss": step.loss, "targets": step.n_targets, "rate": step.rate}
    return {**whole, "descent": move(step.descent), "own": move(step.own), "parts": parts}


def _print(step: "OneStep", kind: str) -> None:
    print(f"The loss of the text is {number(step.loss, 3)} nats per target ({many(step.n_targets, 'target')}).\n")
    print(
        f"Gradient descent with learning rate {figure(step.rate)} changes it by {signed(step.descent.actual)} nats. The"
        f" first-order estimate, -rate |g|^2, is {signed(step.descent.first_order)}."
    )
    own = step.own
    if own is None:
        print("The step of the run's own optimizer is unknown: no intact checkpoint holds its state.")
    else:
        cosine = "undefined" if own.cosine is None else signed(own.cosine)
        print(
            f"One step of the run's own optimizer ({kind}), at the peak rate, changes it by {signed(own.actual)} nats."
            f" The first-order estimate is {signed(own.first_order)}; the cosine with -g is {cosine}."
        )
    print("Each row below moves one matrix alone.\n")
    square = sum(part.grad_norm**2 for part in step.parts)
    rows = []
    for part in step.parts:
        share = part.grad_norm**2 / square if square else float("nan")
        row = [part.address, figure(part.grad_norm), figure(share)]
        row += [f"{part.descent.first_order:+.2e}", f"{part.descent.actual:+.2e}"]
        if own is not None:
            row += _own_cells(part.own, part.norm)
        rows.append(row)
    columns = ["matrix", "|g|", "share of |g|^2", "first order", "actual"]
    columns += ["", f"{kind}: |dW|/|W|", "cosine with -g", "first order", "actual"] if own is not None else []
    screen.print_table(columns, rows)


def _own_cells(move: "Move | None", norm: float) -> list[str]:
    if move is None:
        return ["", "frozen", "", "", ""]
    ratio = move.size / norm if norm else float("nan")
    return ["", figure(ratio), figure(move.cosine), f"{move.first_order:+.2e}", f"{move.actual:+.2e}"]

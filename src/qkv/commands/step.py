"""One step of gradient descent on one text: what would move in each matrix, and what it would buy.

Beside plain gradient descent stands the step that the run's own optimizer would make, with the moments of its newest
checkpoint and its peak rate: another direction, whose cosine with minus the gradient is shown. Nothing is written.

Example:
  qkv step runs/my-1 "the cat sat on the mat"
  qkv step runs/my-1 "the cat sat on the mat" --on L0.W_Q
  qkv step runs/my-1 "the cat sat on the mat" --on 'L*.H*.W_[QK]' --json
"""

import argparse
from typing import TYPE_CHECKING, Any

from qkv.commands.arguments import positive
from qkv.words import figure, many

if TYPE_CHECKING:
    from qkv.inspection.gradient_step import Move, OneStep

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("run", metavar="RUN", help="a run folder; its last weights are used")
    parser.add_argument("text", metavar="TEXT", help="the text whose loss is lowered")
    parser.add_argument("--on", metavar="SEL", default="**", help="which matrices, heads or rows may move (all)")
    parser.add_argument(
        "--rate", type=positive, metavar="ETA", help="of gradient descent; default: what buys 0.001 nats to first order"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Do it, print, and return the exit status."""
    from qkv import api
    from qkv.commands.printing import screen
    from qkv.commands.printing.gradient_table import path_json, print_path

    loaded = api.load(args.run, weights="last")
    found = loaded.step(args.text, on=args.on, rate=args.rate)
    assert loaded.tokenizer is not None, "a run without one has no step on a text"
    if args.json:
        shown = as_json(found) | {"optimizer": loaded.config.training.optimizer.kind if found.own else None}
        screen.print_json({"run": str(loaded.path), **shown, "gradient_path": path_json(found.path, loaded.tokenizer)})
        return 0
    _print(found, loaded.config.training.optimizer.kind)
    print()
    print_path(found.path, loaded.tokenizer)
    return 0


def as_json(step: "OneStep") -> dict[str, Any]:
    """Every number of a step."""

    def move(one: "Move | None") -> dict[str, float | None] | None:
        return None if one is None else dict(vars(one))

    parts = [vars(part) | {"descent": move(part.descent), "own": move(part.own)} for part in step.parts]
    whole = {"loss": step.loss, "targets": step.n_targets, "rate": step.rate}
    return {**whole, "descent": move(step.descent), "own": move(step.own), "parts": parts}


def _print(step: "OneStep", kind: str) -> None:
    from qkv.commands.printing import screen

    print(f"Loss of the text: {step.loss:.4f} nats per target, {many(step.n_targets, 'target')}.\n")
    print(
        f"Gradient descent at rate {figure(step.rate)} buys -rate |g|^2 = {step.descent.first_order:+.3g} nats"
        f" to first order; in fact the loss changes by {step.descent.actual:+.3g}."
    )
    own = step.own
    if own is None:
        print("The step of the run's own optimizer is not known: no whole checkpoint holds its state.")
    else:
        cosine = "undefined" if own.cosine is None else f"{own.cosine:+.3f}"
        print(
            f"One step of its own optimizer ({kind}) at the peak rate: {own.first_order:+.3g} nats to first order,"
            f" in fact {own.actual:+.3g}; its cosine with -g is {cosine}."
        )
    print("Each line moves one matrix alone.\n")
    square = sum(part.grad_norm**2 for part in step.parts)
    rows = []
    for part in step.parts:
        share = part.grad_norm**2 / square if square else float("nan")
        row = [part.address, figure(part.grad_norm), figure(share)]
        row += [f"{part.descent.first_order:+.2e}", f"{part.descent.actual:+.2e}"]
        if own is not None:
            row += _own_cells(part.own, part.norm)
        rows.append(row)
    columns = ["matrix", "|g|", "share of |g|^2", "first order", "in fact"]
    columns += ["", f"{kind}: |dW|/|W|", "cosine with -g", "first order", "in fact"] if own is not None else []
    screen.print_table(columns, rows)


def _own_cells(move: "Move | None", norm: float) -> list[str]:

    if move is None:
        return ["", "frozen", "", "", ""]
    ratio = move.size / norm if norm else float("nan")
    return ["", figure(ratio), figure(move.cosine), f"{move.first_order:+.2e}", f"{move.actual:+.2e}"]

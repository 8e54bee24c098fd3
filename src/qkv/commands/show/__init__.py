"""What training did, in the terminal: the answers read from this run, the most telling first, then its matrices.

Or one matrix, token or head. --at shows the weights of a step that was kept; of any other, those of the nearest, and
says so. Of the whole run --at shows the tables of its matrices alone: the answers are of all its steps.
ADDR is a matrix (L0.W_Q), one head of it (L0.H3.W_V), a token's row (W_E[the]), a circuit (L0.H3.QK), or with --text
an activation (L0.x, L0.H3.q, L0.H3.pattern). --text alone shows where every head looks on that text; of a translation
model which source tokens each target token looks at ("SOURCE => TARGET", or a source, which is then translated).
--patch OTHER takes one activation after another from a second text of as many tokens, and shows where the answer
follows: which layer, position and head carries what tells the two apart.

Example:
  qkv show runs/my-1
  qkv show runs/my-1 L0.W_Q --at 100
  qkv show runs/my-1 L0.H1.QK --at 500
  qkv show runs/my-1 'W_E[the]'
  qkv show runs/my-1 --text "the cat sat on the mat"
  qkv show runs/my-1 L0.H1.pattern --text "the cat sat on the mat" --at 64
  qkv show runs/my-1 L1.W_Q --text "the cat sat on the mat" --at 0..64
  qkv show runs/my-1 --text "The king said to" --patch "The dog said to"
  qkv show runs/de-en --text "Ein Mann schläft. => A man sleeps."
  qkv show runs/de-en dec.L1.cross.H0.pattern --text "Ein Mann schläft."
"""

import argparse

from qkv.commands.arguments import add_json, add_run, one_of, step_or_span
from qkv.commands.printing import damaged, screen
from qkv.errors import UserError

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run(parser)
    parser.add_argument("address", nargs="?", metavar="ADDR", help="one matrix, head, row, circuit or activation")
    parser.add_argument(
        "--at", type=step_or_span, metavar="STEP", help="as it was at this step; with --text also A..B: what moved"
    )
    parser.add_argument(
        "--text", metavar="TEXT", help="run the model on this text (or image file) and show attention or activations"
    )
    parser.add_argument(
        "--patch", metavar="OTHER", help="with --text: take activations from this text of as many tokens, one at a time"
    )
    parser.add_argument(
        "--answers", nargs=2, metavar=("A", "B"), help="with --patch: the two answers (the likeliest to each text)"
    )
    parser.add_argument("--measure", metavar="NAME", help="of the layer x matrix table (drift; norm if imported)")
    parser.add_argument("--weights", type=one_of("best", "last"), default="last", help="best or last (default)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Do it, print, and return the exit status."""
    asked: int | tuple[int, int] | None = args.at
    span = asked if isinstance(asked, tuple) else None
    at = asked if isinstance(asked, int) else None
    whens = span or (() if at is None else (at,))
    if args.text is None and span:
        raise UserError("two steps (--at A..B) ask what moved on a text; add --text TEXT")
    if args.patch is not None and (args.text is None or span):
        raise UserError("--patch takes activations from a second text into --text TEXT, at one step; give both texts")
    if args.answers and args.patch is None:
        raise UserError("--answers names the two answers that --patch compares; add --patch OTHER")
    from qkv import api
    from qkv.commands.printing.nearest import nearest, said
    from qkv.commands.show import matrix, overview, pair, patching, text
    from qkv.commands.show import moved as show_moved

    loaded = api.load(args.run, weights=args.weights)
    harm = damaged.told(loaded, quietly=args.json)
    if args.measure and (args.text is not None or args.address is not None):
        raise UserError("--measure chooses what the table of all matrices shows; leave it out here")
    steps = nearest(loaded, *whens) if args.text is not None else ()
    if args.patch is not None and args.text is not None:
        shown = patching.look(loaded, args.text, args.patch, args.answers, args.address, *steps)
    elif args.text is not None and loaded.task.stack == "encoder-decoder":
        if span:
            raise UserError(f"{args.run} reads pairs; what moved (--at A..B) is shown of runs that read one text")
        shown = pair.look(loaded, args.text, args.address, *steps)
    elif args.text is not None and span:
        shown = show_moved.look(loaded, args.text, args.address, *steps)
    elif args.text is not None:
        shown = text.look(loaded, args.text, args.address, *steps)
    elif args.address is not None:
        shown = matrix.look(loaded, args.address, at)
    else:
        shown = overview.look(loaded, args.measure or ("norm" if loaded.config.imported else "drift"), at)
    if args.text is not None:
        shown = said(loaded, shown, whens, steps)
    if args.json:
        screen.print_json(shown.as_json() | {"damaged": harm})
    else:
        shown.print()
    return 0

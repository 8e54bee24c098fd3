"""What training did, in the terminal: eight questions, answered from this run on one screen.

With --all every answer is printed in full, then a table of all matrices; with --measure or --at the tables alone.
With ADDR you see one matrix, token or head. --at shows the weights of a step; where they were not kept, it shows the
nearest ones and says so.
ADDR is a matrix (L0.W_Q), one head of it (L0.H3.W_V), a token's row (W_E[the]), a circuit (L0.H3.QK), or with --text
an activation (L0.x, L0.H3.q, L0.H3.pattern). --text alone shows what every head attends to on that text.
For a translation model it shows which source tokens each target token attends to; give "SOURCE => TARGET", or a source
to be translated. --patch OTHER copies one activation at a time from a second text of equally many tokens and shows how
the answer changes: which layer, position and head carries the difference. --research adds measures of interpretability
research: composition of heads, gradient noise scale, CKA, attribution patching over many pairs of texts.

Example:
  qkv show runs/my-1
  qkv show runs/my-1 --all
  qkv show runs/my-1 L0.W_Q --at 100
  qkv show runs/my-1 L0.H1.QK --at 500
  qkv show runs/my-1 'W_E[the]'
  qkv show runs/my-1 --text "the cat sat on the mat"
  qkv show runs/my-1 L0.H1.pattern --text "the cat sat on the mat" --at 64
  qkv show runs/my-1 L1.W_Q --text "the cat sat on the mat" --at 0..64
  qkv show runs/my-1 --text "The king said to" --patch "The dog said to"
  qkv show runs/my-1 --research --pairs pairs.tsv --exact
  qkv show runs/de-en --text "Ein Mann schläft. => A man sleeps."
  qkv show runs/de-en dec.L1.cross.H0.pattern --text "Ein Mann schläft."
"""

import argparse

from qkv.commands.arguments import add_json, add_research, add_run, one_of, option, research_of, step_or_span
from qkv.commands.printing import damaged, screen
from qkv.commands.show import first_screen
from qkv.errors import UserError
from qkv.folder.kept_answers import FEWEST


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    option(parser, "address ADDR", "one matrix, head, row, circuit or activation", nargs="?")
    option(parser, "--at STEP", "the state at this step; with --text also A..B: what moved between them", step_or_span)
    option(parser, "--text TEXT", "run the model on this text (or image file) and show attention or activations")
    option(parser, "--patch OTHER", "with --text: copy activations from this text, one at a time (as many tokens)")
    parser.add_argument(
        "--answers",
        nargs=2,
        metavar=("A", "B"),
        help="with --patch: the two answers to compare (default: the most probable one of each text)",
    )
    option(parser, "--estimate", "with --patch: estimate every effect by its gradient")
    add_research(parser)
    option(parser, "--all", "every answer in full, then a table of all matrices")
    option(parser, "--measure NAME", "a table of all matrices by this measure, such as drift")
    parser.add_argument("--weights", type=one_of("best", "last"), default="last", help="best or last (default)")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
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
    if args.estimate and args.patch is None:
        raise UserError("--estimate is about the effects that --patch measures; add --patch OTHER")
    is_whole = args.at is None and args.measure is None and args.text is None and args.address is None
    of_research = args.research or args.source or args.pairs or args.exact or args.against
    is_first = is_whole and not (args.all or args.json or of_research)
    if is_first and first_screen.print_kept(args.run):
        return
    from qkv import api
    from qkv.commands.printing.nearest import nearest, said
    from qkv.commands.show import matrix, overview, pair, patching, research, text
    from qkv.commands.show import moved as show_moved

    loaded = api.load(args.run, weights=args.weights)
    harm = damaged.told(loaded, quietly=args.json)
    if args.measure and (args.text is not None or args.address is not None):
        raise UserError("--measure chooses what the table of all matrices shows; leave it out here")
    if args.research and not is_whole:
        raise UserError("--research measures a whole run; leave out ADDR, --text, --at and --measure")
    found = research_of(loaded, args)
    steps = nearest(loaded, *whens) if args.text is not None else ()
    if found:
        shown = research.ResearchShown(loaded.path, found)
    elif args.patch is not None and args.text is not None:
        shown = patching.look(loaded, args.text, args.patch, args.answers, args.address, *steps, estimate=args.estimate)
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
        measure = args.measure or ("norm" if loaded.config.imported and not loaded.config.history else "drift")
        shown = overview.look(loaded, measure, at, with_answers=args.all or args.json or not args.measure)
    if args.text is not None:
        shown = said(loaded, shown, whens, steps)
    if is_first and isinstance(shown, overview.RunShown) and len(shown.answers) >= FEWEST:
        first_screen.print_screen(args.run, loaded.folder, shown.in_short())
    elif args.json:
        screen.print_json(shown.as_json() | {"damaged": harm})
    else:
        shown.print()

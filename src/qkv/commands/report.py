"""Write the report of a run: one HTML file with everything in it, that opens offline in any browser.

Example:
  qkv report runs/my-1
  qkv report runs/my-1 --out story.html --text "the cat sat on the mat"
  qkv report runs/my-1 --research --against runs/my-2
"""

import argparse

from qkv.commands.arguments import add_json, add_research, add_run, research_of
from qkv.commands.printing import damaged, screen
from qkv.words import megabytes


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run(parser)
    parser.add_argument("--out", metavar="FILE", help="where to write it (report.html in the run folder)")
    parser.add_argument("--text", action="append", default=[], metavar="TEXT", help="show attention on this text")
    add_research(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Do it, print, and return the exit status."""
    from qkv import api

    run = api.load(args.run)
    path = run.report(out=args.out, texts=tuple(args.text), research=research_of(run, args))
    harm = damaged.told(run, quietly=args.json, shown="The page")
    if args.json:
        screen.print_json({"run": args.run, "report": str(path), "bytes": path.stat().st_size, "damaged": harm})
    else:
        print(f"{path}  ({megabytes(path.stat().st_size)}; open it in a browser)")
    return 0

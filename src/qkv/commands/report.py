"""Write the report of a run: one HTML file with everything in it, that opens offline in any browser.

For a folder of many runs it writes their workbench: the list, the curves, and drift and norm of every matrix.

Example:
  qkv report runs/my-1
  qkv report runs --out runs.html
  qkv report runs/my-1 --out story.html --text "the cat sat on the mat"
  qkv report runs/my-1 --research --against runs/my-2
"""

import argparse
from pathlib import Path

from qkv.commands.arguments import a_run_or_many, add_json, add_research, option, research_of
from qkv.commands.printing import damaged, screen
from qkv.errors import UserError
from qkv.folder.run_folder import runs_in
from qkv.words import megabytes


def configure(parser: argparse.ArgumentParser) -> None:
    option(parser, "run RUN", "a run folder, or a folder of many runs", a_run_or_many)
    option(parser, "--out FILE", "where to write it (report.html in that folder)")
    option(parser, "--text TEXT", "show attention on this text", action="append", default=[])
    add_research(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    if not (Path(args.run) / "config.toml").exists() and runs_in(Path(args.run)):
        path, harm = _many(args), []
    else:
        from qkv import api

        run = api.load(args.run)
        path = run.report(out=args.out, texts=tuple(args.text), research=research_of(run, args))
        harm = damaged.told(run, quietly=args.json, shown="The page")
    size = path.stat().st_size
    if args.json:
        screen.print_json({"run": args.run, "report": str(path), "bytes": size, "damaged": harm})
    else:
        print(f"{path}  ({megabytes(size)}; open it in a browser)")


def _many(args: argparse.Namespace) -> Path:
    """The workbench of a folder."""
    from qkv.views.workbench.board import write_board

    for name in ("text", "research", "source", "pairs", "exact", "against"):
        if getattr(args, name):
            raise UserError(f"{args.run} holds many runs, and --{name} is of one; give a run, or leave it out")
    return write_board(Path(args.run), Path(args.out or Path(args.run) / "report.html"))

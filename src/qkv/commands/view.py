"""Show a run, a study, or all runs in a folder as a live page in the browser; it follows what is training.

The page of a folder is the workbench: it lists, filters, sorts and groups the runs, overlays their curves, and compares
the same matrix, head, row or sentence in all of them, with the spread between seeds. Your notes and stars go into
notes.json in that folder; qkv report FOLDER writes the workbench as one file to share.

The page only reads the runs, so it disturbs no training and changes none. It is reached from this machine alone, unless
--host says otherwise: then the address that is printed holds a token, and nobody gets in without it.

Example:
  qkv view runs/my-1
  qkv view runs
  qkv view runs/my-1 --port 9000
  qkv view runs/my-1 --beside runs/my-2
  qkv view runs/study-which-matrix-my-0123abcd
"""

import argparse

from qkv.commands.arguments import option, whole


def configure(parser: argparse.ArgumentParser) -> None:
    option(parser, "run RUN", "a run folder, finished or training, a study's, or one of many runs")
    option(parser, "--beside RUN", "another run, to compare with matrix by matrix")
    option(parser, "--port N", "port to serve at; 0 is any that is free", whole(0, 65535))
    option(parser, "--host H", "address to serve at (127.0.0.1)", default="127.0.0.1")


def run(args: argparse.Namespace) -> None:
    from qkv.views.live.serving import serve

    serve(
        args.run, host=args.host, port=args.port, beside=args.beside, say=lambda sentence: print(sentence, flush=True)
    )

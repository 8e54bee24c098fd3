"""Show a run, or a study, as a live page in the browser; while it trains, the page follows it.

The page reads the run folder only, so it disturbs no training and changes nothing. It is reached from this machine
alone, unless --host says otherwise: then the address that is printed holds a token, and nobody gets in without it.

Example:
  qkv view runs/my-1
  qkv view runs/my-1 --port 9000
  qkv view runs/my-1 --beside runs/my-2
  qkv view runs/study-which-matrix-my-0123abcd
"""

import argparse

from qkv.commands.arguments import whole


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("run", metavar="RUN", help="a run folder, finished or training, or the folder of a study")
    parser.add_argument("--beside", metavar="RUN", help="another run, to compare with matrix by matrix")
    parser.add_argument("--port", type=whole(0, 65535), metavar="N", help="port to serve at; 0 is any that is free")
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="address to serve at (127.0.0.1)")


def run(args: argparse.Namespace) -> int:
    """Do it, print, and return the exit status."""
    from qkv.views.live.serving import serve

    serve(
        args.run, host=args.host, port=args.port, beside=args.beside, say=lambda sentence: print(sentence, flush=True)
    )
    return 0

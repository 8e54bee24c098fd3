"""Check that a run folder is whole and says the truth about its training. Nothing in it is changed.

files: the sha256 of every final file. checkpoints: their hashes, order, that none is missing, that weights are finite,
and that the run's weights are those of its checkpoints. telemetry: no gaps, the losses and tokens of every checkpoint,
and random numbers computed again from the snapshots. replay: updates from step 0 and between the newest two checkpoints
are made again through the training loop, and weights, optimizer state, losses and measures compared bit for bit; on
another machine or torch, where exactness is not promised, that is said and what can be checked is.

A run is whole, unfinished (a resume ends with what an undisturbed training has) or damaged.
Exit status 0: nothing is wrong. 1: it is damaged; file, step and matrix are named.

Example:
  qkv verify runs/my-1
  qkv verify runs/my-1 --all --json
  qkv verify runs/my-1 --updates 0
"""

import argparse

from qkv.commands.arguments import add_json, add_run, option, whole
from qkv.commands.printing import screen
from qkv.errors import typed


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    replayed = parser.add_mutually_exclusive_group()
    option(replayed, "--updates N", "replay at most N updates from the start (256); 0: no replay", whole(0))
    option(replayed, "--all", "make every update of the run again")
    option(parser, "--seed N", "which numbers are read again (0)", whole(0), default=0)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from qkv import api

    given = {"updates": None} if args.all else {} if args.updates is None else {"updates": args.updates}
    verdict = api.verify(args.run, seed=args.seed, **given)
    if args.json:
        screen.print_json(verdict.as_json())
        return int(verdict.state == "damaged")
    for check in verdict.checks:
        found = f"{len(check.faults)} wrong" if check.faults else "whole" if check.compared else "not checked"
        print(f"{check.name:<12} {found:<12} {check.compared:,} {check.what}")
        for fault in check.faults:
            print(f"  wrong: {screen.shown(str(fault))}")
        for sentence in check.unchecked:
            print(f"  not checked: {screen.shown(sentence)}")
    how = f"; qkv train --out {typed(verdict.run)} --resume goes on" if verdict.state == "unfinished" else ""
    print(f"{verdict.run} is {verdict.state}{how}")
    return int(verdict.state == "damaged")

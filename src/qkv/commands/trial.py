"""Keep, discard or undecided: is the training in NEW.toml better than that in BEST.toml, by a test with an error rate?

Both files have the format of a run's config.toml and equal budgets. Pairs of trainings share a seed; more are made
until NEW is shown to be better (keep), or shown not to be better by the smallest useful gain (discard). Over all tries
of a ledger, the chance that anything is kept which is no better is at most 5%. A trial that was stopped continues with
the same command, and an undecided one with more --max-seeds.

Example:
  qkv trial new.toml --against best.toml
  qkv trial new.toml --against best.toml --max-seeds 80 --json
  qkv trial new.toml --against runs/my-1/config.toml --gain 0.005
"""

import argparse
import sys

from qkv.commands.arguments import add_json, option, positive, whole
from qkv.commands.printing import screen


def configure(parser: argparse.ArgumentParser) -> None:
    option(parser, "new NEW.toml", "the training that may be better")
    option(parser, "--against BEST.toml", "the best one so far", required=True)
    option(parser, "--max-seeds N", "pairs of trainings at most (40)", whole(), default=40)
    option(parser, "--gain X", "smallest useful gain, in the unit of the loss (0.01)", positive, default=0.01)
    option(parser, "--ledger FILE", "where tries are kept, with their error rate (BEST.trials.jsonl beside BEST)")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    from qkv import api

    found = api.trial(
        args.new,
        args.against,
        max_seeds=args.max_seeds,
        gain=args.gain,
        ledger=args.ledger,
        say=lambda sentence: print(sentence, file=sys.stderr, flush=True),
    )
    if args.json:
        screen.print_json(found)
    else:
        print(f"{found['sentence']}\n{found['about']}")

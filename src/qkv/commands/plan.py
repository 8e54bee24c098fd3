"""Estimate what a training would take and train nothing: the memory of each process by its parts, and the time.

With --receipt, show instead what of SOURCE would be trained on, validated on, set aside and left out, and why.

It takes the options of qkv train that describe a training. Memory is counted by running the training code on tensors
without content, so a model of any size can be planned on any machine. Time is measured here by a few updates. For
another machine, give the speed that each of its processes reaches (--tflops) and what it can send to the others
(--gigabytes). The count is that of a CPU; on another device, attention may need less. Report and baselines are not
included.

Example:
  qkv plan my.txt --minutes 10
  qkv plan reviews.tsv --task classify --receipt
  qkv plan my.txt --set d_model=512,n_layers=12,batch_size=64 --steps 20000 --nproc 2
  qkv plan my.txt --parameters 100000000 --nproc 4 --shard --watch off --steps 20000
  qkv plan my.txt --set d_model=2048,n_layers=16,n_ctx=2048,batch_size=256 --steps 38000 --nproc 64 --tflops 300
"""

import argparse
from typing import TYPE_CHECKING

from qkv.commands import train
from qkv.commands.arguments import add_json, option, positive
from qkv.commands.printing import screen
from qkv.words import clock, many, number

if TYPE_CHECKING:
    from qkv.recipe.forecast import Forecast


def configure(parser: argparse.ArgumentParser) -> None:
    place = train.describe(parser)
    option(place, "--receipt", "what became of each file, row, column and class")
    option(place, "--tflops X", "10^12 operations a second that each process reaches (measured)", positive)
    option(place, "--gigabytes X", "GB a second that each process can send to the others", positive)
    add_json(place)


def run(args: argparse.Namespace) -> None:
    given = train.options(args)
    from qkv import api

    if args.receipt:
        receipt = api.receipt(args.source or "", **given)
        return screen.print_json(receipt.as_json()) if args.json else print(receipt.told())
    found = api.plan(args.source or "", **given)
    if args.json:
        return screen.print_json(found.as_json())
    print(f"The plan is for a {found.model}.\n")
    rows = [*found.memory.items(), ("together", found.peak)]
    screen.print_table(["memory of each process", "MB"], [(name, f"{n / 1e6:,.0f}") for name, n in rows])
    print()
    for sentence in _sentences(found):
        print(sentence)


def _sentences(found: "Forecast") -> list[str]:
    """What the table does not say."""
    sums = f", of which sums between processes take {found.sum_seconds:.2g} s" if found.sum_seconds else ""
    return [
        f"One update takes about {found.update_seconds:.2g} s ({found.rate}){sums}.",
        f"It takes {number(found.flop / 1e9)} GFLOP of matrix products.",
        f"{many(found.updates, 'update')} over {many(found.tokens, 'position')} take about {clock(found.seconds)},"
        " without validation and instruments.",
        *([found.note] if found.note else []),
    ]

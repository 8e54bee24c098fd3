"""What each instrument costs: milliseconds a look, and the share of the training time at several intervals, as a table.

    python benchmarks/instruments.py tinyshakespeare/input.txt --tokenizer char --steps 900
    python benchmarks/instruments.py my.txt --set d_model=384,n_layers=6,batch_size=32

The model is the one that `qkv train` would make of that text and budget. Costs are the quickest of a dozen looks, one
after each update; shares are of the updates' own time, so they bound those of the whole command. For the whole process,
measured and not added up: benchmarks/watching.py.
"""

import argparse
from pathlib import Path

from command import machine

from qkv.api import cache_folder
from qkv.commands.arguments import settings
from qkv.instruments.schedule import KINDS, LEVELS, WatchConfig
from qkv.recipe import Request, assemble, resolve
from qkv.recipe.watching import Costs, measure_costs

INTERVALS = (1, 4, 16, 64, 256)


def alone(kind: str, every: int) -> WatchConfig:
    """A schedule with one kind of look only."""
    return WatchConfig(**(dict.fromkeys(KINDS, 0) | {kind: every}))


def row(costs: Costs, kind: str, every: int, steps: int) -> str:
    """The share of `steps` updates that one kind of look takes at one interval."""
    if kind == "matrices":
        return f"{100 * costs.share(alone(kind, every), steps):.2f}"
    only = Costs(update=costs.update, looks={kind: costs.looks[kind]})
    return f"{100 * only.share(alone(kind, every), steps):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--tokenizer")
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    request = Request(source=str(args.text), steps=args.steps, tokenizer=args.tokenizer, set=settings(args.set))
    config, corpus, _ = resolve(request, cache_folder())
    parts = assemble(config, corpus)
    costs = measure_costs(parts, 100.0, updates=args.updates)
    n = sum(entry.parameter.numel() for entry in parts.catalogue)
    sizes, batch = config.model.sizes, config.training.batch_size
    print(f"{machine()}, {config.machine.threads} threads, {config.machine.precision}")
    print(
        f"{n / 1e6:.2f} M parameters, {sizes.n_layers} layers, d_model {sizes.d_model}, {sizes.n_heads} heads, "
        f"{batch} windows of {sizes.n_ctx}: {1e3 * costs.update:.1f} ms an update\n"
    )
    print(f"| look | ms | {' | '.join(f'% every {n}' for n in INTERVALS)} |")
    print("|---" * (len(INTERVALS) + 2) + "|")
    for kind in KINDS:
        shares = " | ".join(row(costs, kind, every, args.steps) for every in INTERVALS)
        print(f"| {kind.replace('_', ' ')} | {1e3 * costs.looks[kind]:.2f} | {shares} |")
    for level, watching in LEVELS.items():
        if watching is not None:
            print(f"\n--watch {level} over {args.steps:,} updates: {100 * costs.share(watching, args.steps):.2f} %")


if __name__ == "__main__":
    main()

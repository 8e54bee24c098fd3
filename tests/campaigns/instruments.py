"""What each instrument costs: milliseconds a look, and the share of the training time at several intervals, as a table.

    python tests/campaigns/instruments.py tinyshakespeare/input.txt --tokenizer char --steps 900
    python tests/campaigns/instruments.py my.txt --set n_layers=4 --set d_model=384,n_layers=6,batch_size=32
    python tests/campaigns/instruments.py tinyshakespeare/input.txt --tokenizer char --write docs/cost-of-watching.md

Each --set is one model, else as `qkv train` would make it of that text and budget; without any, one of 0.8 M and one of
10 M parameters. Costs are the quickest of a dozen looks, one after each update; shares are of the updates' own time, so
they bound those of the whole command. For the whole process, measured and not added up: tests/campaigns/watching.py.
"""

import argparse
from pathlib import Path

from command import machine

from qkv.api import cache_folder
from qkv.commands.arguments import settings
from qkv.instruments.schedule import KINDS, LEVELS, WatchConfig
from qkv.recipe import Request, assemble, resolve
from qkv.recipe.affordable import Costs, measure_costs

INTERVALS = (1, 4, 16, 64, 256)
MODELS = ("d_model=128,n_layers=4", "d_model=384,n_layers=6")


def alone(kind: str, every: int) -> WatchConfig:
    """A schedule with one kind of look only."""
    return WatchConfig(**(dict.fromkeys(KINDS, 0) | {kind: every}))


def row(costs: Costs, kind: str, every: int, steps: int) -> str:
    """The share of `steps` updates that one kind of look takes at one interval."""
    if kind == "matrices":
        return f"{100 * costs.share(alone(kind, every), steps):.2f}"
    only = Costs(update=costs.update, looks={kind: costs.looks[kind]})
    return f"{100 * only.share(alone(kind, every), steps):.2f}"


def table(text: Path, chosen: str, args: argparse.Namespace) -> list[str]:
    """The costs of one model as lines of Markdown."""
    request = Request(source=str(text), steps=args.steps, tokenizer=args.tokenizer, set=settings([chosen]))
    config, corpus, _ = resolve(request, cache_folder())
    parts = assemble(config, corpus)
    costs = measure_costs(parts, 100.0, updates=args.updates)
    n = sum(entry.parameter.numel() for entry in parts.catalogue)
    sizes, batch = config.model.sizes, config.training.batch_size
    lines = [
        f"{n / 1e6:.2f} M parameters, {sizes.n_layers} layers, d_model {sizes.d_model}, {sizes.n_heads} heads, "
        f"{batch} windows of {sizes.n_ctx}: {1e3 * costs.update:.1f} ms an update ({config.machine.threads} threads, "
        f"{config.machine.precision})",
        "",
        f"| look | ms | {' | '.join(f'% every {n}' for n in INTERVALS)} |",
        "|---" * (len(INTERVALS) + 2) + "|",
    ]
    for kind in KINDS:
        shares = " | ".join(row(costs, kind, every, args.steps) for every in INTERVALS)
        lines.append(f"| {kind.replace('_', ' ')} | {1e3 * costs.looks[kind]:.2f} | {shares} |")
    lines.append("")
    for level, watching in LEVELS.items():
        if watching is not None:
            share = 100 * costs.share(watching, args.steps)
            lines.append(f"- `--watch {level}` over {args.steps:,} updates: {share:.2f}%")
    return lines


def page(tables: list[list[str]], command: str, said: str) -> str:
    """The documentation's page of costs."""
    note = f"<!-- written by {command} -->"
    head = [
        "# What recording costs",
        note,
        "",
        "The tables show the milliseconds that one measurement of each kind takes, and its share of the training time",
        "at several intervals. Early in training, measurements are frequent; later there are at most 16 while the",
        "number of steps doubles. So a long run pays less than its interval suggests.",
        "",
        "[Measures](measures.md) lists what each kind of measurement takes. `--watch 2%` chooses the intervals for",
        "you, and `qkv show RUN` says what recording that run cost.",
        "`python tests/campaigns/watching.py TEXT` compares processes with and without recording, in ABBA pairs.",
        "",
        f"{machine()}. Made by `{command}`. {said}".rstrip(),
    ]
    return "\n".join([*head, *(line for lines in tables for line in ("", *lines)), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--tokenizer")
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--write", type=Path, help="write the documentation's page there")
    parser.add_argument("--note", default="", help="a sentence about the circumstances, for that page")
    args = parser.parse_args()
    tables = []
    for chosen in args.set or MODELS:
        tables.append(table(args.text, chosen, args))
        print("\n".join([*tables[-1], ""]), flush=True)
    if args.write:
        words = [args.text.name, *(["--tokenizer", args.tokenizer] if args.tokenizer else [])]
        words += [word for chosen in args.set for word in ("--set", chosen)]
        command = f"python tests/campaigns/instruments.py {' '.join(words)} --steps {args.steps} --write {args.write}"
        args.write.write_text(page(tables, command, args.note), encoding="utf-8")


if __name__ == "__main__":
    main()

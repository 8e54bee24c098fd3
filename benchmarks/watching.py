"""What watching costs: whole-process time with the default instruments over that with none, in ABBA pairs.

    python benchmarks/watching.py tinyshakespeare/input.txt --steps 1500
    python benchmarks/watching.py tinyshakespeare/input.txt --steps 1000 --level full
    python benchmarks/watching.py tinyshakespeare/input.txt --steps 300 --set d_model=384,n_layers=6
    python benchmarks/watching.py tinyshakespeare/input.txt --minutes 4.5    # again, until it has ten pairs

A pair is four trainings of the whole command, off, watched, watched, off; its ratio is watched over off. Every
training is written to --results as it ends, so a benchmark that is stopped (or ends after --minutes, before a
training that would not fit) goes on where it was when it is started again with the same words. Choose --steps so that
a training takes at least 30 s: what is shorter is said. At the end: the mean ratio with its 95 % interval (Student's
t over pairs), what the recorder itself says that it cost, how many steps and measures every matrix and head got, and
that no byte of the weights differs. The null of a run (a short training on random labels) is made for the report, so
it is no part of this.
"""

import argparse
import hashlib
import json
import math
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from command import fresh, machine, qkv

LEAST_SECONDS = 30.0
"""Of one training: below it the start of the process is too large a part of what is compared."""

STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""97.5 % quantiles of Student's t for 1, 2, 3 ... degrees of freedom."""


def one(words: list[str], level: str) -> dict[str, Any]:
    """Train once: seconds, hash of the weights, and what was recorded."""
    run = fresh() / "run"
    seconds, summary = qkv("train", *words, "--seed", "1", "--no-report", "--watch", level, "--out", str(run))
    weights = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()
    found = {"level": level, "seconds": seconds, "weights": weights, "parameters": summary["parameters"]}
    if level != "off":
        found |= recorded(run)
    shutil.rmtree(run.parent)
    return found


def recorded(run: Path) -> dict[str, Any]:
    """Of the matrix and the head that got least: steps after step 0, and measures that are defined there."""
    import numpy as np

    from qkv.instruments.registry import LIGHT
    from qkv.telemetry import Telemetry

    with Telemetry(run / "telemetry.sqlite") as telemetry:
        shared = any(".KV" in row.address for row in telemetry.addresses())
        steps, defined = [], []
        for selector in ("**", "**.H*.W_*", *(["**.KV*.W_*"] if shared else [])):
            grids = [telemetry.grid(name, selector) for name in LIGHT]
            every = sorted({int(step) for grid in grids for step in grid.step})
            for address in (a for a in grids[0].addresses if a.rpartition(".")[2].startswith("W_")):
                n = np.zeros(len(every), dtype=int)
                for grid in (g for g in grids if address in g.addresses):
                    n[np.searchsorted(every, grid.step)] += np.isfinite(grid.value[grid.addresses.index(address)])
                n = n[1:]
                steps.append(int((n > 0).sum()))
                defined.append(float(np.median(n[n > 0])))
        cost = telemetry.fact("watch")
    taken = {"steps": min(steps), "measures": len(LIGHT), "defined": min(defined)}
    return taken | {"numbers": cost["numbers"], "share": cost["share"]}


def pairs(done: list[dict[str, Any]], level: str) -> list[float]:
    """Watched over off of every whole pair."""
    ratios = []
    for at in range(0, len(done) - 3, 4):
        four = done[at : at + 4]
        watched, off = (sum(r["seconds"] for r in four if (r["level"] == level) == on) for on in (True, False))
        ratios.append(watched / off)
    return ratios


def tell(done: list[dict[str, Any]], level: str, wanted: int) -> bool:
    """Print what is known so far; whether the weights are one set of bytes."""
    ratios, watched = pairs(done, level), [r for r in done if r["level"] == level]
    identical = len({r["weights"] for r in done}) == 1
    if len(ratios) > 1:
        t = STUDENT[min(len(ratios) - 1, len(STUDENT)) - 1]
        error = t * statistics.stdev(ratios) / math.sqrt(len(ratios))
        mean = statistics.mean(ratios)
        print(
            f"{level} over off, {len(ratios)} of {wanted} pairs: {mean:.4f}, 95 % interval {mean - error:.4f} to "
            f"{mean + error:.4f}; median {statistics.median(ratios):.4f}"
        )
    if watched:
        shares = [r["share"] for r in watched]
        got = watched[0]
        print(
            f"the recorder says {100 * statistics.median(shares):.2f} % of the training time, {got['numbers']:,} "
            f"numbers; {got['measures']} measures of every matrix and head at {got['steps']} steps or more, "
            f"of which at least {got['defined']:g} are defined there"
        )
    shortest = min(r["seconds"] for r in done)
    note = "" if shortest >= LEAST_SECONDS else f" (below {LEAST_SECONDS:.0f} s: take more --steps)"
    size = f"{done[0]['parameters']:,} parameters"
    print(f"{size}; shortest training {shortest:.1f} s{note}; weights identical: {identical}")
    return identical


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--level", default="light", help="light, full, or a percentage")
    parser.add_argument("--tokenizer", default="char")
    parser.add_argument("--set", default="", help="as of qkv train, e.g. d_model=384,n_layers=6")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end before a training that would not fit")
    parser.add_argument("--results", type=Path, default=Path("watching.jsonl"))
    args = parser.parse_args()
    began = time.monotonic()
    words = [str(args.text), "--tokenizer", args.tokenizer, "--steps", str(args.steps)]
    words += ["--set", args.set] if args.set else []
    key = hashlib.sha256(json.dumps([machine(), words, args.level]).encode()).hexdigest()[:16]
    lines = args.results.read_text().splitlines() if args.results.is_file() else []
    done = [found for found in map(json.loads, lines) if found["key"] == key]
    print(f"{machine()}; {' '.join(words[1:])}; {len(done)} trainings are done")
    order = ("off", args.level, args.level, "off")
    while len(done) < 4 * args.pairs:
        slowest = max((r["seconds"] for r in done), default=0.0)
        if time.monotonic() - began + slowest > 60 * args.minutes:
            break
        done.append(one(words, order[len(done) % 4]) | {"key": key})
        with args.results.open("a") as file:
            file.write(json.dumps(done[-1]) + "\n")
        print(f"training {len(done)}: {done[-1]['level']}, {done[-1]['seconds']:.2f} s", flush=True)
    sys.exit(bool(done) and not tell(done, args.level, args.pairs))


if __name__ == "__main__":
    main()

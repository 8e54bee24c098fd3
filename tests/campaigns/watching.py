"""What watching costs: whole-process time with the default instruments over that with none, two trainings in turn.

    python tests/campaigns/watching.py tinyshakespeare/input.txt --steps 1500
    python tests/campaigns/watching.py tinyshakespeare/input.txt --steps 1000 --level full
    python tests/campaigns/watching.py tinyshakespeare/input.txt --steps 300 --set d_model=384,n_layers=6
    python tests/campaigns/watching.py tinyshakespeare/input.txt --minutes 4.5    # again, until it has ten pairs

A pair is two trainings of the whole command, one watched and one not, in turns of --turn seconds (turns.py);
`--turn 0` runs one after the other all the same.

Every pair is written to --results as it ends, so a benchmark that is stopped (or ends after --minutes, before a pair
that would not fit) goes on where it was when it is started again with the same words. Choose --steps so that a training
takes at least 30 s: what is shorter is said. At the end: the mean ratio with its 95 % interval (Student's t over
pairs), what the recorder itself says that it cost, how many steps and measures every matrix and head got, and that no
byte of the weights differs. The random-label control of a run is made for the report, so it is no
part of this. Taking turns needs Linux.
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

from command import fresh, machine
from turns import Command, in_turns, interval

LEAST_SECONDS = 30.0
"""Of one training: below it the start of the process is too large a part of what is compared."""

Found = dict[str, Any]


class Training(Command):
    """`qkv train WORDS` with or without instruments, in turn with another."""

    def __init__(self, words: list[str], level: str) -> None:
        self.level, self.run = level, fresh() / "run"
        command = [sys.executable, "-m", "qkv", "train", *words, "--seed", "1", "--no-report", "--json"]
        super().__init__([*command, "--watch", level, "--out", str(self.run)], self.run.parent)

    def found(self) -> Found:
        """Seconds, hash of the weights, and what was recorded; its folder is deleted."""
        weights = hashlib.sha256((self.run / "model.safetensors").read_bytes()).hexdigest()
        parameters = json.loads(self.said())["parameters"]
        found = {"level": self.level, "seconds": self.seconds, "weights": weights, "parameters": parameters}
        if self.level != "off":
            found |= recorded(self.run)
        shutil.rmtree(self.run.parent)
        return found


def pair(words: list[str], level: str, turn: float, number: int) -> list[Found]:
    """Both trainings of pair `number`, in turns of `turn` seconds."""
    two = [Training(words, "off"), Training(words, level)]
    in_turns(two if number % 2 == 0 else two[::-1], turn)
    return [training.found() for training in two]


def recorded(run: Path) -> Found:
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


def tell(pairs: list[list[Found]], wanted: int) -> bool:
    """Print what is known so far; whether the weights are one set of bytes."""
    done = [found for two in pairs for found in two]
    ratios, watched, level = (
        [on["seconds"] / off["seconds"] for off, on in pairs],
        [on for _, on in pairs],
        pairs[0][1]["level"],
    )
    identical = len({r["weights"] for r in done}) == 1
    if len(ratios) > 1:
        mean, low, high = interval(ratios)
        print(
            f"{level} over off, {len(ratios)} of {wanted} pairs: {mean:.4f}, 95 % interval {low:.4f} to {high:.4f}; "
            f"median {statistics.median(ratios):.4f}"
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
    parser.add_argument("--turn", type=float, default=0.1, help="seconds; 0: one training after the other")
    parser.add_argument("--level", default="light", help="light, full, or a percentage")
    parser.add_argument("--tokenizer", default="char")
    parser.add_argument("--set", default="", help="as of qkv train, e.g. d_model=384,n_layers=6")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end before a training that would not fit")
    parser.add_argument("--results", type=Path, default=Path("watching.jsonl"))
    args = parser.parse_args()
    began = time.monotonic()
    words = [str(args.text), "--tokenizer", args.tokenizer, "--steps", str(args.steps)]
    words += ["--set", args.set] if args.set else []
    key = hashlib.sha256(json.dumps([machine(), words, args.level, args.turn]).encode()).hexdigest()[:16]
    lines = args.results.read_text().splitlines() if args.results.is_file() else []
    done = [row["pair"] for row in map(json.loads, lines) if row["key"] == key]
    print(f"{machine()}; {' '.join(words[1:])}; turns of {args.turn:g} s; {len(done)} pairs are done")
    while len(done) < args.pairs:
        slowest = max((sum(found["seconds"] for found in two) for two in done), default=0.0)
        if time.monotonic() - began + slowest > 60 * args.minutes:
            break
        done.append(pair(words, args.level, args.turn, len(done)))
        with args.results.open("a") as file:
            file.write(json.dumps({"key": key, "pair": done[-1]}) + "\n")
        off, on = (found["seconds"] for found in done[-1])
        print(f"pair {len(done)}: off {off:.2f} s, {args.level} {on:.2f} s, {on / off:.4f}", flush=True)
    sys.exit(bool(done) and not tell(done, args.pairs))


if __name__ == "__main__":
    main()

"""What watching costs: whole-process time with the default instruments over that with none, in ABBA pairs.

    python benchmarks/watching.py tinyshakespeare/input.txt --pairs 5 --steps 900

Also checks that no byte of the weights differs. The null of a run (a short training on random labels) is made for the
report, so it is no part of what is timed here.
"""

import argparse
import math
import statistics
import sys
from pathlib import Path

from command import fresh, machine, qkv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--level", default="light")
    parser.add_argument("--tokenizer", default="char")
    args = parser.parse_args()
    print(machine())
    ratios, weights = [], set()
    for pair in range(args.pairs):
        seconds = {"off": 0.0, args.level: 0.0}
        for level in ("off", args.level, args.level, "off"):
            run = fresh() / "run"
            words = ["train", str(args.text), "--tokenizer", args.tokenizer, "--steps", str(args.steps)]
            taken, _ = qkv(*words, "--seed", "1", "--no-report", "--watch", level, "--out", str(run))
            seconds[level] += taken
            weights.add((run / "model.safetensors").read_bytes())
        ratios.append(seconds[args.level] / seconds["off"])
        print(f"pair {pair + 1}: {ratios[-1]:.4f}")
    error = 2.78 * statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.nan
    print(
        f"{args.level} over off: {statistics.mean(ratios):.4f} +- {error:.4f}; weights identical: {len(weights) == 1}"
    )
    sys.exit(len(weights) != 1)


if __name__ == "__main__":
    main()

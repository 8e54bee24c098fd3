"""How often a study finds an effect where there is none, by how many replicates share a learning rate.

    python tests/campaigns/pooled_rates.py [--studies 400]

Takes the curvature of every tuned arm of the kept logs (docs/answers/runs), and how far the best rates of its
replicates scatter. Then simulates studies of two equal arms, whose paired losses scatter normally: each replicate at
the rate that it tuned itself; at the mean of two of three tuned replicates, never its own (cross-fitted); all at one
rate, tuned once. Prints the share of 95% intervals without 0, mean and 90th percentile over arms. Two minutes.
"""

import argparse
import math
from collections import defaultdict
from pathlib import Path

import numpy as np

from qkv.randomness import generator
from qkv.studies.engine.store import read_rows
from qkv.studies.verdict.statistics import lower_bound

RUNS = Path(__file__).parents[2] / "docs" / "answers" / "runs"
FEWEST = 6
"""Replicates whose best rate is known, of an arm that counts."""


def curves() -> list[tuple[float, float]]:
    """(curvature in nats, scatter of the best rate), per step of the grid, of every tuned arm."""
    found = []
    for log in sorted(RUNS.iterdir()):
        tuned: dict[str, dict[int, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
        for row in read_rows(log):
            if row.get("role") == "tune":
                tuned[row["arm"]][row["replicate"]][row["k"]] = row["loss"]
        for replicates in tuned.values():
            fits = [fit for losses in replicates.values() if (fit := vertex(losses))]
            if len(fits) >= FEWEST:
                curvatures, best = zip(*fits, strict=True)
                found.append((float(np.median(curvatures)), float(np.std(best, ddof=1))))
    return found


def vertex(losses: dict[float, float]) -> tuple[float, float] | None:
    """Curvature and place of the parabola through the best rate and its neighbors; None where there is none."""
    best = min(losses, key=lambda k: (losses[k], k))
    low, at, high = (losses.get(k, math.inf) for k in (best - 1, best, best + 1))
    curvature = (low + high) / 2 - at
    if not 0 < curvature < math.inf:
        return None
    return curvature, best + float(np.clip((low - high) / (4 * curvature), -0.5, 0.5))


def errors(how: str, n: int, studies: int, draws: np.random.Generator) -> np.ndarray:
    """How far the rates of both arms lie from the best one, in units of a replicate's scatter: [2, studies, n]."""
    if how == "own":
        return draws.standard_normal((2, studies, n))
    if how == "once":
        return np.repeat(draws.standard_normal((2, studies, 1)), n, axis=-1)
    tuned = draws.standard_normal((2, studies, 3))
    return ((tuned.sum(-1, keepdims=True) - tuned) / 2)[..., np.arange(n) % 3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=400)
    args = parser.parse_args()
    arms, draws = curves(), generator("campaign", "pooled rates")
    print(f"{len(arms)} tuned arms\n")
    print("| replicates | scatter of paired losses | own | cross-fitted | once |\n|---|---|---|---|---|")
    for n in (6, 8):
        for scatter in (0.005, 0.01, 0.02, 0.04):
            cells = []
            for how in ("own", "cross-fitted", "once"):
                shares = []
                for curvature, spread in arms:
                    one, other = (spread * errors(how, n, args.studies, draws)) ** 2
                    values = draws.normal(0, scatter, (args.studies, n)) + curvature * (one - other)
                    wrong = (lower_bound(values, 0.025) > 0) | (lower_bound(-values, 0.025) > 0)
                    shares.append(float(np.mean(wrong)))
                cells.append(f"{np.mean(shares):.1%} ({np.quantile(shares, 0.9):.0%})")
            print(f"| {n} | {scatter:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

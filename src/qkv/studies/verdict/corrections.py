"""p values of several effects that are asked at once, corrected so that all of them together err 5 times in 100.

Effects of one study share replicates, so they are tested together: the signs of whole replicates are flipped, all rows
at a time, and what an effect has to exceed is the largest of the rows that are left (step-down: Westfall and Young
1993; Romano and Wolf 2005, that the steps keep the promise). What is compared is how far the interval lies from 0, in
units of the median size of the row's values: that depends on the values next to 0 only, where a distribution scatters
evenly to both sides of its median, however skewed it is. (By Student's t, which sees the far values too, families of
30 log-normal rows without effects erred 11 times in 100.) No corrected p is below that of the row alone, and nothing
needs to be independent. Holm's correction could say nothing: of 8 replicates no p is below 0.0078. It stands in for
rows of other tests: rates, and Student's t of fewer than 6 replicates.
"""

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from qkv.randomness import generator
from qkv.studies.verdict.statistics import is_exact, lower_bound

_ALL_FLIPS = 13
"""Up to this many replicates every choice of signs is tried; beyond, as many as these have are drawn."""


def corrected(p_values: Sequence[float], rows: Sequence[Mapping[int, float] | None]) -> list[float]:
    """Each p corrected for all: of rows by replicate together, of all others (None) by Holm, with p values that add up.

    Where there are both kinds, each has its share of the 5 %, by how many rows it has (Bonferroni).
    """
    by_flips = [i for i, row in enumerate(rows) if row is not None and is_exact(len(row))]
    by_holm = [i for i in range(len(rows)) if i not in by_flips]
    together = flipped_together([rows[i] or {} for i in by_flips]) if len(by_flips) > 1 else [0.0] * len(by_flips)
    found = {i: max(p_values[i], p) for i, p in zip(by_flips, together, strict=True)}
    found |= zip(by_holm, holm([p_values[i] for i in by_holm]), strict=True)
    share = {i: len(rows) / len(kind) for kind in (by_flips, by_holm) for i in kind}
    return [min(1.0, share[i] * found[i]) for i in range(len(rows))]


def flipped_together(rows: Sequence[Mapping[int, float]]) -> list[float]:
    """p of each row among all of them, from the signs of replicates; each row has 6 values or more, by replicate."""
    replicates = {replicate: i for i, replicate in enumerate(sorted({r for row in rows for r in row}))}
    flips = _signs(len(replicates))
    seen = np.stack([_distances(row, flips[:, [replicates[r] for r in row]]) for row in rows], axis=1)
    order = np.argsort(-seen[0], kind="stable")  # the first choice of signs is as it is
    largest = np.maximum.accumulate(seen[:, order[::-1]], axis=1)[:, ::-1]
    p = np.maximum.accumulate((largest >= seen[0, order] - 1e-9).mean(axis=0))
    found = np.empty(len(rows))
    found[order] = p
    return found.tolist()


def _distances(row: Mapping[int, float], flips: np.ndarray) -> np.ndarray:
    """How far the 95 % interval lies from 0 under each choice of signs, below 0 where it holds 0; float64 [flips]."""
    x = np.array(list(row.values()))
    y = flips * x
    return np.maximum(lower_bound(y, 0.025), lower_bound(-y, 0.025)) / (float(np.median(np.abs(x))) or 1.0)


@lru_cache(maxsize=4)
def _signs(n: int) -> np.ndarray:
    """Choices of n signs, float64 [2^(n - 1), n]; first all plus. Of each and its opposite, which say the same, one."""
    if n <= _ALL_FLIPS:
        return np.array([(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=n - 1)])
    drawn = generator("studies", "signs", str(n)).choice((1.0, -1.0), size=(2 ** (_ALL_FLIPS - 1), n))
    drawn[0] = 1.0
    return drawn


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted for all being asked at once (Holm 1979): as many below 0.05 as step-down Bonferroni rejects."""
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = worst
    return adjusted

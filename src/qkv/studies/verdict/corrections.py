"""p values of several effects that are asked at once, corrected so that all of them together err 5 times in 100.

Effects of one study share replicates, so they are tested together: the signs of whole replicates are flipped, all rows
at a time, and what an effect has to exceed is the largest of the rows that are left (step-down: Westfall and Young
1993; Romano and Wolf 2005, that the steps keep the promise). That is exact where differences scatter evenly to both
sides, needs nothing to be independent, and an effect that differs corrected differs alone, for the test alone is the
same one. Holm's correction of such p values could say nothing: of 6 replicates none is below 0.031, and twice that is
above 0.05 already. It stands in for rows that are no differences of 6 to 16 replicates: rates, and Student's t.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from qkv.studies.verdict.statistics import MOST_FLIPS, is_exact, signs

__all__ = ["corrected", "flipped_together", "holm"]


def corrected(p_values: Sequence[float], rows: Sequence[Mapping[int, float] | None]) -> list[float]:
    """Each p corrected for all: of rows by replicate together, of all others (None) by Holm, with p values that add up.

    Where there are both kinds, each has its share of the 5 %, by how many rows it has (Bonferroni).
    """
    by_flips = [i for i, row in enumerate(rows) if row is not None and is_exact(len(row))]
    if len({replicate for i in by_flips for replicate in rows[i] or ()}) > MOST_FLIPS:
        by_flips = []
    by_holm = [i for i in range(len(rows)) if i not in by_flips]
    found = dict(zip(by_flips, flipped_together([rows[i] or {} for i in by_flips]), strict=True))
    found |= zip(by_holm, holm([p_values[i] for i in by_holm]), strict=True)
    share = {i: len(rows) / len(kind) for kind in (by_flips, by_holm) for i in kind}
    return [min(1.0, share[i] * found[i]) for i in range(len(rows))]


def flipped_together(rows: Sequence[Mapping[int, float]]) -> list[float]:
    """Exact p of each row, corrected for all, from the signs of replicates; each row has 6 to 16 values by replicate.

    All rows together may have 16 replicates at most.
    """
    if not rows:
        return []
    replicates = sorted({replicate for row in rows for replicate in row})
    x = np.array([[row.get(replicate, 0.0) for row in rows] for replicate in replicates])
    n, squares = np.array([len(row) for row in rows]), (x**2).sum(axis=0)
    half = signs(len(replicates))[: 2 ** (len(replicates) - 1)]  # the other half has the same squares
    share = (half @ x) ** 2 / np.where(squares > 0, n * squares, 1.0)
    seen = (n - 1) * share / np.maximum(1 - share, 1e-12)  # t squared, of every choice of signs; the first is as it is
    order = np.argsort(-seen[0], kind="stable")
    largest = np.maximum.accumulate(seen[:, order[::-1]], axis=1)[:, ::-1]
    p = np.maximum.accumulate((largest >= seen[0, order] * (1 - 1e-9)).mean(axis=0))
    found = np.empty(len(rows))
    found[order] = p
    return found.tolist()


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted for all being asked at once (Holm 1979): as many below 0.05 as step-down Bonferroni rejects."""
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = worst
    return adjusted

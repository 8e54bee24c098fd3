"""Which tokens a token is close to: nearest rows of a table by cosine, static, before and after training.

Cosines are taken as the rows stand, though trained tables share one large common direction that makes every cosine look
high (Mu and Viswanath 2018, arXiv 1702.01417). What random rows of that width would give is told as well.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Neighbour:
    """One token near another."""

    id: int
    cosine: float
    """-1 to 1."""


@dataclass(frozen=True)
class Neighbours:
    """The nearest rows of one token at the start and at the end."""

    before: tuple[Neighbour, ...]
    after: tuple[Neighbour, ...]
    kept: int
    """How many are in both lists."""
    null_cosine: float
    """The largest cosine among as many random directions of that width: its median, exactly."""


def nearest(table: np.ndarray, row: int, k: int = 10) -> tuple[Neighbour, ...]:
    """The k rows of `table` [n_rows, d_model] with the largest cosine to row `row`, itself and zero rows left out."""
    rows = np.asarray(table, dtype=np.float64)
    norms = np.linalg.norm(rows, axis=1)
    if norms[row] == 0:
        return ()
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = rows @ rows[row] / (norms * norms[row])
    cosines[row], cosines[norms == 0] = -np.inf, -np.inf
    order = np.argsort(-cosines, kind="stable")[: min(k, len(rows) - 1)]
    return tuple(Neighbour(int(i), float(np.clip(cosines[i], -1, 1))) for i in order if np.isfinite(cosines[i]))


def neighbours(before: np.ndarray, after: np.ndarray, row: int, k: int = 10) -> Neighbours:
    """The nearest rows of token `row` in both tables [n_rows, d_model]."""
    first, last = nearest(before, row, k), nearest(after, row, k)
    n, d_model = after.shape
    return Neighbours(
        before=first,
        after=last,
        kept=len({n.id for n in first} & {n.id for n in last}),
        null_cosine=largest_by_chance(n - 1, d_model),
    )


def largest_by_chance(n: int, d: int) -> float:
    """The median of the largest of n cosines between one direction and others, all independent and uniform in d.

    The angle between two directions has density sin^(d - 2), so the median is where a share 1 - 2^(-1/n) of it is
    nearer.
    """
    if n < 1 or d < 2:
        return float(n > 0)
    angles = np.linspace(0, np.pi, 40_001)
    middles = (angles[1:] + angles[:-1]) / 2
    nearer = np.cumsum(np.sin(middles) ** (d - 2))
    share = -math.expm1(-math.log(2) / n)
    return float(np.cos(np.interp(share * nearer[-1], nearer, angles[1:])))

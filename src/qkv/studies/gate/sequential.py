"""An anytime-valid test of paired differences by their signs.

A pair is one seed, and its difference the loss of NEW minus that of BEST. Under *NEW is no better* (the median
difference is 0 or more) a difference is below 0 with a chance of at most 1/2, whatever its distribution: skewed, with
heavy tails, or in two lumps. A bet at even odds that each is below 0 then gains nothing on average. `evidence` is the
capital of such a bettor, who began with 1; the chance that it ever reaches 1/a is at most a (Ville 1939), so looking
after every pair, and stopping when one likes, costs nothing (Ramdas et al. 2023, arXiv 2210.01948).

What it does not use is how large differences are. Student's t does, and needs fewer pairs if differences are normal;
where they are skewed or in lumps it keeps what is no better many times too often (docs/decisions).
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from qkv.studies.verdict.statistics import beyond_rounding

Decision = Literal["keep", "discard", "undecided"]

ERROR = 0.05
"""The most that the chances of a false keep add up to, over all tries of a ledger."""
_HALF = 10
"""Tries by which half of it is spent."""
_TAIL = 0.025
"""Error of each bound of `interval`."""
MOST_SEEDS = 999
"""Of a try: evidence of more could not be written as a float."""


def alpha(number: int) -> float:
    """The most that the chance of a false keep may be in try `number` (from 1).

    ERROR h / ((h + k - 1)(h + k)) with h = 10; n tries spend ERROR n / (h + n), so any number of them less than ERROR.
    """
    return ERROR * _HALF / ((_HALF + number - 1) * (_HALF + number))


def spent(tries: int) -> float:
    """What so many tries have spent together."""
    return ERROR * tries / (_HALF + tries)


def evidence(below: int, n: int) -> float:
    """The capital of the bettor after n differences, of which `below` were below 0; 1 at n = 0.

    Half of it bets on the chance 1, the other half on all chances from 1/2 to 1 alike:
    [below = n] 2^n / 2 + (1/2) 2^(n+1) times the integral of p^below (1-p)^(n-below) over 1/2 < p < 1.
    """
    alike = sum(math.comb(n + 1, j) for j in range(below + 1)) / ((n + 1) * math.comb(n, below))
    return 0.5 * (2**n if below == n else 0) + 0.5 * alike


@lru_cache(maxsize=4096)
def needed(n: int, error: float) -> int | None:
    """The fewest of n differences that must be below 0 for evidence of 1/error; None where n are too few."""
    found = bisect_left(range(n + 1), 1 / error, key=lambda below: evidence(below, n))
    return found if found <= n else None


def fewest(error: float = _TAIL) -> int:
    """The fewest pairs that can give evidence of 1/error: those that all agree."""
    return next(n for n in range(1, MOST_SEEDS) if needed(n, error) is not None)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median that holds at all times: order statistics; infinite for fewer than 6 pairs."""
    n, ordered = len(differences), sorted(differences)
    k = needed(n, _TAIL)
    return (-math.inf, math.inf) if k is None else (ordered[n - k], ordered[k - 1])


def decide(differences: Sequence[float], gain: float, error: float) -> Decision:
    """What the differences so far allow to say; `gain` is the smallest useful one, `error` that of a false keep.

    *keep*: the median difference is below 0, by evidence of 1/error. *discard*: the interval lies above -gain.
    A difference within a thousandth of the gain counts as 0, which is no improvement.
    """
    differences = beyond_rounding(differences, gain)
    n = len(differences)
    if evidence(sum(d < 0 for d in differences), n) >= 1 / error:
        return "keep"
    return "discard" if interval(differences)[0] > -gain else "undecided"

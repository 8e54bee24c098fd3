"""How large an effect so many replicates find, and how many would find one: by the test that judges, not by another.

Power is that of `statistics.interval` on differences of normal scatter, in whose units an effect is counted. Outside 6
to 16 replicates the interval is Student's t and its power the noncentral t's. Inside it is exact, of all sign flips: it
moves with the mean and grows with the spread, so that a draw is told apart into a mean, a spread and a direction, which
are independent; the first two are integrated, and of the last some thousand are drawn, the same every time. Against
simulated verdicts that is right to 0.01 (tests/studies/test_power.py).
"""

import math
from functools import lru_cache

import numpy as np

from qkv.randomness import generator
from qkv.studies.verdict.statistics import MOST_FLIPS, is_exact, scipy, subsets

__all__ = ["detectable", "power", "replicates_needed"]

_CHANCE = 0.8
_MOST_REPLICATES = 100_000
_DIRECTIONS, _SPREADS, _KEPT = (256, 8192), 16, 1024
"""Directions that are drawn for one number of replicates, least and most; quantiles of the spread; and of both."""
_SUMS = 2**22
"""Means of subsets that are worked out for one number of replicates, about."""
_FAR = 37
"""Standard errors beyond which the noncentral distribution underflows and the power is 1."""


def power(effect: float, n: int) -> float:
    """Chance that n differences whose mean is `effect` times their sd give a 95 % interval without 0."""
    if n < 2:
        return 0.0
    shift = abs(effect) * math.sqrt(n)
    if shift > _FAR:
        return 1.0
    stats = scipy()
    if not is_exact(n):
        critical = stats.t.ppf(0.975, n - 1)
        return float(stats.ncf.sf(critical**2, 1, n - 1, shift**2))  # t squared; the lower tail of nct may be NaN
    reach = _reach(n)
    return float(np.mean(stats.norm.cdf(shift - reach) + stats.norm.cdf(-shift - reach)))


@lru_cache
def _reach(n: int) -> np.ndarray:
    """Standard errors that the mean has to lie above 0 for the exact interval to leave 0 out, float64 [many]."""
    stats = scipy()
    directions = min(max(_SUMS // 2**n, _DIRECTIONS[0]), _DIRECTIONS[1])
    draws = generator("studies", "power", str(n)).normal(size=(directions, n))
    draws -= draws.mean(axis=1, keepdims=True)
    draws /= draws.std(axis=1, ddof=1, keepdims=True)
    weights = subsets(n)
    outside = math.floor(0.025 * 2**n)
    lows = [np.partition(weights @ draw, outside - 1)[outside - 1] for draw in draws]
    chances = (np.arange(_SPREADS) + 0.5) / _SPREADS
    spreads = np.sqrt(stats.chi2.ppf(chances, n - 1) / (n - 1))
    found = np.sort(np.outer(-np.array(lows), spreads).ravel()) * math.sqrt(n)
    return found.reshape(_KEPT, -1).mean(axis=1)


def detectable(sd: float, n: int) -> float:
    """The smallest true mean that n differences of that sd would find four times in five; infinity for n < 2."""
    return math.inf if n < 2 else sd * _detectable(n)


@lru_cache(maxsize=256)
def _detectable(n: int) -> float:
    """The same in units of the sd."""
    low, high = 0.0, 1.0
    while power(high, n) < _CHANCE:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, n) < _CHANCE else (low, middle)
    return high


def replicates_needed(effect: float, sd: float) -> int | None:
    """The fewest differences of that sd that, as any larger number does, find a true mean `effect` four times in five.

    Five find more by Student's t than six by all sign flips; so the fewest are looked for from above. None where that
    is hopeless.
    """
    if effect == 0.0:
        return None
    low, high = 1, MOST_FLIPS + 1
    while detectable(sd, high) > abs(effect):
        low, high = high, 2 * high
        if high > _MOST_REPLICATES:
            return None
    if low == 1:
        return next((n + 1 for n in range(high, 1, -1) if detectable(sd, n) > abs(effect)), 2)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if detectable(sd, middle) > abs(effect) else (low, middle)
    return high

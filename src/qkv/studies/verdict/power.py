"""How large an effect so many replicates find, and how many would find one: by the test that judges, not by another.

Power is that of `statistics.interval` on differences of normal scatter, in whose units an effect is counted. Below 6
replicates the interval is Student's t and its power the noncentral t's. From 6 on the lower bound lies between the
k-th smallest difference and the next: it is above 0 where fewer than k differences are below 0, or where k are and the
weighted mean of the two next to 0 is above it, an integral in one variable.
"""

import math
from bisect import bisect_left
from functools import lru_cache

import numpy as np

from qkv.studies.verdict.statistics import between, is_exact, scipy

_CHANCE = 0.8
_MOST_REPLICATES = 100_000
_POINTS = (np.arange(1024) + 0.5) / 1024
"""Of the integral, midpoints of equal chance."""
_FAR = 37
"""Standard errors beyond which the noncentral distribution underflows and the power is 1."""


def power(effect: float, n: int) -> float:
    """Chance that n normal differences whose median is `effect` times their sd give a 95 % interval without 0."""
    if n < 2:
        return 0.0
    shift = abs(effect) * math.sqrt(n)
    if shift > _FAR:
        return 1.0
    if is_exact(n):
        return _bound_above_0(effect, n) + _bound_above_0(-effect, n)
    with np.errstate(divide="ignore"):  # SciPy 1.12, on its way to the right value. Of nct, the lower tail may be NaN
        return float(scipy().ncf.sf(scipy().t.ppf(0.975, n - 1) ** 2, 1, n - 1, shift**2))


def _bound_above_0(effect: float, n: int) -> float:
    """Chance that the lower bound of n differences is above 0."""
    of, (k, weight) = scipy().norm, between(n, 0.025)
    chance = float(of.sf(effect))  # that one difference is below 0
    nearest = -effect - of.ppf(chance * _POINTS ** (1 / k))  # to 0, of k that are below it; float64 [points]
    others = (n - k) * (of.logcdf(effect - (1 - weight) / weight * nearest) - of.logcdf(effect))
    number = scipy().binom
    return float(number.cdf(k - 1, n, chance) + number.pmf(k, n, chance) * np.mean(np.exp(others)))


def detectable(sd: float, n: int) -> float:
    """The smallest true effect that n differences of that sd would find four times in five; infinity for n < 2."""
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
    """The fewest differences of that sd that, as any larger number does, find a true `effect` four times in five.

    None where that is hopeless.
    """
    if sd == 0.0 and effect != 0.0:
        return 2
    if effect == 0.0 or power(effect / sd, _MOST_REPLICATES) < _CHANCE:
        return None
    return bisect_left(range(_MOST_REPLICATES), _CHANCE, lo=2, key=lambda n: power(effect / sd, n))

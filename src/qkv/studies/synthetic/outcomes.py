"""Outcomes of little studies that are drawn and not trained: paired differences of arms that are not alike.

The median of every kind is 0, so an interval without 0 is wrong. A replicate is one value; its unit is arbitrary.
"""

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist

import numpy as np

_BAD = 0.12
"""Chance that a replicate of the unstable arm has a bad learning rate."""

Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
"""(draws, [studies, replicates]) -> differences, float64 of that shape."""


def _unstable(draws: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Normal differences, of which 12 in 100 are 10 to 60 standard deviations too large.

    So far away they only move the median up, to the quantile 0.5 / 0.88 of the others.
    """
    bad = (draws.random(shape) < _BAD) * 10 * (1 + draws.exponential(size=shape))
    return draws.normal(size=shape) + bad - NormalDist().inv_cdf(0.5 / (1 - _BAD))


OUTCOMES: Mapping[str, Draw] = {
    "equal arms": lambda draws, shape: draws.normal(size=shape) - draws.normal(size=shape),
    "one arm scatters 5 times as much": lambda draws, shape: 5 * draws.normal(size=shape) - draws.normal(size=shape),
    "one arm unstable": _unstable,
    "log-normal": lambda draws, shape: np.exp(draws.normal(size=shape)) - 1,
    "exponential": lambda draws, shape: draws.exponential(size=shape) - math.log(2),
    "heavy tails": lambda draws, shape: draws.standard_t(3, size=shape),
    "ties": lambda draws, shape: np.round(4 * draws.normal(size=shape)) / 4,
}
"""Kind -> how its differences are drawn."""

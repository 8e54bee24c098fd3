"""When a series of numbers changed its level: one change, its place, its size, and how surprising it is.

The place is where a step function fits best. It counts as a change where the largest cumulative sum of deviations is
more than noise would make: for independent noise the scaled maximum tends to that of a Brownian bridge, so its
probability is Kolmogorov's. The noise is estimated from successive differences, which a change of level touches at one
place only. Source: Page 1954 (CUSUM); Csorgo and Horvath 1997, Limit Theorems in Change-Point Analysis, chapter 2.

Refuses: to call a small change one. A slow trend is surprising too, so whoever asks says how large a change counts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

FALSE_ALARM = 0.001
"""At most this share of series of independent normal noise is called changed; of skewed noise more, up to a
twentieth where it is lognormal."""

FEWEST = 8
"""Of fewer numbers nothing is said."""


@dataclass(frozen=True)
class Change:
    """A change of level."""

    index: int
    """The first number of the new level."""
    before: float
    """Median up to there."""
    after: float
    """Median from there on."""
    probability: float
    """Of a deviation as large in independent noise."""

    @property
    def size(self) -> float:
        """after - before."""
        return self.after - self.before


def change(values: np.ndarray, *, least: float = 0.0) -> Change | None:
    """The one change of level in `values` [n], at least `least` large; None where there is none, or n is below 8.

    Numbers that are not finite are passed over; `index` counts them all the same.
    """
    values = np.asarray(values, dtype=np.float64)
    there = np.flatnonzero(np.isfinite(values))
    x = values[there]
    n = len(x)
    if n < FEWEST or x.min() == x.max():
        return None
    sums = np.cumsum(x - x.mean())[:-1]
    splits = np.arange(1, n)
    at = int(np.argmax(np.abs(sums) / np.sqrt(splits * (n - splits)))) + 1
    before, after = float(np.median(x[:at])), float(np.median(x[at:]))
    found = Change(int(there[at]), before, after, _probability(float(np.abs(sums).max()), x))
    return found if abs(found.size) >= least and found.probability <= FALSE_ALARM else None


def crossing(looks: Sequence[tuple[int, float]], level: float) -> float | None:
    """The step at which a value that falls is first at `level` or below; None where it never is.

    looks: (step, value) in order, the first at step 0. Between two the step is interpolated, linearly in its logarithm.
    """
    if looks[0][1] <= level:
        return float(looks[0][0])
    for (a, high), (b, low) in zip(looks, looks[1:], strict=False):
        if low <= level:
            share = (high - level) / (high - low)
            return b * share if a == 0 else math.exp((1 - share) * math.log(a) + share * math.log(b))
    return None


def half_way(looks: Sequence[tuple[int, float]]) -> float | None:
    """The step at which a distance is first half of what it is at the last look; None where that is 0."""
    last = looks[-1][1] if looks else 0.0
    return crossing([(step, -distance) for step, distance in looks], -last / 2) if last > 0 else None


def _probability(largest: float, x: np.ndarray) -> float:
    """P(sup |Brownian bridge| >= largest / (sigma sqrt n)), sigma from successive differences."""
    steps = np.sort(np.abs(np.diff(x)))
    kept = steps[: max(1, len(steps) - max(2, len(steps) // 10))]  # a change of level, and a few outliers, left out
    share = len(kept) / len(steps)
    z = NormalDist().inv_cdf((1 + share) / 2)
    shrunk = 1 - 2 * z * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) / share  # variance of a normal cut at +-z
    sigma = np.sqrt(np.square(kept).mean() / (2 * shrunk)) * (1 + 6 / len(x))  # of few numbers it is uncertain itself
    sigma = max(float(sigma), 1e-12 * float(np.abs(x).max()))
    c = largest / (sigma * np.sqrt(len(x)))
    if c < 0.2:
        return 1.0
    k = np.arange(1, 20)
    return float(np.clip(2 * ((-1.0) ** (k - 1) * np.exp(-2 * k**2 * c**2)).sum(), 0, 1))

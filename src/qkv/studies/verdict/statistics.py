"""The arithmetic of verdicts: intervals of a median, equivalence, exact intervals of rates, and the rule.

Everything here is a function of numbers; nothing knows what a training is. The unit is a replicate: one number per
independent (tune, report) pair of trainings, and what is estimated is the **median of paired differences**. Now and
then a tuned rate is bad for the reported seed, so one arm has a few very bad values. No eight differences say what the
mean of such a mixture is: a nominal 95 % interval of it, by sign flips, held it 64 times in 100. Their median is the
difference of a typical replicate, and its interval lies between order statistics, whose chance to enclose the median
is binomial for any distribution (Thompson 1936). From 6 replicates on it is interpolated between two such intervals
(Hettmansperger and Sheather 1986) and holds 94 to 96 times in 100 for every continuous distribution that was tried;
p values are of the same test. Fewer replicates cannot reach 95 % without a distribution; they have Student's t, whose
interval held the median 93 to 97 times in 100 there. SciPy gives the distributions (extra `study`).
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType

import numpy as np

from qkv.errors import ConfigError, MissingExtra
from qkv.installing import install

VERDICTS = ("differs", "differs but trivially", "equivalent", "unresolved")
"""What a study may say of an effect that it tests, in the order of the rule in `judge`; `constant`, `left out` else."""
FEWEST = 6
"""Replicates from which intervals are of order statistics: the range of fewer holds the median less than 95 % often."""
NOTHING = 1e-3
"""Share of the margin below which a difference counts as none: there the last bits of a loss decide its sign."""
_ROUNDING = 1e-12
"""What a bound is off by at most, as a share of the largest value; a bound no farther from 0 is 0."""
_ALIKE = 4
"""Equal values from which they are no chance: of normal values rounded to one standard deviation, 2 are equal in 27% of
cases, 3 in 9% and 4 in 3%."""
_FAR = 6.0
"""Robust standard deviations from the median beyond which a replicate is an outlier."""


def scipy() -> ModuleType:
    """`scipy.stats`. Raises MissingExtra, with what to type, where there is none."""
    try:
        from scipy import stats
    except ImportError:
        raise MissingExtra(f"a study needs SciPy for its intervals; type: {install('study')}") from None
    return stats


def is_exact(n: int) -> bool:
    """Whether the interval of so many replicates is of order statistics, whatever their distribution."""
    return n >= FEWEST


def how_exact(n: int) -> str:
    """What the intervals of so many replicates are, for a page."""
    return "of the median, between order statistics" if is_exact(n) else "Student's t"


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The interval of the median of independent values: of order statistics for 6 and more, else Student's t.

    Equal values give one of no width, but that of two or three reaches to 0: they may be alike by chance. Raises
    ConfigError for fewer than two values.
    """
    x = _several(values)
    if not is_exact(len(x)):
        low, high = t_interval(values, confidence)
        return (min(low, 0.0), max(high, 0.0)) if _alike_by_chance(x) else (low, high)
    tail, near_0 = (1 - confidence) / 2, _ROUNDING * float(np.abs(x).max())
    low, high = float(lower_bound(x, tail)), -float(lower_bound(-x, tail))
    return (0.0 if abs(low) <= near_0 else low), (0.0 if abs(high) <= near_0 else high)


def lower_bound(x: np.ndarray, tail: float) -> np.ndarray:
    """What the median of independent values lies below with chance `tail`; x: float64 [..., n] -> [...]."""
    k, weight = between(x.shape[-1], tail)
    ordered = np.sort(x, axis=-1)
    return (1 - weight) * ordered[..., k - 1] + weight * ordered[..., k]


@lru_cache(maxsize=1024)
def between(n: int, tail: float) -> tuple[int, float]:
    """(k, weight): the lower bound lies between the k-th smallest of n values and the next, at this weight of the next.

    The chance that the median lies below the k-th smallest is binomial, the weight that of Hettmansperger and Sheather
    (1986): exact for a Laplace distribution, close for others. A tail that n values cannot reach gives the smallest.
    """
    levels = _levels(n)
    k = int(np.searchsorted(levels, tail, side="right")) - 1
    if k == 0:
        return 1, 0.0
    share = float((tail - levels[k]) / (levels[k + 1] - levels[k]))
    return k, (n - k) * share / (k + (n - 2 * k) * share)


@lru_cache(maxsize=256)
def _levels(n: int) -> np.ndarray:
    """Chance that the median lies below the k-th smallest of n values; float64 [n + 1], by k from 0."""
    return scipy().binom.cdf(np.arange(-1, n), n, 0.5)


def _one_sided(x: np.ndarray) -> float:
    """p of the test against a median of 0 or less: the largest tail at which the lower bound is not above 0."""
    n = len(x)
    if not is_exact(n):
        sd, mean = float(x.std(ddof=1)), float(x.mean())
        if np.ptp(x) == 0.0:
            return 0.0 if mean > 0 and not _alike_by_chance(x) else 1.0
        return float(scipy().t.sf(mean / sd * math.sqrt(n), n - 1))
    ordered, levels = np.sort(x), _levels(n)
    k = int((ordered <= 0).sum())
    if k in (0, n):
        return float(levels[1]) if k == 0 else 1.0
    weight = -ordered[k - 1] / (ordered[k] - ordered[k - 1])
    share = weight * k / ((n - k) - weight * (n - 2 * k))  # `between`, solved for the share
    return round(float(levels[k] + share * (levels[k + 1] - levels[k])), 12)


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's t interval of the mean of independent values: mean -+ t sd / sqrt(n).

    Equal values give an interval of no width. Raises ConfigError for fewer than two values.
    """
    x = _several(values)
    error = float(x.std(ddof=1)) / math.sqrt(len(x))
    reach = float(scipy().t.ppf(0.5 + confidence / 2, len(x) - 1)) * error
    return float(x.mean()) - reach, float(x.mean()) + reach


def p_value(values: Sequence[float]) -> float:
    """Two-sided p of the test whose interval `interval` is; below 0.05 exactly where that leaves out 0.

    A value of 0 is no evidence for either side.
    """
    x = _several(values)
    return min(1.0, 2 * min(_one_sided(x), _one_sided(-x)))


def tost(values: Sequence[float], margin: float) -> float:
    """p of the two one-sided tests that the median lies inside (-margin, margin) (Schuirmann 1987).

    Of the test whose interval `interval` is; below 0.05 exactly where the 90 % interval lies inside. Raises
    ConfigError for a margin that is not above 0.
    """
    x = _several(values)
    expected_margin(margin)
    return max(_one_sided(x + margin), _one_sided(margin - x)) if x.any() else 0.0


def outliers(values: Sequence[float], margin: float) -> int:
    """How many values lie farther from the median than 6 robust standard deviations, and than the margin.

    A robust standard deviation is 1.4826 times the median distance from the median.
    """
    far = np.abs(np.asarray(values, dtype=np.float64) - np.median(values))
    return int((far > max(margin, _FAR * 1.4826 * float(np.median(far)))).sum())


def are_rates(values: Sequence[float]) -> bool:
    """Whether all values lie from 0 to 1."""
    return all(0 <= value <= 1 for value in values)


def bounds_of_rate(hits: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a rate seen `hits` times in n independent tries (Clopper and Pearson 1934)."""
    if not 0 <= hits <= n or n < 1:
        raise ConfigError(f"{hits} of {n} is no rate; expected 0 to n of at least one try")
    beta, tail = scipy().beta, (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, n - hits + 1))
    high = 1.0 if hits == n else float(beta.ppf(1 - tail, hits + 1, n - hits))
    return low, high


def beyond_rounding(values: Sequence[float], margin: float) -> list[float]:
    """The same values, but 0 for those within a thousandth of the margin of it.

    Where two arms do the same to rounding the signs of what is left are no evidence, and a test of a median would take
    them for some: eight differences of -0.00001 all have one sign.
    """
    return [0.0 if abs(value) <= NOTHING * margin else value for value in values]


def judge(values: Sequence[float], margin: float) -> str:
    """The verdict on independent values of one effect, one of `VERDICTS`.

    95 % interval without 0: *differs but trivially* where it lies inside the margin, else *differs*. With 0:
    *equivalent* where the 90 % interval lies inside the margin, else *unresolved*. Values within a thousandth of the
    margin of 0 count as 0.
    """
    expected_margin(margin)
    values = beyond_rounding(values, margin)
    low, high = interval(values)
    if low > 0 or high < 0:
        return "differs but trivially" if max(-low, high) < margin * (1 - _ROUNDING) else "differs"
    return "equivalent" if tost(values, margin) < 0.05 else "unresolved"


def _alike_by_chance(x: np.ndarray) -> bool:
    """Whether values are equal, and so few that whole numbers often are."""
    return len(x) < _ALIKE and not np.ptp(x)


def _several(values: Sequence[float]) -> np.ndarray:
    x = np.asarray(values, dtype=np.float64)
    if len(x) < 2:
        raise ConfigError(f"{len(x)} replicate has no spread; expected at least 2 (--seeds 2, better 8)")
    return x


def expected_margin(margin: float) -> None:
    """Raises ConfigError for a margin that is not above 0."""
    if not 0 < margin < math.inf:
        raise ConfigError(
            f"the margin is {margin:g}; expected a number above 0: the largest difference that would not matter"
        )

"""The arithmetic of verdicts: intervals, exact sign flips, equivalence, exact intervals of rates, and the rule.

Everything here is a function of numbers; nothing knows what a training is. The unit is a replicate: one number per
independent (tune, report) pair of trainings. Differences of tuned trainings have heavy tails, for a rate that was best
on one seed is now and then bad on the next; `qkv study calibrate` measured a kurtosis of 20 where the normal has 3, and
Student's t then finds 3 false effects in a hundred where 5 were promised. So from 6 to 16 replicates intervals and p
are exact, of all sign flips, which need no distribution but a symmetric one; with fewer or more they are Student's t,
never the normal's. SciPy gives the distributions (extra `study`).
"""

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType

import numpy as np

from qkv.errors import ConfigError, MissingExtra
from qkv.installing import install

__all__ = [
    "FEWEST_FLIPS",
    "MOST_FLIPS",
    "NOTHING",
    "VERDICTS",
    "beyond_rounding",
    "bounds_of_rate",
    "expected_margin",
    "how_exact",
    "interval",
    "is_exact",
    "judge",
    "p_value",
    "scipy",
    "sign_flip",
    "signs",
    "subsets",
    "t_interval",
    "t_test",
    "tost",
]

VERDICTS = ("differs", "differs but trivially", "equivalent", "unresolved")
"""What a study may say of an effect that it tests, in the order of the rule in `judge`; `constant`, `left out` else."""
FEWEST_FLIPS = 6
"""Below this many replicates the smallest p a sign flip can give, 2 / 2^n, is above 0.05."""
MOST_FLIPS = 16
"""Up to this many replicates every sign is tried; beyond, 2^n is not worth it and t is close to exact."""
NOTHING = 1e-3
"""Share of the margin below which a difference counts as none: there the last bits of a loss decide its sign."""
_ROUNDING = 1e-12
"""What sums of a few numbers are off by at most; by no more than that, two of them are the same."""


def scipy() -> ModuleType:
    """`scipy.stats`. Raises MissingExtra, with what to type, where there is none."""
    try:
        from scipy import stats
    except ImportError:
        raise MissingExtra(f"a study needs SciPy for its intervals; type: {install('study')}") from None
    return stats


def is_exact(n: int) -> bool:
    """Whether every choice of the signs of so many replicates is tried."""
    return FEWEST_FLIPS <= n <= MOST_FLIPS


def how_exact(n: int) -> str:
    """What the intervals of so many replicates are, for a page."""
    return "exact, by sign flips" if is_exact(n) else "Student's t"


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The interval of the centre of independent values: of all sign flips for 6 to 16 values, else Student's t.

    Equal values give an interval of no width. Raises ConfigError for fewer than two values.
    """
    x = _several(values)
    if not is_exact(len(x)):
        return t_interval(values, confidence)
    means = np.sort(subsets(len(x)) @ x)
    means[np.abs(means) <= _ROUNDING * max(1.0, float(np.abs(x).max()))] = 0.0  # a tie with 0 leaves it in, as in p
    outside = max(1, math.floor((1 - confidence) / 2 * 2 ** len(x)))
    return float(means[outside - 1]), float(means[-outside])


@lru_cache(maxsize=16)
def subsets(n: int) -> np.ndarray:
    """Weights of the mean of every subset but the empty one, float64 [2^n - 1, n].

    The 2^n - 1 means of subsets cut the line into 2^n pieces, each of which holds the centre of symmetric errors with
    the same chance (Hartigan 1969, "Using subsample values as typical values"): the sign-flip test turned round.
    """
    chosen = (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1
    return chosen / chosen.sum(axis=1, keepdims=True)


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's t interval of the mean of independent values: mean -+ t sd / sqrt(n).

    Equal values give an interval of no width. Raises ConfigError for fewer than two values.
    """
    x = _several(values)
    error = float(x.std(ddof=1)) / math.sqrt(len(x))
    reach = float(scipy().t.ppf(0.5 + confidence / 2, len(x) - 1)) * error
    return float(x.mean()) - reach, float(x.mean()) + reach


def t_test(values: Sequence[float]) -> float:
    """Two-sided p of Student's one-sample t test of the mean against 0; 1 or 0 where all values are equal."""
    x = _several(values)
    sd, mean = float(x.std(ddof=1)), float(x.mean())
    if sd == 0.0:
        return 1.0 if mean == 0.0 else 0.0
    return float(2 * scipy().t.sf(abs(mean) / sd * math.sqrt(len(x)), len(x) - 1))


def p_value(values: Sequence[float]) -> float:
    """Two-sided p of the test whose interval `interval` is; below 0.05 exactly where that leaves out 0."""
    exact = sign_flip(values)
    return t_test(values) if exact is None else exact


def sign_flip(values: Sequence[float]) -> float | None:
    """Exact two-sided p of the sign-flip test: the share of all 2^n signs whose |sum| is at least the observed one.

    Needs only that each value is as likely x as -x under the null (Fisher 1935). None for fewer than 6 values, where it
    cannot reach 0.05, and for more than 16.
    """
    x = np.asarray(values, dtype=np.float64)
    if not is_exact(len(x)):
        return None
    sums, observed = np.abs(_flipped(x)), abs(float(x.sum()))
    return float(np.mean(sums >= observed - _ROUNDING * max(1.0, observed)))


def _flipped(x: np.ndarray) -> np.ndarray:
    """The sum of x under every choice of signs, float64 [2^n]."""
    return signs(len(x)) @ x


@lru_cache(maxsize=4)
def signs(n: int) -> np.ndarray:
    """Every choice of n signs, float64 [2^n, n]: first all plus; the second half is the first turned round."""
    return np.array(list(itertools.product((1.0, -1.0), repeat=n)))


def tost(values: Sequence[float], margin: float) -> float:
    """p of the two one-sided tests that the centre lies inside (-margin, margin) (Schuirmann 1987).

    By sign flips or Student's t, as `interval`; below 0.05 exactly where the 90 % interval lies inside. Raises
    ConfigError for a margin that is not above 0.
    """
    x = _several(values)
    expected_margin(margin)
    if is_exact(len(x)):
        return max(_one_sided(x + margin), _one_sided(margin - x))
    sd, mean = float(x.std(ddof=1)), float(x.mean())
    if sd == 0.0:
        return 0.0 if abs(mean) < margin else 1.0
    reach = (margin - abs(mean)) / sd * math.sqrt(len(x))
    return float(scipy().t.sf(reach, len(x) - 1))


def _one_sided(x: np.ndarray) -> float:
    """Exact p of the sign-flip test against a centre of 0 or less."""
    observed = float(x.sum())
    return float(np.mean(_flipped(x) >= observed - _ROUNDING * max(1.0, abs(observed))))


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

    Where two arms do the same to rounding the signs of what is left are no evidence, and a sign-flip test would take
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

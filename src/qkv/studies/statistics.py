"""The arithmetic of verdicts: intervals, exact sign flips, equivalence, Holm, power, exact intervals of rates.

Everything here is a function of numbers; nothing knows what a training is. The unit is a replicate: one number per
independent (tune, report) pair of trainings. Differences of tuned trainings have heavy tails, for a rate that was best
on one seed is now and then bad on the next; `qkv study calibrate` measured a kurtosis of 20 where the normal has 3, and
Student's t then finds 3 false effects in a hundred where 5 were promised. So from 6 to 16 replicates intervals are
exact, of all sign flips, which need no distribution but a symmetric one; with fewer or more they are Student's t, never
the normal's. p values for families are Student's, since 8 signs give none below 0.008; calibrated they err to the safe
side. SciPy gives the distributions (extra `study`).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import numpy as np

from qkv.errors import ConfigError, MissingExtra

__all__ = [
    "VERDICTS",
    "Comparison",
    "bounds_of_rate",
    "compare",
    "compare_rate",
    "constant",
    "detectable",
    "holm",
    "how_exact",
    "interval",
    "judge",
    "left_out",
    "power",
    "replicates_needed",
    "scipy",
    "sign_flip",
    "t_interval",
    "t_test",
    "tost",
]

VERDICTS = ("differs", "differs but trivially", "equivalent", "unresolved")
"""What a study may say of an effect that it tests, in the order of the rule in `judge`; `constant`, `left out` else."""
FEWEST_FLIPS = 6
"""Below this many replicates the smallest p a sign flip can give, 2 / 2^n, is above 0.05."""
_MOST_EXACT = 16
"""Up to this many replicates every sign is tried; beyond, 2^n is not worth it and t is close to exact."""
_MOST_REPLICATES = 100_000


def scipy() -> ModuleType:
    """`scipy.stats`. Raises MissingExtra, with what to type, where there is none."""
    try:
        from scipy import stats
    except ImportError:
        raise MissingExtra("a study needs SciPy for its intervals; type: pip install 'qkv[study]'") from None
    return stats


def how_exact(n: int) -> str:
    """What the intervals of so many replicates are, for a page."""
    return "exact, by sign flips" if FEWEST_FLIPS <= n <= _MOST_EXACT else "Student's t"


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The interval of the centre of independent values: of all sign flips for 6 to 16 values, else Student's t.

    Equal values give an interval of no width. Raises ConfigError for fewer than two values.
    """
    x = _several(values)
    if not FEWEST_FLIPS <= len(x) <= _MOST_EXACT:
        return t_interval(values, confidence)
    means = np.sort(_subsets(len(x)) @ x)
    outside = max(1, math.floor((1 - confidence) / 2 * 2 ** len(x)))
    return float(means[outside - 1]), float(means[-outside])


@lru_cache(maxsize=16)
def _subsets(n: int) -> np.ndarray:
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


def t_test(values: Sequence[float], null: float = 0.0) -> float:
    """Two-sided p of Student's one-sample t test of the mean against `null`; 1 or 0 where all values are equal."""
    x = _several(values)
    sd, distance = float(x.std(ddof=1)), float(x.mean()) - null
    if sd == 0.0:
        return 1.0 if distance == 0.0 else 0.0
    return float(2 * scipy().t.sf(abs(distance) / sd * math.sqrt(len(x)), len(x) - 1))


def sign_flip(values: Sequence[float]) -> float | None:
    """Exact two-sided p of the sign-flip test: the share of all 2^n signs whose |sum| is at least the observed one.

    Needs only that each value is as likely x as -x under the null (Fisher 1935). None for fewer than 6 values, where it
    cannot reach 0.05, and for more than 16.
    """
    x = np.asarray(values, dtype=np.float64)
    if not FEWEST_FLIPS <= len(x) <= _MOST_EXACT:
        return None
    sums, observed = np.abs(_flipped(x)), abs(float(x.sum()))
    return float(np.mean(sums >= observed - 1e-12 * max(1.0, observed)))


def _flipped(x: np.ndarray) -> np.ndarray:
    """The sum of x under every choice of signs, float64 [2^n]."""
    return np.array(list(itertools.product((1.0, -1.0), repeat=len(x)))) @ x


def tost(values: Sequence[float], margin: float) -> float:
    """p of the two one-sided tests that the centre lies inside (-margin, margin) (Schuirmann 1987).

    By sign flips or Student's t, as `interval`; below 0.05 exactly where the 90 % interval lies inside. Raises
    ConfigError for a margin that is not above 0.
    """
    x = _several(values)
    _margin(margin)
    if FEWEST_FLIPS <= len(x) <= _MOST_EXACT:
        return max(_one_sided(x + margin), _one_sided(margin - x))
    sd, mean = float(x.std(ddof=1)), float(x.mean())
    if sd == 0.0:
        return 0.0 if abs(mean) < margin else 1.0
    reach = (margin - abs(mean)) / sd * math.sqrt(len(x))
    return float(scipy().t.sf(reach, len(x) - 1))


def _one_sided(x: np.ndarray) -> float:
    """Exact p of the sign-flip test against a centre of 0 or less."""
    observed = float(x.sum())
    return float(np.mean(_flipped(x) >= observed - 1e-12 * max(1.0, abs(observed))))


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted for all being asked at once (Holm 1979): as many below 0.05 as step-down Bonferroni rejects."""
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = worst
    return adjusted


def power(effect: float, sd: float, n: int, alpha: float = 0.05) -> float:
    """Chance that a two-sided paired t test of n differences with that mean and sd gives p < alpha (noncentral t)."""
    if n < 2:
        return 0.0
    if sd == 0.0:
        return 1.0 if effect else alpha
    stats = scipy()
    critical = stats.t.ppf(1 - alpha / 2, n - 1)
    shift = abs(effect) / sd * math.sqrt(n)
    if shift > 37:  # beyond, the noncentral distribution underflows and the power is 1
        return 1.0
    return float(stats.nct.sf(critical, n - 1, shift) + stats.nct.cdf(-critical, n - 1, shift))


def detectable(sd: float, n: int, chance: float = 0.8) -> float:
    """The smallest true mean that n differences of that sd would find with this chance; infinity for n < 2."""
    if n < 2:
        return math.inf
    if sd == 0.0:
        return 0.0
    low, high = 0.0, sd
    while power(high, sd, n) < chance:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, sd, n) < chance else (low, middle)
    return high


def replicates_needed(effect: float, sd: float, chance: float = 0.8) -> int | None:
    """The fewest differences of that sd that find a true mean `effect` with this chance.

    None where that is hopeless.
    """
    if effect == 0.0:
        return None
    low, high = 1, 2
    while power(effect, sd, high) < chance:
        low, high = high, 2 * high
        if high > _MOST_REPLICATES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if power(effect, sd, middle) < chance else (low, middle)
    return high


def bounds_of_rate(hits: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a rate seen `hits` times in n independent tries (Clopper and Pearson 1934)."""
    if not 0 <= hits <= n or n < 1:
        raise ConfigError(f"{hits} of {n} is no rate; expected 0 to n of at least one try")
    beta, tail = scipy().beta, (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, n - hits + 1))
    high = 1.0 if hits == n else float(beta.ppf(1 - tail, hits + 1, n - hits))
    return low, high


def judge(values: Sequence[float], margin: float) -> str:
    """The verdict on independent values of one effect, one of `VERDICTS`.

    95 % interval without 0: *differs but trivially* where it lies inside the margin, else *differs*. With 0:
    *equivalent* where the 90 % interval lies inside the margin, else *unresolved*.
    """
    _margin(margin)
    low, high = interval(values)
    if low > 0 or high < 0:
        return "differs but trivially" if -margin < low and high < margin else "differs"
    return "equivalent" if tost(values, margin) < 0.05 else "unresolved"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All that is said of one effect; what cannot be said of so few replicates is None."""

    n: int
    effect: float | None
    low: float | None
    high: float | None
    sd: float | None
    p: float | None
    p_signs: float | None
    p_equivalent: float | None
    verdict: str
    detectable: float | None
    """The true effect that this many replicates of this spread find four times in five."""
    needed: int | None
    """Replicates that would find an effect as large as the margin four times in five."""


def compare(values: Sequence[float], margin: float) -> Comparison:
    """The whole account of one effect from its value in each replicate.

    Raises ConfigError for a margin that is not above 0.
    """
    _margin(margin)
    if len(values) < 2:
        return _told(len(values), float(values[0]) if values else None, "unresolved")
    low, high = interval(values)
    sd = float(np.std(values, ddof=1))
    return Comparison(
        n=len(values),
        effect=float(np.mean(values)),
        low=low,
        high=high,
        sd=sd,
        p=t_test(values),
        p_signs=sign_flip(values),
        p_equivalent=tost(values, margin),
        verdict=judge(values, margin),
        detectable=detectable(sd, len(values)),
        needed=replicates_needed(margin, sd),
    )


def compare_rate(values: Sequence[float], nominal: float, margin: float, tries: int = 1) -> Comparison:
    """The same account of a rate: how often 1 was seen, less the rate that was promised.

    Each value is the share of 1 among `tries` independent tries. Intervals are exact (Clopper and Pearson 1934), p is
    that of the exact binomial test; none against a rate of 0 or 1, which one try may refute and none can support.
    """
    _margin(margin)
    n, hits = tries * len(values), round(tries * sum(values))
    if n < 2:
        return compare([value - nominal for value in values], margin)
    low, high = (bound - nominal for bound in bounds_of_rate(hits, n))
    inner_low, inner_high = (bound - nominal for bound in bounds_of_rate(hits, n, 0.90))
    inside = -margin < inner_low and inner_high < margin
    verdict = "equivalent" if inside else "unresolved"
    if low > 0 or high < 0:
        verdict = "differs but trivially" if -margin < low and high < margin else "differs"
    return Comparison(
        n=n,
        effect=hits / n - nominal,
        low=low,
        high=high,
        sd=None,
        p=float(scipy().binomtest(hits, n, nominal).pvalue) if 0 < nominal < 1 else None,
        p_signs=None,
        p_equivalent=None,
        verdict=verdict,
        detectable=None,
        needed=None,
    )


def constant(values: Sequence[float], margin: float) -> Comparison | None:
    """The account of what is no outcome of chance: its value. None where values scatter, by a thousandth of the margin.

    There is nothing to test: whether it is 0 can be read off.
    """
    _margin(margin)
    if not len(values) or max(values) - min(values) > margin / 1000:
        return None
    return _told(len(values), float(np.mean(values)), "constant")


def left_out(values: Sequence[float]) -> Comparison:
    """The account of an effect that cannot be asked, for what it needs is not there; its values stay in the file."""
    return _told(len(values), None, "left out")


def _told(n: int, effect: float | None, verdict: str) -> Comparison:
    """Of which nothing was tested."""
    return Comparison(
        n=n, effect=effect, low=None, high=None, sd=None, p=None, p_signs=None, p_equivalent=None, verdict=verdict,
        detectable=None, needed=None,
    )  # fmt: skip


def _several(values: Sequence[float]) -> np.ndarray:
    x = np.asarray(values, dtype=np.float64)
    if len(x) < 2:
        raise ConfigError(f"{len(x)} replicate has no spread; expected at least 2 (--seeds 2, better 8)")
    return x


def _margin(margin: float) -> None:
    if not 0 < margin < math.inf:
        raise ConfigError(
            f"the margin is {margin:g}; expected a number above 0: the largest difference that would not matter"
        )

"""All that is said of one effect, as one value: of differences, of a rate, of a constant, of what was left out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qkv.studies.verdict import statistics as stats
from qkv.studies.verdict.power import detectable, replicates_needed


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All that is said of one effect; what cannot be said of so few replicates is None."""

    n: int
    effect: float | None
    """The median of the paired differences; of a rate and of a constant, it itself."""
    verdict: str
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    """Of the same values: where a few are far from all others, it says what the median does not."""
    outliers: int | None = None
    """Replicates far from the median (`statistics.outliers`): trainings of one arm that went wrong now and then.

    None of fewer than 6, where nobody can tell."""
    sd: float | None = None
    p: float | None = None
    """Of the test whose interval this is."""
    p_equivalent: float | None = None
    detectable: float | None = None
    """The true effect that this many replicates of this spread find four times in five."""
    needed: int | None = None
    """Replicates that would find an effect as large as the margin four times in five."""
    mean_is_elsewhere: bool | None = None
    """Whether the mean lies farther from the median than the margin, so that a sentence should give both."""


def compare(values: Sequence[float], margin: float) -> Comparison:
    """The whole account of one effect from its value in each replicate.

    Raises ConfigError for a margin that is not above 0.
    """
    stats.expected_margin(margin)
    if len(values) < 2:
        return Comparison(n=len(values), effect=float(values[0]) if values else None, verdict="unresolved")
    values = stats.beyond_rounding(values, margin)
    low, high = stats.interval(values)
    sd, median, mean = float(np.std(values, ddof=1)), float(np.median(values)), float(np.mean(values))
    return Comparison(
        n=len(values),
        effect=median,
        mean=mean,
        outliers=stats.outliers(values, margin) if stats.is_exact(len(values)) else None,
        low=low,
        high=high,
        sd=sd,
        p=stats.p_value(values),
        p_equivalent=stats.tost(values, margin),
        verdict=stats.judge(values, margin),
        detectable=detectable(sd, len(values)),
        needed=replicates_needed(margin, sd),
        mean_is_elsewhere=abs(mean - median) > margin,
    )


def compare_rate(values: Sequence[float], nominal: float, margin: float, tries: int = 1) -> Comparison:
    """The same account of a rate: how often 1 was seen, less the rate that was promised.

    Each value is the share of 1 among `tries` independent tries; what is none is compared as differences are.
    Intervals are exact (Clopper and Pearson 1934), and so is p, twice the smaller tail; none against a rate of 0 or 1,
    which one try may refute and none can support.
    """
    stats.expected_margin(margin)
    n, hits = tries * len(values), round(tries * sum(values))
    if n < 2 or not stats.are_rates(values):
        return compare([value - nominal for value in values], margin)
    low, high = (bound - nominal for bound in stats.bounds_of_rate(hits, n))
    inner_low, inner_high = (bound - nominal for bound in stats.bounds_of_rate(hits, n, 0.90))
    inside = -margin < inner_low and inner_high < margin
    verdict = "equivalent" if inside else "unresolved"
    if low > 0 or high < 0:
        verdict = "differs but trivially" if -margin < low and high < margin else "differs"
    return Comparison(
        n=n,
        effect=hits / n - nominal,
        low=low,
        high=high,
        p=_p_of_rate(hits, n, nominal) if 0 < nominal < 1 else None,
        verdict=verdict,
    )


def _p_of_rate(hits: int, n: int, nominal: float) -> float:
    """Below 0.05 exactly where `bounds_of_rate` leaves out the nominal rate."""
    of = stats.scipy().binom
    return min(1.0, 2 * min(float(of.cdf(hits, n, nominal)), float(of.sf(hits - 1, n, nominal))))


def constant(values: Sequence[float], margin: float) -> Comparison | None:
    """The account of what is no outcome of chance: its value. None where values scatter, by a thousandth of the margin.

    There is nothing to test: whether it is 0 can be read off.
    """
    stats.expected_margin(margin)
    if not len(values) or max(values) - min(values) > stats.NOTHING * margin:
        return None
    return Comparison(n=len(values), effect=float(np.mean(values)), verdict="constant")

"""The line through a ladder: against closed forms, and how often its intervals and verdicts are right."""

from collections import Counter

import numpy as np
import pytest

from qkv.studies.ladder.trend import VERDICTS, Trend
from qkv.studies.verdict.statistics import t_interval

MARGIN = 0.03
SIZES = np.array([57e3, 164e3, 262e3, 917e3])
X = np.log10(SIZES)


def drawn(rng, *, slope=0.0, level=0.09, off=0.0, sd=0.02, n_sizes=4, lines=1, n=4):
    """(values [cells, seeds], weights, lines) of a ladder whose truth is known; a slice's own effect is shared."""
    x = np.tile(X[:n_sizes], lines)
    of = np.repeat(np.arange(lines), n_sizes)
    noise = np.broadcast_to(sd, x.shape)[:, None] if np.ndim(sd) < 1 else np.tile(sd[:n_sizes], lines)[:, None]
    values = level + slope * (x - X[0])[:, None] + off * rng.normal(size=(len(x), 1))
    values = values + 0.02 * rng.normal(size=n) + noise * rng.normal(size=(len(x), n))
    return values, 10**x, of.tolist()


def test_slope_and_lack_of_fit_are_those_of_the_balanced_analysis_of_variance():
    values, weights, lines = drawn(np.random.default_rng(1), slope=-0.05, off=0.1, sd=0.01)
    trend = Trend(values, weights, lines, MARGIN)
    x, n = np.log10(weights) - np.log10(weights).mean(), values.shape[1]
    slopes = [sum(x * column) / sum(x**2) for column in values.T]
    assert trend.slope().value == pytest.approx(np.mean(slopes))
    fitted = values.mean(axis=0) + np.outer(x, slopes)
    off = values - fitted
    between = n * sum(off.mean(axis=1) ** 2) / (len(x) - 2)
    within = sum((off - off.mean(axis=1, keepdims=True)).ravel() ** 2) / ((n - 1) * (len(x) - 2))
    assert trend.lack_of_fit == pytest.approx((between - within) / n) and between > within


def test_without_anything_off_the_line_the_slope_has_students_interval_over_seeds():
    values, weights, lines = drawn(np.random.default_rng(4), sd=0.02)
    trend = Trend(values, weights, lines, 1e-12)  # of a margin that adds nothing
    assert trend.lack_of_fit == 0.0
    x = X - X.mean()
    low, high = t_interval([float(sum(x * column) / sum(x**2)) for column in values.T])
    slope = trend.slope()
    assert (slope.low, slope.high) == pytest.approx((low, high), rel=1e-9)


def test_lines_are_parallel_and_each_passes_through_its_own_level():
    weights, lines = [*SIZES, *SIZES[:3]], [5.0] * 4 + [20.0] * 3
    truth = np.array([0.3 - 0.05 * np.log10(w) + 0.01 * line for w, line in zip(weights, lines, strict=True)])
    trend = Trend(truth[:, None] + np.array([[-0.01, 0.01]]), weights, lines, MARGIN)
    assert trend.slope().value == pytest.approx(-0.05)
    for line in (5.0, 20.0):
        assert trend.at(1e6, line).value == pytest.approx(0.3 - 0.3 + 0.01 * line)
    assert trend.at(1e6).value == pytest.approx(0.125)


def test_what_is_predicted_is_less_certain_farther_out_and_of_few_seeds():
    trend = Trend(*drawn(np.random.default_rng(5), slope=-0.03), MARGIN)

    def width(figure):
        return figure.high - figure.low

    near, far = trend.predicted(2e6), trend.predicted(124e6)
    assert width(trend.at(2e6)) < width(near) < width(far)
    assert width(near) < width(trend.predicted(2e6, measured=True))


def test_the_line_crosses_the_margin_where_its_level_says():
    truth = 0.09 - 0.05 * (X - X[0])
    trend = Trend(truth[:, None] + np.array([[-1e-4, 1e-4]]), SIZES, [5.0] * 4, MARGIN)
    found = trend.crossing()
    assert np.log10(found.value) == pytest.approx(X[0] + 0.06 / 0.05, abs=0.05) and found.low < found.value < found.high
    assert Trend(0 * truth[:, None] + np.array([[0.5, 0.51]]), SIZES, [5.0] * 4, MARGIN).crossing() is None


@pytest.mark.parametrize(
    "level, slope, verdict",
    [
        (0.2, -0.1, "shrinks"), (-0.2, 0.1, "shrinks"), (0.05, 0.1, "grows"), (-0.05, -0.1, "grows"),
        (0.15, -0.25, "reverses"), (0.1, 0.0, "does not depend on size"), (0.1, 0.02, "cannot tell"),
    ],
)  # fmt: skip
def test_the_verdict_follows_from_both_ends(level, slope, verdict):
    truth = level + slope * (X - X[0])
    values = truth[:, None] + np.array([[-0.001, 0.001, -0.002, 0.002]])
    assert Trend(values, SIZES, [5.0] * 4, MARGIN).verdict() == verdict


UNEQUAL = 0.04 * 10 ** (-0.8 * (X - X[0]))
"""Standard deviation between seeds by size, from 0.04 down to 0.015."""


@pytest.mark.slow
@pytest.mark.parametrize("n_sizes, lines", [(3, 1), (4, 1), (4, 2)])
@pytest.mark.parametrize("sd", [0.02, UNEQUAL], ids=["equal noise", "unequal noise"])
@pytest.mark.parametrize("off", [0.0, MARGIN / 3, MARGIN / 2], ids=["on the line", "a third off", "half off"])
def test_of_2000_little_ladders_intervals_hold_and_verdicts_are_rarely_wrong(n_sizes, lines, sd, off):
    """A third each: no slope, a change by just the margin, a fall from 0.09 by more than twice the margin."""
    rng, n, change = np.random.default_rng(11), 2001, X[n_sizes - 1] - X[0]
    slopes = (0.0, MARGIN / change, -0.1)
    held, said = 0, {slope: Counter() for slope in slopes}
    for i in range(n):
        slope = slopes[i % 3]
        trend = Trend(*drawn(rng, slope=slope, off=off, sd=sd, n_sizes=n_sizes, lines=lines), MARGIN)
        figure, verdict = trend.slope(), trend.verdict()
        held += figure.low <= slope <= figure.high
        said[slope][verdict] += 1
    assert set().union(*said.values()) <= set(VERDICTS) and 0.1 * change > 2 * MARGIN
    of_none, of_margin, of_fall = ({name: 3 * times / n for name, times in said[slope].items()} for slope in slopes)
    some = ("shrinks", "grows", "reverses")
    at_most = 0.065 if off <= MARGIN / 3 else 0.10  # where sizes lie farther off than the rule supposes
    assert held / n >= (0.94 if off <= MARGIN / 3 else 0.915)
    assert sum(of_none.get(name, 0) for name in some) <= at_most
    assert of_margin.get("does not depend on size", 0) <= at_most
    assert of_fall.get("grows", 0) + of_fall.get("does not depend on size", 0) <= 0.025

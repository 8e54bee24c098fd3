"""The arithmetic of verdicts against SciPy, closed forms and simulation."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import ConfigError
from qkv.studies.questions.calibrate import OUTCOMES
from qkv.studies.verdict import statistics as ours
from qkv.studies.verdict.comparison import compare, compare_rate

scipy_stats = pytest.importorskip("scipy.stats", reason="SciPy is in the extra study")

STUDIES = Path(__file__).parents[2] / "docs/studies.md"
VALUES = np.random.default_rng(7).normal(0.3, 1.0, size=8)


def test_interval_and_p_of_few_equal_scipys_paired_t_test():
    a, b = np.random.default_rng(8).normal(size=(2, 5))
    theirs = scipy_stats.ttest_rel(a, b)
    bounds = theirs.confidence_interval(0.95)
    assert ours.t_interval(a - b) == pytest.approx((bounds.low, bounds.high), rel=1e-12)
    assert ours.interval(a - b, 0.9) == pytest.approx(tuple(theirs.confidence_interval(0.9)), rel=1e-12)
    assert ours.p_value(a - b) == pytest.approx(theirs.pvalue, rel=1e-12)


def by_counting(n: int, k: int) -> float:
    """Chance that fewer than k of n fair coins fall on one side, by trying all."""
    return float(np.mean([sum(coins) < k for coins in itertools.product((0, 1), repeat=n)]))


@pytest.mark.parametrize("n", [6, 8, 11])
def test_the_interval_lies_between_the_order_statistics_whose_chances_enclose_it(n):
    values = np.sort(np.random.default_rng(n).normal(size=n))
    for confidence in (0.8, 0.9, 0.95):
        k = max(k for k in range(1, n) if by_counting(n, k) <= (1 - confidence) / 2)
        low, high = ours.interval(values[::-1], confidence)
        assert values[k - 1] <= low <= values[k] and values[n - k - 1] <= high <= values[n - k]
    assert ours.interval(values, 0.9999) == pytest.approx((values[0], values[-1])), "no values are beyond the range"


def test_the_interpolation_is_exact_for_a_laplace_distribution():
    """Of k values below the median and n - k above, those next to it lie at exponential distances: closed form."""
    for n, tail in ((6, 0.025), (8, 0.025), (8, 0.05), (12, 0.025), (23, 0.05)):
        k, weight = ours.between(n, tail)
        next_to_it = math.comb(n, k) / 2**n * k / (k + (n - k) * (1 - weight) / weight)
        assert by_counting(min(n, 12), k) + next_to_it == pytest.approx(tail) if n <= 12 else 0 < weight < 1


def test_the_interval_of_eight_by_hand():
    """Tails of 1 and 9 of 256 enclose 6.4: a share of 0.675, a weight of 7 x 0.675 / (1 + 6 x 0.675)."""
    weight = 4.725 / 5.05
    low, high = ours.interval([-1.0, 2, 3, 4, 5, 6, 8, 18])
    assert low == pytest.approx(-(1 - weight) + 2 * weight) and high == pytest.approx(18 * (1 - weight) + 8 * weight)
    assert ours.p_value([-1.0, 2, 3, 4, 5, 6, 8, 18]) < 0.05 < ours.p_value([-40.0, 2, 3, 4, 5, 6, 8, 18])


@pytest.mark.parametrize("n", [6, 8, 9, 30])
def test_p_of_values_on_one_side_is_that_of_the_sign_test(n):
    values = np.random.default_rng(n).exponential(size=n)
    assert ours.p_value(values) == pytest.approx(scipy_stats.binomtest(n, n).pvalue)
    assert ours.p_value(np.append(-values[: n // 2], values[: n // 2])) == 1.0


@pytest.mark.parametrize("n", [2, 5, 6, 8, 13, 40])
def test_p_is_below_5_percent_exactly_where_the_interval_leaves_a_center_out(n):
    values = np.random.default_rng(n).standard_t(2, size=n)
    for center in np.linspace(values.min() - 0.1, values.max() + 0.1, 301):
        low, high = ours.interval(values - center)
        assert (ours.p_value(values - center) >= 0.05) == (low <= 0 <= high)


@pytest.mark.parametrize("n", [4, 8, 15])
def test_tost_is_below_5_percent_exactly_where_the_90_percent_interval_is_inside(n):
    values = np.random.default_rng(n).normal(0.3, 1.0, size=n)
    low, high = ours.interval(values, 0.90)
    for margin in np.linspace(0.05, 2.5, 60):
        assert (ours.tost(values, margin) < 0.05) == (-margin < low and high < margin)


def test_tost_of_few_equals_two_one_sided_t_tests():
    margin, few = 0.9, VALUES[:5]
    lower = scipy_stats.ttest_1samp(few, -margin, alternative="greater").pvalue
    upper = scipy_stats.ttest_1samp(few, margin, alternative="less").pvalue
    assert ours.tost(few, margin) == pytest.approx(max(lower, upper), rel=1e-9)


@pytest.mark.parametrize("step", [0.1, 1 / 3, 100 / 256])
def test_interval_p_and_verdict_agree_on_a_lattice_in_any_order(step):
    """Points of accuracy and shares lie on a lattice, where many values tie with each other and with 0."""
    draws = np.random.default_rng(7)
    for _ in range(300):
        values = step * draws.integers(-2, 8, size=8)
        low, high = ours.interval(values)
        assert (low > 0 or high < 0) == (ours.p_value(values) < 0.05), values
        assert ours.judge(values, 0.3) == ours.judge(values[::-1], 0.3), values


def without_0(x: np.ndarray) -> np.ndarray:
    """Whether the 95 % interval of each row leaves 0 out."""
    return (ours.lower_bound(x, 0.025) > 0) | (ours.lower_bound(-x, 0.025) > 0)


def printed(kind: str) -> dict[int, float]:
    """Coverage of 8 and 12 replicates by the table in docs/studies.md."""
    (line,) = (line for line in STUDIES.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {kind} |"))
    eight, twelve = (float(cell.strip(" %")) / 100 for cell in line.split("|")[2:4])
    return {8: eight, 12: twelve}


@pytest.mark.parametrize("n", [6, 8, 12, 16, 24])
@pytest.mark.parametrize("kind", OUTCOMES)
def test_intervals_hold_the_median_93_to_97_times_in_100_however_unequal_the_arms(kind, n):
    """20,000 little studies of each kind; what is not held is a false positive.

    Where many values tie with the median the interval holds it more often, the more so the more replicates there are.
    """
    x = OUTCOMES[kind](np.random.default_rng([n, len(kind)]), (20_000, n))
    coverage = 1 - np.mean(without_0(x))
    if n in (8, 12):
        assert coverage == pytest.approx(printed(kind)[n], abs=0.006), "docs/studies.md"
    assert 0.93 <= coverage and (coverage <= 0.97 or kind == "ties" and n > 12)
    at_the_margin = ours.lower_bound(x, 0.05) > 0, ours.lower_bound(-x, 0.05) > 0
    assert np.mean(at_the_margin, axis=1).max() < (0.08 if n == 6 else 0.06), "TOST, at either end of the margin"


@pytest.mark.parametrize("kind", OUTCOMES)
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_students_t_of_fewer_replicates_holds_the_median_of_these_kinds_about_as_often(kind, n):
    x = OUTCOMES[kind](np.random.default_rng(n), (20_000, n))
    reach = scipy_stats.t.ppf(0.975, n - 1) * x.std(axis=1, ddof=1) / np.sqrt(n)
    assert 0.925 <= np.mean(np.abs(x.mean(axis=1)) <= reach) <= 0.97


def test_an_unstable_arm_fools_an_interval_of_the_mean_and_not_that_of_the_median():
    x = OUTCOMES["one arm unstable"](np.random.default_rng(1), (4000, 8))
    subsets = (np.arange(1, 256)[:, None] >> np.arange(8)) & 1
    means = np.sort(x @ (subsets / subsets.sum(axis=1, keepdims=True)).T, axis=1)  # of sign flips (Hartigan 1969)
    truth = 0.12 * 20 - scipy_stats.norm.ppf(0.5 / 0.88)
    assert np.mean((means[:, 5] <= truth) & (truth <= means[:, -6])) < 0.75
    assert np.mean(without_0(x)) == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize("zeros", [0.2, 0.5, 0.9])
def test_many_exact_zeros_make_no_effect(zeros):
    draws = np.random.default_rng(int(10 * zeros))
    for n in (6, 8, 12):
        x = draws.exponential(size=(4000, n)) * draws.choice(
            (-1, 0, 1), p=((1 - zeros) / 2, zeros, (1 - zeros) / 2), size=(4000, n)
        )
        assert np.mean(without_0(x)) <= 0.05
    assert ours.p_value([0.0] * 6 + [0.5, 0.7]) == 1.0


def test_replicates_that_went_wrong_are_counted_and_the_mean_is_given_where_it_differs():
    values = [0.01, 0.02, 0.015, 0.012, 0.018, 0.011, 0.9, 1.4]
    found = compare(values, 0.03)
    assert (found.effect, found.mean) == (pytest.approx(0.0165), pytest.approx(np.mean(values)))
    assert found.outliers == 2 and found.mean_is_elsewhere
    calm = compare([*values[:6], 0.016, 0.014], 0.03)
    assert calm.outliers == 0 and not calm.mean_is_elsewhere
    assert compare(values[-5:], 0.03).outliers is None


def test_exact_bounds_of_a_rate_equal_scipys():
    theirs = scipy_stats.binomtest(7, 90).proportion_ci(0.95, "exact")
    assert ours.bounds_of_rate(7, 90) == pytest.approx((theirs.low, theirs.high), rel=1e-9)
    assert ours.bounds_of_rate(0, 10)[0] == 0.0 and ours.bounds_of_rate(10, 10)[1] == 1.0


@pytest.mark.parametrize(
    "values, verdict",
    [
        ([0.5, 0.6, 0.4, 0.5, 0.55], "differs"),
        ([0.02, 0.021, 0.019, 0.02], "differs but trivially"),
        ([0.01, -0.01, 0.005, -0.006, 0.001, 0.0], "equivalent"),
        ([1.0, -1.0, 0.5, -0.7], "unresolved"),
        ([0.0, 0.0, 0.0], "equivalent"),
        ([0.3, 0.3, 0.3], "unresolved"),
        ([0.1, 0.1, 0.1], "unresolved"),
        ([0.3] * 4, "differs"),
    ],
)
def test_the_rule_of_the_verdict(values, verdict):
    assert ours.judge(values, 0.1) == verdict
    assert compare(values, 0.1).verdict == verdict


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(-10, 10, allow_subnormal=False), min_size=2, max_size=9),
    st.floats(0.01, 5),
)
def test_a_comparison_never_contradicts_itself(values, margin):
    found = compare(values, margin)
    assert found.verdict in ours.VERDICTS
    assert found.low <= found.effect + 1e-9 and found.effect <= found.high + 1e-9
    assert found.verdict.startswith("differs") == (found.low > 0 or found.high < 0) == (found.p < 0.05)
    if found.verdict == "equivalent":
        assert found.p_equivalent < 0.05


def test_signs_of_rounding_are_no_evidence():
    """Six of eight replicates came out the same but for the last bits, all of which had one sign."""
    values = [-1.2e-05, -5.5e-06, -9e-06, -1.1e-05, -7e-06, -8e-06, -0.8, -0.9]
    assert max(ours.interval(values)) < 0, "all eight are below 0"
    assert ours.judge(values, 0.03) == "unresolved" and compare(values, 0.03).p == 1.0
    assert ours.judge([1e-5] * 8, 0.03) == "equivalent" and compare([1e-5] * 8, 0.03).effect == 0.0
    assert ours.judge([1e-4] * 8, 0.03) == "differs but trivially"


def test_few_equal_values_are_no_certainty():
    """Whole numbers of two or three replicates are often equal by chance: steps, or an accuracy on few targets."""
    draws = np.random.default_rng(1).normal(size=(4000, 2)).round()
    wrong = np.mean([compare(two, 0.1).verdict == "differs" for two in draws.tolist()])
    assert wrong < 0.06 and compare([50.0, 50.0], 10).p == 1.0
    assert (compare([50.0, 50.0], 10).low, compare([-50.0] * 3, 10).high) == (0.0, 0.0)


def test_what_is_no_rate_is_compared_as_it_is():
    assert compare_rate([1.5, 1.7, 1.6], 0.5, 0.1) == compare([1.0, 1.2, 1.1], 0.1)


@pytest.mark.parametrize("hits", range(0, 41, 2))
def test_p_of_a_rate_is_below_5_percent_exactly_where_its_interval_leaves_it_out(hits):
    found = compare_rate([1.0] * hits + [0.0] * (40 - hits), 0.3, 0.05)
    assert (found.p < 0.05) == (found.low > 0 or found.high < 0)


def test_one_replicate_and_a_margin_of_zero_are_explained():
    assert compare([0.5], 0.1).verdict == "unresolved" and compare([], 0.1).effect is None
    with pytest.raises(ConfigError, match="at least 2"):
        ours.interval([0.5])
    for margin in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="above 0"):
            compare([0.1, 0.2], margin)

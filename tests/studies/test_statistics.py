"""The arithmetic of verdicts against SciPy, closed forms and simulation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import ConfigError
from qkv.studies.verdict import statistics as ours
from qkv.studies.verdict.comparison import compare, compare_rate

scipy_stats = pytest.importorskip("scipy.stats", reason="SciPy is in the extra study")

VALUES = np.random.default_rng(7).normal(0.3, 1.0, size=8)


def test_interval_and_p_equal_scipys_paired_t_test():
    a, b = np.random.default_rng(8).normal(size=(2, 9))
    theirs = scipy_stats.ttest_rel(a, b)
    bounds = theirs.confidence_interval(0.95)
    assert ours.t_interval(a - b) == pytest.approx((bounds.low, bounds.high), rel=1e-12)
    few = scipy_stats.ttest_1samp(VALUES[:5], 0).confidence_interval(0.9)
    assert ours.interval(VALUES[:5], 0.9) == pytest.approx((few.low, few.high), rel=1e-12)
    many = np.tile(VALUES, 3) + np.arange(24)
    assert ours.interval(many) == ours.t_interval(many)
    assert ours.t_test(a - b) == pytest.approx(theirs.pvalue, rel=1e-12)


def test_sign_flip_equals_scipys_exact_permutation_test():
    theirs = scipy_stats.permutation_test(
        (VALUES, np.zeros(8)),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
    )
    assert ours.sign_flip(VALUES) == pytest.approx(theirs.pvalue, abs=1e-12)


def test_smallest_p_of_sign_flips_is_two_in_two_to_the_n():
    assert ours.sign_flip([1.0, 2, 3, 4, 5, 6]) == pytest.approx(2 / 2**6)
    assert ours.sign_flip([1.0, 2, 3, 4, 5]) is None


def test_tost_is_below_5_percent_exactly_where_the_90_percent_interval_is_inside():
    for margin in np.linspace(0.05, 2.5, 60):
        low, high = ours.interval(VALUES, 0.90)
        assert (ours.tost(VALUES, margin) < 0.05) == (-margin < low and high < margin)


def test_tost_of_few_equals_two_one_sided_t_tests():
    margin, few = 0.9, VALUES[:5]
    lower = scipy_stats.ttest_1samp(few, -margin, alternative="greater").pvalue
    upper = scipy_stats.ttest_1samp(few, margin, alternative="less").pvalue
    assert ours.tost(few, margin) == pytest.approx(max(lower, upper), rel=1e-9)


@pytest.mark.parametrize("margin", [0.4, 0.9, 1.5])
def test_tost_of_eight_equals_two_one_sided_permutation_tests(margin):
    def p(values: np.ndarray) -> float:
        return scipy_stats.permutation_test(
            (values, np.zeros(8)), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples",
            n_resamples=np.inf, alternative="greater",
        ).pvalue  # fmt: skip

    assert ours.tost(VALUES, margin) == pytest.approx(max(p(VALUES + margin), p(margin - VALUES)), abs=1e-12)


@pytest.mark.parametrize("n", [6, 7, 8, 11])
def test_the_exact_interval_holds_what_the_sign_flip_test_does_not_reject(n):
    values = np.random.default_rng(n).standard_t(2, size=n)
    low, high = ours.interval(values)
    for centre in np.linspace(values.min() - 0.1, values.max() + 0.1, 301):
        p = ours.sign_flip(values - centre)
        assert p is not None and (p >= 0.05) == (low <= centre <= high)


@pytest.mark.parametrize("step", [0.1, 1 / 3, 100 / 256])
def test_a_subset_whose_sum_is_0_leaves_0_in_however_its_values_round(step):
    """Points of accuracy and shares lie on a lattice, where sums of other signs tie; last bits are no evidence."""
    draws = np.random.default_rng(7)
    for _ in range(300):
        values = step * draws.integers(-2, 8, size=8)
        low, high = ours.interval(values)
        assert (low > 0 or high < 0) == (ours.p_value(values) < 0.05), values
        assert ours.judge(values, 0.3) == ours.judge(values[::-1], 0.3), values


def test_the_exact_interval_of_six_values_is_their_range():
    assert ours.interval(VALUES[:6]) == pytest.approx((VALUES[:6].min(), VALUES[:6].max()), rel=1e-12)


def test_heavy_tails_leave_the_exact_rate_alone_and_make_t_find_too_little():
    draws = np.random.default_rng(11)
    wild = draws.normal(size=(6000, 8)) * np.where(draws.random((6000, 8)) < 0.1, 8.0, 1.0)
    exact = np.mean([not low <= 0 <= high for low, high in map(ours.interval, wild)])
    student = np.mean([not low <= 0 <= high for low, high in map(ours.t_interval, wild)])
    assert exact == pytest.approx(12 / 256, abs=0.009) and student < 0.035


def test_exact_bounds_of_a_rate_equal_scipys():
    theirs = scipy_stats.binomtest(7, 90).proportion_ci(0.95, "exact")
    assert ours.bounds_of_rate(7, 90) == pytest.approx((theirs.low, theirs.high), rel=1e-9)
    assert ours.bounds_of_rate(0, 10)[0] == 0.0 and ours.bounds_of_rate(10, 10)[1] == 1.0


@pytest.mark.parametrize("n", [3, 5, 8])
def test_the_interval_covers_the_truth_95_times_in_100(n):
    draws = np.random.default_rng(n).normal(0.5, 2.0, size=(4000, n))
    hits = sum(low <= 0.5 <= high for low, high in map(ours.interval, draws))
    low, high = ours.bounds_of_rate(hits, len(draws), 0.999)
    assert low <= 0.95 <= high


def test_equivalence_at_the_margin_is_claimed_5_times_in_100():
    draws = np.random.default_rng(3).normal(1.0, 0.5, size=(4000, 8))
    hits = sum(ours.tost(row, 1.0) < 0.05 for row in draws)
    low, high = ours.bounds_of_rate(hits, len(draws), 0.999)
    assert low <= 0.05 <= high


@pytest.mark.parametrize(
    "values, verdict",
    [
        ([0.5, 0.6, 0.4, 0.5, 0.55], "differs"),
        ([0.02, 0.021, 0.019, 0.02], "differs but trivially"),
        ([0.01, -0.01, 0.005, -0.006, 0.001, 0.0], "equivalent"),
        ([1.0, -1.0, 0.5, -0.7], "unresolved"),
        ([0.0, 0.0, 0.0], "equivalent"),
        ([0.3, 0.3, 0.3], "differs"),
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
    assert ours.judge(values, 0.03) == "unresolved" and compare(values, 0.03).p == 0.5
    assert ours.judge([1e-5] * 8, 0.03) == "equivalent" and compare([1e-5] * 8, 0.03).effect == 0.0
    assert ours.judge([1e-4] * 8, 0.03) == "differs but trivially"


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


def test_signs_are_all_tried():
    x = np.array([3.0, -1, 2, 5, 1, 4, 2])
    sums = [abs(sum(s * v for s, v in zip(signs, x, strict=True))) for signs in itertools.product((1, -1), repeat=7)]
    assert ours.sign_flip(x) == pytest.approx(np.mean([s >= abs(x.sum()) for s in sums]))

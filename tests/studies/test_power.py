"""Power is that of the rule that judges, whichever number of replicates that is asked of."""

import numpy as np
import pytest

from qkv.studies.verdict.power import detectable, power, replicates_needed
from qkv.studies.verdict.statistics import interval, judge

scipy_stats = pytest.importorskip("scipy.stats", reason="SciPy is in the extra study")


@pytest.mark.parametrize("n", [6, 8, 12, 16, 24])
def test_a_detectable_effect_is_found_four_times_in_five_by_the_rule_that_judges(n):
    draws = np.random.default_rng(n).normal(detectable(2.0, n), 2.0, size=(2500, n))
    assert np.mean([judge(row, 1e-9) == "differs" for row in draws]) == pytest.approx(0.8, abs=0.025)


@pytest.mark.parametrize(("effect", "n"), [(0.0, 8), (0.8, 4), (0.5, 6), (1.0, 7), (0.8, 8), (0.6, 12), (0.7, 24)])
def test_power_equals_the_share_of_simulated_intervals_without_0(effect, n):
    draws = np.random.default_rng(1).normal(effect, 1.0, size=(2500, n))
    found = np.mean([low > 0 or high < 0 for low, high in map(interval, draws)])
    assert power(effect, n) == power(-effect, n) == pytest.approx(found, abs=0.025)


def test_two_replicates_find_what_they_are_said_to_find_and_power_is_never_undefined():
    draws = np.random.default_rng(2).normal(detectable(1.0, 2), 1.0, size=(4000, 2))
    assert np.mean([low > 0 or high < 0 for low, high in map(interval, draws)]) == pytest.approx(0.8, abs=0.02)
    assert all(0 <= power(effect, n) <= 1 for n in (2, 3, 5, 6, 20, 5000) for effect in np.linspace(0.1, 26, 60))


def test_power_of_many_is_that_of_the_asymptotic_sign_test():
    """The median scatters by sqrt(pi / 2 n) where differences are normal, with standard deviation 1."""
    effect, n = 0.05, 5000
    shift = effect / np.sqrt(np.pi / 2 / n)
    assert power(effect, n) == pytest.approx(scipy_stats.norm.sf(1.96 - shift), abs=0.01)


@pytest.mark.parametrize("effect", [0.4, 0.85, 1.0, 1.5, 1.75, 2.0])
def test_replicates_needed_and_all_more_have_that_power(effect):
    n = replicates_needed(effect, 1.0)
    assert n == replicates_needed(-2 * effect, 2.0)
    assert power(effect, n - 1) < 0.8 and all(power(effect, n + more) > 0.799 for more in range(4))


def test_there_are_effects_that_nothing_finds_and_spreads_that_hide_nothing():
    assert replicates_needed(0.0, 1.0) is None and replicates_needed(1e-4, 1.0) is None
    assert replicates_needed(0.0, 0.0) is None and replicates_needed(1.0, 0.0) == 2 and detectable(0.0, 6) == 0.0
    assert power(1.0, 1) == 0.0

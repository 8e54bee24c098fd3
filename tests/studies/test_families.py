"""Effects that are asked at once: what stands after correction stands alone, and together they keep the promise."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.studies.verdict.corrections import corrected, flipped_together, holm
from qkv.studies.verdict.judging import numbered
from qkv.studies.verdict.statistics import interval, p_value

pytest.importorskip("scipy.stats", reason="SciPy is in the extra study")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_the_step_down_rule_rejects(p_values):
    order, alive, rejected = np.argsort(p_values, kind="stable"), True, set()
    for rank, index in enumerate(order):
        alive = alive and (len(p_values) - rank) * p_values[index] < 0.05
        if alive:
            rejected.add(index)
    assert {i for i, p in enumerate(holm(p_values)) if p < 0.05} == rejected


def by_hand(rows):
    """Step-down by all signs, one step and one choice at a time."""

    def distance(row, chosen):
        x = [chosen[replicate] * value for replicate, value in row.items()]
        low, high = interval(x)
        return max(low, -high) / np.median(np.abs(x))

    n = max(max(row) for row in rows)
    choices = [dict(enumerate(c, start=1)) for c in itertools.product((1, -1), repeat=n)]
    seen = [distance(row, choices[0]) for row in rows]
    found, worst, left = [0.0] * len(rows), 0.0, sorted(range(len(rows)), key=lambda i: -seen[i])
    while left:
        first = left[0]
        p = np.mean([max(distance(rows[i], chosen) for i in left) >= seen[first] - 1e-9 for chosen in choices])
        worst = found[first] = max(worst, p)
        left = left[1:]
    return found


def test_signs_of_replicates_are_flipped_in_all_rows_at_once():
    draws = np.random.default_rng(3)
    shared = draws.normal(size=7)
    rows = [numbered(shared + draws.normal(mean, 0.7, 7)) for mean in (0.0, 1.5, 0.8, 3.0)]
    rows[2] = {replicate: value for replicate, value in rows[2].items() if replicate != 4}
    assert flipped_together(rows) == pytest.approx(by_hand(rows))


@pytest.mark.parametrize("n", [6, 8])
def test_what_stands_after_correction_stands_alone_and_one_row_is_corrected_for_nothing(n):
    draws = np.random.default_rng(n)
    values = [draws.normal(mean, 1.0, n) for mean in (0.0, 0.9, 2.0, 4.0, -3.0)]
    values.append(np.zeros(n))
    p = [p_value(row) for row in values]
    found = corrected(p, [numbered(row) for row in values])
    assert all(after >= alone - 1e-12 for after, alone in zip(found, p, strict=True)) and found[-1] == 1.0
    assert corrected(p[1:2], [numbered(values[1])]) == [p[1]]
    assert min(found) < 0.05, "six replicates are enough for a family"


SKEW = {
    "normal": lambda x: x,
    "log-normal": lambda x: np.exp(x) - 1,
    "skewed to both sides": lambda x: np.sign(np.arange(6)[:, None] % 2 - 0.5) * (np.exp(x) - 1),
    "heavy tails": lambda x: x**3,
}
"""What keeps a median of 0; x: [rows, replicates]."""


@pytest.mark.parametrize("kind", SKEW)
@pytest.mark.parametrize("shared", [0.0, 1.0])
@pytest.mark.parametrize("n", [8, 10])
def test_families_of_nothing_err_5_times_in_100_also_where_rows_are_skewed_and_go_together(kind, shared, n):
    draws, wrong, families = np.random.default_rng(5), 0, 600
    for _ in range(families):
        rows = SKEW[kind](shared * draws.normal(size=(1, n)) + (1 - shared / 2) * draws.normal(size=(6, n)))
        wrong += min(corrected([p_value(row) for row in rows], [numbered(row) for row in rows])) < 0.05
    assert wrong / families == pytest.approx(0.045, abs=0.025)


def test_of_many_replicates_signs_are_drawn_and_effects_are_found_among_rows_of_nothing():
    draws = np.random.default_rng(8)
    rows = [draws.normal(2.0 * (i < 2), 1.0, 20) for i in range(10)]
    found = corrected([p_value(row) for row in rows], [numbered(row) for row in rows])
    assert max(found[:2]) < 0.05 and min(found[2:]) > 0.05
    assert found == corrected([p_value(row) for row in rows], [numbered(row) for row in rows])


def test_an_effect_that_differs_corrected_differs_alone():
    draws = np.random.default_rng(9)
    for n in (6, 8, 14):
        for _ in range(30):
            rows = [draws.exponential(size=n) - draws.uniform(0, 0.5) for _ in range(5)]
            p = [p_value(row) for row in rows]
            assert all(alone <= after for alone, after in zip(p, corrected(p, list(map(numbered, rows))), strict=True))


def test_other_rows_are_corrected_by_holm_and_each_kind_has_its_share():
    draws = np.random.default_rng(6)
    long, short = [draws.normal(2.0, 1.0, 8) for _ in range(3)], [draws.normal(3.0, 1.0, 4)]
    rows = [numbered(row) for row in (*long, *short)]
    found = corrected([p_value(row) for row in (*long, *short)], [*rows[:3], rows[3]])
    assert found[:3] == pytest.approx([min(1.0, 4 / 3 * p) for p in flipped_together(rows[:3])])
    assert found[3] == pytest.approx(min(1.0, 4 * p_value(short[0])))
    assert corrected([0.01, 0.04], [None, None]) == pytest.approx([0.02, 0.04])

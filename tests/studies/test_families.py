"""Effects that are asked at once: what stands after correction stands alone, and together they keep the promise."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.studies.verdict.corrections import corrected, flipped_together, holm
from qkv.studies.verdict.judging import numbered
from qkv.studies.verdict.statistics import p_value, sign_flip

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

    def t(row, chosen):
        x = np.array([chosen[replicate] * value for replicate, value in row.items()])
        return abs(x.mean()) / x.std(ddof=1) * np.sqrt(len(x))

    n = max(max(row) for row in rows)
    choices = [dict(enumerate(c, start=1)) for c in itertools.product((1, -1), repeat=n)]
    seen = [t(row, choices[0]) for row in rows]
    found, worst, left = [0.0] * len(rows), 0.0, sorted(range(len(rows)), key=lambda i: -seen[i])
    while left:
        first = left[0]
        p = np.mean([max(t(rows[i], chosen) for i in left) >= seen[first] - 1e-9 for chosen in choices])
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
    assert corrected(p[1:2], [numbered(values[1])]) == pytest.approx([sign_flip(values[1])])
    assert min(found) < 0.05, "six replicates are enough for a family"


def test_families_of_nothing_err_5_times_in_100_also_where_their_rows_go_together():
    draws = np.random.default_rng(5)
    wrong = 0
    for _ in range(1500):
        together = draws.standard_t(3, size=(6, 1)) + 0.5 * draws.normal(size=(6, 5))
        rows = [numbered(column) for column in together.T]
        wrong += min(flipped_together(rows)) < 0.05
    assert wrong / 1500 == pytest.approx(2 / 64, abs=0.014)


def test_other_rows_are_corrected_by_holm_and_each_kind_has_its_share():
    draws = np.random.default_rng(6)
    long, short = [draws.normal(2.0, 1.0, 8) for _ in range(3)], [draws.normal(3.0, 1.0, 4)]
    rows = [numbered(row) for row in (*long, *short)]
    found = corrected([p_value(row) for row in (*long, *short)], [*rows[:3], rows[3]])
    assert found[:3] == pytest.approx([min(1.0, 4 / 3 * p) for p in flipped_together(rows[:3])])
    assert found[3] == pytest.approx(min(1.0, 4 * p_value(short[0])))
    assert corrected([0.01, 0.04], [None, None]) == pytest.approx([0.02, 0.04])

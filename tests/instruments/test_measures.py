"""Every measure against NumPy in float64, at its limits, and where it is undefined."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import ConfigError
from qkv.instruments import (
    LIGHT,
    MEASURES,
    SPECTRAL,
    drift,
    effective_rank,
    grad_norm,
    measure,
    norm,
    property_of,
    row_drift,
    singular_values,
    spectral_norm,
    stable_rank,
    turn,
    update_ratio,
)

shapes = st.tuples(st.integers(1, 12), st.integers(1, 12))


def matrix(shape, seed, scale=1.0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * scale)


@given(shapes, st.integers(0, 99), st.sampled_from([1e-6, 1.0, 1e4]))
@settings(max_examples=60, deadline=None)
def test_measures_equal_their_formulas_in_float64(shape, seed, scale):
    start, now = matrix(shape, seed, scale), matrix(shape, seed + 1, scale)
    s, w = start.double().numpy(), now.double().numpy()
    assert norm(now) == pytest.approx(np.linalg.norm(w), rel=1e-12)
    assert drift(now, start) == pytest.approx(np.linalg.norm(w - s) / np.linalg.norm(s), rel=1e-12)
    assert update_ratio(start, now) == pytest.approx(np.linalg.norm(w - s) / np.linalg.norm(w), rel=1e-12)
    cosine = np.clip((w * s).sum() / np.linalg.norm(w) / np.linalg.norm(s), -1, 1)
    assert turn(now, start) == pytest.approx(math.degrees(math.acos(cosine)), abs=1e-5)
    values = np.linalg.svd(w, compute_uv=False)
    np.testing.assert_allclose(singular_values(now).numpy(), values, rtol=1e-6, atol=1e-7 * values[0])
    share = values / values.sum()
    assert spectral_norm(now) == pytest.approx(values[0], rel=1e-10)
    assert stable_rank(now) == pytest.approx((values**2).sum() / values[0] ** 2, rel=1e-9)
    entropy = -(share * np.log(np.where(share > 0, share, 1))).sum()
    assert effective_rank(now) == pytest.approx(np.exp(entropy), rel=1e-5)
    expected = np.linalg.norm(w - s, axis=1) / np.linalg.norm(s, axis=1)
    np.testing.assert_allclose(row_drift(now, start), expected, rtol=1e-5)
    np.testing.assert_allclose(row_drift(now.T, start.T, axis=1), expected, rtol=1e-5)


@pytest.mark.parametrize("degrees", [1e-5, 1e-3, 0.1, 1.0, 45.0, 90.0, 135.0, 179.99])
def test_a_turn_is_exact_at_every_angle_and_whatever_the_size(degrees):
    start = torch.zeros(4, 4, dtype=torch.float64)
    start[0, 0] = 2.0
    now = torch.zeros_like(start)
    now[0, 0], now[3, 1] = 7 * math.cos(math.radians(degrees)), 7 * math.sin(math.radians(degrees))
    assert turn(now, start) == pytest.approx(degrees, rel=1e-9)


def test_a_frozen_matrix_reads_zero():
    weights = matrix((5, 7), 0)
    assert (drift(weights, weights), turn(weights, weights), update_ratio(weights, weights)) == (0, 0, 0)
    assert grad_norm(None) is None
    assert not row_drift(weights, weights).any()


def test_what_is_undefined_reads_as_nothing_and_never_as_infinity():
    zero, some = torch.zeros(4, 6), matrix((4, 6), 0)
    assert turn(some, zero) is None and turn(zero, some) is None
    assert update_ratio(some, zero) is None
    assert stable_rank(zero) is None and effective_rank(zero) is None
    assert spectral_norm(zero) == 0
    assert drift(zero, zero) == 0


def test_a_matrix_that_starts_at_zero_drifts_in_units_of_a_usual_start():
    now = matrix((64, 256), 3) / 8  # N(0, 1/fan_in): what such a matrix would have started at
    assert drift(now, torch.zeros(64, 256)) == pytest.approx(1.0, abs=0.02)
    rows = torch.zeros(3, 8)
    assert row_drift(torch.eye(3, 8) * 2, rows).tolist() == [2, 2, 2]


def test_ranks_of_known_matrices():
    assert effective_rank(torch.eye(9) * 5) == pytest.approx(9)
    assert stable_rank(torch.eye(9)[:, :4]) == pytest.approx(4)
    outer = torch.outer(torch.arange(1.0, 6), torch.arange(2.0, 9))
    assert effective_rank(outer) == pytest.approx(1, abs=1e-5) and stable_rank(outer) == pytest.approx(1)
    vector = torch.arange(1.0, 5)
    assert spectral_norm(vector) == pytest.approx(norm(vector)) and stable_rank(vector) == pytest.approx(1)


def test_the_nulls_that_the_registry_states_hold_for_a_random_matrix():
    n = 256
    weights = matrix((n, n), 0) / math.sqrt(n)
    assert spectral_norm(weights) == pytest.approx(2, rel=0.03)
    assert stable_rank(weights) == pytest.approx(n / 4, rel=0.05)
    assert effective_rank(weights) == pytest.approx(0.8 * n, rel=0.02)
    assert turn(weights, matrix((n, n), 1)) == pytest.approx(90, abs=1)


def test_every_measure_says_all_that_it_must():
    assert set(LIGHT) | set(SPECTRAL) <= set(MEASURES)
    for item in MEASURES.values():
        for field in ("meaning", "formula", "range", "source", "null", "decision"):
            assert len(getattr(item, field)) > 3, (item.name, field)
        row = item.row()
        assert all(getattr(row, field) == getattr(item, field) for field in vars(row))
    assert measure("drift").name == "drift"
    with pytest.raises(ConfigError, match="'drift'"):
        measure("drft")


def test_spectra_of_circuits_belong_to_the_function_and_those_of_factors_do_not():
    assert property_of("effective_rank", "QK") == "function"
    assert property_of("effective_rank", "W_Q") == "parametrisation"
    assert property_of("drift", "QK") == "parametrisation"


def test_a_change_of_basis_inside_a_head_moves_factors_and_not_circuits():
    query, key, basis = matrix((12, 4), 0).double(), matrix((12, 4), 1).double(), matrix((4, 4), 2).double()
    other_query, other_key = query @ basis, key @ torch.linalg.inv(basis).T
    assert abs(norm(other_query) - norm(query)) > 0.1
    assert effective_rank(other_query @ other_key.T) == pytest.approx(effective_rank(query @ key.T), rel=1e-6)

"""Every measure against NumPy in float64, at its limits, and where it is undefined."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import ConfigError
from qkv.instruments import (
    CIRCUIT,
    LIGHT,
    MEASURES,
    SPECTRAL,
    alignment,
    descent,
    drift,
    effective_rank,
    grad_norm,
    measure,
    norm,
    participation_rank,
    property_of,
    rotation,
    row_drift,
    second_moment,
    singular_values,
    spectral_norm,
    stable_rank,
    subspace_angle,
    symmetric_share,
    turn,
    update_ratio,
)
from qkv.instruments.spectra import circuit_reading, participation_ranks

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
    assert set(LIGHT) | set(SPECTRAL) | set(CIRCUIT) <= set(MEASURES)
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
    assert property_of("drift", "W_K") == "parametrisation" and property_of("drift", "QK") == "function"
    assert property_of("angle_to_k", "W_Q") == "function" and property_of("descent", "W_Q") == "parametrisation"


def test_a_change_of_basis_inside_a_head_moves_factors_and_not_circuits():
    query, key, basis = matrix((12, 4), 0).double(), matrix((12, 4), 1).double(), matrix((4, 4), 2).double()
    other_query, other_key = query @ basis, key @ torch.linalg.inv(basis).T
    assert abs(norm(other_query) - norm(query)) > 0.1
    assert effective_rank(other_query @ other_key.T) == pytest.approx(effective_rank(query @ key.T), rel=1e-6)


@given(shapes, st.integers(0, 99), st.sampled_from([1e-4, 1.0, 1e3]))
@settings(max_examples=40, deadline=None)
def test_measures_of_updates_and_directions_equal_their_formulas_in_float64(shape, seed, scale):
    before, after, gradient = (matrix(shape, seed + i, scale) for i in range(3))
    b, a, g = (t.double().numpy() for t in (before, after, gradient))
    assert descent(before, after, gradient) == pytest.approx(-(g * (a - b)).sum(), rel=1e-9, abs=1e-12 * scale**2)
    cosine = -(g * (a - b)).sum() / np.linalg.norm(g) / np.linalg.norm(a - b)
    assert alignment(before, after, gradient) == pytest.approx(cosine, abs=1e-9)
    s = np.linalg.svd(a, compute_uv=False)
    assert participation_rank(after) == pytest.approx((s**2).sum() ** 2 / (s**4).sum(), rel=1e-9)
    square = a @ a.T @ b @ b.T
    anti = (square - square.T) / 2
    expected = 1 - (anti**2).sum() / (square**2).sum()
    assert symmetric_share(torch.from_numpy(square)) == pytest.approx(expected, abs=1e-9)


def test_the_second_moment_is_the_debiased_root_mean_square_of_adam():
    weights = torch.nn.Parameter(torch.zeros(3, 5))
    adam, draws = torch.optim.Adam([weights], betas=(0.9, 0.95)), np.random.default_rng(0)
    seen = np.zeros((3, 5))
    for step in range(1, 5):
        grad = draws.standard_normal((3, 5)).astype(np.float32)
        weights.grad = torch.from_numpy(grad)
        adam.step()
        seen = 0.95 * seen + 0.05 * grad.astype(np.float64) ** 2
        expected = math.sqrt((seen / (1 - 0.95**step)).mean())
        assert second_moment(adam.state[weights]["exp_avg_sq"], step, 0.95) == pytest.approx(expected, rel=1e-6)
    assert second_moment(torch.zeros(2), 0, 0.95) is None


def test_a_rotation_by_a_known_angle_is_read_as_that_angle():
    start = torch.diag(torch.tensor([5.0, 4.0, 1e-3, 1e-4]))
    angle = math.radians(30)
    turned = torch.eye(4)
    turned[0, 0] = turned[2, 2] = math.cos(angle)
    turned[2, 0], turned[0, 2] = math.sin(angle), -math.sin(angle)
    expected = math.degrees(math.acos(math.sqrt((math.cos(angle) ** 2 + 1) / 2)))  # one of two directions turned
    assert rotation(turned @ start, start, 2) == pytest.approx(expected, abs=1e-3)
    assert rotation(start, start, 2) == pytest.approx(0, abs=1e-5)
    assert rotation(start, start, 4) is None and rotation(torch.zeros(4, 4), start, 2) is None


def test_angles_between_read_spaces_are_those_of_scipy():
    from scipy.linalg import subspace_angles

    a, b = matrix((20, 5), 0), matrix((20, 5), 1)
    cosines = np.cos(subspace_angles(a.double().numpy(), b.double().numpy()))
    expected = math.degrees(math.acos(math.sqrt((cosines**2).mean())))
    assert subspace_angle(a, b) == pytest.approx(expected, abs=1e-6)
    assert subspace_angle(matrix((5, 5), 0), matrix((5, 5), 1)) is None
    assert subspace_angle(torch.zeros(20, 5), b) is None
    assert subspace_angle(matrix((20, 1), 2) @ matrix((1, 5), 3), b) is None  # of rank 1, up to its rounding


def test_a_product_of_nothing_has_norm_zero_and_is_no_gap():
    """A B = 0 of factors that are not 0: the trace of their Gram matrices is rounding, of either sign."""
    for seed in range(40):
        basis = torch.linalg.qr(matrix((4, 4), seed))[0]
        a, b = matrix((12, 1), seed + 100) @ basis[:1], basis[1:].T @ matrix((3, 12), seed + 200)
        found = circuit_reading((a[None], b[None]), None, (a[None], b[None]))
        assert 0 <= found.norm[0] < 1e-2 and 0 <= found.start_norm[0] < 1e-2


def test_participation_ranks_do_not_depend_on_the_unit():
    weights = matrix((8, 6), 0)
    usual = participation_rank(weights)
    for scale in (1e-15, 1e-11, 1e11):
        assert participation_ranks(scale * weights[None])[0] == pytest.approx(usual, rel=1e-4)


def test_the_nulls_of_ranks_shares_and_angles_hold_for_random_matrices():
    n, width = 256, 64
    assert participation_rank(matrix((n, n), 0)) == pytest.approx(n / 2, rel=0.03)
    assert participation_rank(matrix((n, width), 0)) == pytest.approx(n * width / (n + width), rel=0.03)
    query, key = matrix((n, width), 1), matrix((n, width), 2)
    assert symmetric_share(query @ key.T) == pytest.approx(0.5, abs=0.02)
    chance = math.degrees(math.acos(math.sqrt(width / n)))
    assert subspace_angle(query, key) == pytest.approx(chance, abs=1) and chance == pytest.approx(60)
    chance = math.degrees(math.acos(math.sqrt(8 / 128)))
    assert rotation(matrix((128, 128), 3), matrix((128, 128), 4), 8) == pytest.approx(chance, abs=4)
    assert chance == pytest.approx(75.5, abs=0.05)


def test_a_change_of_basis_leaves_what_belongs_to_the_function_and_moves_the_rest():
    """(W_Q M, W_K M^-T) is the same function; its gradient and its update are those of the other coordinates."""
    query, key, basis = (matrix(shape, i).double() for i, shape in enumerate([(12, 4), (12, 4), (4, 4)]))
    inverse = torch.linalg.inv(basis)
    step, pull = matrix((12, 4), 5).double() * 0.01, matrix((12, 4), 6).double()
    moved, other = query + step, (query @ basis, (query + step) @ basis)
    # one movement lowers the loss as much in both, but no optimizer makes the same movement in both
    assert descent(*other, pull @ inverse.T) == pytest.approx(descent(query, moved, pull), rel=1e-9)
    by_sgd = (other[0], other[0] - 0.01 * pull @ inverse.T)
    assert abs(descent(*by_sgd, pull @ inverse.T) / descent(query, query - 0.01 * pull, pull) - 1) > 0.01
    # function: a space that is read, everything of the product
    assert subspace_angle(other[0], key @ inverse.T) == pytest.approx(subspace_angle(query, key), abs=1e-6)
    product, turned = (query @ key.T, moved @ key.T), (other[0] @ inverse @ key.T, other[1] @ inverse @ key.T)
    for of_two in (drift, turn, update_ratio, lambda a, b: rotation(a, b, 2)):
        assert of_two(*turned) == pytest.approx(of_two(*product), abs=1e-6)
    for of_one in (norm, participation_rank, symmetric_share, effective_rank, stable_rank, spectral_norm):
        assert of_one(turned[0]) == pytest.approx(of_one(product[0]), rel=1e-6)
    # parametrisation: the same measures of the raw factor
    for of_two in (drift, turn, update_ratio, lambda a, b: rotation(a, b, 2)):
        assert abs(of_two(other[1], other[0]) / of_two(moved, query) - 1) > 0.01
    for of_one in (norm, participation_rank, effective_rank, stable_rank, spectral_norm):
        assert abs(of_one(other[0]) / of_one(query) - 1) > 0.01
    assert abs(alignment(*other, pull @ inverse.T) - alignment(query, moved, pull)) > 0.01
    assert abs(grad_norm(pull @ inverse.T) / grad_norm(pull) - 1) > 0.01


def test_what_has_no_gradient_or_no_size_is_a_dash():
    some, zero = matrix((4, 6), 0), torch.zeros(4, 6)
    assert descent(some, some, None) is None and alignment(some, some, None) is None
    assert alignment(some, some, some) is None and participation_rank(zero) is None
    assert symmetric_share(torch.zeros(3, 3)) is None

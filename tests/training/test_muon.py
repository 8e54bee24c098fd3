"""Muon: what is made orthogonal, how nearly, and that everything else is what torch's own Muon does."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.kernels import elementwise
from qkv.training import muon
from qkv.training.muon import Muon, Piecewise, orthogonalise


def jordan(stack: Tensor) -> Tensor:
    """Jordan's five quintic steps, as torch.optim.Muon has them: the slow path."""
    x = stack / stack.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def spectrum(count: int, rows: int, columns: int, least: float) -> tuple[Tensor, Tensor, Tensor]:
    """Matrices with singular values from 1 down to `least`, and their exact factors U and V^T."""
    draws = torch.randn(count, rows, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left, _, right = torch.linalg.svd(draws, full_matrices=False)
    values = torch.logspace(0, torch.log10(torch.tensor(least)).item(), min(rows, columns), dtype=torch.float64)
    return (left * values) @ right, left, right


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (16, 20), (16, 64), (1, 1), (1, 8), (20, 16), (64, 16)])
def test_singular_values_come_near_one_and_directions_stay(rows: int, columns: int) -> None:
    stack, left, right = spectrum(3, rows, columns, least=0.05)
    result = orthogonalise(stack.float()).double()
    in_own_basis = left.mT @ result @ right.mT
    values = in_own_basis.diagonal(dim1=1, dim2=2)
    assert values.min() > 0.72 and values.max() < 1.28
    assert (in_own_basis - torch.diag_embed(values)).abs().max() < 1e-4


def test_it_is_as_near_to_the_polar_factor_as_jordans_five_steps() -> None:
    stack = torch.randn(4, 32, 96, generator=torch.Generator().manual_seed(1))
    left, _, right = torch.linalg.svd(stack, full_matrices=False)
    ours, theirs = ((f(stack) - left @ right).norm() for f in (orthogonalise, jordan))
    assert ours < 1.1 * theirs


def test_the_gram_path_equals_the_plain_path() -> None:
    stack, _, _ = spectrum(3, 16, 64, least=0.01)
    plain = orthogonalise(stack)  # float64 takes the plain path whatever the shape
    assert torch.allclose(orthogonalise(stack.float()), plain.float(), atol=2e-4)


@given(st.floats(-11, 6))
@settings(max_examples=20, deadline=None)
def test_the_length_of_a_gradient_does_not_matter(exponent: float) -> None:
    stack = torch.randn(2, 8, 12, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(orthogonalise(stack * 10.0**exponent), orthogonalise(stack), atol=2e-3)


def test_zero_stays_zero() -> None:
    assert not orthogonalise(torch.zeros(2, 4, 8)).any()
    assert not orthogonalise(torch.zeros(2, 4, 4)).any()


@pytest.fixture(params=[False, True], ids=["torch", "native"])
def by(request: pytest.FixtureRequest) -> Iterator[None]:
    """By torch's products, and where they are taken by the processor's tiles."""
    with elementwise.using(request.param):
        yield


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (8, 8), (8, 16), (24, 8)])
def test_the_tiniest_gradients_count_as_zero(rows: int, columns: int, dtype: torch.dtype) -> None:
    stack = torch.randn(2, rows, columns, generator=torch.Generator().manual_seed(3))
    for exponent in range(-45, -15):
        assert orthogonalise((stack * 10.0**exponent).to(dtype)).norm(dim=(1, 2)).max() < 5
    assert not orthogonalise((stack * 1e-20).to(dtype)).any()


def test_a_matrix_that_gets_no_gradient_any_more_stays_finite() -> None:
    parameter = torch.nn.Parameter(torch.ones(8, 8))
    muon_rule = Muon({"W": Piecewise(parameter)}, lr=0.01, momentum=0.85, weight_decay=0.0)
    parameter.grad = torch.randn(8, 8, generator=torch.Generator().manual_seed(4))
    for _ in range(450):
        with torch.no_grad():
            muon_rule.step(1.0)
        parameter.grad = torch.zeros(8, 8)
    assert torch.isfinite(parameter).all()


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (5, 1), (16, 16), (16, 64), (64, 16)])
def test_a_gradient_of_rank_one_is_no_longer_than_others_in_bfloat16(rows: int, columns: int) -> None:
    draws = torch.randn(64, rows + columns, 1, generator=torch.Generator().manual_seed(5))
    stack = draws[:, :rows] @ draws[:, rows:].mT
    lengths = torch.linalg.matrix_norm(orthogonalise(stack.bfloat16()).float(), 2)
    assert 0.7 < lengths.min() and lengths.max() < 1.55


@pytest.mark.parametrize("on_rows", [False, True])
def test_pieces_are_heads_and_share_memory(on_rows: bool) -> None:
    parameter = torch.arange(8.0 * 12).reshape(8, 12)
    member = Piecewise(parameter, heads=4, on_rows=on_rows)
    pieces = member.pieces(parameter)
    for head in range(4):
        own = parameter[2 * head : 2 * head + 2] if on_rows else parameter[:, 3 * head : 3 * head + 3]
        assert torch.equal(pieces[head], own)
    pieces.add_(1.0)
    assert parameter[0, 0] == 1.0


@pytest.mark.parametrize("shape", [(8, 24), (24, 8), (8, 8)])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_all_but_the_iteration_is_torchs_muon(
    shape: tuple[int, int], decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muon, "orthogonalise", jordan)
    monkeypatch.setattr(Tensor, "bfloat16", lambda self: self)  # torch iterates in bfloat16; compare in float32
    monkeypatch.setattr(torch, "bfloat16", torch.float32)  # the same for torch 2.15
    draws = torch.Generator().manual_seed(3)
    ours = torch.randn(shape, generator=draws).requires_grad_()
    theirs = torch.nn.Parameter(ours.detach().T.clone())  # torch stores [out, in]
    rule = Muon({"W": Piecewise(ours)}, lr=0.02, momentum=0.95, weight_decay=decay)
    oracle = torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=decay, nesterov=True)
    for _ in range(5):
        ours.grad = torch.randn(shape, generator=draws)
        theirs.grad = ours.grad.T.clone()
        with torch.no_grad():
            rule.step(1.0)
        oracle.step()
    assert torch.allclose(ours, theirs.T, atol=1e-5)


def test_heads_are_moved_independently() -> None:
    draws = torch.Generator().manual_seed(4)
    gradient = torch.randn(8, 8, generator=draws)
    both, one = torch.zeros(8, 8).requires_grad_(), torch.zeros(8, 4).requires_grad_()
    both.grad, one.grad = gradient, gradient[:, :4].clone()
    for parameter, heads in ((both, 2), (one, 1)):
        with torch.no_grad():
            Muon({"W": Piecewise(parameter, heads=heads)}, lr=1.0, momentum=0.0, weight_decay=0.0).step(1.0)
    assert torch.allclose(both[:, :4], one, atol=1e-6)

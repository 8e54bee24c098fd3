"""Polar factors by the processor's tiles are as near as those by torch's products."""

import pytest
import torch

from qkv.kernels import elementwise
from qkv.kernels.amx import Tiles
from qkv.training.muon import orthogonalise


def found() -> Tiles | None:
    with elementwise.using(True):
        return elementwise.tiles_for(torch.zeros(1, dtype=torch.bfloat16))


pytestmark = pytest.mark.skipif(
    found() is None, reason="this processor has no tiles of bfloat16, or nothing is compiled"
)


@pytest.fixture
def tiles():
    with elementwise.using(True):
        yield found()


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()


@pytest.mark.parametrize(
    ("count", "rows", "columns"),
    [(1, 1, 1), (3, 5, 40), (2, 40, 17), (8, 128, 32), (2, 96, 300), (2, 330, 70), (1, 200, 260)],
)
def test_matrices_are_made_orthogonal_as_nearly_as_by_torchs_products(tiles, count, rows, columns):
    stack = normal(count, rows, columns)
    exact = orthogonalise(stack.double())
    found = orthogonalise(stack)
    assert found.shape == stack.shape and found.dtype == torch.bfloat16
    with elementwise.using(False):
        theirs = orthogonalise(stack)
    error, yardstick = ((x.double() - exact).norm() for x in (found, theirs))
    assert error <= 1.5 * yardstick + 2**-6 * exact.norm(), f"{float(error):.2e} against {float(yardstick):.2e}"


def test_a_matrix_of_zeros_stays_so_beside_others(tiles):
    stack = normal(3, 20, 40)
    stack[1] = 0
    found = orthogonalise(stack)
    assert not found[1].any() and torch.equal(found[::2], orthogonalise(stack[::2]))


def test_the_number_of_threads_changes_no_bit(tiles):
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(orthogonalise(normal(5, 40, 70)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)

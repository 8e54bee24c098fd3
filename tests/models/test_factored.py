"""A product kept as factors agrees with the table it stands for."""

import pytest
import torch

from qkv.models.factored import FactoredMatrix
from qkv.models.layout import Layout


@pytest.fixture(params=[(12, 4, 12), (5, 8, 5), (3, 12, 4, 12)], ids=["thin", "wide", "batched"])
def factored(request):
    torch.manual_seed(0)
    *batch, n_in, rank, n_out = request.param
    return FactoredMatrix(
        torch.randn(*batch, n_in, rank, dtype=torch.float64), torch.randn(*batch, rank, n_out, dtype=torch.float64)
    )


def test_singular_values_through_qr_are_those_of_the_product(factored):
    expected = torch.linalg.svdvals(factored.product())
    found = factored.singular_values()
    torch.testing.assert_close(found, expected[..., : found.shape[-1]])
    assert (expected[..., found.shape[-1] :] < 1e-12).all()


def test_svd_rebuilds_the_product(factored):
    u, s, vh = factored.svd()
    torch.testing.assert_close(u @ torch.diag_embed(s) @ vh, factored.product())
    torch.testing.assert_close(u.mT @ u, torch.eye(s.shape[-1], dtype=torch.float64).expand_as(u.mT @ u))


def test_norm_trace_and_transpose_are_those_of_the_product(factored):
    product = factored.product()
    torch.testing.assert_close(factored.norm(), torch.linalg.matrix_norm(product))
    torch.testing.assert_close(factored.trace(), product.diagonal(dim1=-2, dim2=-1).sum(-1))
    torch.testing.assert_close(factored.T.product(), product.mT)
    assert factored.shape == tuple(product.shape)


def test_eigenvalues_of_the_small_product_are_the_nonzero_ones_of_the_large():
    torch.manual_seed(1)
    factored = FactoredMatrix(torch.randn(12, 4, dtype=torch.float64), torch.randn(4, 12, dtype=torch.float64))
    large = torch.linalg.eigvals(factored.product())
    expected = sorted(large.tolist(), key=abs)[-4:]
    found = sorted(factored.eigenvalues().tolist(), key=abs)
    key = lambda z: (round(z.real, 9), round(z.imag, 9))  # noqa: E731
    torch.testing.assert_close(torch.tensor(sorted(found, key=key)), torch.tensor(sorted(expected, key=key)))


def test_caveats_say_what_the_product_leaves_out():
    one = torch.ones(1, 1)
    plain = Layout(positions="learned", scale=False)
    assert FactoredMatrix(one, one, "L0.H0.QK").caveats(plain) == []
    assert FactoredMatrix(one, one, "L0.H0.OV").caveats(Layout(qk_norm=True)) == []
    everything = Layout(positions="rotary", qk_norm=True, bias=True)
    qk = " ".join(FactoredMatrix(one, one, "L0.H0.QK").caveats(everything))
    assert all(word in qk for word in ("normalised", "R(d)", "b_Q", "sqrt(d_head)"))
    assert "b_V and b_O" in " ".join(FactoredMatrix(one, one, "dec.L0.cross.H0.OV").caveats(everything))
    some, none = Layout(scale=False, attention_bias="qkv"), Layout(scale=False, bias=True, attention_bias="none")
    assert "b_Q" in " ".join(FactoredMatrix(one, one, "L0.H0.QK").caveats(some))
    assert FactoredMatrix(one, one, "L0.H0.OV").caveats(some)[0].startswith("b_V adds")
    assert FactoredMatrix(one, one, "L0.H0.OV").caveats(none) == []
    assert "b_Q" not in " ".join(FactoredMatrix(one, one, "L0.H0.QK").caveats(none))

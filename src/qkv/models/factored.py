"""A product of two thin matrices kept as its factors: the form of a head's circuits QK and OV.

With d_head far below d_model the product has rank at most d_head, so its spectrum, norm, trace and eigenvalues follow
from the factors at a cost of d_model d_head^2; the d_model x d_model table itself is made by `product()` only.
Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (their W_QK and W_OV act on columns,
ours on rows, x W). The habit of keeping factors: TransformerLens, `FactoredMatrix`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from qkv.models.layout import Layout

__all__ = ["FactoredMatrix"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FactoredMatrix:
    """The matrix left @ right, [..., n_in, n_out], of rank at most the width between them."""

    left: Tensor
    """[..., n_in, rank]"""
    right: Tensor
    """[..., rank, n_out]"""
    address: str = ""
    """Which circuit of which model this is, such as `L2.H3.QK`; empty for any other product."""

    def __post_init__(self) -> None:
        assert self.left.shape[-1] == self.right.shape[-2], (self.left.shape, self.right.shape)

    def __repr__(self) -> str:
        name = f"{self.address}, " if self.address else ""
        return f"FactoredMatrix({name}{list(self.shape)} of rank at most {min(*self.shape[-2:], self.left.shape[-1])})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the product."""
        return (*self.left.shape[:-1], self.right.shape[-1])

    @property
    def T(self) -> "FactoredMatrix":
        """The transpose, still as factors."""
        return FactoredMatrix(self.right.mT, self.left.mT, self.address)

    def product(self) -> Tensor:
        """The table itself, [..., n_in, n_out]."""
        return self.left @ self.right

    def svd(self) -> tuple[Tensor, Tensor, Tensor]:
        """(U [..., n_in, r], S [..., r] falling, Vh [..., r, n_out]) with U diag(S) Vh = left right, r = rank bound.

        QR of both factors, then the SVD of the small core between them.
        """
        q_left, r_left = torch.linalg.qr(self.left)
        q_right, r_right = torch.linalg.qr(self.right.mT)
        u, s, vh = torch.linalg.svd(r_left @ r_right.mT, full_matrices=False)
        return q_left @ u, s, vh @ q_right.mT

    def singular_values(self) -> Tensor:
        """The singular values that can differ from 0, falling, [..., min(rank, n_in, n_out)]."""
        return torch.linalg.svdvals(self._core())

    def norm(self) -> Tensor:
        """Frobenius norm, [...], at least 0."""
        return torch.linalg.matrix_norm(self._core())

    def trace(self) -> Tensor:
        """Sum of the diagonal, [...]; needs n_in = n_out."""
        assert self.shape[-1] == self.shape[-2], self.shape
        return (self.left * self.right.mT).sum(dim=(-2, -1))

    def eigenvalues(self) -> Tensor:
        """The eigenvalues that can differ from 0, complex [..., rank], in no order; needs n_in = n_out.

        AB and BA share them, so they are those of the small right @ left. Positive ones of an OV circuit copy
        (Elhage et al. 2021).
        """
        assert self.shape[-1] == self.shape[-2], self.shape
        return torch.linalg.eigvals(self.right @ self.left)

    def _core(self) -> Tensor:
        """A small matrix with the same singular values: the triangles of both QR factorings, multiplied."""
        r_left = torch.linalg.qr(self.left, mode="r").R
        r_right = torch.linalg.qr(self.right.mT, mode="r").R
        return r_left @ r_right.mT

    def caveats(self, layout: "Layout | None") -> list[str]:
        """What this product leaves out of the head's real map in a model of that layout, one sentence each; None is a
        layout that is not known."""
        if layout is None:
            return ["The code of this model is not here: what its positions, norms or biases add to this is not known."]
        circuit = self.address.rpartition(".")[2]
        if circuit == "QK":
            return [sentence for holds, sentence in _qk_caveats(layout) if holds]
        if circuit == "OV" and layout.biased != "none":
            biases = {"all": "b_V and b_O add", "qkv": "b_V adds", "out": "b_O adds"}[layout.biased]
            return [f"{biases} a constant vector to what the head writes; W_V W_O leaves it out."]
        return []


def _qk_caveats(layout: "Layout") -> list[tuple[bool, str]]:
    return [
        (
            layout.qk_norm,
            "q and k are normalised before their dot product, so a score is not the bilinear form x W_Q W_K^T x^T: "
            "the product shows directions, not scores.",
        ),
        (
            layout.positions == "rotary",
            "Positions turn q and k, so the score at distance d is x W_Q R(d) W_K^T x^T; "
            "without a distance this is d = 0, a token looking at itself.",
        ),
        (
            layout.biased in ("qkv", "all"),
            "b_Q and b_K add terms to the scores that depend on one side only; W_Q W_K^T leaves them out.",
        ),
        (layout.scale and not layout.score_factor, "Scores are this form divided by sqrt(d_head)."),
        (bool(layout.score_factor), f"Scores are this form times {layout.score_factor:.3g}."),
        (not layout.plain_scores, "Windows, caps, sinks and distances are left out: they change patterns too."),
    ]

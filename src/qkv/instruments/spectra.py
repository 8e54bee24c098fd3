"""Ranks, spectra and directions of matrices, heads and circuits, many small ones at a time.

Everything comes from Gram matrices, never from a d_model x d_model product of factors. Singular values are the roots
of their eigenvalues in float64: exact to about 1e-8 of the largest, below the rounding of float32 weights. For a
circuit A B of rank d_head they are those of G_A^(1/2) G_B G_A^(1/2) with G_A = A^T A and G_B = B B^T, both d_head x
d_head; its norm, its way from the start and its participation rank need no eigenvalue at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv.instruments.measures import participation, roots
from qkv.models.parts import Entry

__all__ = [
    "Circuit",
    "CircuitReading",
    "Spaces",
    "between_spaces",
    "circuit_norm",
    "circuit_reading",
    "circuits",
    "head_blocks",
    "participation_ranks",
    "spaces",
    "spectra",
]


@dataclass(frozen=True)
class Circuit:
    """Where a head's circuit comes from: two entries by index, and which piece of each."""

    address: str
    left: int
    left_piece: int
    right: int
    right_piece: int

    @property
    def is_qk(self) -> bool:
        """Whether the right factor is the transpose of its block: QK is W_Q W_K^T."""
        return self.address.endswith(".QK")

    @property
    def is_crossed(self) -> bool:
        """Whether queries come from another stack than keys and values do."""
        return "cross" in self.address.split(".")


def circuits(entries: Sequence[Entry]) -> list[Circuit]:
    """QK and OV of every query head of every attention, in the order of the entries: `Catalogue.named()`, so that an
    attention that shares a matrix with another has its own.
    """
    index = {entry.address: i for i, entry in enumerate(entries)}
    out = []
    for entry in entries:
        stem = entry.address.removesuffix("W_Q")
        if entry.kind != "W_Q" or not all(stem + kind in index for kind in ("W_K", "W_V", "W_O")):
            continue
        group = entries[index[stem + "W_K"]].group
        for head in range(entry.n_heads):
            own, shared = f"{stem}H{head}.", head // group
            out.append(Circuit(own + "QK", index[stem + "W_Q"], head, index[stem + "W_K"], shared))
            out.append(Circuit(own + "OV", index[stem + "W_V"], shared, index[stem + "W_O"], head))
    return out


def head_blocks(entry: Entry, stored: Tensor) -> Tensor:
    """The heads of a stored matrix as [n_heads, d_model, d_head] (W_O [n_heads, d_head, d_model]), a view."""
    return stored.unflatten(entry.axis, (entry.n_heads, -1)).movedim(entry.axis, 0)


def participation_ranks(blocks: Tensor) -> np.ndarray:
    """(sum s^2)^2 / sum s^4 = tr(G)^2 / |G|_F^2 of each of [n, in, out], float64 [n]; NaN for zeros."""
    gram = blocks @ blocks.mT if blocks.shape[-2] < blocks.shape[-1] else blocks.mT @ blocks
    return participation(gram.cpu().numpy())


def spectra(left: Tensor, right: Tensor | None = None, k: int = 0) -> tuple[np.ndarray, Tensor]:
    """Falling singular values, float64 [n, r], and the k strongest directions read, orthonormal [n, n_in, k].

    Of W = left [n, n_in, n_out], or left [n, n_in, r] times right [n, r, n_out]. The directions are leading left
    singular vectors, 0 where W is 0.
    """
    a = left.double()
    if right is None and a.shape[-2] <= a.shape[-1]:
        values, vectors = _eigh(a @ a.mT, k)
        return values.cpu().numpy(), vectors[..., -k:].flip(-1) * (values[..., :1] > 0)[..., None] if k else a[..., :0]
    if right is None:
        values, vectors = _eigh(a.mT @ a, k)
        return values.cpu().numpy(), _normal(a @ vectors[..., -k:].flip(-1)) if k else a[..., :0]
    b = right.double()
    inner, basis = torch.linalg.eigh(a.mT @ a)
    sizes = inner.clamp_min(0).sqrt().unsqueeze(-2)
    root = basis * sizes
    values, vectors = _eigh(root.mT @ (b @ b.mT) @ root, k)
    if not k:
        return values.cpu().numpy(), a[..., :0]
    kept = torch.where(sizes > 1e-12 * sizes.amax(-1, keepdim=True), 1 / sizes, 0.0)
    top = a @ (basis * kept @ vectors[..., -k:].flip(-1))
    return values.cpu().numpy(), _normal(top) * (values[..., :1] > 0)[..., None]


def _eigh(gram: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Roots of the eigenvalues of symmetric [..., n, n], falling, and where `k`, the eigenvectors, rising."""
    if not k:
        return roots(gram), gram
    values, vectors = torch.linalg.eigh(gram)
    return values.clamp_min(0).sqrt().flip(-1), vectors


def _normal(columns: Tensor) -> Tensor:
    """Columns at length 1; those of length 0 stay."""
    size = columns.norm(dim=-2, keepdim=True)
    return columns / torch.where(size > 0, size, 1.0)


@dataclass(frozen=True)
class Spaces:
    """The spaces that n matrices [n, d_model, d_head] read (their columns' spans), ready to be compared."""

    blocks: Tensor
    """float64"""
    factor: Tensor
    """The triangle L [n, d_head, d_head] of blocks^T blocks = L L^T; NaN where a matrix reads less than its width."""

    def __getitem__(self, which: slice) -> "Spaces":
        return Spaces(self.blocks[which], self.factor[which])


def spaces(blocks: Tensor) -> Spaces:
    """Of [n, d_model, d_head] with d_head < d_model. Columns count as dependent from a condition number of 1e6 on."""
    a = blocks.double()
    factor, failed = torch.linalg.cholesky_ex(a.mT @ a)
    diagonal = factor.diagonal(dim1=-2, dim2=-1)
    thin = (failed > 0) | ~(diagonal.amin(-1) > 1e-6 * diagonal.amax(-1))
    return Spaces(a, torch.where(thin[:, None, None], torch.nan, factor))


def between_spaces(a: Spaces, b: Spaces) -> np.ndarray:
    """Angle in degrees [n] between the spaces of each pair, as `measures.subspace_angle`; NaN where one is thin.

    L_a^-1 A^T B L_b^-T is the product of two orthonormal bases that are never made: exact to the square of the
    condition number times 1e-16.
    """
    inner = torch.linalg.solve_triangular(a.factor, a.blocks.mT @ b.blocks, upper=False)
    cosines = torch.linalg.solve_triangular(b.factor, inner.mT, upper=False)
    overlap = cosines.square().sum((-2, -1)) / min(cosines.shape[-2:])
    return np.degrees(np.arccos(np.sqrt(overlap.clamp(0, 1).cpu().numpy())))


@dataclass(frozen=True)
class CircuitReading:
    """Of n circuits, float64 [n] each; NaN where there is no update or no start."""

    norm: np.ndarray
    update: np.ndarray
    """|d(AB)|_F of the last update"""
    distance: np.ndarray
    """|AB - (AB at step 0)|_F"""
    along: np.ndarray
    """The part of that along the start, signed; 0 where the start is 0"""
    start_norm: np.ndarray
    participation: np.ndarray
    symmetric: np.ndarray
    """Share of |AB|_F^2 in the symmetric part of AB"""


Factors = tuple[Tensor, Tensor]
"""left [n, d_model, d_head] and right [n, d_head, d_model]"""


def circuit_norm(factors: Factors) -> np.ndarray:
    """|AB|_F of n circuits, float64 [n]; exactly 0 where a factor is."""
    a, b = factors
    return np.sqrt(_numpy(_trace(_product(a.mT, a), _product(b, b.mT))))


def circuit_reading(
    now: Factors, before: Factors | None, start: Factors | None, start_norm: np.ndarray | None = None
) -> CircuitReading:
    """Norms, ways and shares of n circuits from their factors alone: d_head x d_head products of the weights in their
    own precision (relative error near 1e-7 in float32), everything after them in float64.

    `start_norm` is `circuit_norm(start)` where somebody knows it already.
    """
    a, b = now
    grams = _product(a.mT, a), _product(b, b.mT)
    small, turned = grams[0] @ grams[1], _product(b, a)
    squares, nothing = _numpy(_trace(*grams)), np.full(len(a), np.nan)
    update = nothing if before is None else _way(now, grams, before)[0]
    distance, inner, start_norm = nothing, nothing, start_norm if start is not None else nothing
    if start is not None:
        distance, inner = _way(now, grams, start)
        start_norm = circuit_norm(start) if start_norm is None else start_norm
    assert start_norm is not None
    with np.errstate(divide="ignore", invalid="ignore"):
        fourth, crossed = _numpy(_trace(small, small)), _numpy(_trace(turned, turned))
        rank = np.where(squares > 0, squares**2 / fourth, np.nan)
        symmetric = np.where(squares > 0, (1 + crossed / squares) / 2, np.nan)
    along = np.divide(inner, start_norm, out=np.where(np.isnan(inner), np.nan, 0.0), where=start_norm > 0)
    return CircuitReading(np.sqrt(squares), update, distance, along, start_norm, rank, symmetric)


def _way(now: Factors, grams: Factors, then: Factors) -> tuple[np.ndarray, np.ndarray]:
    """|AB - ST|_F and <AB - ST, ST>, from AB - ST = dA B + S dB: no cancellation, whatever the length of the way.

    `grams` are A^T A and B B^T. Four products are made, dA^T dA, A^T dA, dB dB^T and B dB^T; the others follow.
    """
    (a, b), (gram_a, gram_b) = now, grams
    da, db = a - then[0], b - then[1]
    moved_a, with_a = _product(da.mT, da), _product(a.mT, da)
    moved_b, with_b = _product(db, db.mT), _product(b, db.mT)
    then_a, along_a = gram_a - with_a - with_a.mT + moved_a, with_a - moved_a  # S^T S, S^T dA
    square = _trace(moved_a, gram_b) + _trace(then_a, moved_b) + 2 * _trace(along_a, with_b)
    inner = _trace(along_a, gram_b - with_b) + _trace(then_a, with_b.mT - moved_b)
    return np.sqrt(np.maximum(_numpy(square), 0)), _numpy(inner)


def _product(x: Tensor, y: Tensor) -> Tensor:
    """x y of each pair, [n, r, r], in float64."""
    return (x @ y).double()


def _trace(x: Tensor, y: Tensor) -> Tensor:
    """tr(x y) of each pair [n, r, r]."""
    return (x * y.mT).sum((-2, -1))


def _numpy(x: Tensor) -> np.ndarray:
    return x.cpu().numpy()

"""Ranks, spectra and directions of matrices, heads and circuits, many small ones at a time.

Everything comes from Gram matrices, never from a d_model x d_model product of factors. Singular values are the roots
of their eigenvalues in float64: exact to about 1e-8 of the largest, below the rounding of float32 weights. For a
circuit A B of rank d_head they are those of R^T G_B R with A^T A = R R^T and G_B = B B^T, both d_head x d_head; its
norm, its way from the start and its participation rank need no eigenvalue at all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from qkv.instruments.measures.arithmetic import participation, roots
from qkv.instruments.readings import CircuitReading
from qkv.models.parts import Entry
from qkv.shapes import Float, Float64


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


def head_blocks(entry: Entry, stored: Float[Tensor, "n_in n_out"]) -> Float[Tensor, "n_heads rows columns"]:
    """The heads of a stored matrix, [d_model, d_head] each (of W_O [d_head, d_model]), a view."""
    return stored.unflatten(entry.axis, (entry.n_heads, -1)).movedim(entry.axis, 0)


def participation_ranks(blocks: Float[Tensor, "n n_in n_out"]) -> Float64[np.ndarray, "n"]:
    """(sum s^2)^2 / sum s^4 = tr(G)^2 / |G|_F^2 of each matrix; NaN for zeros."""
    gram = blocks @ blocks.mT if blocks.shape[-2] < blocks.shape[-1] else blocks.mT @ blocks
    return participation(gram.cpu().numpy())


@dataclass(frozen=True)
class Blocks:
    """n matrices as columns, ready for everything that is asked of them: what two questions need is worked out once."""

    columns: Float64[Tensor, "n length width"]

    @cached_property
    def gram(self) -> Float64[Tensor, "n width width"]:
        """columns^T columns."""
        return self.columns.mT @ self.columns

    @cached_property
    def triangle(self) -> Float64[Tensor, "n width width"]:
        """L of gram = L L^T; NaN where columns are dependent, from a condition number of 1e6 on."""
        found, failed = torch.linalg.cholesky_ex(self.gram)
        diagonal = found.diagonal(dim1=-2, dim2=-1)
        dependent = (failed > 0) | ~(diagonal.amin(-1) > 1e-6 * diagonal.amax(-1))
        return torch.where(dependent[:, None, None], torch.nan, found)

    @cached_property
    def eigen(self) -> tuple[Tensor, Tensor]:
        """Roots of gram's eigenvalues, falling, and its eigenvectors, rising."""
        return _eigh(self.gram)

    def pick(self, which: Sequence[int]) -> "Blocks":
        """Some of them, with what is known of them; a view where they follow one another."""
        first, n = which[0], len(which)
        if list(which) == list(range(first, first + n)):
            if n == len(self.columns):
                return self
            at: slice | list[int] = slice(first, first + n)
        else:
            at = list(which)
        picked, known = Blocks(self.columns[at]), self.__dict__
        for name in ("gram", "triangle"):
            if name in known:
                picked.__dict__[name] = known[name][at]
        if "eigen" in known:
            picked.__dict__["eigen"] = tuple(each[at] for each in known["eigen"])
        return picked


class Heads:
    """The heads of some matrices, each [n_heads, length, width] as columns: those of one shape are worked out all at
    once, whatever matrix they are of, the eigenvectors where `follows(shape)` says that directions are followed.
    """

    def __init__(self, matrices: Mapping[int, Tensor], follows: Callable[[Sequence[int]], int]) -> None:
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for i, matrix in matrices.items():
            by_shape.setdefault(tuple(matrix.shape[1:]), []).append(i)
        self._first: dict[int, tuple[Blocks, int]] = {}
        for shape, chosen in by_shape.items():
            blocks = Blocks(torch.cat([matrices[i].double() for i in chosen]))
            if shape[0] > shape[1]:
                assert blocks.triangle is not None
                assert not follows(shape) or blocks.eigen is not None
            ends = np.cumsum([0, *(len(matrices[i]) for i in chosen)])
            self._first |= {i: (blocks, int(first)) for i, first in zip(chosen, ends[:-1], strict=True)}

    def shape(self, matrix: int) -> tuple[int, ...]:
        """(length, width) of a head of that matrix."""
        return tuple(self._first[matrix][0].columns.shape[1:])

    def pick(self, places: Sequence[tuple[int, int]]) -> Blocks:
        """The heads at these (matrix, which of its heads), all of one shape."""
        blocks, _ = self._first[places[0][0]]
        return blocks.pick([self._first[matrix][1] + which for matrix, which in places])


def spectra(
    left: Float[Tensor, "n n_in r"], right: Float[Tensor, "n r n_out"] | None = None, k: int = 0
) -> tuple[Float64[np.ndarray, "n rank"], Float64[Tensor, "n n_in {k}"]]:
    """Falling singular values, and the k strongest directions read, orthonormal.

    Of W = left, or left times right. The directions are leading left singular vectors, 0 where W is 0.
    """
    if right is not None:
        return product_spectra(Blocks(left.double()), Blocks(right.mT.double()), k)
    is_wide = left.shape[-2] <= left.shape[-1]
    return own_spectra(Blocks((left.mT if is_wide else left).double()), k, is_wide=is_wide)


def own_spectra(blocks: Blocks, k: int = 0, *, is_wide: bool = False) -> tuple[np.ndarray, Tensor]:
    """The same of blocks no wider than long; `is_wide` where they stand for their transposes."""
    if not k:
        return roots(blocks.gram).cpu().numpy(), (blocks.gram if is_wide else blocks.columns)[..., :0]
    values, vectors = blocks.eigen
    strongest = vectors[..., -k:].flip(-1)
    top = strongest * (values[..., :1] > 0)[..., None] if is_wide else _normal(blocks.columns @ strongest)
    return values.cpu().numpy(), top


def product_spectra(left: Blocks, right: Blocks, k: int = 0) -> tuple[np.ndarray, Tensor]:
    """The same of the products left right^T of pairs of blocks, from any root of left's Gram matrix: its triangle, or
    where columns of left are dependent, its eigenvectors.
    """
    root, eigen = left.triangle, None
    if root.isnan().any():
        sizes, basis = left.eigen
        sizes = sizes.flip(-1).unsqueeze(-2)
        eigen, root = (sizes, basis), basis * sizes
    inner = root.mT @ right.gram @ root
    if not k:
        return roots(inner).cpu().numpy(), left.columns[..., :0]
    values, vectors = _eigh(inner)
    strongest = vectors[..., -k:].flip(-1)
    if eigen is None:
        inside = torch.linalg.solve_triangular(root.mT, strongest, upper=True)
    else:
        sizes, basis = eigen
        inside = basis * torch.where(sizes > 1e-12 * sizes.amax(-1, keepdim=True), 1 / sizes, 0.0) @ strongest
    return values.cpu().numpy(), _normal(left.columns @ inside) * (values[..., :1] > 0)[..., None]


def _eigh(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Roots of the eigenvalues of symmetric [n, r, r], falling, and the eigenvectors, rising; NaN where a number
    of it is not finite."""
    finite = gram.isfinite().all(-1).all(-1)[..., None]
    values, vectors = torch.linalg.eigh(torch.where(finite[..., None], gram, 0.0))
    return torch.where(finite, values.clamp_min(0).sqrt().flip(-1), torch.nan), vectors


def _normal(columns: Tensor) -> Tensor:
    """Columns at length 1; those of length 0 stay."""
    size = columns.norm(dim=-2, keepdim=True)
    return columns / torch.where(size > 0, size, 1.0)


def between_spaces(a: Blocks, b: Blocks) -> np.ndarray:
    """Angle in degrees [n] between the spaces that each pair reads (the spans of its columns, fewer than they are
    long), as `measures.subspace_angle`; NaN where one reads less than its width.

    L_a^-1 A^T B L_b^-T is the product of two orthonormal bases that are never made: exact to the square of the
    condition number times 1e-16.
    """
    inner = torch.linalg.solve_triangular(a.triangle, a.columns.mT @ b.columns, upper=False)
    cosines = torch.linalg.solve_triangular(b.triangle, inner.mT, upper=False)
    overlap = cosines.square().sum((-2, -1)) / min(cosines.shape[-2:])
    return np.degrees(np.arccos(np.sqrt(overlap.clamp(0, 1).cpu().numpy())))


Factors = tuple[Tensor, Tensor]
"""left [n, d_model, d_head] and right [n, d_head, d_model]"""


def circuit_norm(factors: Factors) -> np.ndarray:
    """|AB|_F of n circuits, float64 [n]; exactly 0 where a factor is."""
    a, b = factors
    return np.sqrt(np.maximum(_numpy(_trace(_product(a.mT, a), _product(b, b.mT))), 0))


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
    squares, nothing = np.maximum(_numpy(_trace(*grams)), 0), np.full(len(a), np.nan)  # rounding may fall below 0
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
    return CircuitReading(
        norm=np.sqrt(squares),
        update=update,
        distance=distance,
        along=along,
        start_norm=start_norm,
        n_out=a.shape[-1],
        participation=rank,
        symmetric=symmetric,
    )


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

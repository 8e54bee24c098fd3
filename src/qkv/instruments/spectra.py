"""Singular values of matrices, heads and circuits, many small ones at a time.

Every spectrum is the root of the eigenvalues of a Gram matrix in float64, never of a d_model x d_model product: for a
circuit A B of rank d_head the values are those of G_A^(1/2) G_B G_A^(1/2) with G_A = A^T A and G_B = B B^T, both
d_head x d_head. Exact to about 1e-8 of the largest value, below the rounding of float32 weights.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv.instruments.measures import roots, singular_values
from qkv.models.parts import Entry

__all__ = ["Circuit", "circuits", "head_blocks", "matrix_spectra", "product_spectra"]


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


def circuits(entries: Sequence[Entry]) -> list[Circuit]:
    """QK and OV of every query head of every attention, in the order of the entries."""
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


def matrix_spectra(matrices: Sequence[Tensor]) -> list[np.ndarray]:
    """Falling singular values, float64 [min(in, out)], of each matrix [in, out]; those of one shape go together."""
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, matrix in enumerate(matrices):
        by_shape[tuple(matrix.shape)].append(i)
    out: list[np.ndarray] = [np.zeros(0)] * len(matrices)
    for indices in by_shape.values():
        values = singular_values(torch.stack([matrices[i] for i in indices])).cpu().numpy()
        for i, row in zip(indices, values, strict=True):
            out[i] = row
    return out


def head_blocks(entry: Entry, stored: Tensor) -> Tensor:
    """The heads of a stored matrix as [n_heads, d_model, d_head] (W_O [n_heads, d_head, d_model]), a view."""
    return stored.unflatten(entry.axis, (entry.n_heads, -1)).movedim(entry.axis, 0)


def product_spectra(left: Tensor, right: Tensor) -> np.ndarray:
    """Falling singular values, float64 [n, d_head], of left [n, d_model, d_head] times right [n, d_head, d_model]."""
    a, b = left.double(), right.double()
    values, vectors = torch.linalg.eigh(a.mT @ a)
    root = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
    return roots(root.mT @ (b @ b.mT) @ root).cpu().numpy()

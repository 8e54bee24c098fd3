"""What several measures share: ratios, angles, roots of eigenvalues; undefined reads None (NaN inside an array)."""

import math
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from qkv.shapes import Float, Float64

Weights: TypeAlias = Float[Tensor, "*shape"]
"""A stored matrix, a vector, or several: W, S, G and dW of one are of one shape."""


def roots(gram: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n"]:
    """Square roots of the eigenvalues of symmetric matrices, falling, what rounding made negative as 0; NaN where a
    number of one is not finite."""
    finite = gram.isfinite().all(-1).all(-1)[..., None]
    found = torch.linalg.eigvalsh(torch.where(finite[..., None], gram, 0.0)).clamp_min(0).sqrt().flip(-1)
    return torch.where(finite, found, torch.nan)


def participation(gram: Float[np.ndarray, "*batch n n"]) -> Float64[np.ndarray, "*batch"]:
    """tr(G)^2 / |G|_F^2 of Gram matrices; NaN for zeros."""
    trace = np.trace(gram, axis1=-2, axis2=-1, dtype=np.float64)
    return ratio(trace**2, np.square(gram, dtype=np.float64).sum((-2, -1)))


def between(a: Float[Tensor, "*batch n k"], b: Float[Tensor, "*batch n k_b"]) -> Float[np.ndarray, "*batch"]:
    """Angle in degrees, 0 to 90, between spaces spanned by orthonormal columns.

    The cosine is the root mean square of those of the k principal angles; for random spaces sqrt(k / n).
    """
    overlap = (a.mT @ b).square().sum((-2, -1)) / min(a.shape[-1], b.shape[-1])
    return np.asarray(np.degrees(np.arccos(np.sqrt(overlap.clamp(0, 1).cpu().numpy()))))


def reference_norm(start_norm: np.ndarray | float, n_out: np.ndarray | float) -> np.ndarray:
    """What a drift is divided by: |S|_F, or for a matrix that starts at 0 the norm of a start at N(0, 1/fan_in)."""
    return np.where(np.asarray(start_norm) > 0, start_norm, np.sqrt(n_out))


def ratio(part: np.ndarray | float, whole: np.ndarray | float) -> np.ndarray:
    """part / whole, NaN where the whole is 0."""
    whole = np.asarray(whole, dtype=np.float64)
    return np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole > 0)


def angle(
    moved: np.ndarray | float, along: np.ndarray | float, start_norm: np.ndarray | float, norm_now: np.ndarray | float
) -> np.ndarray:
    """Angle in degrees between S and S + D from |D|, the part of D along S, |S| and |S + D|; NaN where either is 0.

    The sideways part over the part that lies along S: no cancellation at small angles, as an arccosine would have. What
    is left: with sums exact to 1e-7 an angle is wrong by at most 0.03 degrees, and that only where W grew along S.
    """
    moved, along = np.asarray(moved, dtype=np.float64), np.asarray(along, dtype=np.float64)
    sideways = np.sqrt(np.maximum(moved**2 - along**2, 0))
    degrees = np.degrees(np.arctan2(sideways, start_norm + along))
    return np.where((np.asarray(start_norm) > 0) & (np.asarray(norm_now) > 0), degrees, np.nan)


def or_none(value: np.ndarray | float) -> float | None:
    """None for what is not finite."""
    number = float(value)
    return number if math.isfinite(number) else None

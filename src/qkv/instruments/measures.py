"""What can be measured of a matrix, as pure functions; `registry.py` says what each of them means.

Every function takes stored weights [..., in, out] (or a vector [n]) and answers one float per matrix; what is undefined
reads None (NaN inside an array), never infinity. `W` is the matrix at a step, `S` the same matrix at step 0, `G` the
gradient of the loss, `dW` the last update. The recorder reaches the same numbers in one pass over all matrices
(`passes.py`, `spectra.py`); a test holds the two equal.

Raw factors are properties of a parametrisation: (W_Q M, W_K M^-T) is the same function for every invertible M, with
other norms, drifts and spectra. Whatever is measured of the circuits QK and OV is a property of the function, and so
are the spaces that a head's matrices read, and the loss that an update gains. Refuses: comparing raw factors across
seeds, and reading a drift without the random-label control.
"""

import math

import numpy as np
import torch
from torch import Tensor

from qkv.shapes import Float, Float32, Float64

__all__ = [
    "alignment",
    "angle",
    "between",
    "descent",
    "drift",
    "effective_rank",
    "grad_norm",
    "norm",
    "onward",
    "participation",
    "participation_rank",
    "ratio",
    "reference_norm",
    "roots",
    "rotation",
    "row_drift",
    "second_moment",
    "singular_values",
    "spectral_norm",
    "spectrum_summary",
    "stable_rank",
    "subspace_angle",
    "symmetric_share",
    "turn",
    "update_ratio",
]


Weights = Float[Tensor, "*shape"]
"""A stored matrix, a vector, or several: W, S, G and dW of one are of one shape."""


def norm(weights: Weights) -> float:
    """|W|_F, summed in float64."""
    return float(torch.linalg.vector_norm(weights.detach(), dtype=torch.float64))


def grad_norm(gradient: Weights | None) -> float | None:
    """|G|_F; None where there is no gradient."""
    return None if gradient is None else norm(gradient)


def update_ratio(before: Weights, after: Weights) -> float | None:
    """|W_after - W_before|_F / |W_after|_F; None for a matrix of zeros."""
    return _or_none(ratio(norm(after.double() - before.double()), norm(after)))


def drift(weights: Weights, start: Weights, n_in: int = 0) -> float:
    """|W - S|_F / |S|_F; where S is 0, the norm of a start at N(0, 1/n_in) stands for |S|_F: sqrt(n_out) of a matrix.

    `n_in` is the input width of the matrix that they are a part of, where they are a part; 0: they are all of it.
    """
    distance = norm(weights.double() - start.double())
    n_out = start.numel() / n_in if n_in else start.shape[-1]
    return float(ratio(distance, reference_norm(norm(start), n_out)))


def turn(weights: Weights, start: Weights) -> float | None:
    """Angle between W and S in degrees, 0 to 180; None where either is 0. Exact for small angles."""
    there, here = start.detach().double().flatten(), weights.detach().double().flatten()
    if not (there.any() and here.any()):
        return None
    moved, size = here - there, there.norm()
    along = torch.dot(moved, there) / size
    sideways = moved - there * (along / size)
    return math.degrees(math.atan2(float(sideways.norm()), float(size + along)))


def descent(before: Weights, after: Weights, gradient: Weights | None) -> float | None:
    """-<G, W_after - W_before>: nats that the update should gain on its batch, to first order; None without G."""
    if gradient is None:
        return None
    return -float(torch.dot((after.double() - before.double()).flatten(), gradient.double().flatten()))


def alignment(before: Weights, after: Weights, gradient: Weights | None) -> float | None:
    """Cosine between the update and -G, -1 to 1; None where either is missing or 0."""
    gained = descent(before, after, gradient)
    if gained is None or gradient is None:
        return None
    return _or_none(ratio(gained, norm(after.double() - before.double()) * norm(gradient)))


def onward(weights: Weights, start: Weights, gradient: Weights | None) -> float | None:
    """Cosine between W - S and -G, -1 to 1; None where either is missing or 0."""
    return alignment(start, weights, gradient)


def second_moment(running_mean: Weights, updates: int, beta2: float) -> float | None:
    """sqrt(mean(v) / (1 - beta2^updates)): the root mean square of a weight's gradient, as Adam sees it."""
    debias = 1 - beta2**updates
    return math.sqrt(float(running_mean.double().mean()) / debias) if debias > 0 else None


def singular_values(weights: Weights) -> Float64[Tensor, "*batch rank"]:
    """All singular values of W [*batch, n_in, n_out], falling, min(n_in, n_out) of them; a vector is one row.

    Roots of the eigenvalues of the smaller Gram matrix in float64: exact to 1e-8 of the largest, faster than an SVD.
    """
    matrix = weights.detach().double()
    if matrix.ndim == 1:
        matrix = matrix.unsqueeze(0)
    narrow = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT
    return roots(narrow.mT @ narrow)


def roots(gram: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n"]:
    """Square roots of the eigenvalues of symmetric matrices, falling, what rounding made negative as 0; NaN where a
    number of one is not finite."""
    finite = gram.isfinite().all(-1).all(-1)[..., None]
    found = torch.linalg.eigvalsh(torch.where(finite[..., None], gram, 0.0)).clamp_min(0).sqrt().flip(-1)
    return torch.where(finite, found, torch.nan)


def spectral_norm(weights: Weights) -> float:
    """The largest singular value."""
    return float(singular_values(weights)[..., 0])


def stable_rank(weights: Weights) -> float | None:
    """|W|_F^2 / |W|_2^2, 1 to min(in, out); None for a matrix of zeros."""
    return _or_none(float(spectrum_summary(singular_values(weights).numpy())[1]))


def effective_rank(weights: Weights) -> float | None:
    """exp of the entropy of s / sum s, 1 to min(in, out); None for a matrix of zeros (Roy and Vetterli 2007)."""
    return _or_none(float(spectrum_summary(singular_values(weights).numpy())[2]))


def participation_rank(weights: Weights) -> float | None:
    """(sum s^2)^2 / sum s^4, 1 to min(in, out); None for a matrix of zeros."""
    matrix = weights.detach().double().reshape(-1, weights.shape[-1])
    gram = matrix @ matrix.mT if matrix.shape[0] < matrix.shape[1] else matrix.mT @ matrix
    return _or_none(float(participation(gram.numpy())))


def participation(gram: Float[np.ndarray, "*batch n n"]) -> Float64[np.ndarray, "*batch"]:
    """tr(G)^2 / |G|_F^2 of Gram matrices; NaN for zeros."""
    trace = np.trace(gram, axis1=-2, axis2=-1, dtype=np.float64)
    return ratio(trace**2, np.square(gram, dtype=np.float64).sum((-2, -1)))


def symmetric_share(product: Float[Tensor, "n n"]) -> float | None:
    """|(M + M^T) / 2|_F^2 / |M|_F^2 of a square M, 0 (antisymmetric) to 1 (symmetric); None for zeros."""
    matrix = product.detach().double()
    return _or_none(ratio(norm((matrix + matrix.mT) / 2) ** 2, norm(matrix) ** 2))


def between(a: Float[Tensor, "*batch n k"], b: Float[Tensor, "*batch n k_b"]) -> Float[np.ndarray, "*batch"]:
    """Angle in degrees, 0 to 90, between spaces spanned by orthonormal columns.

    The cosine is the root mean square of those of the k principal angles; for random spaces sqrt(k / n).
    """
    overlap = (a.mT @ b).square().sum((-2, -1)) / min(a.shape[-1], b.shape[-1])
    return np.asarray(np.degrees(np.arccos(np.sqrt(overlap.clamp(0, 1).cpu().numpy()))))


def rotation(weights: Float[Tensor, "n_in n_out"], start: Float[Tensor, "n_in n_out"], k: int) -> float | None:
    """Angle between the k strongest input directions (left singular vectors) of W and of S.

    None where either is 0, or k is not below the rank that W can have.
    """
    if not (weights.any() and start.any()) or k >= min(weights.shape):
        return None
    now, then = (torch.linalg.svd(t.detach().double(), full_matrices=False)[0][:, :k] for t in (weights, start))
    return float(between(now, then))


def subspace_angle(a: Float[Tensor, "n_in n_out"], b: Float[Tensor, "n_in n_out_b"]) -> float | None:
    """Angle between the spaces of x that two matrices read (their columns' spans).

    None where one reads everything (n_out >= n_in) or less than its width.
    """
    if a.shape[-1] >= a.shape[-2] or b.shape[-1] >= b.shape[-2]:
        return None
    if any(torch.linalg.matrix_rank(m.double(), rtol=1e-6) < m.shape[-1] for m in (a, b)):
        return None
    return float(between(*(torch.linalg.qr(m.detach().double())[0] for m in (a, b))))


def row_drift(
    table: Float[Tensor, "n m"], start: Float[Tensor, "n m"], *, axis: int = 0
) -> Float32[np.ndarray, "n_rows"]:
    """|W[t] - S[t]| / |S[t]| for each row along `axis`; where S[t] is 0, 1 stands for |S[t]|."""
    table, start, across = table.detach(), start.detach(), 1 - axis
    moved = torch.linalg.vector_norm(table - start, dim=across).double()
    size = torch.linalg.vector_norm(start, dim=across).double()
    return (moved / torch.where(size > 0, size, 1.0)).float().cpu().numpy()


def spectrum_summary(values: Float64[np.ndarray, "*batch k"]) -> Float64[np.ndarray, "3 *batch"]:
    """Spectral norm, stable and effective rank of falling singular values; NaN where undefined."""
    top = values[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        stable = (values**2).sum(-1) / top**2
        share = values / values.sum(-1, keepdims=True)
        entropy = -np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0)), 0.0).sum(-1)
    defined = top > 0
    return np.stack([top, np.where(defined, stable, np.nan), np.where(defined, np.exp(entropy), np.nan)])


def reference_norm(start_norm: np.ndarray | float, n_out: np.ndarray | float) -> np.ndarray:
    """What a drift is divided by: |S|_F, or for a matrix that starts at 0 the norm of a start at N(0, 1/fan_in)."""
    return np.where(np.asarray(start_norm) > 0, start_norm, np.sqrt(n_out))


def ratio(part: np.ndarray | float, whole: np.ndarray | float) -> np.ndarray:
    """part / whole, NaN where the whole is 0."""
    whole = np.asarray(whole, dtype=np.float64)
    return np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole > 0)


def angle(
    moved: np.ndarray | float,
    along: np.ndarray | float,
    start_norm: np.ndarray | float,
    norm_now: np.ndarray | float,
) -> np.ndarray:
    """Angle in degrees between S and S + D from |D|, the part of D along S, |S| and |S + D|; NaN where either is 0.

    The sideways part over the part that lies along S: no cancellation at small angles, as an arccosine would have. What
    is left: with sums exact to 1e-7 an angle is wrong by at most 0.03 degrees, and that only where W grew along S.
    """
    moved, along = np.asarray(moved, dtype=np.float64), np.asarray(along, dtype=np.float64)
    sideways = np.sqrt(np.maximum(moved**2 - along**2, 0))
    degrees = np.degrees(np.arctan2(sideways, start_norm + along))
    return np.where((np.asarray(start_norm) > 0) & (np.asarray(norm_now) > 0), degrees, np.nan)


def _or_none(value: np.ndarray | float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None

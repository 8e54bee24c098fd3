"""Which directions a matrix reads, and how those of one head lie to each other."""

import torch
from torch import Tensor

from qkv.instruments.measures.arithmetic import between
from qkv.instruments.measures.measure import N_SINGULAR, Measure
from qkv.shapes import Float


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


MEASURES = (
    Measure(
        name="rotation",
        meaning="How far the strongest directions that the matrix reads have turned since the start.",
        formula=f"acos sqrt(|U_S^T U_W|_F^2 / k) in degrees, U the k = {N_SINGULAR} leading left singular vectors",
        range="0 to 90 degrees; undefined where W or S is 0, or where k directions are all there are",
        source="Bjorck and Golub 1973 (principal angles); in training: Gur-Ari et al. 2018 (arXiv 1812.04754)",
        null="acos sqrt(k / n_in) for unrelated directions, n_in the matrix's inputs: 75.5 degrees with 128 of them.",
        decision="Whether the start is worth care: near 0 its directions were kept, so a better start or --from pays; "
        "near that of unrelated directions they were thrown away.",
    ),
    Measure(
        name="angle_to_k",
        meaning="How differently this head's W_Q (or W_V) reads its input from how its W_K does.",
        formula="acos sqrt(|U^T U_K|_F^2 / d_head) in degrees, U and U_K orthonormal bases of the spaces that are read",
        range="0 (the same space) to 90 (unrelated, at right angles); undefined where a head reads everything, and of "
        "W_Q in cross-attention, which reads another stack",
        source="Bjorck and Golub 1973 (principal angles)",
        property_of="function",
        null="acos sqrt(d_head / d_model) for random matrices: 60 degrees with four heads, 69 with eight.",
        decision="Whether three matrices are three roles: at 0 degrees W_V could be W_K, with another W_O; "
        "W_Q = W_K M only if M is symmetric and positive semidefinite.",
    ),
    Measure(
        name="angle_to_q",
        meaning="How differently this head's W_V reads its input from how its W_Q does.",
        formula="as angle_to_k, with W_Q; over the query heads that share a W_V, the root mean square cosine",
        range="0 to 90 degrees; undefined where a head reads everything, and in cross-attention",
        source="Bjorck and Golub 1973 (principal angles)",
        property_of="function",
        null="acos sqrt(d_head / d_model) for random matrices: 60 degrees with four heads, 69 with eight.",
        decision="Whether W_V could share its matrix with W_Q: at 0 degrees a head hands on just what it looks for.",
    ),
)

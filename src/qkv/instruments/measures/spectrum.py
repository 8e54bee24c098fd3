"""Singular values, and the ranks that they tell."""

from typing import TypeAlias

import numpy as np
from torch import Tensor

from qkv.instruments.measures.arithmetic import Weights, or_none, roots
from qkv.instruments.measures.measure import N_SINGULAR, Measure
from qkv.shapes import Float64

Spectra: TypeAlias = Float64[np.ndarray, "*batch k"]
"""Falling singular values of each matrix."""


def singular_values(weights: Weights) -> Float64[Tensor, "*batch rank"]:
    """All singular values of W [*batch, n_in, n_out], falling, min(n_in, n_out) of them; a vector is one row.

    Roots of the eigenvalues of the smaller Gram matrix in float64: exact to 1e-8 of the largest, faster than an SVD.
    """
    matrix = weights.detach().double()
    if matrix.ndim == 1:
        matrix = matrix.unsqueeze(0)
    narrow = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT
    return roots(narrow.mT @ narrow)


def spectral_norm(weights: Weights) -> float:
    """The largest singular value."""
    return float(singular_values(weights)[..., 0])


def stable_rank(weights: Weights) -> float | None:
    """|W|_F^2 / |W|_2^2, 1 to min(in, out); None for a matrix of zeros."""
    return or_none(_stable_rank(singular_values(weights).numpy()))


def effective_rank(weights: Weights) -> float | None:
    """exp of the entropy of s / sum s, 1 to min(in, out); None for a matrix of zeros (Roy and Vetterli 2007)."""
    return or_none(_effective_rank(singular_values(weights).numpy()))


def _stable_rank(values: Spectra) -> Float64[np.ndarray, "*batch"]:
    top = values[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(top > 0, (values**2).sum(-1) / top**2, np.nan)


def _effective_rank(values: Spectra) -> Float64[np.ndarray, "*batch"]:
    with np.errstate(divide="ignore", invalid="ignore"):
        share = values / values.sum(-1, keepdims=True)
        entropy = -np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0)), 0.0).sum(-1)
    return np.where(values[..., 0] > 0, np.exp(entropy), np.nan)


MEASURES = (
    Measure(
        name="spectral_norm",
        meaning="The most that the matrix can stretch a vector.",
        formula="largest singular value of W",
        range="0 and up",
        source="elementary; as a training measure: Miyato et al. 2018 (arXiv 1802.05957)",
        null="For independent N(0, 1/n) weights of a square matrix, 2 (Bai and Yin 1993).",
        decision="Whether scores can saturate: a QK circuit with a large one attends to single tokens.",
        of_spectrum=lambda values: values[..., 0],
    ),
    Measure(
        name="stable_rank",
        meaning="How many directions carry the matrix's size, counted by squares.",
        formula="|W|_F^2 / |W|_2^2",
        range="1 to min(in, out); undefined for a matrix of zeros",
        source="Rudelson and Vershynin 2007 (arXiv math/0503442)",
        null="A quarter of n for a square random matrix.",
        decision="What rank an adapter or a compression of this matrix would need.",
        of_spectrum=_stable_rank,
    ),
    Measure(
        name="effective_rank",
        meaning="How many directions the matrix uses, counted by the entropy of its singular values.",
        formula="exp(-sum p log p), p = s / sum s",
        range="1 to min(in, out); undefined for a matrix of zeros",
        source="Roy and Vetterli 2007, The effective rank (EUSIPCO)",
        null="0.8 of n for a square random matrix.",
        decision="Whether heads or their width can be cut: a circuit of rank near 1 does one thing.",
        of_spectrum=_effective_rank,
    ),
    Measure(
        name="singular_values",
        meaning="How much the matrix stretches along its strongest directions.",
        formula=f"the {N_SINGULAR} largest singular values of W, falling",
        range="0 and up, a list",
        source="elementary",
        null="No value stands out of a random matrix's spectrum; one that does came from training, or is its mean.",
        decision="At which rank to cut a matrix.",
    ),
)


def spectrum_summary(values: Spectra) -> Float64[np.ndarray, "3 *batch"]:
    """Spectral norm, stable and effective rank of falling singular values; NaN where undefined."""
    return np.stack([values[..., 0], _stable_rank(values), _effective_rank(values)])

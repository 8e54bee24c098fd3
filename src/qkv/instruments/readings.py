"""What a look at the weights gives, for every measure to read: arrays with one number for each matrix, head or circuit.

All are float64 [n], NaN where there is none: no gradient, no update (a look between updates), no start, no second
moment.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Where matrices, heads or circuits stand, and which way they have come."""

    norm: np.ndarray
    update: np.ndarray
    """|dW|_F of the last update."""
    distance: np.ndarray
    """|W - S|_F"""
    along: np.ndarray
    """The part of W - S along S, signed; 0 where S is 0."""
    start_norm: np.ndarray
    n_out: np.ndarray | float
    """|S|_F^2 of a start at N(0, 1/fan_in): the output width, of a head its share, of a circuit d_head."""


@dataclass(frozen=True, kw_only=True)
class MatrixReading(Reading):
    """The same of entries, or of the heads of those that have heads, with what gradients tell."""

    grad_norm: np.ndarray
    """As it is seen, after clipping."""
    work: np.ndarray
    """<G, dW>, the first-order change of the loss by this update; negative where it descends."""
    pulled: np.ndarray
    """<G, W - S>; negative where the loss pulls further along the way from the start."""
    second: np.ndarray
    """Mean of the optimizer's running mean of squared gradients."""
    unclip: float = 1.0
    """Undoes the clipping of a gradient."""
    debias: np.ndarray | float = np.nan
    """What `second` is divided by: 1 - beta2^updates."""


@dataclass(frozen=True, kw_only=True)
class CircuitReading(Reading):
    """The same of circuits AB, with what their factors tell."""

    participation: np.ndarray
    symmetric: np.ndarray
    """Share of |AB|_F^2 in the symmetric part of AB; NaN where that means nothing."""

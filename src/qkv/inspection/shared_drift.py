"""Shared drift: how far two trainings from one start, on different data, moved each matrix the same way.

D1 and D2 are the movements W - f S of a matrix, S the start and f S where weight decay alone would have taken it (f =
prod(1 - lr_t decay) over the updates), so that the path of weight decay is taken off exactly. Their agreement is the
cosine <D1, D2> / (|D1| |D2|). Where D1 = T + E1 and D2 = T + E2, T common and E1, E2 independent and equally long, it
is the share of the squared movement that is common: |T|^2 / (|T|^2 + |E|^2).

Movements that have nothing to do with each other agree by 0 on average, with a standard deviation of 1 / sqrt(d_eff),
d_eff = (tr C)^2 / tr C^2 for movements of covariance C: the number of weights where all directions are alike, fewer
where some are favored. Two trainings from one start are never quite that: what the start alone asks for (even logits,
smaller or larger norms) is common to them, whatever the data say. The same two trainings on uniform labels have
that in common and nothing else. So what the data taught is the agreement in excess of theirs, which is 0 on average
where the data have no structure; with its spread over seeds it has an interval.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.models.parts import Entry
from qkv.shapes import Float64, Num


class Agreement(NamedTuple):
    """Of the movements of one matrix in two trainings, -1 to 1; NaN where one of them did not move."""

    whole: float
    """Of all weights together."""
    pieces: np.ndarray
    """float64 [n_heads] of a matrix that divides into heads, [n_rows] of one that divides into rows, else [1]."""


def movement(
    start: Num[Tensor, "*shape"], end: Num[Tensor, "*shape"], decayed: float = 1.0
) -> Float64[Tensor, "*shape"]:
    """W - f S in float64, f = `decayed` (`Optimizer.decayed`); zeros where W is S, which nothing has touched."""
    return torch.zeros_like(start, dtype=torch.float64) if end.equal(start) else end.double() - decayed * start.double()


def cosine(one: Float64[Tensor, "n k"], other: Float64[Tensor, "n k"]) -> Float64[Tensor, "n"]:
    """Cosines of rows: float64 [n] of [n, k] each; NaN where one of the two is 0."""
    return (one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1))


def agreement(entry: Entry, one: Float64[Tensor, "*shape"], other: Float64[Tensor, "*shape"]) -> Agreement:
    """Of two movements of the same matrix, stored as `entry` is."""
    whole = cosine(one.reshape(1, -1), other.reshape(1, -1))
    pieces = [d.unflatten(entry.axis, (entry.n_pieces, -1)).movedim(entry.axis, 0).flatten(1) for d in (one, other)]
    return Agreement(float(whole), cosine(*pieces).numpy())

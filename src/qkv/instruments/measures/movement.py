"""How large a matrix is, and how far and which way it has moved."""

import math
from operator import attrgetter

import numpy as np
import torch

from qkv.instruments.measures.arithmetic import Weights, angle, or_none, ratio, reference_norm
from qkv.instruments.measures.measure import Measure
from qkv.instruments.readings import Reading


def norm(weights: Weights) -> float:
    """|W|_F, summed in float64."""
    return float(torch.linalg.vector_norm(weights.detach(), dtype=torch.float64))


def grad_norm(gradient: Weights | None) -> float | None:
    """|G|_F; None where there is no gradient."""
    return None if gradient is None else norm(gradient)


def update_ratio(before: Weights, after: Weights) -> float | None:
    """|W_after - W_before|_F / |W_after|_F; None for a matrix of zeros."""
    return or_none(ratio(norm(after.double() - before.double()), norm(after)))


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


def _update_ratio(reading: Reading) -> np.ndarray:
    return ratio(reading.update, reading.norm)


def _drift(reading: Reading) -> np.ndarray:
    return reading.distance / reference_norm(reading.start_norm, reading.n_out)


def _turn(reading: Reading) -> np.ndarray:
    return angle(reading.distance, reading.along, reading.start_norm, reading.norm)


MEASURES = (
    Measure(
        name="norm",
        meaning="How large the matrix is: the root of the sum of its squared weights.",
        formula="|W|_F",
        range="0 and up, in units of a weight",
        source="Frobenius norm",
        null="Its value at step 0; it grows or shrinks in the random-label control too, by step size and weight decay.",
        decision="Whether weight decay holds the weights: a norm that grows without end asks for more of it.",
        of_matrix=attrgetter("norm"),
        at_rest=True,
        of_circuit=attrgetter("norm"),
    ),
    Measure(
        name="grad_norm",
        meaning="How strongly the loss of the last batch pulled at the matrix, before clipping.",
        formula="|G|_F",
        range="0 and up, in nats per unit of a weight; undefined where the matrix had no gradient (frozen)",
        source="Pascanu, Mikolov and Bengio 2013 (arXiv 1211.5063), section 3.2, per matrix",
        null="Not 0 in the random-label control either: a batch's noise never dies out.",
        decision="Where to look when training spikes: the matrix whose gradient grew first.",
        of_matrix=lambda reading: reading.grad_norm * reading.unclip,
    ),
    Measure(
        name="update_ratio",
        meaning="How large the last update was, as a share of the matrix.",
        formula="|dW|_F / |W|_F, W after the update",
        range="0 and up, 1 where the update is as large as the matrix; undefined for a matrix of zeros",
        source="Karpathy, CS231n notes, Neural Networks 3 (ratio of weights to updates): about 1e-3 under SGD and Adam",
        null="Of the same order in the random-label control: rate and optimizer set it (Muon and Adam normalize).",
        decision="Whether the learning rate suits this matrix: far above 1e-2 late in training is too much.",
        of_matrix=_update_ratio,
        of_circuit=_update_ratio,
    ),
    Measure(
        name="drift",
        meaning="How far the matrix has moved from where it started, relative to its initial norm.",
        formula="|W - S|_F / |S|_F; where S is 0, the norm of a start at N(0, 1/fan_in) stands for |S|_F: sqrt(n_out), "
        "of a head its share, of a circuit sqrt(d_head)",
        range="0 and up; 0 for a frozen matrix",
        source="Nagarajan and Kolter 2019 (arXiv 1902.04742); Zhang, Bengio and Singer 2019 (arXiv 1902.01996)",
        null="Not 0 in the random-label control, sometimes more than in the run; compare at an equal step only.",
        decision="Which matrices to test with --freeze or --change: a drift does not say whether it mattered.",
        of_matrix=_drift,
        at_rest=True,
        of_circuit=_drift,
    ),
    Measure(
        name="turn",
        meaning="How far the matrix has turned away from its starting direction, whatever its size.",
        formula="angle between W and S as vectors of weights",
        range="0 to 180 degrees; undefined where W or S is 0",
        source="elementary; 90 degrees is no memory of the start",
        null="Grows in the random-label control too; two independent random matrices are 90 degrees apart.",
        decision="What to do about a large drift: with a small turn it is growth, which weight decay holds; with "
        "a large one the start was given up, and another start may save updates.",
        of_matrix=_turn,
        at_rest=True,
        of_circuit=_turn,
    ),
)

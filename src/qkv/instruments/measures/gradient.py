"""What a matrix's gradient says of its movement, and the optimizer of its gradients."""

import math

import numpy as np
import torch

from qkv.instruments.measures.arithmetic import Weights, or_none, ratio
from qkv.instruments.measures.measure import Measure
from qkv.instruments.measures.movement import norm


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
    return or_none(ratio(gained, norm(after.double() - before.double()) * norm(gradient)))


def onward(weights: Weights, start: Weights, gradient: Weights | None) -> float | None:
    """Cosine between W - S and -G, -1 to 1; None where either is missing or 0."""
    return alignment(start, weights, gradient)


def second_moment(running_mean: Weights, updates: int, beta2: float) -> float | None:
    """sqrt(mean(v) / (1 - beta2^updates)): the root mean square of a weight's gradient, as Adam sees it."""
    debias = 1 - beta2**updates
    return math.sqrt(float(running_mean.double().mean()) / debias) if debias > 0 else None


MEASURES = (
    Measure(
        name="alignment",
        meaning="How far the last update went straight down the gradient of its own batch.",
        formula="cosine between dW and -G",
        range="-1 to 1; undefined for a matrix with no gradient or no update",
        source="elementary; under plain SGD it is 1",
        null="Below 1 in the random-label control too: Adam and Muon choose another direction than -G on any labels.",
        decision="Whether a larger batch can help this matrix: near 0 momentum and normalisation steer, not the "
        "last batch.",
        of_matrix=lambda reading: ratio(-reading.work, reading.update * reading.grad_norm),
    ),
    Measure(
        name="onward",
        meaning="Whether the gradient of the last batch pulls the matrix further the way it has come, or back.",
        formula="cosine between W - S and -G",
        range="-1 (back to the start) to 1 (onward); undefined without a gradient, or where W is S",
        source="elementary",
        null="Near 0 where gradients are noise of a batch; above 0 early on, in the random-label control too, which "
        "learns to guess evenly.",
        decision="Whether a longer run would move this matrix further: above 0 it is still under way.",
        of_matrix=lambda reading: ratio(-reading.pulled, reading.distance * reading.grad_norm),
    ),
    Measure(
        name="descent",
        meaning="How much the last update of this matrix should have lowered the loss of its batch, to first order.",
        formula="-<G, dW>, in nats per token",
        range="any sign; the sum over all matrices is the first-order change; undefined without a gradient",
        source="Lan et al. 2019, loss change allocation (arXiv 1909.01440), one term of it at one step",
        null="Positive in the random-label control too: the loss of any batch falls a little by memorizing it.",
        decision="Which matrices still earn anything: one that earns nothing for long could be frozen.",
        of_matrix=lambda reading: -reading.work * reading.unclip,
    ),
    Measure(
        name="second_moment",
        meaning="How large a gradient the optimizer expects of one weight of the matrix.",
        formula="sqrt(mean(v) / (1 - beta2^t)), v Adam's running mean of squared gradients, t its updates",
        range="0 and up, in nats per unit of a weight; undefined where the optimizer keeps none (Muon, SGD)",
        source="Kingma and Ba 2015 (arXiv 1412.6980)",
        null="Not 0 in the random-label control either: there it is mostly the noise of a batch.",
        decision="Whether eps matters: where this is near eps, Adam's steps are smaller than they look.",
        of_matrix=lambda reading: np.sqrt(reading.second / reading.debias),
    ),
)

"""The gradient noise scale: beyond about how large a batch more examples hardly improve a step.

With G the mean gradient and S the covariance of one example's gradient,

    B_simple = tr(S) / |G|^2                     McCandlish et al. 2018 (arXiv 1812.06162), in examples.

From gradients g_1 .. g_K of single examples, by their unbiased estimator with batches of 1 and of K:

    |G|^2 = (K |mean g|^2 - mean |g|^2) / (K - 1),    tr(S) = (mean |g|^2 - |mean g|^2) K / (K - 1).

The interval is Fieller's for a ratio, from a jackknife over examples. It has no upper end where K examples cannot tell
G from 0: then take more of them. An example is one window of text (or one text, image or pair); the gradient is of its
mean loss per target, over all parameters, without dropout. Neighboring windows of one document resemble each other, so
examples are drawn at random. Cost: 2 K passes forward and backward; memory: three times the weights.
"""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from qkv.errors import UserError
from qkv.models.layout import Sizes
from qkv.randomness import generator
from qkv.tasks.batch import Batch
from qkv.tasks.evaluation import student_t
from qkv.tasks.task import Data, Objective

EXAMPLES = 64
"""How many are taken, where nothing is said."""
DRAWN_FROM = 4096
"""They are drawn among so many, the first ones of the validation data."""
FEWEST = 8


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """How noisy the gradient of one example is."""

    examples: float
    """B_simple; infinite where the estimate of |G|^2 is not above 0."""
    low: float
    high: float
    """95% interval, in examples; `high` is infinite where these examples cannot tell the mean gradient from 0."""
    targets_each: float
    """Mean number of targets (tokens) of an example."""
    squared_gradient: float
    """Estimate of |G|^2, unbiased, so it can be below 0."""
    variance: float
    """Estimate of tr(S)."""
    n: int
    """Examples that it is estimated from."""


def noise_scale(model: nn.Module, task: Objective, data: Data, *, n: int = EXAMPLES, seed: int = 0) -> NoiseScale:
    """The noise scale of a model's gradient on `n` examples of the validation data. The model is not changed.

    Raises UserError where there are fewer than 8 examples.
    """
    batches = drawn(task, data, model.config.sizes, n, seed)  # type: ignore[union-attr, arg-type]
    if len(batches) < FEWEST:
        raise UserError(f"the data has {len(batches)} examples; the noise scale needs at least {FEWEST}")
    own = copy.deepcopy(model).eval().requires_grad_(True)
    parameters = list(own.parameters())

    def gradients() -> Iterable[tuple[Tensor, ...]]:
        for batch in batches:
            with torch.enable_grad():
                nats, n_targets = task.loss(own, batch)
                yield torch.autograd.grad(nats / n_targets, parameters, allow_unused=True, materialize_grads=True)

    return estimated(gradients, sum(batch.n_targets for batch in batches) / len(batches))


def drawn(task: Objective, data: Data, sizes: Sizes, n: int, seed: int) -> list[Batch]:
    """`n` of the first examples, drawn at random, or all there are; those that a window only begins are left out."""
    found = list(islice(task.val_batches(data, sizes, 1), DRAWN_FROM))
    most = max((batch.n_targets for batch in found), default=0)
    whole = [batch for batch in found if 2 * batch.n_targets > most]
    chosen = generator("noise scale", seed).permutation(len(whole))[:n]
    return [whole[i] for i in sorted(chosen)]


def estimated(gradients: Callable[[], Iterable[Iterable[Tensor]]], targets_each: float = 1.0) -> NoiseScale:
    """From the gradients of K >= 3 single examples, parameter by parameter; they are asked for twice."""
    total: list[Tensor] = []
    squares = []
    for gradient in gradients():
        parts = [part.double() for part in gradient]
        total = [a + b for a, b in zip(total, parts, strict=True)] if total else parts
        squares.append(sum(float(part.square().sum()) for part in parts))
    along = np.array([sum(float((a.double() * b).sum()) for a, b in zip(g, total, strict=True)) for g in gradients()])
    d, k = np.array(squares), len(squares)
    whole = sum(float(part.square().sum()) for part in total)
    G2, S = _estimates(whole, d.sum(), k)
    each = np.array(_estimates(whole - 2 * along + d, d.sum() - d, k - 1))  # without each example, [2, K]
    covariance = (k - 1) ** 2 / k * np.cov(each)
    low, high = _fieller(S, G2, covariance, student_t(k - 1))
    return NoiseScale(
        examples=float(S / G2) if G2 > 0 else math.inf,
        low=float(low),
        high=float(high),
        targets_each=targets_each,
        squared_gradient=float(G2),
        variance=float(S),
        n=k,
    )


def _estimates(whole: float | np.ndarray, d: float | np.ndarray, k: int) -> tuple:
    """(|G|^2, tr(S)) from |sum g|^2, sum |g|^2 and how many there are."""
    return (whole - d) / (k * (k - 1)), (d - whole / k) / (k - 1)


def _fieller(S: float, G2: float, covariance: np.ndarray, t: float) -> tuple[float, float]:
    """Every ratio b >= 0 with |S - b G2| <= t times its standard error; `covariance` is of (G2, S)."""
    (v_G, v_GS), (_, v_S) = t * t * covariance
    a, half, c = G2 * G2 - v_G, S * G2 - v_GS, S * S - v_S
    inside = half * half - a * c
    if inside < 0:
        return 0.0, math.inf
    if a <= 0 or G2 <= 0:  # no upper end: the mean gradient may be 0
        roots = [(half + sign * math.sqrt(inside)) / a for sign in (1, -1)] if a else [c / (2 * half)]
        return max([0.0, *(root for root in roots if root > 0)]), math.inf
    return max(0.0, (half - math.sqrt(inside)) / a), (half + math.sqrt(inside)) / a

"""What vectors linearly tell of their tokens: a linear discriminant, scored in accuracy and in nats on held-out ones.

In closed form, so that neither a learning rate nor a number of steps decides what is found. Fisher's discriminant: the
scatter of vectors around the mean of their token, pooled over tokens, whitens the space, and a vector speaks for the
token whose mean is near (Fisher 1936; Hastie, Tibshirani and Friedman 2009, section 4.3). Means of few occurrences are
drawn to the common mean as far as chance explains them (James and Stein 1961), and one number, fitted on vectors of its
own, says how much to trust the whole. So vectors that say nothing cost nothing, and a static vector for each token,
shifted by what does not depend on the token, is read without error. However well the n vectors that set the trust were
told, one in n + 1 is left to guessing by frequency (about Laplace's rule for what was never seen to fail), else a
single vector that is told wrongly and with all trust could cost more than all others say.

Information in nats is H - CE (Xu et al. 2020, arXiv 2002.10689, for the family of linear readers): what guessing by
frequency costs, less what the probe costs. The probe is one linear reader, not the best of all, so it is a lower bound.
Both figures hold for the space up to any invertible linear map, but for the ridge. A reader that is not linear may find
more: what is not found here is not lost for it.
"""

from dataclasses import dataclass

import numpy as np

from qkv.data.baseline.linear import log_softmax
from qkv.randomness import generator

RIDGE = 1e-4
"""Added to the pooled scatter, of the mean variance of a component: a static vector has no scatter at all."""
MOST_CLASSES = 100
"""Tokens that are told apart, the most frequent ones."""
FEWEST = 4
"""Occurrences that a token needs in each part to be one of them."""
_HALVINGS = 24
"""Of the range in which the trust is looked for."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a probe found on vectors that it was not fitted on."""

    accuracy: float
    """Share of vectors whose token is named, 0 to 1."""
    by_chance: float
    """The same for a probe that was fitted on labels dealt out anew: what it gets without looking."""
    information: float
    """H - CE in nats; about 0 where vectors tell nothing, at most `entropy`."""
    entropy: float
    """H: nats that guessing by frequency costs."""
    n_classes: int
    n_scored: int


def dealt_parts(windows: np.ndarray) -> np.ndarray:
    """The part of each vector by its window: of four windows two are fitted on, one sets the trust, one is scored.

    windows: int64 [n] -> int64 [n] of 0, 1, 2. A window lies in one part whole, since vectors of one window are alike.
    """
    return np.array([0, 1, 0, 2])[windows % 4]


def common_labels(labels: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """The most frequent labels that occur `FEWEST` times or more in every part (0, 1, 2): int64, falling in frequency.

    labels, parts: int64 [n]. Empty where fewer than two do.
    """
    known, counts = np.unique(labels, return_counts=True)
    fewest = np.min([[((labels == i) & (parts == p)).sum() for i in known] for p in range(3)], axis=0)
    enough = fewest >= FEWEST
    found = known[enough][np.argsort(-counts[enough], kind="stable")][:MOST_CLASSES]
    return found.astype(np.int64) if len(found) > 1 else np.empty(0, dtype=np.int64)


def told(vectors: np.ndarray, labels: np.ndarray, parts: np.ndarray, classes: np.ndarray) -> Told:
    """Fit on part 0, set the trust on part 1, score on part 2; vectors of other labels than `classes` are left out.

    vectors: float [n, d_model]; labels, parts: int64 [n]; classes from `common_labels`, two or more.
    """
    place = np.full(int(labels.max()) + 1, -1)
    place[classes] = np.arange(len(classes))
    asked = place[labels] >= 0
    x, y, part = vectors[asked].astype(np.float64), place[labels[asked]], parts[asked]
    log_prior = np.log(np.bincount(y[part == 0], minlength=len(classes)) / (part == 0).sum())
    dealt = generator("discriminant", "dealt").permutation(y[part == 0])
    logits, guessed = (_logits(x, y, part, log_prior, fitted) for fitted in (y[part == 0], dealt))
    truth, doubt = y[part == 2], 1 / (1 + int((part == 1).sum()))
    entropy = float(-log_prior[truth].mean())
    return Told(
        accuracy=float((logits.argmax(1) == truth).mean()),
        by_chance=float((guessed.argmax(1) == truth).mean()),
        information=entropy - _cost(logits, truth, log_prior, doubt),
        entropy=entropy,
        n_classes=len(classes),
        n_scored=len(truth),
    )


def _logits(x: np.ndarray, y: np.ndarray, part: np.ndarray, log_prior: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    """Logits of part 2, [m, n_classes], by a probe fitted on part 0 under the labels `fitted`."""
    weights, bias = _discriminant(x[part == 0], fitted, len(log_prior))
    set_on, scored = (x[part == p] @ weights + bias for p in (1, 2))
    return log_prior + _trust(set_on, log_prior, y[part == 1]) * scored


def _discriminant(x: np.ndarray, y: np.ndarray, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights [d_model, n_classes] and bias [n_classes]: log-likelihoods of the labels up to what they share."""
    counts = np.bincount(y, minlength=n_classes).astype(np.float64)
    middle = x.mean(0)
    means = np.stack([x[y == c].mean(0) for c in range(n_classes)]) - middle
    within = x - middle - means[y]
    d_model = x.shape[1]
    ridge = RIDGE * ((x - middle) ** 2).mean() or 1.0
    scatter = within.T @ within / len(x) + ridge * np.eye(d_model)
    values, directions = np.linalg.eigh(scatter)
    whiten = directions / np.sqrt(values)
    white = means @ whiten
    between = max(0.0, float((white**2).sum(1).mean()) / d_model - float((1 / counts).mean()))
    white *= (between * counts / (between * counts + 1))[:, None]
    weights = whiten @ white.T
    return weights, -0.5 * (white**2).sum(1) - middle @ weights


def _trust(scores: np.ndarray, log_prior: np.ndarray, truth: np.ndarray) -> float:
    """The factor from 0 to 1 at which these scores cost least; the cost is convex in it."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        p = np.exp(log_softmax(log_prior + middle * scores))
        rows = np.arange(len(truth))
        slope = float(((p * scores).sum(1) - scores[rows, truth]).mean())
        low, high = (low, middle) if slope > 0 else (middle, high)
    return high if low > 0 else 0.0


def _cost(logits: np.ndarray, truth: np.ndarray, log_prior: np.ndarray, doubt: float) -> float:
    """Mean nats of the true classes, of which the share `doubt` is left to guessing."""
    told_of = log_softmax(logits)[np.arange(len(truth)), truth]
    return float(-np.logaddexp(np.log1p(-doubt) + told_of, np.log(doubt) + log_prior[truth]).mean())

"""What needs no Transformer reaches on labelled texts and images: the most frequent class, and a linear model.

The linear model is multinomial logistic regression: of texts on TF-IDF of n-grams (`linear`), of images on pixel values
in 0..1, by 100 rounds of L-BFGS (scikit-learn, extra `study`). It is fitted on as much of the training part as takes
seconds (a note says how much) and scored on the same validation part as the model. A classifier that does not beat them
has learned less than that.
"""

import warnings
from typing import NamedTuple

import numpy as np

from qkv.data.baseline.linear import log_softmax, sample
from qkv.data.examples import Examples
from qkv.data.images import Images
from qkv.installing import install

MOST_VALUES = 10_000_000
"""Pixel values (images x pixels) that the linear model is fitted on, and that it is asked about at a time."""
_ROUNDS = 100
_LEAST = float(np.log(1e-9))
"""Log-probability that a linear model gives any class at least."""


class ClassBaselines(NamedTuple):
    """Accuracy 0..1 and nats per text or image on the validation part; None where scikit-learn is not installed."""

    majority: float
    majority_nats: float
    linear: float | None
    linear_nats: float | None
    note: str


def labelled_baselines(data: Examples) -> ClassBaselines:
    """Of texts; the time is that of `Examples.linear`. A pure function of the data, fit for a thread."""
    train, val, n_classes = data.train, data.val, len(data.classes)
    majority = _majority(train.classes, val.classes, n_classes)
    logs = np.maximum(log_softmax(data.linear[0].logits(val.read)), _LEAST)
    n = len(data.counted)
    sampled = f"TF-IDF counted {n:,} of {len(train):,} texts" if n < len(train) else ""
    return ClassBaselines(*majority, *_scored(logs, val.classes), sampled)


def image_baselines(data: Images) -> ClassBaselines:
    """Of images; without scikit-learn the majority alone, and the note says what to install."""
    train, val, n_classes = data.train, data.val, len(data.classes)
    majority = _majority(train.labels, val.labels, n_classes)
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        return ClassBaselines(*majority, None, None, f"no linear model; type: {install('study')}")
    n_values = int(np.prod(data.shape))
    most = max(1000, MOST_VALUES // n_values)
    chosen = sample("image baselines", train.labels, most)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged after so many rounds is meant
        model = LogisticRegression(max_iter=_ROUNDS, C=0.1).fit(_flat(train.pixels[chosen]), train.labels[chosen])
    logs = np.full((len(val), n_classes), _LEAST)
    step = max(1, MOST_VALUES // n_values)
    for first in range(0, len(val), step):
        with np.errstate(divide="ignore"):  # beside an image unlike all others a class has probability 0 in float32
            found = model.predict_log_proba(_flat(val.pixels[first : first + step]))
        logs[first : first + step, model.classes_] = np.maximum(found, _LEAST)
    sampled = f"the linear model was fitted on {most:,} of {len(train):,} images" if len(train) > most else ""
    return ClassBaselines(*majority, *_scored(logs, val.labels), sampled)


def _majority(train: np.ndarray, val: np.ndarray, n_classes: int) -> tuple[float, float]:
    """(accuracy, nats) of the most frequent class of the training part, and of its frequencies (none below a half)."""
    counts = np.bincount(train, minlength=n_classes)
    shares = np.maximum(counts, 0.5) / np.maximum(counts, 0.5).sum()
    return float((val == counts.argmax()).mean()), float(-np.log(shares)[val].mean())


def _scored(logs: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """(accuracy, nats) of log-probabilities [n, n_classes]."""
    return float((logs.argmax(axis=1) == wanted).mean()), float(-logs[np.arange(len(wanted)), wanted].mean())


def _flat(pixels: np.ndarray) -> np.ndarray:
    return pixels.reshape(len(pixels), -1).astype(np.float32) / 255

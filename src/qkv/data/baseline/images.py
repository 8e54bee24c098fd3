"""What needs no Transformer reaches on images: the most frequent class, and a linear model of the pixels.

The linear model is multinomial logistic regression (scikit-learn, extra `study`) on pixel values in 0..1, by 100 rounds
of L-BFGS, on as many training images as take seconds; a note says how many. It is scored on the same validation
images as the model.
"""

from typing import NamedTuple

import numpy as np

from qkv.data.images import Images
from qkv.installing import install
from qkv.randomness import generator

__all__ = ["ImageBaselines", "image_baselines"]

MOST_VALUES = 10_000_000
"""Pixel values (images x pixels) that the linear model is fitted on, and that it is asked about at a time."""
_ROUNDS = 100
_LEAST = float(np.log(1e-9))
"""Log-probability that the linear model gives any class at least."""


class ImageBaselines(NamedTuple):
    """Accuracy 0..1 and nats per image on the validation part; None where it could not be had."""

    majority: float
    majority_nats: float
    linear: float | None
    linear_nats: float | None
    note: str


def image_baselines(images: Images) -> ImageBaselines:
    """Both baselines; without scikit-learn only the first, and the note says what to install."""
    n_classes = len(images.classes)
    counts = np.bincount(images.train.labels, minlength=n_classes)
    wanted = images.val.labels
    majority = float((wanted == counts.argmax()).mean())
    majority_nats = float(-np.log(counts / counts.sum())[wanted].mean())
    try:
        from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    except ImportError:
        return ImageBaselines(majority, majority_nats, None, None, f"no linear model; type: {install('study')}")
    chosen, note = _sample(images)
    x, y = _flat(images.train.pixels[chosen]), images.train.labels[chosen]
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged after so many rounds is meant
        model = LogisticRegression(max_iter=_ROUNDS, C=0.1).fit(x, y)
    known = np.full((len(wanted), n_classes), _LEAST, dtype=np.float64)
    step = max(1, MOST_VALUES // int(np.prod(images.shape)))
    for first in range(0, len(wanted), step):
        with np.errstate(divide="ignore"):  # beside an image unlike all others a class has probability 0 in float32
            logs = model.predict_log_proba(_flat(images.val.pixels[first : first + step]))
        known[first : first + step, model.classes_] = np.maximum(logs, _LEAST)
    right = float((known.argmax(axis=1) == wanted).mean())
    return ImageBaselines(majority, majority_nats, right, float(-known[np.arange(len(wanted)), wanted].mean()), note)


def _sample(images: Images) -> tuple[np.ndarray, str]:
    """Which training images the linear model sees, and a sentence where that is not all of them."""
    n = len(images.train)
    most = max(1000, MOST_VALUES // int(np.prod(images.shape)))
    if n <= most:
        return np.arange(n), ""
    chosen = np.sort(generator("image baselines").permutation(n)[:most])
    missing = np.setdiff1d(np.arange(len(images.classes)), images.train.labels[chosen])
    first = [int(np.argmax(images.train.labels == label)) for label in missing]
    return np.concatenate([chosen, np.array(first, dtype=np.int64)]), (
        f"the linear model was fitted on {most:,} of {n:,} images"
    )


def _flat(pixels: np.ndarray) -> np.ndarray:
    return pixels.reshape(len(pixels), -1).astype(np.float32) / 255

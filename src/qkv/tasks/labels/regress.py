"""Predicting a number for each text, in the unit of its column.

Attention gives probabilities to at most 17 points, the quantiles of the training values; its prediction is their mean.
A value between two points is learned as the shares of both whose mean it is, so the loss is a cross-entropy, in nats
per text (Bellemare et al. 2017, arXiv 1707.06887; Farebrother et al. 2024, arXiv 2403.03950). The linear model is ridge
regression on the same n-grams, and attention is added to it where that lowers the squared error. The figure is the root
of the mean squared error, beside Pearson's and Spearman's correlation.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from qkv.data.baseline.linear import log_softmax
from qkv.data.examples import Examples, Labelled
from qkv.models.layout import Sizes
from qkv.models.zoo import TextClassifier
from qkv.tasks.classify import Classify
from qkv.tasks.evaluation import NORMAL, evaluate, ratio_interval
from qkv.tasks.figures import Evaluation, Figure
from qkv.tasks.task import PredictOptions, Yardsticks
from qkv.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Regress(Classify):
    """The task `regress`."""

    name: str = "regress"
    shape: ClassVar[str] = "value"
    metric: ClassVar[str] = "rmse"
    higher_is_better: ClassVar[bool] = False
    asked: ClassVar[str] = "the number"
    guessed: ClassVar[int] = 1
    picks: ClassVar[bool] = False
    exported: ClassVar[bool] = False
    unscored: ClassVar[str] = ", whose outputs are numbers; leave it out"
    yardsticks: ClassVar[Mapping[str, str]] = {
        "mean": "the mean of the training values",
        "tfidf": "TF-IDF + ridge regression",
    }

    def baselines(self, data: Examples, sizes: Sizes, cache: Path | None) -> Yardsticks:
        """The mean of the training values, and ridge regression."""
        assert data.unit is not None
        mean, deviation = data.unit
        ridge = mean + deviation * data.linear[0].scores(data.val.texts)[:, 0]
        scores = {"mean": _rmse(np.full(len(data.val), mean), data.val)[0], "tfidf": _rmse(ridge, data.val)[0]}
        return Yardsticks(summary=scores, facts={"rmse": scores, "note": ""})

    def _said(self, model: TextClassifier, logits: np.ndarray) -> np.ndarray:
        """The mean of the points: float64 [n, 1]."""
        points = np.array(model.config.classes, dtype=np.float64)
        return np.exp(log_softmax(logits)) @ points[:, None]

    def evaluate(self, model: TextClassifier, data: Examples) -> Evaluation:
        """Attention's loss, and the error and correlation of the predictions, over the validation texts."""
        attention = self._logits_of(model, data.val, np.arange(len(data.val)))
        figures = self._judged(self._together(data.val.texts, attention), data.val) | self._parts(attention, data.val)
        return dataclasses.replace(evaluate(model, self, data, batch_size=128), figures=figures)

    def _metric(self, said: np.ndarray, part: Labelled, of: str = "", which: int = 0) -> Figure:
        return Figure(*_rmse(said[:, 0], part), f"RMSE{of}")

    def _judged(self, said: np.ndarray, part: Labelled) -> dict[str, Figure]:
        values, found = part.values, said[:, 0]
        assert values is not None
        return {
            "rmse": self._metric(said, part),
            "pearson": _correlation(found, values, "Pearson's correlation", 1.0),
            "spearman": _correlation(_ranks(found), _ranks(values), "Spearman's correlation", 1.06),
        }

    def predict(
        self, model: TextClassifier, tokenizer: Tokenizer | None, texts: Sequence[str], options: PredictOptions
    ) -> list[str]:
        """The number of each text, with all its digits."""
        assert tokenizer is not None, "a task on text has one"
        return [repr(value) for value in self.said(model, tokenizer, texts, options.special)[:, 0].tolist()]

    def shown(self, text: str, output: str) -> str:
        """With seven digits."""
        return super().shown(text, repr(float(f"{float(output):.7g}")))


def _rmse(found: np.ndarray, part: Labelled) -> tuple[float, tuple[float, float] | None]:
    """The root of the mean squared error, with the 95% interval of that mean over texts."""
    assert part.values is not None
    mean, interval = ratio_interval(np.square(found - part.values), np.ones(len(found)))
    return float(np.sqrt(mean)), interval and (float(np.sqrt(max(0.0, interval[0]))), float(np.sqrt(interval[1])))


def _correlation(x: np.ndarray, y: np.ndarray, label: str, spread: float) -> Figure:
    """Pearson's correlation and its 95% interval by Fisher's z, whose variance is `spread` / (n - 3)."""
    if len(x) < 4 or not x.std() or not y.std():
        return Figure(None, None, label, "predictions or values do not differ")
    r = float(np.corrcoef(x, y)[0, 1])
    reach = NORMAL * np.sqrt(spread / (len(x) - 3))
    z = np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12))
    return Figure(r, (float(np.tanh(z - reach)), float(np.tanh(z + reach))), label)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, those of equal values averaged."""
    _, number, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[number]

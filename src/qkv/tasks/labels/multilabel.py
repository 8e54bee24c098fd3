"""Giving each text some of several labels: a probability for each, and a threshold above which it is given.

Loss is in nats per label of a text: the binary cross-entropies of all labels, averaged. The figure is micro F1, 0..1:
2 TP / (2 TP + FP + FN) over all texts and labels. Macro F1 is the mean of the F1 of each label that a validation text
has. The threshold has the highest micro F1 on training texts that neither part was fitted to.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.baseline.linear import of_sets, sigmoid
from qkv.data.examples import Examples, Labelled
from qkv.models.layout import Sizes
from qkv.models.zoo import TextClassifier
from qkv.randomness import uniforms
from qkv.tasks.batch import Batch, Drop
from qkv.tasks.classify import Classify, text_logits
from qkv.tasks.combined import Combined
from qkv.tasks.evaluation import bootstrap
from qkv.tasks.figures import Figure, Scores
from qkv.tasks.task import PredictOptions, Yardsticks
from qkv.tokenizers.tokenizer import Tokenizer

NONE = "(none)"
"""What is printed where no label is probable enough."""


@dataclass(frozen=True, kw_only=True)
class MultiLabel(Classify):
    """The task `multilabel`."""

    name: str = "multilabel"
    shape: ClassVar[str] = "set"
    metric: ClassVar[str] = "micro_f1"
    target: ClassVar[str] = "label"
    asked: ClassVar[str] = "the labels"
    guessed: ClassVar[int] = 2
    picks: ClassVar[bool] = False
    exported: ClassVar[bool] = False
    yardsticks: ClassVar[Mapping[str, str]] = {
        "commonest": "the same labels for every text",
        "tfidf": "TF-IDF + a logistic regression per label",
    }

    # data and losses

    def yardstick_nats(self, data: Examples) -> float:
        """The mean entropy of the training labels."""
        share = np.clip(_wanted(data.train).mean(0, dtype=np.float64), 1e-9, 1 - 1e-9)
        return float(-(share * np.log(share) + (1 - share) * np.log(1 - share)).mean())

    def baselines(self, data: Examples, sizes: Sizes, cache: Path | None) -> Yardsticks:
        """The labels that give every text the highest micro F1 in training, and logistic regression for each label."""
        wanted, val, (linear, held) = _wanted(data.train), data.val, data.linear
        share = np.clip(wanted.mean(0, dtype=np.float64), 1e-9, 1 - 1e-9)
        always, said = np.tile(np.log(share / (1 - share)), (len(val), 1)), linear.scores(val.texts)
        commonest = sigmoid(always) >= best_threshold(np.tile(share, (len(wanted), 1)), wanted)
        likely = sigmoid(said) >= best_threshold(sigmoid(held), self._weighed(data))
        scores = {"commonest": _micro(commonest, val)[0], "tfidf": _micro(likely, val)[0]}
        nats = {
            name: float(self._nats_of(logits, val).mean()) for name, logits in (("commonest", always), ("tfidf", said))
        }
        return Yardsticks(summary=scores, nats=nats, facts=nats | {"micro_f1": scores, "note": ""})

    def _weighed(self, data: Examples) -> np.ndarray:
        """The labels of the texts that the parts are weighed on."""
        return _wanted(data.train)[data.weighed]

    def uniform(self, batch: Batch, labels: np.ndarray, seed: int, step: int, examples: np.ndarray) -> Batch:
        """Every label of every text is there or not by an even draw."""
        names = (examples if batch.examples is None else batch.examples.numpy())[:, None] * (1 << 20) + labels
        return batch._replace(answers=torch.from_numpy(uniforms(names, seed, "uniform labels", step) < 0.5).float())

    def loss(self, model: TextClassifier, batch: Batch, drop: Drop | None = None) -> tuple[Tensor, int]:
        """(sum over texts of the mean nats of their labels, number of texts)."""
        assert batch.answers is not None
        logits = text_logits(model, batch, drop)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        nats = F.binary_cross_entropy_with_logits(logits, batch.answers.to(logits.dtype), reduction="sum")
        return nats / logits.shape[1], batch.n_targets

    def answers(self, model: TextClassifier, batch: Batch) -> Tensor:
        """The probability of each label: float32 [n_texts, n_labels]."""
        return text_logits(model, batch, None).float().sigmoid()

    def score(self, model: TextClassifier, batch: Batch) -> Scores:
        """Each text's nats, and whether its labels are those of a probability of at least one half."""
        assert batch.answers is not None
        with torch.no_grad():
            logits = text_logits(model, batch, None).float()
            nats = F.binary_cross_entropy_with_logits(logits, batch.answers, reduction="none").mean(1)
            rows = torch.arange(batch.n_targets, device=batch.targets.device)
            return Scores(nats, ((logits >= 0) == (batch.answers > 0.5)).all(1), rows)

    # figures

    def _nats_of(self, said: np.ndarray, part: Labelled) -> np.ndarray:
        return of_sets(_wanted(part).astype(np.float64))(said)[0] / said.shape[1]

    def _metric(self, said: np.ndarray, part: Labelled, of: str = "", which: int = 0) -> Figure:
        return Figure(*_micro(sigmoid(said) >= self._threshold(which), part), f"micro F1{of}")

    def _threshold(self, which: int = 0) -> float:
        """Of the whole (0), the linear model (1) or attention (2)."""
        return 0.5 if self.combined is None else self.combined.thresholds[which]

    def _judged(self, said: np.ndarray, part: Labelled) -> dict[str, Figure]:
        given = sigmoid(said) >= self._threshold()
        exact = float((given == (_wanted(part) > 0)).all(1).mean())
        return {
            "micro_f1": self._metric(said, part),
            "macro_f1": Figure(*_macro(given, part), "macro F1"),
            "exact": Figure(exact, None, "texts with exactly their labels"),
            "threshold": Figure(self._threshold(), None, "probability from which a label is given"),
        }

    def _chosen(self, combined: Combined, data: Examples, attention: np.ndarray) -> Combined:
        """With thresholds."""
        wanted, counted = self._weighed(data), data.linear[1]
        said = combined.scale * counted + (combined.share * attention if combined.share else 0)
        found = [best_threshold(sigmoid(one), wanted) for one in (said, counted, attention)]
        return dataclasses.replace(combined, thresholds=(found[0], found[1], found[2]))

    # answers

    def predict(
        self, model: TextClassifier, tokenizer: Tokenizer | None, texts: Sequence[str], options: PredictOptions
    ) -> list[str]:
        """The labels of each text, with commas between."""
        assert tokenizer is not None, "a task on text has one"
        found = self.probabilities(model, tokenizer, texts, options.special) >= self._threshold()
        names = np.array(model.config.classes)
        return [", ".join(names[row]) or NONE for row in found]

    def probabilities(
        self, model: TextClassifier, tokenizer: Tokenizer, texts: Sequence[str], special: bool = False
    ) -> np.ndarray:
        """The probability of each label for each text: float64 [n, n_labels]."""
        return sigmoid(self.said(model, tokenizer, texts, special))


def best_threshold(probabilities: np.ndarray, wanted: np.ndarray) -> float:
    """The probability from which labels are given at the highest micro F1; both [n, n_labels]. One half without texts.

    It lies between two of the probabilities.
    """
    flat, right = probabilities.ravel(), wanted.ravel() > 0
    if not right.any() or not np.isfinite(flat).all():
        return 0.5
    order = np.argsort(-flat, kind="stable")
    flat, right = flat[order], right[order]
    last = np.append(flat[1:] < flat[:-1], True)
    f1 = np.where(last, 2 * np.cumsum(right) / (np.arange(1, len(flat) + 1) + right.sum()), -1.0)
    best = int(f1.argmax())
    return float((flat[best] + flat[best + 1]) / 2) if best + 1 < len(flat) else float(flat[-1])


def _wanted(part: Labelled) -> np.ndarray:
    """The labels of each text: float32 [n, n_labels]."""
    assert part.wanted is not None
    return part.wanted


def _counts(given: np.ndarray, part: Labelled) -> tuple[np.ndarray, np.ndarray]:
    """(2 TP, 2 TP + FP + FN) of each text and label: float64 [n, n_labels] each."""
    right = _wanted(part) > 0
    return 2.0 * (given & right), given.astype(np.float64) + right


def _micro(given: np.ndarray, part: Labelled) -> tuple[float, tuple[float, float]]:
    """Micro F1 and its 95% interval over texts; 0 where no text has or gets a label."""
    hits, size = _counts(given, part)
    return bootstrap(hits.sum(1, keepdims=True), size.sum(1, keepdims=True))


def _macro(given: np.ndarray, part: Labelled) -> tuple[float, tuple[float, float]]:
    """The mean F1 of the labels that a text has, with the interval of a bootstrap over texts."""
    hits, size = _counts(given, part)
    known = _wanted(part).any(0)
    return bootstrap(hits[:, known], size[:, known])

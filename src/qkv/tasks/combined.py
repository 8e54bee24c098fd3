"""A classifier's answers: the linear model on n-grams, and what attention adds to it.

    logits = scale * linear + share * attention

Both factors are fitted on training texts that attention was not trained on, against a linear model without them, by the
least loss; the linear model of all training texts then takes its place (stacking: Wolpert 1992). `scale` and `share`
make up a temperature too (Guo et al. 2017, arXiv 1706.04599). Attention takes part only if it lowers the loss of these
texts by more than one standard error; else `share` is 0, and what is stored is the linear model.
"""

from dataclasses import dataclass

import numpy as np
import safetensors.numpy

from qkv.data.baseline.linear import Linear, Loss, minimize, read_linear
from qkv.data.examples import Examples
from qkv.tasks.evaluation import ratio_interval

BINS = 15
"""Of equally many texts, in which confidence and accuracy are compared."""
_PRIOR = 1.0
"""What it costs a factor to leave its start by 1, in nats of one text."""
_KEPT = ("transitions", "unit", "thresholds", "decoding")
"""Fields that are stored by their names."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Combined:
    """The linear model and the two factors."""

    linear: Linear
    scale: float
    """Of the linear model's logits."""
    share: float
    """Of attention's logits; 0 leaves attention out."""
    n_held: int
    """Training texts that the factors were fitted on."""
    gain: float
    """Nats per text that attention takes off the loss of these."""
    error: float
    """Its standard error."""
    unit: tuple[float, ...] | None = None
    """Of values: mean and standard deviation of the training values, in which both parts are added up."""
    thresholds: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Of sets: the probability from which a label is given by the whole, the linear model alone, attention alone."""
    transitions: np.ndarray | None = None
    """Of labels of words (`qkv.tasks.labels.decoding`); None: each word has its most probable label."""
    decoding: tuple[float, ...] = (0.0, 0.0)
    """Weight of what is counted in these, and the penalty in nats of the label O."""
    folded: tuple[float, ...] | None = None
    """Accuracy of the linear model in a cross-validation of the training texts, with its 95% interval over groups."""

    def logits(self, texts: list[str], attention: np.ndarray) -> np.ndarray:
        """float64 [n, n_classes], of texts and what attention says of them [n, n_classes]; of values [n, 1]."""
        counted = self.scale * _off(self.counted(texts), self.unit)
        return _on(counted + self.share * _off(attention, self.unit) if self.share else counted, self.unit)

    def counted(self, texts: list[str]) -> np.ndarray:
        """What the linear model says alone."""
        return self.linear.logits(texts) if self.unit is None else _on(self.linear.scores(texts), self.unit)

    def stored(self) -> bytes:
        """A safetensors file."""
        tensors = {
            name: np.array(getattr(self, name)) for name in _KEPT if getattr(self, name) is not getattr(Combined, name)
        }
        factors = np.array([self.scale, self.share, self.n_held, self.gain, self.error, *(self.folded or ())])
        return safetensors.numpy.save(self.linear.tensors() | {"factors": factors} | tensors)

    @classmethod
    def read(cls, content: bytes, kind: type[Linear] = Linear) -> "Combined":
        """What `stored` gave."""
        tensors = safetensors.numpy.load(content)
        scale, share, n_held, gain, error, *folded = tensors["factors"].tolist()
        kept = {name: tuple(tensors[name].tolist()) for name in _KEPT[1:] if name in tensors}
        return cls(
            linear=read_linear(tensors, kind), scale=scale, share=share, n_held=int(n_held), gain=gain, error=error,
            folded=tuple(folded) or None, transitions=tensors.get("transitions"), **kept,
        )  # fmt: skip


def combine(data: Examples, attention: np.ndarray) -> Combined:
    """The factors that suit `attention`, its logits [n_held, n_classes] for the training texts `data.weighed`."""
    linear, counted = data.linear
    classes, loss = data.train.classes[data.weighed], data.loss(data.weighed)
    weights = np.ones(len(classes)) if data.weights is None else data.weights[classes]
    alone = _factors([counted], [1.0], loss, weights)
    both, gain, error, attention = np.zeros(2), 0.0, 0.0, _off(attention, data.unit)
    if np.isfinite(attention).all() and len(classes) > 1:
        both = _factors([counted, attention], [1.0, 0.0], loss, weights)
        saved = _nats([counted], alone, loss, weights) - _nats([counted, attention], both, loss, weights)
        gain, error = float(saved.mean()), float(saved.std(ddof=1) / np.sqrt(len(saved)))
    is_better = gain > error and both[1] > 0 and both[0] >= 0
    scale, share = (float(both[0]), float(both[1])) if is_better else (float(max(alone[0], 0.0)), 0.0)
    n, unit, folded = len(classes), data.unit, _folded(data)
    return Combined(linear=linear, scale=scale, share=share, n_held=n, gain=gain, error=error, unit=unit, folded=folded)


def _off(values: np.ndarray, unit: tuple[float, ...] | None) -> np.ndarray:
    """Values in units of their standard deviation; what has no unit as it is."""
    return values if unit is None else (values - unit[0]) / unit[1]


def _on(values: np.ndarray, unit: tuple[float, ...] | None) -> np.ndarray:
    """The other way."""
    return values if unit is None else unit[0] + unit[1] * values


def _folded(data: Examples) -> tuple[float, float, float] | None:
    """The cross-validated accuracy of the linear model, low and high; None where it was not made."""
    if data.folded is None:
        return None
    _, owner = np.unique(data.groups, return_inverse=True)
    accuracy, interval = ratio_interval(np.bincount(owner, data.folded), np.bincount(owner).astype(np.float64))
    low, high = interval or (accuracy, accuracy)
    return accuracy, max(0.0, low), min(1.0, high)


def _nats(parts: list[np.ndarray], factors: np.ndarray, loss: Loss, weights: np.ndarray) -> np.ndarray:
    """The weighted loss of each text: float64 [n]."""
    return weights * loss(np.tensordot(factors, np.stack(parts), 1))[0]


def _factors(parts: list[np.ndarray], start: list[float], loss: Loss, weights: np.ndarray) -> np.ndarray:
    """The factor of each part at the least loss, with a weak pull to `start`."""
    n, pull = len(weights), np.array(start)
    if not n:
        return pull

    def objective(factors: np.ndarray) -> tuple[float, np.ndarray]:
        nats, slope = loss(np.tensordot(factors, np.stack(parts), 1))
        slope, away = slope * weights[:, None], factors - pull
        total = float((weights * nats).sum()) + 0.5 * _PRIOR * float(away @ away)
        grad = np.array([float((slope * part).sum()) for part in parts]) + _PRIOR * away
        return total / n, grad / n

    return minimize(objective, pull, 1e-9)


def calibration(probabilities: np.ndarray, classes: np.ndarray) -> tuple[float, float]:
    """(calibration error, what chance alone gives), each 0..1, over 15 bins of equally many texts by confidence.

    The error is the mean over texts of the distance between the mean confidence and the accuracy of their bin (Naeini
    et al. 2015, AAAI). Of probabilities that are exactly right the second is expected, since few texts in a bin miss
    their mean.
    """
    top, right = probabilities.max(1), probabilities.argmax(1) == classes
    error = chance = 0.0
    for part in np.array_split(np.argsort(top, kind="stable"), BINS):
        if len(part):
            error += len(part) * abs(float(top[part].mean() - right[part].mean()))
            chance += float(np.sqrt(2 / np.pi * (top[part] * (1 - top[part])).sum()))
    return error / len(top), chance / len(top)

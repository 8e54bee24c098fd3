"""What of a task is about training and judging a model, and a model's figures on a whole split, with intervals.

The loss is a ratio: nats summed over all targets / number of targets. Its 95 % interval takes windows as the sample,
since targets of one window share their text: with x_i nats and m_i targets in window i of k, the linearised ratio
estimator has the standard error sqrt(k / (k - 1) * sum (x_i - r m_i)^2) / sum m_i (Cochran 1977, "Sampling Techniques",
chapter 6), and the interval is r +- t that, t from Student's distribution with k - 1 degrees of freedom. The same for
accuracy. It says how far the figure may move on other text of this kind; neighbouring windows of one long text are
taken as independent, which makes it a little narrow. It says nothing of another training seed. Where every item has one
target (a text's or an image's class), the interval of accuracy is Wilson's. So it is where no target was answered
rightly, or every one: windows then do not differ, which says nothing of other text, and targets are taken as
independent.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from qkv.jsontypes import JsonObject
from qkv.randomness import generator
from qkv.tasks.batch import Batch, Drop, places_of, with_uniform_labels
from qkv.tasks.data import ModelT, ReadT
from qkv.tasks.figures import AtPosition, Evaluation, Figure, Scores

if TYPE_CHECKING:
    from qkv.models.layout import Sizes

_STRETCHES = 32
"""More than a window of any length has."""

NORMAL = 1.959963984540054
"""The 97.5 % point of the normal distribution."""
_RESAMPLES = 400
"""Of a bootstrap (Efron 1979, Annals of Statistics 7)."""
_POSITIONS = 2048
"""That are scored together, at least 16 windows."""
PAIRED, _TOGETHER = 256, 8
"""A model is compared with a baseline in about so many windows at most, so many of them side by side."""


class Objective(Protocol[ReadT, ModelT]):
    """Batches, their loss and the figures that judge a model: all that training and evaluation ask of a task."""

    examples: ClassVar[str] = "examples"
    """What a batch is made of, in the plural."""
    items: ClassVar[str] = ""
    """What an evaluation counts as its sample, in the plural; empty where these are the examples."""
    target: ClassVar[str] = "target"
    """What one target of the loss is: "token"."""
    metric: ClassVar[str] = "accuracy"
    """The figure of `Evaluation.figures` that a run is judged by beside its loss."""
    higher_is_better: ClassVar[bool] = True
    """Of that figure."""
    judged: ClassVar[bool] = False
    """Whether a training ends with an evaluation of the best weights: its metric does not follow from the loss."""
    taught: ClassVar[bool] = False
    """Whether it can learn from the answers of teachers (`recipe.teaching`): it has fields `teachers` and `joined`,
    and a method `answers(model, batch)` that gives probabilities [n_targets, n_classes]."""
    ordered: ClassVar[bool] = False
    """Whether the loss is also reported by the place of a target in its window."""

    def positions(self, data: ReadT, sizes: "Sizes") -> int:
        """Positions that one training example costs on average, padding included: what laws of cost count."""
        return sizes.n_ctx

    def train_batch(self, corpus: ReadT, sizes: "Sizes", seed: int, step: int, examples: np.ndarray) -> Batch:
        """The training batch of these global example indices (int64 [batch]); a pure function of its arguments."""
        ...

    def labels(self, data: ReadT, n: int) -> np.ndarray:
        """Which of the n answers that a model chooses among can be a target: int64, increasing.

        The random-label control draws from them.
        """
        return np.arange(n)

    def uniform(self, batch: Batch, labels: np.ndarray, seed: int, step: int, examples: np.ndarray) -> Batch:
        """The batch of the random-label control; see `batch.with_uniform_labels`."""
        return with_uniform_labels(batch, labels, seed, step, examples, by_place=self.target in ("token", "word"))

    def val_batches(self, corpus: ReadT, sizes: "Sizes", batch_size: int) -> Iterator[Batch]:
        """The whole validation split in a fixed order, `batch_size` items at a time; independent of any seed."""
        ...

    def loss(self, model: ModelT, batch: Batch, drop: Drop | None = None) -> tuple[Tensor, int]:
        """(sum over targets of nats: float32 scalar with gradient, number of targets)."""
        ...

    def score(self, model: ModelT, batch: Batch) -> Scores:
        """Each target's own nats and whether it was answered rightly, without gradient."""
        ...

    def evaluate(self, model: ModelT, data: ReadT) -> Evaluation:
        """Loss and figures over the whole validation split, with intervals."""
        return evaluate(model, self, data)

    def in_brief(self) -> Self:
        """The same task, with what such an evaluation takes cut down: for a training of less than two minutes."""
        return self

    def judging_seconds(self, data: ReadT, sizes: "Sizes") -> float:
        """About how long that evaluation takes on two cores, by sizes alone; 0 where there is none."""
        return 0.0

    def decisions(self, model: ModelT, data: ReadT) -> JsonObject:
        """What a report shows of the model's decisions on the validation data; empty for most tasks."""
        return {}

    def bits_per_byte(self, corpus: ReadT, nats: float) -> float | None:
        """`nats`, summed over the validation split, in bits per original byte; None where that has no meaning."""
        return None


def validation_loss(model: ModelT, task: Objective[ReadT, ModelT], corpus: ReadT, batch_size: int) -> float:
    """Nats per target over the whole validation split, without anything else: what training asks for.

    Sums of batches are added in float64. The same to rounding for every batch_size >= 1.
    """
    device = next(model.parameters()).device
    total, n_targets = 0.0, 0
    with torch.no_grad():
        for batch in task.val_batches(corpus, model.config.sizes, batch_size):
            nats, n = task.loss(model, batch.to(device))
            total += float(nats)
            n_targets += n
    return total / n_targets


def evaluate(model: ModelT, task: Objective[ReadT, ModelT], corpus: ReadT, batch_size: int = 0) -> Evaluation:
    """Loss and accuracy over the whole validation split, with 95 % intervals; bits per byte where defined.

    batch_size: examples that are scored together; 0: 16, or as many as have some 2,000 positions.
    """
    batch_size = batch_size or max(16, _POSITIONS // model.config.sizes.n_ctx)
    device = next(model.parameters()).device
    sums, places = [], _ByPosition()
    for batch in task.val_batches(corpus, model.config.sizes, batch_size):
        scores = task.score(model, batch.to(device))
        sums.append(_by_row(scores))
        if task.ordered:
            places.add(scores, places_of(batch))
    nats, correct, targets = (np.concatenate(column) for column in zip(*sums, strict=True))
    kept = targets > 0
    nats, correct, targets = nats[kept], correct[kept], targets[kept]
    accuracy, accuracy_interval = ratio_interval(correct, targets)
    if (targets == 1).all() or (accuracy_interval is not None and accuracy in (0, 1)):
        accuracy_interval = wilson(accuracy, int(targets.sum()))
    elif accuracy_interval is not None:
        accuracy_interval = max(0.0, accuracy_interval[0]), min(1.0, accuracy_interval[1])
    loss, interval = loss_interval(nats, targets)
    bits = task.bits_per_byte(corpus, float(nats.sum()))
    bits_interval = None
    if bits is not None and interval is not None:
        low, high = (task.bits_per_byte(corpus, bound * float(targets.sum())) for bound in interval)
        bits_interval = None if low is None or high is None else (low, high)
    return Evaluation(
        loss=loss,
        loss_interval=interval,
        figures={
            "bits_per_byte": Figure(bits, bits_interval, "bits per byte"),
            "accuracy": Figure(accuracy, accuracy_interval, "accuracy"),
        },
        n_targets=int(targets.sum()),
        n_windows=len(targets),
        by_position=places.found(),
    )


def less_baseline(
    model: ModelT, task: Objective[ReadT, ModelT], corpus: ReadT, by_target: np.ndarray
) -> JsonObject | None:
    """The model's nats minus a baseline's (`by_target`, float [n]: of the first n validation targets, in order), paired
    target by target, in windows spread over the validation split: `difference` per target, the ends `low` and `high`
    of its 95 % interval over these windows, and how many they are, `windows`. None where they are fewer than two.
    """
    device, at, sums = next(model.parameters()).device, 0, []
    stride = 1
    for i, batch in enumerate(task.val_batches(corpus, model.config.sizes, _TOGETHER)):
        first, at = at, at + batch.n_targets
        if at > len(by_target):
            break
        if i == 0:
            stride = -(-len(by_target) * len(batch.inputs) // (max(1, batch.n_targets) * PAIRED))
        if i % stride == 0:
            scores = task.score(model, batch.to(device))
            rows = scores.rows.cpu().numpy()
            apart = scores.nats.cpu().numpy().astype(np.float64) - by_target[first:at]
            sums.append((np.bincount(rows, apart), np.bincount(rows).astype(np.float64)))
    if not sums:
        return None
    differences, targets = (np.concatenate(column) for column in zip(*sums, strict=True))
    difference, interval = ratio_interval(differences, targets)
    if interval is None:
        return None
    return {"difference": difference, "low": interval[0], "high": interval[1], "windows": len(targets)}


class _ByPosition:
    """Sums of nats and targets by window and by place, places in stretches 1, 2, 3-4, 5-8, ..."""

    def __init__(self) -> None:
        self._sums: list[tuple[np.ndarray, np.ndarray]] = []
        self._last = 1

    def add(self, scores: Scores, places: Tensor) -> None:
        """The targets of one batch."""
        rows = scores.rows.cpu().numpy()
        at = places.cpu().numpy() + 1
        self._last = max(self._last, int(at.max(initial=1)))
        stretch = np.ceil(np.log2(at)).astype(np.int64)
        cells, shape = rows * _STRETCHES + stretch, (-1, _STRETCHES)
        n = (int(rows.max(initial=-1)) + 1) * _STRETCHES
        nats = np.bincount(cells, scores.nats.cpu().numpy().astype(np.float64), minlength=n)
        self._sums.append((nats.reshape(shape), np.bincount(cells, minlength=n).astype(np.float64).reshape(shape)))

    def found(self) -> tuple[AtPosition, ...]:
        """Every stretch in which a target stands; the last one ends where the last target stands."""
        if not self._sums:
            return ()
        nats, targets = (np.concatenate(column) for column in zip(*self._sums, strict=True))
        out = []
        for k in np.flatnonzero(targets.sum(0)):
            there = targets[:, k] > 0
            loss, interval = loss_interval(nats[there, k], targets[there, k])
            first = 1 if k == 0 else 2 ** (int(k) - 1) + 1
            out.append(AtPosition(first, min(2 ** int(k), self._last), loss, interval, int(targets[:, k].sum())))
        return tuple(out)


def _by_row(scores: Scores) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(nats, correct answers, targets) of each row of a batch, float64 [batch]."""
    rows = scores.rows.cpu().numpy()
    nats, correct = (part.cpu().numpy().astype(np.float64) for part in (scores.nats, scores.correct))
    return np.bincount(rows, nats), np.bincount(rows, correct), np.bincount(rows).astype(np.float64)


def loss_interval(nats: np.ndarray, targets: np.ndarray) -> tuple[float, tuple[float, float] | None]:
    """`ratio_interval` of a loss, which is nowhere below 0."""
    loss, interval = ratio_interval(nats, targets)
    return loss, interval and (max(0.0, interval[0]), interval[1])


def ratio_interval(amounts: np.ndarray, sizes: np.ndarray) -> tuple[float, tuple[float, float] | None]:
    """(sum of amounts / sum of sizes, its 95 % interval over units); see the head of this module.

    amounts, sizes: float [n_units], sizes > 0. None instead of an interval where there is one unit only.
    """
    k, whole = len(sizes), float(sizes.sum())
    ratio = float(amounts.sum()) / whole
    if k < 2:
        return ratio, None
    error = float(np.sqrt(k / (k - 1) * np.square(amounts - ratio * sizes).sum())) / whole
    reach = student_t(k - 1) * error
    return ratio, (ratio - reach, ratio + reach)


def bootstrap(amounts: np.ndarray, sizes: np.ndarray) -> tuple[float, tuple[float, float]]:
    """(the mean over columns of sum of amounts / sum of sizes, the central 95% of it in 400 resamples of the units).

    amounts, sizes: float [n_units, n_columns], each 0 or more; a resample's mean is over columns with size, 0 without
    any. Where every ratio is 0 or 1, units do not differ, which says nothing of others: then Wilson's interval of the
    first column.
    """
    n = len(sizes)
    draws = generator("bootstrap").multinomial(n, np.full(n, 1 / n), size=_RESAMPLES)
    every = np.concatenate([np.ones((1, n)), draws])
    whole = every @ sizes
    means = ((every @ amounts) / np.maximum(whole, 1e-9)).sum(1) / np.maximum((whole > 0).sum(1), 1)
    if means[0] in (0.0, 1.0):
        return float(means[0]), wilson(float(means[0]), int(sizes[:, 0].sum()) or 1)
    low, high = np.quantile(means[1:], [0.025, 0.975])
    return float(means[0]), (float(low), float(high))


def wilson(share: float, n: int) -> tuple[float, float]:
    """95 % interval of a share (0..1) of n independent items: Wilson 1927, JASA 22; inside 0..1 even at the ends."""
    z = NORMAL
    centre, reach = share + z * z / (2 * n), z * float(np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)))
    low, high = ((centre + way * reach) / (1 + z * z / n) for way in (-1, 1))
    return max(0.0, min(low, share)), min(1.0, max(high, share))


def student_t(degrees: int) -> float:
    """The 97.5 % point of Student's t distribution with `degrees` >= 1 degrees of freedom, to 0.2 %.

    Exact for 1 and 2; above by the expansion around the normal point (Abramowitz and Stegun 1964, 26.7.5).
    """
    if degrees == 1:
        return float(np.tan(0.475 * np.pi))
    if degrees == 2:
        return float(0.95 / np.sqrt(2 * 0.975 * 0.025))
    x = NORMAL
    terms = (
        x,
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return float(sum(term / degrees**power for power, term in enumerate(terms)))

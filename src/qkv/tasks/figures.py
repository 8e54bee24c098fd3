"""What became of a batch, target by target, and a model's figures on a whole split. How: `qkv.tasks.evaluation`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Scores(NamedTuple):
    """What each target of a batch cost, one by one; the sum of `nats` is the loss that `Task.loss` gives."""

    nats: Tensor
    """float32 [n_targets], >= 0: minus the log-probability of the target."""
    correct: Tensor
    """bool [n_targets]: the most probable answer is the target."""
    rows: Tensor
    """int64 [n_targets]: the row of the batch that it belongs to."""


class Figure(NamedTuple):
    """One number of an evaluation."""

    value: float | None
    """None where this run or its data have no such number."""
    interval: tuple[float, float] | None = None
    """95 % interval over the split's items; None where there is one item only."""
    label: str = ""
    """What it is called in a table."""
    missing: str = ""
    """Why there is no value, where that is worth a line."""


class AtPosition(NamedTuple):
    """The loss of the targets that stand at some places of their windows."""

    first: int
    """The first of these places, from 1: where a model reads to the left alone, so many tokens were read."""
    last: int
    """The last."""
    loss: float
    """Nats per target."""
    interval: tuple[float, float] | None
    """95 % interval over windows; None where there is one only."""
    n_targets: int
    """How many they are."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A model's figures on a whole split."""

    loss: float
    """Nats per target, over all targets of the split."""
    loss_interval: tuple[float, float] | None
    """95 % interval of `loss` over items; None where there is one item only."""
    figures: Mapping[str, Figure]
    """The task's metrics by name: `accuracy` 0..1, `bits_per_byte`, `bleu` 0..100."""
    n_targets: int
    """How many targets were scored (causal: every token after the first; masked: the masked ones)."""
    n_windows: int
    """How many items (windows, texts, pairs, images) they came from: the interval's sample size."""
    by_position: tuple[AtPosition, ...] = ()
    """The loss by place in the window, places 1, 2, 3-4, 5-8, ...; empty for a task whose targets have no order."""
    note: str = ""
    """What of the split a figure leaves out, as a sentence without its full stop."""

    @property
    def accuracy(self) -> float | None:
        """Share of targets, 0..1, whose most probable answer is right."""
        return self.figures["accuracy"].value if "accuracy" in self.figures else None

    @property
    def accuracy_interval(self) -> tuple[float, float] | None:
        """95 % interval of `accuracy`, inside 0..1."""
        return self.figures["accuracy"].interval if "accuracy" in self.figures else None

    @property
    def bits_per_byte(self) -> float | None:
        """Only of tasks that predict every token, and where the text's bytes can be accounted for; else None."""
        return self.figures["bits_per_byte"].value if "bits_per_byte" in self.figures else None

    def as_json(self) -> dict[str, object]:
        """Flat, as `eval --json` prints it: each figure by its name, its interval beside it."""
        flat: dict[str, object] = {"loss": self.loss, "loss_interval": self.loss_interval}
        for name, figure in self.figures.items():
            flat |= {name: figure.value, f"{name}_interval": figure.interval}
        flat |= {"n_targets": self.n_targets, "n_windows": self.n_windows}
        return flat | ({"by_position": [place._asdict() for place in self.by_position]} if self.by_position else {})

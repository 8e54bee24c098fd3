"""What a task's data tell of themselves, and what of a task is about them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, TypeVar

import numpy as np

if TYPE_CHECKING:
    from qkv.data.baseline.classes import ClassBaselines
    from qkv.data.config import DataConfig
    from qkv.data.sources.receipt import Receipt
    from qkv.models.layout import Patches, Sizes
    from qkv.models.zoo import Model
    from qkv.tokenizers.tokenizer import Tokenizer

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done, 0 to 1."""


class Data(Protocol):
    """What every task's data tells of itself; what else it holds is between the data and its task."""

    @property
    def name(self) -> str:
        """Short and safe in a file name."""
        ...

    @property
    def sha256(self) -> str:
        """Of everything that was read: by it a resumed run knows its data again."""
        ...

    @property
    def rule(self) -> str:
        """What is trained on, what is measured on and what is left alone, in one sentence."""
        ...

    @property
    def tokenizer(self) -> "Tokenizer | None":
        """None where nothing is text."""
        ...

    @property
    def n_train(self) -> int:
        """How much there is to train on, in what the task's size law counts (tokens, texts, pairs, images)."""
        ...

    @property
    def receipt(self) -> "Receipt":
        """What became of every file, row, column and class of what was read."""
        ...

    def describe(self) -> str:
        """One line for the announcement: what is trained on and measured on."""
        ...


@dataclass(frozen=True, kw_only=True)
class Yardsticks:
    """What is reached on the same validation items without a Transformer."""

    summary: Mapping[str, object]
    """`baselines` of `train --json`: name -> value in the task's metric."""
    nats: Mapping[str, float | None] = field(default_factory=dict)
    """Name -> nats per target, for those that have a loss."""
    facts: Mapping[str, object]
    """What the telemetry keeps of them under the name `baselines`, for views."""
    by_target: np.ndarray | None = None
    """float32 [n]: nats of each of the first n validation targets, in order, under the baseline `ngram`; None without
    one."""
    note: str = ""
    """What a person should know, such as what was sampled or what is not installed; else empty."""


def class_yardsticks(found: "ClassBaselines", linear: str) -> Yardsticks:
    """Those of a classifier: the most frequent class, and a linear model under this name."""
    accuracy = {"majority": found.majority, linear: found.linear}
    nats = {"majority": found.majority_nats, linear: found.linear_nats}
    facts = nats | {"accuracy": accuracy, "note": found.note}
    return Yardsticks(summary=accuracy, nats=nats, facts=facts, note=found.note)


DataT = TypeVar("DataT", bound=Data)
"""The class of a task's data."""
ReadT = TypeVar("ReadT", bound=Data, contravariant=True)
"""The same, where it is only read."""
ModelT = TypeVar("ModelT", bound="Model", contravariant=True)
"""What it trains."""


class TaskData(Protocol[DataT]):
    """Where examples come from, and what they ask of a model's sizes."""

    tokenizer: ClassVar[str] = ""
    """The kind fitted where none is given; empty where nothing is text."""
    label_column: ClassVar[bool] = False
    """Whether `--label-column` has a meaning."""
    companion: ClassVar[str] = ""
    """The file of a run that its answers need beside weights; empty: none (`completed`, `with_companion`)."""
    reads: ClassVar[str] = "text"
    """What its data are: "text" or "images"."""

    def with_settings(self, config: "DataConfig") -> Self:
        """The task whose training batches are made as these settings ask."""
        return self

    def load(self, config: "DataConfig", *, cache: Path | None, progress: Progress | None = None) -> DataT:
        """The data that the settings name, split and ready; from the cache where it was kept.

        Raises SourceError or ConfigError, in one sentence, for what cannot be read as asked.
        """
        ...

    def model_sizes(self, data: DataT) -> Mapping[str, int]:
        """The sizes (fields of `Sizes`) that the data dictate, such as d_vocab."""
        return {"d_vocab": 0 if data.tokenizer is None else data.tokenizer.d_vocab}

    def classes(self, data: DataT) -> tuple[str, ...]:
        """Names of the classes, in the order of the model's outputs; empty for a task without classes."""
        return ()

    def patches(self, data: DataT) -> "Patches | None":
        """How images are cut, by the task's law; None for a task on text."""
        return None

    def needed_positions(self, data: DataT) -> int:
        """Positions that n_ctx should hold; 0 leaves it to the size law."""
        return 0

    def cautions(self, data: DataT, sizes: "Sizes") -> list[str]:
        """Sentences for a person about what these sizes do to the data, such as texts that are cut; may be empty."""
        return []

    def yardstick_nats(self, data: DataT) -> float:
        """A quick loss that needs no model; its ratio to a target loss says how hard that target is."""
        ...

    def baselines(self, data: DataT, sizes: "Sizes", cache: Path | None) -> Yardsticks | None:
        """What needs no Transformer reaches on validation targets of a model of such sizes; None where there is none.

        Made in a thread beside the training.
        """
        return None

    def baselines_seconds(self, data: DataT, sizes: "Sizes", cache: Path | None) -> float:
        """About how long that takes on a core of its own, by sizes alone; 0 where it is kept or hardly anything."""
        return 0.0

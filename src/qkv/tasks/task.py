"""What a task is: its data, the batches it makes of them, the loss it asks of a model, its figures and its answers.

A task is a module of its own with one class that keeps the protocol `Task`, most of it by inheriting
`TaskDefaults`,
and a class of data that keeps `Data`; the trainer, the recipe and the commands know nothing else of either. Batches
are pure functions of (seed, step, global example indices), so that arms of a study pair exactly and a resumed run needs
no stored state. This module makes no batch and computes no loss itself.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self, TypeVar

import numpy as np
from torch import Tensor

from qkv.errors import ConfigError
from qkv.tasks.batch import Batch
from qkv.tasks.figures import Evaluation, Scores

if TYPE_CHECKING:
    from qkv.data.config import DataConfig
    from qkv.models.layout import Patches, Sizes
    from qkv.models.zoo import Model
    from qkv.tokenizers.tokenizer import Tokenizer

__all__ = [
    "Data",
    "Drop",
    "Objective",
    "PredictOptions",
    "Progress",
    "Stack",
    "Standing",
    "Task",
    "Presentation",
    "TaskData",
    "Yardsticks",
    "check_length_penalty",
    "standing",
    "worse_than_nothing",
]

Stack = Literal["decoder", "encoder", "encoder-decoder"]
"""What positions may see: what came before, everything, or both in two stacks."""

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done, 0 to 1."""


class Drop(Protocol):
    """Dropout handed in by the trainer: `drop(site, x) -> x` of the same shape; None means no dropout."""

    def __call__(self, site: str, x: Tensor, /) -> Tensor:
        """x [batch, ...], row i being example i of the batch."""
        ...

    def onto(self, stream: Tensor, site: str, x: Tensor) -> Tensor:
        """stream + drop(site, x)."""
        ...

    def placed(self, owners: Tensor, places: Tensor) -> "Drop":
        """The same where rows hold several examples: see `qkv.training.dropout.Dropping.placed`."""
        ...


MOST_PENALTY = 10.0
"""Of the length of a translation; 1 divides by the length, above that long ones win whatever they say."""


def check_length_penalty(value: float) -> None:
    """Raises ConfigError for one out of range."""
    if not 0 <= value <= MOST_PENALTY:
        raise ConfigError(f"length_penalty is {value:g}; expected a number from 0 to {MOST_PENALTY:g} (0.6 is usual)")


Standing = Literal["better", "level", "worse"]


def standing(own: float, interval: tuple[float, float] | None, other: float, *, higher_is_better: bool) -> Standing:
    """How a figure compares with another: level if the other is inside its 95 % interval, or if they are equal."""
    if own == other or (interval is not None and interval[0] <= other <= interval[1]):
        return "level"
    return "better" if (own > other) == higher_is_better else "worse"


def worse_than_nothing(loss: float, n_answers: int) -> bool:
    """Whether a loss (nats) is clearly above ln n_answers, what the same probability for every answer costs."""
    return n_answers > 1 and loss > 1.02 * math.log(n_answers)


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """How a text is continued or filled. Raises ConfigError for a value out of range."""

    tokens: int = 200
    """How many tokens a continuation has (causal)."""
    temperature: float | None = None
    """Divides the logits before sampling; 0 is greedy; None is the task's own (causal 0.8, masked 0)."""
    top_k: int = 0
    """Sample among the k most probable tokens only; 0 is off."""
    top_p: float = 1.0
    """Sample among the fewest tokens that hold this share of probability (Holtzman et al. 2020, arXiv 1904.09751)."""
    seed: int = 0
    """Names the draws: the same model, texts and seed give the same outputs."""
    beams: int | None = None
    """Outputs kept open while one is searched for (translate); None is the task's own (translate 5)."""
    length_penalty: float | None = None
    """How much longer translations are preferred; None is the task's own (translate 1)."""
    cut: bool = False
    """Whether a source of more than n_ctx tokens is cut there, and not refused (translate)."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"tokens is {self.tokens}; expected 1 or more")
        if self.temperature is not None and not (np.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"temperature is {self.temperature}; expected 0 (greedy) or a number above it")
        if self.beams is not None and self.beams < 1:
            raise ConfigError(f"beams is {self.beams}; expected 1 (greedy) or more")
        if self.length_penalty is not None:
            check_length_penalty(self.length_penalty)
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}; expected 0 (off) or a number of tokens")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; expected a share above 0 and up to 1 (off)")


@dataclass(frozen=True, kw_only=True)
class Yardsticks:
    """What is reached on the same validation items without a Transformer."""

    summary: Mapping[str, object]
    """`baselines` of `train --json`: name -> value in the task's metric."""
    nats: Mapping[str, float | None] = field(default_factory=dict)
    """Name -> nats per target, for those that have a loss."""
    facts: Mapping[str, object]
    """What the telemetry keeps of them under the name `baselines`, for views."""
    note: str = ""
    """What a person should know, such as what was sampled or what is not installed; else empty."""


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

    def describe(self) -> str:
        """One line for the announcement: what is trained on and measured on."""
        ...


DataT = TypeVar("DataT", bound=Data)
"""The class of a task's data."""
ReadT = TypeVar("ReadT", bound=Data, contravariant=True)
"""The same, where it is only read."""
ModelT = TypeVar("ModelT", bound="Model", contravariant=True)
"""What it trains."""


class TaskData(Protocol[DataT]):
    """Where examples come from, and what they ask of a model's sizes."""

    tokenizer: ClassVar[str]
    """The kind fitted where none is given; empty where nothing is text."""
    label_column: ClassVar[bool]
    """Whether `--label-column` has a meaning."""
    reads: ClassVar[str]
    """What its data are: "text" or "images"."""

    def with_settings(self, config: "DataConfig") -> Self:
        """The task whose training batches are made as these settings ask."""
        ...

    def load(self, config: "DataConfig", *, cache: Path | None, progress: Progress | None = None) -> DataT:
        """The data that the settings name, split and ready; from the cache where it was kept.

        Raises SourceError or ConfigError, in one sentence, for what cannot be read as asked.
        """
        ...

    def model_sizes(self, data: DataT) -> Mapping[str, int]:
        """The sizes (fields of `Sizes`) that the data dictate, such as d_vocab."""
        ...

    def classes(self, data: DataT) -> tuple[str, ...]:
        """Names of the classes, in the order of the model's outputs; empty for a task without classes."""
        ...

    def patches(self, data: DataT) -> "Patches | None":
        """How images are cut, by the task's law; None for a task on text."""
        ...

    def needed_positions(self, data: DataT) -> int:
        """Positions that n_ctx should hold; 0 leaves it to the size law."""
        ...

    def cautions(self, data: DataT, sizes: "Sizes") -> list[str]:
        """Sentences for a person about what these sizes do to the data, such as texts that are cut; may be empty."""
        ...

    def yardstick_nats(self, data: DataT) -> float:
        """A quick loss that needs no model; its ratio to a target loss says how hard that target is."""
        ...

    def baselines(self, data: DataT, cache: Path | None) -> Yardsticks | None:
        """What needs no Transformer reaches; made in a thread beside the training. None where there is none."""
        ...

    def baselines_seconds(self, data: DataT, cache: Path | None) -> float:
        """About how long that takes on a core of its own, by sizes alone; 0 where it is kept or hardly anything."""
        ...


class Objective(Protocol[ReadT, ModelT]):
    """Batches, their loss and the figures that judge a model: all that training and evaluation ask of a task."""

    examples: ClassVar[str]
    """What a batch is made of, in the plural."""
    items: ClassVar[str]
    """What an evaluation counts as its sample, in the plural; empty where these are the examples."""
    target: ClassVar[str]
    """What one target of the loss is: "token"."""
    metric: ClassVar[str]
    """The figure of `Evaluation.figures` that a run is judged by beside its loss."""
    higher_is_better: ClassVar[bool]
    """Of that figure."""
    judged: ClassVar[bool]
    """Whether a training ends with an evaluation of the best weights: its metric does not follow from the loss."""
    taught: ClassVar[bool]
    """Whether it can learn from the answers of teachers (`training.teaching`): it has fields `teachers` and `joined`,
    and a method `answers(model, batch)` that gives probabilities [n_targets, n_classes]."""
    afterwards_seconds: ClassVar[float]
    """What that may take of a wall-time budget."""
    ordered: ClassVar[bool]
    """Whether the loss is also reported by the place of a target in its window."""

    @property
    def control(self) -> str:
        """What the labels of the random-label control are, in words: what they keep of the training labels."""
        ...

    def positions(self, data: ReadT, sizes: "Sizes") -> int:
        """Positions that one training example costs on average, padding included: what laws of cost count."""
        ...

    def train_batch(
        self,
        corpus: ReadT,
        sizes: "Sizes",
        seed: int,
        step: int,
        examples: np.ndarray,
        *,
        random_labels: bool = False,
    ) -> Batch:
        """The training batch of these global example indices (int64 [batch]); a pure function of its arguments.

        `random_labels=True` keeps the inputs and replaces every target by an independent draw from the training
        targets' own frequencies: the random-label control. Inputs then say nothing about labels, but how frequent each
        label is can still be learned.
        """
        ...

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
        ...

    def bits_per_byte(self, corpus: ReadT, nats: float) -> float | None:
        """`nats`, summed over the validation split, in bits per original byte; None where that has no meaning."""
        ...


class Presentation(Protocol[ReadT, ModelT]):
    """Answers, and the words in which a task speaks to a person."""

    asked: ClassVar[str]
    """What the model predicts, in words; `{unit}` stands for what a token is."""
    prompt: ClassVar[str]
    """An input to type after `qkv predict RUN`."""
    continues: ClassVar[bool]
    """Whether an output continues its input."""
    predict_options: ClassVar[tuple[str, ...]]
    """The fields of `PredictOptions` that its predictions go by."""
    given: ClassVar[str]
    """What an input is called beside an output that does not continue it."""
    marks: ClassVar[bool]
    """Whether [MASK] and other special tokens typed in an input mean themselves; else they are plain text."""
    yardsticks: ClassVar[Mapping[str, str]]
    """Name of a baseline -> what it is called in a table; `{order}` stands for the baselines' `ngram_order`."""

    def predict(
        self, model: ModelT, tokenizer: "Tokenizer | None", texts: Sequence[str], options: PredictOptions
    ) -> list[str]:
        """One output per input; `tokenizer` is None where nothing is text."""
        ...

    def sample_inputs(self, data: ReadT) -> list[str]:
        """Inputs from the validation split whose outputs are kept along a training; may be empty."""
        ...

    def keepsakes(self, data: ReadT) -> Mapping[str, object]:
        """Facts kept with a run, by key: examples of the validation part that a reader could not type."""
        ...

    def shown(self, text: str, output: str) -> str:
        """An input and its output as one line for a person."""
        ...


class Task(TaskData[DataT], Objective[DataT, ModelT], Presentation[DataT, ModelT], Protocol[DataT, ModelT]):
    """What the recipe and the commands ask of a task; who needs a part of it alone takes that protocol.

    Implementations are frozen. What is a class variable here, in any of the three, has a default in `TaskDefaults`.
    """

    @property
    def name(self) -> str:
        """The word on the command line: `--task NAME`."""
        ...

    @property
    def model_kind(self) -> str:
        """The kind of model that it trains from scratch: a name that `qkv.models.build` knows."""
        ...

    stack: ClassVar[Stack]
    """Which presets fit it: those whose `stacks` name this one."""
    preset: ClassVar[str]
    """The preset where none is given."""
    size_law: ClassVar[str]
    """The law of `qkv.laws.SIZE_LAWS` that chooses model and batch."""
    starts_from: ClassVar[Mapping[str, str]]
    """Kind of a parent run's model -> kind of this task's model over the parent's body (`--from`)."""

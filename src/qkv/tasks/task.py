"""What a task is: its data, the batches it makes of them, the loss it asks of a model, its figures and its answers.

A task is a module of its own with one class that keeps the protocol `Task`, most of it by inheriting it, and a
class of data that keeps `Data`; the trainer, the recipe and the commands know nothing else of either. Its three parts
are `data.TaskData`, `evaluation.Objective` and `Presentation`; each says what most tasks answer alike. Batches are pure
functions of (seed, step, global example indices), so that arms of a study pair exactly and a resumed run needs no
stored state. This module makes no batch and computes no loss itself.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self

import numpy as np

from qkv.errors import ConfigError
from qkv.jsontypes import JsonObject
from qkv.tasks.batch import Drop  # noqa: F401 - the parts of a task are imported from here
from qkv.tasks.data import Data, DataT, ModelT, Progress, ReadT, TaskData, Yardsticks  # noqa: F401
from qkv.tasks.evaluation import Objective

if TYPE_CHECKING:
    from qkv.tokenizers.tokenizer import Tokenizer

Stack = Literal["decoder", "encoder", "encoder-decoder"]
"""What positions may see: what came before, everything, or both in two stacks."""

MOST_PENALTY = 10.0
"""Of the length of a translation; 1 divides by the length, above that long ones win whatever they say."""


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
    special: bool = False
    """Whether special tokens spelled out in a text are read as special tokens; else they are its letters."""
    chat: bool = False
    """Whether the texts are in a chat model's own format, which holds what belongs around a text (causal)."""
    marks: tuple[str, str] = ("", "")
    """What is written before and behind each word that fills a [MASK] (masked)."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"tokens is {self.tokens}; expected 1 or more")
        if self.temperature is not None and not (np.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"temperature is {self.temperature}; expected 0 (greedy) or a number above it")
        if self.beams is not None and self.beams < 1:
            raise ConfigError(f"beams is {self.beams}; expected 1 (greedy) or more")
        if self.length_penalty is not None and not 0 <= self.length_penalty <= MOST_PENALTY:
            expected = f"a number from 0 to {MOST_PENALTY:g} (0.6 is usual)"
            raise ConfigError(f"length_penalty is {self.length_penalty:g}; expected {expected}")
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}; expected 0 (off) or a number of tokens")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; expected a share above 0 and up to 1 (off)")


Ranked = list[dict[str, str | float]]
"""Answers, each as {"output": TEXT, "probability": 0..1}, best first."""


def ranked(names: Callable[[int], str], p: np.ndarray, k: int) -> Ranked:
    """The k largest of p [n], whose names are `names(i)`; of equal ones the first goes first."""
    return [{"output": names(int(i)), "probability": float(p[i])} for i in np.argsort(-p, kind="stable")[:k]]


class Presentation(Protocol[ReadT, ModelT]):
    """Answers, and the words in which a task speaks to a person."""

    name: str
    asked: ClassVar[str] = "the class"
    """What the model predicts, in words; `{unit}` stands for what a token is."""
    prompt: ClassVar[str] = ""
    """An input to type after `qkv predict RUN`."""
    continues: ClassVar[bool] = False
    """Whether an output continues its input."""
    predict_options: ClassVar[tuple[str, ...]] = ()
    """The fields of `PredictOptions` that its predictions go by."""
    too_long: ClassVar[str] = ""
    """What becomes of a text of more than n_ctx tokens, in words; empty where it is refused, or nothing is text."""
    given: ClassVar[str] = "the text"
    """What an input is called beside an output that does not continue it."""
    picks: ClassVar[bool] = True
    """Whether its classes exclude each other: one of them is the answer, with a probability."""
    guessed: ClassVar[int] = 0
    """How many answers uniform guessing is among; 0: all classes or tokens; 1: no fixed number."""
    exported: ClassVar[bool] = True
    """Whether other programs have a model that answers so."""
    marks: ClassVar[bool] = False
    """Whether [MASK] and other special tokens typed in an input mean themselves; else they are plain text."""
    yardsticks: ClassVar[Mapping[str, str]] = {}
    """Name of a baseline -> what it is called in a table; `{order}` stands for the baselines' `ngram_order`."""

    def of_classes(self, classes: Sequence[str]) -> Self:
        """The task as it judges and answers where a model has these classes."""
        return self

    def completed(self, model: ModelT, data: ReadT) -> tuple[Self, bytes]:
        """The task as a finished training answers by it, and its `companion` file; of a task that has one."""
        raise TypeError(f"{type(self).__name__} has no companion")

    def with_companion(self, content: bytes) -> Self:
        """The task with a `companion` file that was stored."""
        raise TypeError(f"{type(self).__name__} has no companion")

    def predict(
        self, model: ModelT, tokenizer: "Tokenizer | None", texts: Sequence[str], options: PredictOptions
    ) -> list[str]:
        """One output per input; `tokenizer` is None where nothing is text."""
        ...

    def scores(
        self, model: ModelT, tokenizer: "Tokenizer | None", texts: Sequence[str], k: int, options: PredictOptions
    ) -> list[Ranked] | list[list[Ranked]]:
        """The k most probable answers to each input, or to each [MASK] of each input, best first.

        Raises ConfigError for a task whose outputs are no single choice.
        """
        raise ConfigError(f"--scores has no meaning for the task {self.name}, whose outputs are no single choice")

    def spans(
        self, model: ModelT, tokenizer: "Tokenizer | None", texts: Sequence[str]
    ) -> list[list[JsonObject]] | None:
        """What is labeled in each text, in order: `start` and `end` in characters, `text`, `label` and `probability`;
        None of a task that labels whole inputs, or nothing.
        """
        return None

    def sample_inputs(self, data: ReadT) -> list[str]:
        """Inputs from the validation split whose outputs are kept along a training; may be empty."""
        return []

    def keepsakes(self, data: ReadT) -> Mapping[str, object]:
        """Facts kept with a run, by key: examples of the validation part that a reader could not type."""
        return {}

    def shown(self, text: str, output: str) -> str:
        """An input and its output as one line for a person."""
        return output


class Task(TaskData[DataT], Objective[DataT, ModelT], Presentation[DataT, ModelT], Protocol[DataT, ModelT]):
    """What the recipe and the commands ask of a task; who needs a part of it alone takes that protocol.

    Implementations are frozen.
    """

    name: str
    """The word on the command line: `--task NAME`."""
    model_kind: str
    """The kind of model that it trains from scratch: a name that `qkv.models.build` knows."""
    stack: ClassVar[Stack] = "encoder"
    """Which presets fit it: those whose `stacks` name this one."""
    preset: ClassVar[str] = "modern"
    """The preset where none is given."""
    size_law: ClassVar[str] = "text"
    """The law of `qkv.laws.SIZE_LAWS` that chooses model and batch."""
    starts_from: ClassVar[Mapping[str, str]] = {}
    """Kind of a parent run's model -> kind of this task's model over the parent's body (`--from`)."""

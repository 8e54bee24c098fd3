"""What a task is: the batches it makes of a corpus, the loss it asks of a model, and what it answers to a text.

A task is a module of its own with one class that keeps the protocol below; the trainer, the evaluation and the recipe
know nothing else of it. Batches are pure functions of (seed, step, global example indices), so that arms of a study
pair exactly and a resumed run needs no stored state. This module makes no batch and computes no loss itself.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from qkv.errors import ConfigError

if TYPE_CHECKING:
    from qkv.data.corpus import Corpus
    from qkv.models.layout import Sizes

__all__ = ["Batch", "Drop", "Evaluation", "PredictOptions", "Scores", "Task", "rows_of"]

Drop = Callable[[str, Tensor], Tensor]
"""Dropout handed in by the trainer: `drop(site, x) -> x` of the same shape; None means no dropout."""


class Batch(NamedTuple):
    """What a model sees in one forward pass, and what it is asked for.

    Targets are flat, with the flat index of the position that must answer each of them, so that the output matrix is
    applied only where an answer is wanted.
    """

    inputs: Tensor
    """int64 [batch, pos]; token ids."""
    targets: Tensor
    """int64 [n_targets]; the ids that should be answered."""
    positions: Tensor | None = None
    """int64 [n_targets], increasing: index into batch * pos; None means that every position answers, in order."""
    mask: Tensor | None = None
    """bool [batch, pos], True = real token; None means that nothing is padded."""
    documents: Tensor | None = None
    """int64 [batch, pos]; positions attend only within equal numbers; None means that the whole row is one context."""

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return Batch(*(None if part is None else part.to(device) for part in self))  # type: ignore[arg-type]

    @property
    def n_targets(self) -> int:
        """How many answers the loss sums over."""
        return self.targets.numel()


def rows_of(batch: Batch) -> Tensor:
    """The row (window) that each target of a batch belongs to: int64 [n_targets]."""
    width = batch.inputs.shape[1]
    if batch.positions is None:
        return torch.arange(batch.n_targets, device=batch.targets.device) // width
    return batch.positions // width


class Scores(NamedTuple):
    """What each target of a batch cost, one by one; the sum of `nats` is the loss that `Task.loss` gives."""

    nats: Tensor
    """float32 [n_targets], >= 0: minus the log-probability of the target."""
    correct: Tensor
    """bool [n_targets]: the most probable answer is the target."""
    rows: Tensor
    """int64 [n_targets]: the row of the batch that it belongs to."""


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

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"tokens is {self.tokens}; expected 1 or more")
        if self.temperature is not None and not (np.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"temperature is {self.temperature}; expected 0 (greedy) or a number above it")
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}; expected 0 (off) or a number of tokens")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; expected a share above 0 and up to 1 (off)")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A model's figures on a whole split; how they are made stands in `qkv.tasks.evaluation`."""

    loss: float
    """Nats per target, over all targets of the split."""
    loss_interval: tuple[float, float] | None
    """95 % interval of `loss` over windows; None where there is one window only."""
    accuracy: float
    """Share of targets, 0..1, whose most probable answer is right."""
    accuracy_interval: tuple[float, float] | None
    """95 % interval of `accuracy` over windows, cut to 0..1; None where there is one window only."""
    bits_per_byte: float | None
    """Only of tasks that predict every token, and where the text's bytes can be accounted for; else None."""
    n_targets: int
    """How many targets were scored (causal: every token after the first; masked: the masked ones)."""
    n_windows: int
    """How many windows they came from: the interval's sample size."""


class Task(Protocol):
    """What the trainer, the evaluation and the recipe ask of a task; implementations are frozen dataclasses."""

    @property
    def name(self) -> str:
        """The word on the command line: `--task NAME`."""
        ...

    @property
    def model_kind(self) -> str:
        """The kind of model that it trains: a name that `qkv.models.build` knows (`CausalLM`, `MaskedLM`)."""
        ...

    @property
    def needs_specials(self) -> bool:
        """Whether its tokenizer must hold [PAD], [MASK] and the other special tokens."""
        ...

    def train_batch(
        self,
        corpus: "Corpus",
        sizes: "Sizes",
        seed: int,
        step: int,
        examples: np.ndarray,
        *,
        random_labels: bool = False,
    ) -> Batch:
        """The training batch of these global example indices (int64 [batch]); a pure function of its arguments.

        `random_labels=True` keeps the inputs and replaces every target by an independent draw from the training
        tokens' own frequencies: the null of "what would training have moved if there were nothing to learn".
        """
        ...

    def val_batches(self, corpus: "Corpus", sizes: "Sizes", batch_size: int) -> Iterator[Batch]:
        """The whole validation split in fixed windows, `batch_size` of them at a time; independent of any seed."""
        ...

    def loss(self, model: Any, batch: Batch, drop: Drop | None = None) -> tuple[Tensor, int]:
        """(sum over targets of nats: float32 scalar with gradient, number of targets)."""
        ...

    def score(self, model: Any, batch: Batch) -> Scores:
        """Each target's own nats and whether it was answered rightly, without gradient."""
        ...

    def bits_per_byte(self, corpus: "Corpus", nats: float) -> float | None:
        """`nats`, summed over the validation split, in bits per original byte; None where that has no meaning."""
        ...

    def predict(self, model: Any, tokenizer: Any, texts: Sequence[str], options: PredictOptions) -> list[str]:
        """One output per text."""
        ...

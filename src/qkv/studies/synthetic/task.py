"""Causal tasks of studies whose windows are made by rule, so that they need no text."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from qkv.randomness import generator
from qkv.tasks.batch import Batch
from qkv.tasks.causal import Causal

if TYPE_CHECKING:
    from qkv.data.corpus import Corpus
    from qkv.models.layout import Sizes

__all__ = ["Made"]


@dataclass(frozen=True, kw_only=True)
class Made(Causal):
    """Each window is a pure function of (seed, step, its number), the validation set the same for every run."""

    n_validation: ClassVar[int]
    """Windows of the validation set."""

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
        """Windows made anew; see `Task.train_batch`."""
        streams = [generator(seed, self.name, step, int(example)) for example in examples]
        return self._batch(corpus, sizes, streams, random_labels)

    def val_batches(self, corpus: "Corpus", sizes: "Sizes", batch_size: int) -> Iterator[Batch]:
        """The same `n_validation` windows for every run."""
        for first in range(0, self.n_validation, batch_size):
            numbers = range(first, min(first + batch_size, self.n_validation))
            streams = [generator(self.name, "validation", number) for number in numbers]
            yield self._batch(corpus, sizes, streams, False)

    @abstractmethod
    def _batch(
        self, corpus: "Corpus", sizes: "Sizes", streams: Sequence[np.random.Generator], random_labels: bool
    ) -> Batch:
        """One window for each of these draws."""

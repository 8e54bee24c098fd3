"""Copying: a block of different letters, again and again, cut off where the window ends.

`q w f a k d q w f a k d q w ...`: after the first pass each next letter is known to whoever finds the letter's last
occurrence and looks one place behind it. The length of the block differs from window to window, so no fixed distance
will do. Loss is in nats per letter after the first pass: 0 for a model that copies. Used by studies only; it needs no
text.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from qkv.randomness import generator
from qkv.tasks.batch import Batch
from qkv.tasks.causal import Causal

if TYPE_CHECKING:
    from qkv.data.corpus import Corpus
    from qkv.models.layout import Sizes

__all__ = ["Repeat"]

_VALIDATION = 256
"""Windows of the fixed validation set."""


@dataclass(frozen=True, kw_only=True)
class Repeat(Causal):
    """A causal task whose batches are made by rule, each window by (seed, step, its number)."""

    name: str = "repeat"
    letters: int
    """Different letters there are."""
    shortest: int = 6
    """Letters of the shortest block."""
    longest: int = 12
    """Letters of the longest, below n_ctx."""

    @property
    def struck_out(self) -> float:
        """Nats per letter of a model that knows the letters of the shortest block and strikes them out one by one."""
        return math.lgamma(self.shortest + 1) / self.shortest

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
        """Windows of n_ctx letters, asked for the next one after the first pass; see `Task.train_batch`."""
        streams = [generator(seed, "repeat", step, int(example)) for example in examples]
        return self._batch(corpus, sizes, streams, random_labels)

    def val_batches(self, corpus: "Corpus", sizes: "Sizes", batch_size: int) -> Iterator[Batch]:
        """The same 256 windows for every run."""
        for first in range(0, _VALIDATION, batch_size):
            numbers = range(first, min(first + batch_size, _VALIDATION))
            yield self._batch(corpus, sizes, [generator("repeat", "validation", i) for i in numbers], False)

    def _batch(self, corpus: "Corpus", sizes: "Sizes", streams: list, random_labels: bool) -> Batch:
        names, places = np.asarray(corpus.train.ids[: self.letters], dtype=np.int64), np.arange(sizes.n_ctx + 1)
        windows, asked = [], []
        for draws in streams:
            n = int(draws.integers(self.shortest, self.longest + 1))
            windows.append(names[draws.permutation(self.letters)[:n][places % n]])
            asked.append(places[:-1] >= n)
        whole, chosen = np.stack(windows), np.stack(asked)
        targets = whole[:, 1:][chosen]
        if random_labels:
            targets = names[streams[0].integers(self.letters, size=len(targets))]
        positions = torch.from_numpy(np.flatnonzero(chosen))
        return Batch(torch.from_numpy(whole[:, :-1].copy()), torch.from_numpy(targets), positions)

"""Modular addition: `a b` is read, (a + b) mod p is to be answered; a tenth of all pairs is held out.

Loss is in nats per answer, ln p for guessing. A model that answers held-out pairs has found the rule; one that answers
only those it was shown has them by heart. Used by studies only; it needs no text.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from qkv.randomness import uniforms
from qkv.tasks.batch import Batch
from qkv.tasks.causal import Causal

if TYPE_CHECKING:
    from qkv.data.corpus import Corpus
    from qkv.models.layout import Sizes

__all__ = ["Modular"]

_HELD_OUT = 0.1


@dataclass(frozen=True, kw_only=True)
class Modular(Causal):
    """A causal task on windows of two numbers, the answer after the second; each window by (seed, its number)."""

    name: str = "modular"
    modulus: int
    """How many numbers there are."""

    def pairs(self, *, held_out: bool) -> np.ndarray:
        """a * modulus + b of every pair that is held out, or is not: int64, the same for every run."""
        every = np.arange(self.modulus**2)
        return every[(uniforms(every, "modular", "held out") < _HELD_OUT) == held_out]

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
        """Pairs that are not held out, drawn with replacement; see `Task.train_batch`."""
        known = self.pairs(held_out=False)
        chosen = known[(uniforms(examples, "modular", seed) * len(known)).astype(np.int64)]
        answers = None
        if random_labels:
            answers = (uniforms(examples, "modular", "labels", seed) * self.modulus).astype(np.int64)
        return self._batch(corpus, chosen, answers)

    def val_batches(self, corpus: "Corpus", sizes: "Sizes", batch_size: int) -> Iterator[Batch]:
        """Every pair that is held out."""
        yield from self.all_batches(corpus, batch_size, held_out=True)

    def all_batches(self, corpus: "Corpus", batch_size: int, *, held_out: bool) -> Iterator[Batch]:
        """Every pair that is held out, or is not, once."""
        pairs = self.pairs(held_out=held_out)
        for first in range(0, len(pairs), batch_size):
            yield self._batch(corpus, pairs[first : first + batch_size], None)

    def _batch(self, corpus: "Corpus", pairs: np.ndarray, answers: np.ndarray | None) -> Batch:
        names = np.asarray(corpus.train.ids[: self.modulus], dtype=np.int64)
        both = np.stack(np.divmod(pairs, self.modulus), axis=1)
        answers = both.sum(axis=1) % self.modulus if answers is None else answers
        positions = 2 * np.arange(len(pairs)) + 1
        return Batch(torch.from_numpy(names[both]), torch.from_numpy(names[answers]), torch.from_numpy(positions))

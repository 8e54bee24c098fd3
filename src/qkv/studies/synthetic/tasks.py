"""Causal tasks of studies whose batches are made by a rule, so that they need no text; used by studies only.

Their loss is in nats per answer, 0 for a model that has found the rule.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from qkv.data.corpus import Corpus
from qkv.models.layout import Sizes
from qkv.randomness import generator, uniforms
from qkv.tasks.batch import Batch
from qkv.tasks.causal import Causal


@dataclass(frozen=True, kw_only=True)
class _Made(Causal):
    """Each window is a pure function of (seed, step, its number), the validation set the same for every run."""

    n_validation: ClassVar[int]
    """Windows of the validation set."""
    counting: ClassVar[str]
    """What a model knows whose loss is `by_counting`."""
    tunes: bool = False
    """Scored on windows of their own, by which learning rates are chosen."""

    def train_batch(self, corpus: Corpus, sizes: Sizes, seed: int, step: int, examples: np.ndarray) -> Batch:
        """Windows made anew; see `Task.train_batch`."""
        streams = [generator(seed, self.name, step, int(example)) for example in examples]
        return self._batch(corpus, sizes, streams)

    def val_batches(self, corpus: Corpus, sizes: Sizes, batch_size: int) -> Iterator[Batch]:
        """The same `n_validation` windows for every run."""
        what = "tuning" if self.tunes else "validation"
        for first in range(0, self.n_validation, batch_size):
            numbers = range(first, min(first + batch_size, self.n_validation))
            streams = [generator(self.name, what, number) for number in numbers]
            yield self._batch(corpus, sizes, streams)

    @abstractmethod
    def _batch(self, corpus: Corpus, sizes: Sizes, streams: Sequence[np.random.Generator]) -> Batch:
        """One window for each of these draws."""


@dataclass(frozen=True, kw_only=True)
class Recall(_Made):
    """Associative recall: a table of keys and values is told once, then asked for in another order.

    `k3 v9 k1 v4 ... | k1 v4 k3 v9 ...`: in the second half each key stands again and its value is to be answered, so a
    model that answers has looked the key up in its context. Windows of n_ctx tokens are half a table and half its
    questions. Loss is ln(values) for guessing, at most ln(pairs) for a model that knows which values were told but not
    where (less, for some are told twice: 1.56 of 8 pairs and 8 values), 0 for one that recalls.
    """

    name: str = "recall"
    n_validation: ClassVar[int] = 512
    counting: ClassVar[str] = "counting the values told"
    keys: int
    """Different keys there are."""
    values: int
    """Different values there are."""

    @property
    def by_counting(self) -> float:
        """Nats per answer of a model that knows which values were told and strikes out those that were answered.

        All orders of the n values told are equally likely to it: E[ln(n! / prod_v c_v!)] / n, each count c_v binomial,
        for a window that holds every key.
        """
        n, p = self.keys, 1 / self.values
        repeated = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * math.lgamma(c + 1) for c in range(n + 1))
        return (math.lgamma(n + 1) - self.values * repeated) / n

    def _batch(self, corpus: Corpus, sizes: Sizes, streams: Sequence[np.random.Generator]) -> Batch:
        pairs = min(sizes.n_ctx // 4, self.keys)
        names = np.asarray(corpus.train.ids[: self.keys + self.values], dtype=np.int64)
        windows = np.stack([self._window(names, pairs, draws) for draws in streams])
        positions = np.arange(2 * pairs, 4 * pairs, 2)
        answers = windows[:, positions + 1]
        flat = (np.arange(len(windows))[:, None] * windows.shape[1] + positions).reshape(-1)
        return Batch(torch.from_numpy(windows), torch.from_numpy(answers.reshape(-1)), torch.from_numpy(flat))

    def _window(self, names: np.ndarray, pairs: int, draws: np.random.Generator) -> np.ndarray:
        """int64 [4 * pairs]: the table, and the same pairs in another order."""
        keys = names[draws.permutation(self.keys)[:pairs]]
        values = names[self.keys + draws.integers(self.values, size=pairs)]
        order = draws.permutation(pairs)
        both = np.stack([np.concatenate([keys, keys[order]]), np.concatenate([values, values[order]])], axis=1)
        return both.reshape(-1)


@dataclass(frozen=True, kw_only=True)
class Repeat(_Made):
    """Copying: a block of different letters, again and again, cut off where the window of n_ctx letters ends.

    `q w f a k d q w f a k d q w ...`: after the first pass, from where it is asked for, each next letter is known to
    whoever finds the letter's last occurrence and looks one place behind it. The length of the block differs from
    window to window, so no fixed distance will do. Loss is 0 for a model that copies.
    """

    name: str = "repeat"
    n_validation: ClassVar[int] = 256
    counting: ClassVar[str] = "counting the letters of a block"
    letters: int
    """Different letters there are."""
    shortest: int = 6
    """Letters of the shortest block."""
    longest: int = 12
    """Letters of the longest, below n_ctx."""

    @property
    def by_counting(self) -> float:
        """Nats per letter of a model that knows the letters of the shortest block and strikes them out one by one."""
        return math.lgamma(self.shortest + 1) / self.shortest

    def _batch(self, corpus: Corpus, sizes: Sizes, streams: Sequence[np.random.Generator]) -> Batch:
        names, places = np.asarray(corpus.train.ids[: self.letters], dtype=np.int64), np.arange(sizes.n_ctx + 1)
        windows, asked = [], []
        for draws in streams:
            n = int(draws.integers(self.shortest, self.longest + 1))
            windows.append(names[draws.permutation(self.letters)[:n][places % n]])
            asked.append(places[:-1] >= n)
        whole, chosen = np.stack(windows), np.stack(asked)
        targets = whole[:, 1:][chosen]
        positions = torch.from_numpy(np.flatnonzero(chosen))
        return Batch(torch.from_numpy(whole[:, :-1].copy()), torch.from_numpy(targets), positions)


_HELD_OUT = 0.1


@dataclass(frozen=True, kw_only=True)
class Modular(Causal):
    """Modular addition: `a b` is read, (a + b) mod p is to be answered; a tenth of all pairs is held out.

    Loss is ln p for guessing. A model that answers held-out pairs has found the rule; one that answers only those it
    was shown has them by heart. Each window is a function of (seed, its number).
    """

    name: str = "modular"
    counting: ClassVar[str] = "guessing among all numbers"
    modulus: int
    """How many numbers there are."""
    tunes: bool | None = None
    """Scored on every third of the pairs that are held out, by which learning rates are chosen, or on the others; None
    is all of them."""

    @property
    def by_counting(self) -> float:
        """Nats per answer of guessing."""
        return math.log(self.modulus)

    def pairs(self, *, held_out: bool) -> np.ndarray:
        """a * modulus + b of every pair that is held out, or is not: int64, the same for every run."""
        every = np.arange(self.modulus**2)
        return every[(uniforms(every, "modular", "held out") < _HELD_OUT) == held_out]

    def train_batch(self, corpus: Corpus, sizes: Sizes, seed: int, step: int, examples: np.ndarray) -> Batch:
        """Pairs that are not held out, drawn with replacement; see `Task.train_batch`."""
        known = self.pairs(held_out=False)
        chosen = known[(uniforms(examples, "modular", seed) * len(known)).astype(np.int64)]
        return self._batch(corpus, chosen)

    def val_batches(self, corpus: Corpus, sizes: Sizes, batch_size: int) -> Iterator[Batch]:
        """Every pair that is held out, of those that it is scored on."""
        pairs = self.pairs(held_out=True)
        if self.tunes is not None:
            pairs = pairs[(np.arange(len(pairs)) % 3 == 2) == self.tunes]
        yield from self.batches_of(pairs, corpus, batch_size)

    def batches_of(self, pairs: np.ndarray, corpus: Corpus, batch_size: int) -> Iterator[Batch]:
        """Each of these pairs once."""
        for first in range(0, len(pairs), batch_size):
            yield self._batch(corpus, pairs[first : first + batch_size])

    def _batch(self, corpus: Corpus, pairs: np.ndarray) -> Batch:
        names = np.asarray(corpus.train.ids[: self.modulus], dtype=np.int64)
        both = np.stack(np.divmod(pairs, self.modulus), axis=1)
        answers = both.sum(axis=1) % self.modulus
        positions = 2 * np.arange(len(pairs)) + 1
        return Batch(torch.from_numpy(names[both]), torch.from_numpy(names[answers]), torch.from_numpy(positions))

"""Associative recall: a table of keys and values is told once, then asked for in another order.

`k3 v9 k1 v4 ... | k1 v4 k3 v9 ...`: in the second half each key stands again and its value is to be answered, so a
model that answers has looked the key up in its context. Loss is in nats per answer: ln(values) for guessing, at most
ln(pairs) for a model that knows which values were told but not where (less, for some are told twice: 1.56 of 8 pairs
and 8 values), 0 for one that recalls. Used by studies only; it needs no text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from qkv.studies.synthetic.task import Made
from qkv.tasks.batch import Batch

if TYPE_CHECKING:
    from qkv.data.corpus import Corpus
    from qkv.models.layout import Sizes

__all__ = ["Recall"]


@dataclass(frozen=True, kw_only=True)
class Recall(Made):
    """Windows of n_ctx tokens, half a table and half its questions."""

    name: str = "recall"
    n_validation: ClassVar[int] = 512
    keys: int
    """Different keys there are."""
    values: int
    """Different values there are."""

    def _batch(
        self, corpus: "Corpus", sizes: "Sizes", streams: Sequence[np.random.Generator], random_labels: bool
    ) -> Batch:
        pairs = min(sizes.n_ctx // 4, self.keys)
        names = np.asarray(corpus.train.ids[: self.keys + self.values], dtype=np.int64)
        windows = np.stack([self._window(names, pairs, draws) for draws in streams])
        positions = np.arange(2 * pairs, 4 * pairs, 2)
        answers = windows[:, positions + 1]
        if random_labels:
            answers = names[self.keys + np.stack([draws.integers(self.values, size=pairs) for draws in streams])]
        flat = (np.arange(len(windows))[:, None] * windows.shape[1] + positions).reshape(-1)
        return Batch(torch.from_numpy(windows), torch.from_numpy(answers.reshape(-1)), torch.from_numpy(flat))

    def _window(self, names: np.ndarray, pairs: int, draws: np.random.Generator) -> np.ndarray:
        """int64 [4 * pairs]: the table, and the same pairs in another order."""
        keys = names[draws.permutation(self.keys)[:pairs]]
        values = names[self.keys + draws.integers(self.values, size=pairs)]
        order = draws.permutation(pairs)
        both = np.stack([np.concatenate([keys, keys[order]]), np.concatenate([values, values[order]])], axis=1)
        return both.reshape(-1)

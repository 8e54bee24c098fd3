"""Copying: a block of different letters, again and again, cut off where the window ends.

`q w f a k d q w f a k d q w ...`: after the first pass each next letter is known to whoever finds the letter's last
occurrence and looks one place behind it. The length of the block differs from window to window, so no fixed distance
will do. Loss is in nats per letter after the first pass: 0 for a model that copies. Used by studies only; it needs no
text.
"""

import math
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

__all__ = ["Repeat"]


@dataclass(frozen=True, kw_only=True)
class Repeat(Made):
    """Windows of n_ctx letters, asked for the next one after the first pass."""

    name: str = "repeat"
    n_validation: ClassVar[int] = 256
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

    def _batch(
        self, corpus: "Corpus", sizes: "Sizes", streams: Sequence[np.random.Generator], random_labels: bool
    ) -> Batch:
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

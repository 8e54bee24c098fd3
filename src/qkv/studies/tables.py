"""Start values for a matrix that are made from the training text itself.

One function per table: (corpus, present values) -> values in the matrix's shape. Nothing is downloaded; each is a
pure function of the training tokens. `TABLES` is the registry.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from qkv.data.corpus import Corpus
from qkv.errors import ConfigError

__all__ = ["TABLES", "pair_counts", "ppmi"]

_WINDOW = 2
_MOST_ROWS = 8192


def pair_counts(ids: np.ndarray, d_vocab: int, window: int = _WINDOW) -> np.ndarray:
    """How often two tokens stand within `window` places of one another, symmetric float64 [d_vocab, d_vocab].

    Raises ConfigError for a vocabulary that would not fit memory.
    """
    if d_vocab > _MOST_ROWS:
        raise ConfigError(
            f"counting pairs of {d_vocab:,} tokens takes too much memory; expected at most {_MOST_ROWS:,}"
        )
    ids = np.asarray(ids, dtype=np.int64)
    counts = np.zeros(d_vocab * d_vocab)
    for distance in range(1, window + 1):
        counts += np.bincount(ids[:-distance] * d_vocab + ids[distance:], minlength=d_vocab**2)
    counts = counts.reshape(d_vocab, d_vocab)
    return counts + counts.T


def ppmi(ids: np.ndarray, d_vocab: int, window: int = _WINDOW) -> np.ndarray:
    """Positive pointwise mutual information of tokens within `window` places, float64 [d_vocab, d_vocab].

    max(0, ln p(a, b) / (p(a) p(b))), symmetric. Raises ConfigError for a vocabulary that would not fit memory.
    """
    counts = pair_counts(ids, d_vocab, window)
    total, single = counts.sum(), counts.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.log(counts * total / np.outer(single, single))
    return np.where(counts > 0, np.maximum(information, 0.0), 0.0)


def _count_vectors(corpus: Corpus, before: Tensor) -> Tensor:
    """Rows from the d_model largest singular vectors of PPMI, at the root mean square of the start they replace.

    Levy and Goldberg 2014: skip-gram with negative sampling factorises this matrix, shifted; U sqrt(S) is the symmetric
    split of Levy, Goldberg and Dagan 2015.
    """
    d_vocab, d_model = before.shape
    u, s, _ = np.linalg.svd(ppmi(corpus.train.ids, d_vocab), hermitian=True)
    rows = u[:, :d_model] * np.sqrt(s[:d_model])
    if rows.shape[1] < d_model:
        rows = np.pad(rows, ((0, 0), (0, d_model - rows.shape[1])))
    rows *= float(before.square().mean().sqrt()) / np.sqrt(np.mean(rows**2))
    return torch.from_numpy(rows).to(before.dtype)


TABLES: Mapping[str, Callable[[Corpus, Tensor], Tensor]] = {"counts": _count_vectors}
"""Name -> table."""

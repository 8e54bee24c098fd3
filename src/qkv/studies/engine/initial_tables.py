"""Start values for a matrix that are made from the training text itself.

One function per table: (corpus, present values) -> values in the matrix's shape. Nothing is downloaded; each is a
pure function of the training tokens. `TABLES` is the registry.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.corpus import Corpus
from qkv.errors import ConfigError

_WINDOW = 2
_MOST_ROWS = 8192


def offsets_of(corpus: Any) -> np.ndarray:
    """Where the training documents of a corpus, or its labelled texts, begin and end: int64 [n_documents + 1]."""
    train = corpus.train
    return getattr(train, "tokens", train).offsets


def pair_counts(ids: np.ndarray, d_vocab: int, offsets: np.ndarray | None = None) -> np.ndarray:
    """How often two tokens stand within `_WINDOW` places of one another, symmetric float64 [d_vocab, d_vocab].

    Both in one document, where `offsets` says where these begin; without it all is one.

    Raises ConfigError for a vocabulary that would not fit memory.
    """
    if d_vocab > _MOST_ROWS:
        raise ConfigError(
            f"counting pairs of {d_vocab:,} tokens takes too much memory; expected at most {_MOST_ROWS:,}"
        )
    ids = np.asarray(ids, dtype=np.int64)
    counts = np.zeros(d_vocab * d_vocab)
    document = np.zeros(len(ids), dtype=np.int64)
    if offsets is not None:
        document = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    for distance in range(1, _WINDOW + 1):
        inside = document[:-distance] == document[distance:]
        counts += np.bincount((ids[:-distance] * d_vocab + ids[distance:])[inside], minlength=d_vocab**2)
    counts = counts.reshape(d_vocab, d_vocab)
    return counts + counts.T


def ppmi(ids: np.ndarray, d_vocab: int, offsets: np.ndarray | None = None) -> np.ndarray:
    """Positive pointwise mutual information of tokens within `_WINDOW` places, float64 [d_vocab, d_vocab].

    max(0, ln p(a, b) / (p(a) p(b))), symmetric; `offsets` as in `pair_counts`.

    Raises ConfigError for a vocabulary that would not fit memory.
    """
    counts = pair_counts(ids, d_vocab, offsets)
    total, single = counts.sum(), counts.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.log(counts * total / np.outer(single, single))
    return np.where(counts > 0, np.maximum(information, 0.0), 0.0)


def information_of(corpus: Any) -> np.ndarray:
    """`ppmi` of the training part of a corpus, its documents apart."""
    return ppmi(corpus.train.ids, corpus.tokenizer.d_vocab, offsets_of(corpus))


def _count_vectors(corpus: Corpus, before: Tensor) -> Tensor:
    """Rows from the d_model largest singular vectors of PPMI, at the root mean square of the start they replace.

    Levy and Goldberg 2014: skip-gram with negative sampling factorises this matrix, shifted; U sqrt(S) is the symmetric
    split of Levy, Goldberg and Dagan 2015. Documents are counted as one text, as ever: kept trainings start so.
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

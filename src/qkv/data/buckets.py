"""Length-bucketed batches of pairs: buckets of equal token count, each a pure function of (seed, number).

Pairs in the order of their lengths are cut once into buckets of about `n_tokens` tokens a side, so that a bucket of
short pairs has many of them and hardly any padding. In every epoch pairs of equal lengths change places, and the
buckets come in another order; each pair is in exactly one bucket of an epoch. The training's "example" is a bucket:
bucket e is found from (seed, e) alone, so that a resumed run needs no stored position and ranks share buckets as they
share examples. Several buckets in one update mix lengths, which one bucket does not (Morishita et al. 2017,
arXiv 1706.05765, on what mini-batches of one length cost).
"""

from functools import lru_cache

import numpy as np

from qkv.data.pairs import Pairs
from qkv.errors import SourceError
from qkv.randomness import Permutation, generator


def bucket_edges(source: np.ndarray, target: np.ndarray, n_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """(order int64 [n_pairs], edges int64 [n_buckets + 1]): bucket b holds the pairs order[edges[b] : edges[b + 1]].

    source, target: int64 [n_pairs] lengths. Pairs are ordered by source, then target length. A bucket has at most
    n_tokens tokens on its longer side, padding included, and at least one pair.
    """
    order = np.lexsort((target, source))
    edges, longest, count = [0], 0, 0
    for place, length in enumerate(np.maximum(source, target)[order].tolist()):
        longest, count = max(longest, length), count + 1
        if count > 1 and longest * count > n_tokens:
            edges.append(place)
            longest, count = length, 1
    return order, np.array([*edges, len(order)], dtype=np.int64)


@lru_cache(maxsize=4)
def _plan(pairs: Pairs, n_ctx: int, n_tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(pairs in the order of their lengths, edges of buckets, class of equal lengths of each place)."""
    source, target = pairs.lengths()
    fits = np.flatnonzero((source <= n_ctx) & (target <= n_ctx))
    if not len(fits):
        raise SourceError(
            f"no training pair has at most {n_ctx} tokens on both sides; set a larger n_ctx (--set n_ctx={2 * n_ctx})"
        )
    order, edges = bucket_edges(source[fits], target[fits], n_tokens)
    order = fits[order]
    changes = (np.diff(source[order]) != 0) | (np.diff(target[order]) != 0)
    return order, edges, np.concatenate([[0], np.cumsum(changes)])


def n_buckets(pairs: Pairs, n_ctx: int, n_tokens: int) -> int:
    """Buckets in an epoch."""
    return len(_plan(pairs, n_ctx, n_tokens)[1]) - 1


@lru_cache(maxsize=4)
def _places(pairs: Pairs, n_ctx: int, n_tokens: int, seed: int, epoch: int) -> np.ndarray:
    """The pair at each place of the plan in one epoch: int64 [n_places]."""
    order, _, classes = _plan(pairs, n_ctx, n_tokens)
    draws = generator(seed, "pairs", epoch).random(len(order))
    return order[np.lexsort((draws, classes))]


def train_bucket(pairs: Pairs, n_ctx: int, n_tokens: int, seed: int, number: int) -> np.ndarray:
    """The pairs of training bucket `number` >= 0, of all epochs counted through: int64 [n].

    A pure function of its arguments. Pairs longer than n_ctx are in none.

    Raises SourceError where no pair is short enough.
    """
    edges = _plan(pairs, n_ctx, n_tokens)[1]
    epoch, within = divmod(number, len(edges) - 1)
    bucket = int(Permutation(len(edges) - 1, seed, "buckets", epoch)(np.array([within]))[0])
    return _places(pairs, n_ctx, n_tokens, seed, epoch)[edges[bucket] : edges[bucket + 1]]


def filled(documents: list[np.ndarray], filler: int) -> tuple[np.ndarray, np.ndarray]:
    """Sequences of any lengths as one array: (ids int64 [n, longest], real bool [n, longest]), filled on the right."""
    lengths = np.array([len(document) for document in documents])
    real = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(real.shape, filler, dtype=np.int64)
    ids[real] = np.concatenate(documents)
    return ids, real

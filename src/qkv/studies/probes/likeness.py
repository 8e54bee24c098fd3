"""How alike words are to one another, in numbers that compare between models of different coordinates.

A model's words are compared by the cosines of their vectors, less the mean vector: every table drifts as a whole, and
the raw cosine of any two rows reads that (Bis et al. 2021). Two models, or two layers, are compared by the rank
correlation of those cosines over all pairs of the same words (representational similarity analysis, Kriegeskorte et al.
2008): no coordinate of one is ever held beside a coordinate of the other.
"""

import numpy as np

from qkv.inspection.token_rows import rank_correlation
from qkv.studies.probes.occurrences import Occurrences


def common_ids(ids: np.ndarray, fewest: int, most: int) -> np.ndarray:
    """The `most` most frequent ids that occur `fewest` times or more: int64, falling in frequency, then by id."""
    known, counts = np.unique(ids, return_counts=True)
    known, counts = known[counts >= fewest], counts[counts >= fewest]
    return known[np.argsort(-counts, kind="stable")][:most].astype(np.int64)


def pair_cosines(rows: np.ndarray, *, centred: bool = True) -> np.ndarray:
    """Cosine of every two rows [n, d], each pair once, in the order of `np.triu_indices`: float64 [n (n - 1) / 2]."""
    values = rows.astype(np.float64)
    values = values - values.mean(0) if centred else values
    unit = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-300)
    return (unit @ unit.T)[np.triu_indices(len(unit), 1)]


def all_cosines(rows: np.ndarray) -> np.ndarray:
    """Centred cosine of every row with every other, 0 with itself: float64 [n, n]."""
    cosines = np.zeros((len(rows), len(rows)))
    cosines[np.triu_indices(len(rows), 1)] = pair_cosines(rows)
    return cosines + cosines.T


def agreement(some: np.ndarray, others: np.ndarray) -> float:
    """Rank correlation of two lists of cosines of the same pairs, -1 to 1; 0 where one of them is constant."""
    return rank_correlation(some, others) or 0.0


def means(seen: Occurrences, layer: int, words: np.ndarray) -> np.ndarray:
    """The mean vector of each word over its occurrences, float64 [n_words, d_model]."""
    return np.stack([seen.vectors[layer][seen.ids == word].astype(np.float64).mean(0) for word in words])


def first_components(seen: Occurrences, layer: int, words: np.ndarray) -> np.ndarray:
    """The first principal component of each word's occurrences, not centred, on the side of their mean.

    float64 [n_words, d_model], of length 1: the direction that explains most of them (Ethayarajh 2019, arXiv
    1909.00512, makes static vectors of contextual ones by it).
    """
    found = []
    for word in words:
        vectors = seen.vectors[layer][seen.ids == word].astype(np.float64)
        direction = np.linalg.eigh(vectors.T @ vectors)[1][:, -1]
        found.append(direction if vectors.mean(0) @ direction >= 0 else -direction)
    return np.stack(found)

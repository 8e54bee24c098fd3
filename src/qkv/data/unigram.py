"""Pieces of the Unigram language model, fitted by expectation-maximisation over counted words.

Kudo 2018 ("Subword regularization", arXiv 1804.10959): begin with all frequent substrings, fit their probabilities
by EM over every way to cut a word, drop the pieces whose loss hurts least, and so on until the size is reached. All
words are worked on at once: their cuts are the paths of one lattice, kept as flat arrays of edges and swept by
character position. The result is a pure function of the counts.
"""

import numpy as np

from qkv.data.lattice import Lattice, Substrings

__all__ = ["fit_pieces"]

LONGEST_PIECE = 16
LONGEST_WORD = 64
"""Longer words play no part in the fit."""
SEEDS_PER_PIECE = 16
KEPT_PER_ROUND = 0.5
EM_ROUNDS = 2


def fit_pieces(counts: dict[str, int], n_pieces: int) -> list[tuple[str, float]]:
    """At most n_pieces (piece, log probability), likeliest first; every letter of the words is among them.

    counts: how often each word occurs. Where there are more distinct letters than n_pieces only the most frequent stay.
    """
    words = sorted(word for word in counts if 0 < len(word) <= LONGEST_WORD)
    weights = np.array([counts[word] for word in words], dtype=np.float64)
    table = Substrings(words, LONGEST_PIECE)
    frequency = np.bincount(table.piece, weights=weights[table.word], minlength=len(table.pieces))
    sizes = np.array([len(piece) for piece in table.pieces])
    worth = np.where(sizes == 1, np.inf, np.where(frequency >= 2, frequency * sizes, 0.0))
    n_seeds = min(int((worth > 0).sum()), SEEDS_PER_PIECE * n_pieces + int((sizes == 1).sum()))
    alive = np.sort(np.argsort(-worth, kind="stable")[:n_seeds])
    scores = np.full(len(worth), -np.inf)
    scores[alive] = np.log(frequency[alive] / frequency[alive].sum())

    lattice = Lattice(table, len(words), np.array([len(word) for word in words]))
    while True:
        for _ in range(EM_ROUNDS):
            expected = lattice.expected_counts(scores, weights)
            scores = _log_shares(expected, keep=(expected >= 0.5) | ((sizes == 1) & np.isfinite(scores)))
        n_alive = int(np.isfinite(scores).sum())
        if n_alive <= n_pieces * 1.1:
            break
        room = max(int(n_pieces * 1.1), int(n_alive * KEPT_PER_ROUND))
        hurt = _loss_without(lattice, table, scores, weights, sizes)
        kept = np.argsort(-np.where(np.isfinite(scores), hurt, -np.inf), kind="stable")[:room]
        pruned = np.full_like(scores, -np.inf)
        pruned[kept] = scores[kept]
        scores = pruned
    first = np.where((sizes == 1) & np.isfinite(scores), frequency + 1e18, np.exp(scores))  # letters before all else
    chosen = np.argsort(-first, kind="stable")[: min(n_pieces, n_alive)]
    chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
    return [(table.pieces[i], float(scores[i])) for i in chosen]


def _log_shares(expected: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Log probabilities of expected counts under a sparse prior: digamma(count) - digamma(total); -inf if not kept.

    The digamma step is Kudo's (and sentencepiece's): it starves rare pieces, as a Dirichlet prior of 0 would.
    """
    counts = np.where(keep, np.maximum(expected, 0.5), np.inf)
    out = np.where(keep, _digamma(counts) - _digamma(np.array(expected[keep].sum())), -np.inf)
    return out


def _digamma(x: np.ndarray) -> np.ndarray:
    """d/dx log Gamma(x) for x > 0, by recurrence to x + 6 and the asymptotic series (error below 1e-9)."""
    shift = sum(1.0 / (x + k) for k in range(6))
    y = 1.0 / (x + 6) ** 2
    return np.log(x + 6) - 0.5 / (x + 6) - y * (1 / 12 - y * (1 / 120 - y / 252)) - shift


def _loss_without(
    lattice: Lattice, table: Substrings, scores: np.ndarray, weights: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
    """How much likelihood is lost if a piece is spelled by its best other cut wherever the best cuts use it.

    float64 [n_pieces]; infinite for letters, which must stay, and 0 for pieces that no best cut uses.
    """
    used = lattice.best_counts(scores, weights)
    rows = np.flatnonzero(np.isfinite(scores) & (sizes > 1) & (used > 0))
    own = Substrings([table.pieces[i] for i in rows], LONGEST_PIECE)
    spelled = np.full(len(own.pieces), -np.inf)
    index = {piece: i for i, piece in enumerate(table.pieces)}
    for i, piece in enumerate(own.pieces):
        at = index.get(piece)
        if at is not None:
            spelled[i] = scores[at]
    without = own.proper()
    other = Lattice(without, len(rows), sizes[rows]).best_scores(spelled)
    hurt = np.where(sizes == 1, np.inf, 0.0)
    hurt[rows] = used[rows] * (scores[rows] - other)
    return hurt

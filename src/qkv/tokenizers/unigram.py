"""Pieces of the Unigram language model, fitted by expectation-maximisation over counted words.

Kudo 2018 ("Subword regularization", arXiv 1804.10959): begin with all frequent substrings, fit their probabilities
by EM over every way to cut a word, drop the pieces whose loss hurts least, and so on until the size is reached. All
words are worked on at once: their cuts are the paths of lattices, kept as flat arrays of edges and swept by character
position. The result is a pure function of the counts.

Words of more than `LONGEST_WORD` letters, as in text without spaces, are cut into stretches of that length for the fit:
a piece that would lie across such a cut is not counted there. Of words of more than `MOST_LETTERS` letters together the
most frequent are fitted, and of those that occur as often a random choice; the letters of all of them have a piece.
"""

import zlib
from collections import Counter
from collections.abc import Mapping

import numpy as np

from qkv.tokenizers.unigram_lattice import Lattice, Letters, Substrings

LONGEST_PIECE = 16
LONGEST_WORD = 64
"""Longer words are cut for the fit."""
MOST_LETTERS = 1 << 21
"""Of distinct words that are fitted, together; memory is a few hundred bytes for each."""
SEEDS_PER_PIECE = 16
KEPT_PER_ROUND = 0.5
EM_ROUNDS = 2


def fit_pieces(counts: Mapping[str, int], n_pieces: int) -> list[tuple[str, float]]:
    """At most n_pieces (piece, log probability), likeliest first; every letter of the words is among them.

    counts: how often each word occurs. Where there are more distinct letters than n_pieces only the most frequent stay.
    Letters of words that are too many to be fitted are as likely as the rarest piece.
    """
    fitted, others = _chosen(cut_words(counts, LONGEST_WORD))
    if not fitted:
        return []
    words = sorted(fitted)
    weights = np.array([fitted[word] for word in words], dtype=np.float64)
    letters = Letters(words)
    hashes, sizes, frequency = _seeds(letters, weights, n_pieces)
    scores = np.log(frequency / frequency.sum())
    table = Substrings(letters, LONGEST_PIECE, hashes)
    lattice = Lattice(table)
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
    more = _letters_of(others, known=set(letters.text))
    scores = np.append(scores, np.full(len(more), scores[np.isfinite(scores)].min()))
    sizes, frequency = np.append(sizes, np.ones(len(more), np.int64)), np.append(frequency, list(more.values()))
    names = [*table.pieces, *more]
    first = np.where((sizes == 1) & np.isfinite(scores), frequency + 1e18, np.exp(scores))  # letters before all else
    chosen = np.argsort(-first, kind="stable")[: min(n_pieces, n_alive + len(more))]
    chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
    return [(names[i], float(scores[i])) for i in chosen]


def cut_words(counts: Mapping[str, int], longest: int) -> dict[str, int]:
    """The same, with long words cut into stretches of at most so many letters."""
    found: dict[str, int] = {}
    for word, count in counts.items():
        for at in range(0, len(word), longest):
            stretch = word[at : at + longest]
            found[stretch] = found.get(stretch, 0) + count
    return found


def _chosen(counts: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """The words that are fitted, of at most MOST_LETTERS letters together, and the others."""
    if sum(map(len, counts)) <= MOST_LETTERS:
        return counts, {}
    ranked = sorted(counts, key=lambda word: (-counts[word], zlib.crc32(word.encode("utf-8", "replace")), word))
    ends = np.cumsum([len(word) for word in ranked])
    n = max(1, int(np.searchsorted(ends, MOST_LETTERS, side="right")))
    return {word: counts[word] for word in ranked[:n]}, {word: counts[word] for word in ranked[n:]}


def _letters_of(counts: Mapping[str, int], known: set[str]) -> Counter[str]:
    """How often each letter occurs that is not known, by code point."""
    found: Counter[str] = Counter()
    for word, count in counts.items():
        for letter in set(word) - known:
            found[letter] += count * word.count(letter)
    return Counter({letter: found[letter] for letter in sorted(found)})


def _seeds(letters: Letters, weights: np.ndarray, n_pieces: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(hash, letters, frequency) of the pieces to begin with, by rising hash: all letters, and SEEDS_PER_PIECE times
    n_pieces of the longer substrings that occur twice or more, by frequency times length.
    """
    hashes, sizes, frequency = np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0)
    room = SEEDS_PER_PIECE * n_pieces
    for length in range(1, LONGEST_PIECE + 1):
        places = letters.places(length)
        if not len(places):
            break
        found, piece = np.unique(letters.hashes(places, length), return_inverse=True)
        times = np.bincount(piece, weights=weights[letters.word[places]], minlength=len(found))
        kept = np.flatnonzero(times >= 2) if length > 1 else np.arange(len(found))
        room += len(found) if length == 1 else 0
        hashes = np.concatenate([hashes, found[kept]])
        sizes = np.concatenate([sizes, np.full(len(kept), length)])
        frequency = np.concatenate([frequency, times[kept]])
        worth = np.where(sizes == 1, np.inf, frequency * sizes)
        best = np.lexsort((hashes, -worth))[:room]
        hashes, sizes, frequency = hashes[best], sizes[best], frequency[best]
    order = np.argsort(hashes, kind="stable")
    return hashes[order], sizes[order], frequency[order]


def _log_shares(expected: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Log probabilities of expected counts under a sparse prior: digamma(count) - digamma(total); -inf if not kept.

    The digamma step is Kudo's (and sentencepiece's): it starves rare pieces, as a Dirichlet prior of 0 would.
    """
    counts = np.where(keep, np.maximum(expected, 0.5), np.inf)
    return np.where(keep, _digamma(counts) - _digamma(np.array(expected[keep].sum())), -np.inf)


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
    own = Substrings(Letters([table.pieces[i] for i in rows]), LONGEST_PIECE, table.hashes)
    other = Lattice(own.proper()).best_scores(scores)
    hurt = np.where(sizes == 1, np.inf, 0.0)
    hurt[rows] = used[rows] * (scores[rows] - other)
    return hurt

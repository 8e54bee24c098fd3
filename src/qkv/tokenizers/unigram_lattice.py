"""Places of pieces in many words as flat arrays, and sums and maxima over every way to cut the words into pieces.

A word of n letters has n + 1 nodes; each place where a piece stands is an edge. Forward and backward sweeps go over the
letter positions and treat a block of words at once, so that a sweep costs a few array operations per position. Memory
is a few bytes for each edge, and what one block of about two million edges takes.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np

BLOCK_EDGES = 1 << 21
"""Edges that are swept at once, at most (one word may have more)."""
BLOCK_NODES = 1 << 22
"""The same of nodes, places between letters times words."""

BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
INVERSE = pow(BASE, -1, 1 << 64)


class Letters:
    """Words end to end, and the 64-bit hash of every substring, which tells substrings apart wherever they stand."""

    def __init__(self, words: list[str]) -> None:
        self.sizes = np.array([len(word) for word in words], dtype=np.int64)
        """Letters of each word."""
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sizes)])
        """Where each word begins, and where the last one ends."""
        self.text = "".join(words)
        self.word = np.repeat(np.arange(len(words), dtype=np.int32), self.sizes)
        """Which word each letter is of."""
        points = np.frombuffer(self.text.encode("utf-32-le"), dtype="<u4").astype(np.uint64) + np.uint64(1)
        self._inverse = powers(INVERSE, len(points) + 1)
        with np.errstate(over="ignore"):
            weighted = points * powers(BASE, len(points))
            self._sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(weighted, dtype=np.uint64)])
        self._left = (self.offsets[1:][self.word] - np.arange(len(points))).astype(np.int32)

    def places(self, length: int) -> np.ndarray:
        """Every letter at which a substring of that length begins, int64, in order."""
        return np.flatnonzero(self._left >= length)

    def hashes(self, places: np.ndarray, length: int) -> np.ndarray:
        """Of the substrings of that length at these places, uint64."""
        with np.errstate(over="ignore"):
            return (self._sums[places + length] - self._sums[places]) * self._inverse[places]


class Substrings:
    """Every place in some words where a piece of up to `longest` letters stands.

    `hashes` are those of the pieces that are meant, rising, which have these numbers.
    """

    def __init__(self, letters: Letters, longest: int, hashes: np.ndarray) -> None:
        self.letters, self.hashes = letters, hashes
        self._groups: list[tuple[np.ndarray, np.ndarray]] = []
        """Of each length from 1: places, rising, and the piece that stands there; int32."""
        for length in range(1, longest + 1):
            places = letters.places(length)
            if not len(places) or not len(hashes):
                break
            found = letters.hashes(places, length)
            piece = np.minimum(np.searchsorted(hashes, found), len(hashes) - 1)
            there = hashes[piece] == found
            self._groups.append((places[there].astype(np.int32), piece[there].astype(np.int32)))

    @cached_property
    def pieces(self) -> list[str]:
        """How each piece is spelled; empty for one that stands nowhere."""
        spelled = [""] * len(self.hashes)
        for length, (places, piece) in enumerate(self._groups, start=1):
            first = np.full(len(spelled), -1, dtype=np.int64)
            first[piece[::-1]] = places[::-1]
            for i in np.flatnonzero(first >= 0):
                spelled[i] = self.letters.text[first[i] : first[i] + length]
        return spelled

    def edges(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(word from `first` on, start in it, length, piece) of the pieces in the words first..last - 1, int64.

        Ordered by length, then word, then start.
        """
        bounds = self.letters.offsets[[first, last]]
        cuts = [np.searchsorted(places, bounds) for places, _ in self._groups]
        nothing = np.zeros(0, np.int64)
        places, piece = (
            np.concatenate([nothing, *(group[side][a:b] for group, (a, b) in zip(self._groups, cuts, strict=True))])
            for side in (0, 1)
        )
        length = np.repeat(np.arange(1, len(cuts) + 1), [b - a for a, b in cuts])
        word = self.letters.word[places].astype(np.int64)
        return word - first, places - self.letters.offsets[word], length, piece

    def n_edges(self) -> np.ndarray:
        """Places in each word, int64 [n_words]."""
        counts = np.zeros(len(self.letters.sizes), dtype=np.int64)
        for places, _ in self._groups:
            counts += np.bincount(self.letters.word[places], minlength=len(counts))
        return counts

    def proper(self) -> "Substrings":
        """The same without the pieces that are a whole word."""
        out = object.__new__(Substrings)
        out.letters, out.hashes, sizes = self.letters, self.hashes, self.letters.sizes
        out._groups = []
        for length, (places, piece) in enumerate(self._groups, start=1):
            inside = length < sizes[self.letters.word[places]]
            out._groups.append((places[inside], piece[inside]))
        return out


def powers(base: int, n: int) -> np.ndarray:
    """base^0 ... base^(n-1) modulo 2^64."""
    factors = np.full(n, base, dtype=np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)


class Lattice:
    """The places of pieces in words as edges between the nodes of each word."""

    def __init__(self, table: Substrings) -> None:
        self._table = table
        self._bounds = _bounds(table.n_edges(), table.letters.sizes)

    def _blocks(self) -> Iterator[tuple[slice, "_Block"]]:
        for first, last in pairwise(self._bounds):
            sizes = self._table.letters.sizes[first:last]
            yield slice(first, last), _Block(self._table.edges(first, last), sizes, len(self._table.hashes))

    def expected_counts(self, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """How often each piece is used, in expectation over all cuts of the words: float64 [n_pieces]."""
        counts = np.zeros(len(self._table.hashes))
        for words, block in self._blocks():
            counts += block.expected_counts(scores, weights[words])
        return counts

    def best_scores(self, scores: np.ndarray) -> np.ndarray:
        """Score of the best cut of each word: float64 [n_words], -inf where there is none."""
        return np.concatenate([np.zeros(0), *(block.best_scores(scores) for _, block in self._blocks())])

    def best_counts(self, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """How often each piece is used in the best cuts of the words: float64 [n_pieces]."""
        counts = np.zeros(len(self._table.hashes))
        for words, block in self._blocks():
            counts += block.best_counts(scores, weights[words])
        return counts


def _bounds(n_edges: np.ndarray, sizes: np.ndarray) -> list[int]:
    """Where blocks of words begin, and where the last one ends: as long as they may be."""
    bounds, first, edges, longest = [0], 0, 0, 0
    for word, (n, size) in enumerate(zip(n_edges.tolist(), sizes.tolist(), strict=True)):
        edges, longest = edges + n, max(longest, size)
        if word > first and (edges > BLOCK_EDGES or (longest + 1) * (word + 1 - first) > BLOCK_NODES):
            bounds.append(word)
            first, edges, longest = word, n, size
    return [*bounds, len(sizes)] if len(sizes) else bounds


class _Block:
    """Some words and their edges."""

    def __init__(
        self, edges: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], sizes: np.ndarray, n_pieces: int
    ) -> None:
        self._word, self._from, length, self._piece = edges
        self._to = self._from + length
        self._n_pieces, self._longest = n_pieces, int(sizes.max(initial=0))
        self._shape = (self._longest + 1, len(sizes))  # nodes: by position, then word
        self._ends = sizes * len(sizes) + np.arange(len(sizes))

    def _edges(self, scores: np.ndarray, by: str) -> list[tuple[np.ndarray, ...]]:
        """Edges of finite score grouped by the position they end (or start) at: (edges, first of each word's run)."""
        finite = np.flatnonzero(np.isfinite(scores[self._piece]))
        position = (self._to if by == "to" else self._from)[finite]
        order = np.lexsort((self._word[finite], position))
        edges, position = finite[order], position[order]
        bounds = np.searchsorted(position, np.arange(self._longest + 2))
        groups = []
        for at in range(self._longest + 1):
            group = edges[bounds[at] : bounds[at + 1]]
            words = self._word[group]
            runs = np.flatnonzero(np.concatenate([[True], words[1:] != words[:-1]])) if len(group) else group
            groups.append((group, runs))
        return groups

    def expected_counts(self, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """How often each piece is used, in expectation over all cuts of the words: float64 [n_pieces]."""
        into = np.full(self._shape, -np.inf)
        into[0] = 0.0
        for at, (edges, runs) in enumerate(self._edges(scores, "to")):
            if len(edges):
                words = self._word[edges]
                paths = into[self._from[edges], words] + scores[self._piece[edges]]
                into[at, words[runs]] = _log_sum(paths, runs)
        out = np.full(self._shape, -np.inf)
        out.reshape(-1)[self._ends] = 0.0
        groups = self._edges(scores, "from")
        for at in range(self._longest, -1, -1):
            edges, runs = groups[at]
            if len(edges):
                words = self._word[edges]
                paths = out[self._to[edges], words] + scores[self._piece[edges]]
                here = _log_sum(paths, runs)
                out[at, words[runs]] = np.logaddexp(out[at, words[runs]], here)
        total = into.reshape(-1)[self._ends]
        edges = np.flatnonzero(np.isfinite(scores[self._piece]))
        words = self._word[edges]
        shares = (
            into[self._from[edges], words] + scores[self._piece[edges]] + out[self._to[edges], words] - total[words]
        )
        expected = np.exp(np.where(np.isfinite(total[words]), shares, -np.inf)) * weights[words]
        return np.bincount(self._piece[edges], weights=expected, minlength=self._n_pieces)

    def _best(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Best score into each node, and the edge it comes by (-1 where none does)."""
        best = np.full(self._shape, -np.inf)
        best[0] = 0.0
        by = np.full(self._shape, -1, dtype=np.int64)
        for at, (edges, runs) in enumerate(self._edges(scores, "to")):
            if not len(edges):
                continue
            words = self._word[edges]
            paths = best[self._from[edges], words] + scores[self._piece[edges]]
            top = np.maximum.reduceat(paths, runs)
            lengths = np.diff(np.append(runs, len(edges)))
            winners = np.flatnonzero((paths == np.repeat(top, lengths)) & np.isfinite(paths))
            best[at, words[runs]] = top
            by[at, words[winners][::-1]] = edges[winners][::-1]  # of equals the first
        return best, by

    def best_scores(self, scores: np.ndarray) -> np.ndarray:
        """Score of the best cut of each word: float64 [n_words], -inf where there is none."""
        return self._best(scores)[0].reshape(-1)[self._ends]

    def best_counts(self, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """How often each piece is used in the best cuts of the words: float64 [n_pieces]."""
        _, by = self._best(scores)
        counts = np.zeros(self._n_pieces)
        nodes = self._ends.copy()
        words = np.arange(len(nodes))
        while len(words):
            edges = by.reshape(-1)[nodes]
            alive = edges >= 0
            words, edges = words[alive], edges[alive]
            counts += np.bincount(self._piece[edges], weights=weights[words], minlength=self._n_pieces)
            nodes = self._from[edges] * self._shape[1] + words
        return counts


def _log_sum(values: np.ndarray, runs: np.ndarray) -> np.ndarray:
    """log sum exp of each run of values that begins at `runs`."""
    lengths = np.diff(np.append(runs, len(values)))
    top = np.maximum.reduceat(values, runs)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return safe + np.log(np.add.reduceat(np.exp(values - np.repeat(safe, lengths)), runs))

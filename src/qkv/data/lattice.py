"""All substrings of many words as flat arrays, and sums and maxima over every way to cut the words into pieces.

A word of n letters has n + 1 nodes; each substring that is a piece is an edge. Forward and backward sweeps go over the
letter positions and treat all words at once, so that a sweep costs a few array operations per position.
"""

import numpy as np

__all__ = ["Lattice", "Substrings"]

_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)


class Substrings:
    """Every substring of up to `longest` letters of each word.

    word, start, length, piece: int64 [n_substrings], ordered by length, then word, then start; `pieces` holds the
    distinct substrings, of which `piece` is the number. Substrings are told apart by 64-bit hashes.
    """

    def __init__(self, words: list[str], longest: int) -> None:
        sizes = np.array([len(word) for word in words], dtype=np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        text = "".join(words)
        points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.uint64) + np.uint64(1)
        owner = np.repeat(np.arange(len(words)), sizes)
        with np.errstate(over="ignore"):
            power, inverse = _powers(_BASE, len(points) + 1), _powers(_INVERSE, len(points) + 1)
            sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(points * power[:-1], dtype=np.uint64)])
            starts, hashes, lengths = [], [], []
            room = offsets[1:][owner] - np.arange(len(points)) if len(points) else np.zeros(0, np.int64)
            for length in range(1, longest + 1):
                at = np.flatnonzero(room >= length)
                if not len(at):
                    break
                starts.append(at)
                hashes.append((sums[at + length] - sums[at]) * inverse[at])
                lengths.append(np.full(len(at), length))
        places = np.concatenate(starts) if starts else np.zeros(0, np.int64)
        self.length = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
        self.word = owner[places]
        self.start = places - offsets[self.word]
        joined = np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)
        _, first, self.piece = np.unique(joined, return_index=True, return_inverse=True)
        self.pieces = [text[places[i] : places[i] + self.length[i]] for i in first]
        self._sizes = sizes

    def proper(self) -> "Substrings":
        """The same without the substrings that are a whole word."""
        out = object.__new__(Substrings)
        inside = self.length < self._sizes[self.word]
        out.word, out.start = self.word[inside], self.start[inside]
        out.length, out.piece = self.length[inside], self.piece[inside]
        out.pieces, out._sizes = self.pieces, self._sizes
        return out


def _powers(base: int, n: int) -> np.ndarray:
    """base^0 ... base^(n-1) modulo 2^64."""
    factors = np.full(n, base, dtype=np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)


class Lattice:
    """The substrings of words as edges between the nodes of each word."""

    def __init__(self, table: Substrings, n_words: int, sizes: np.ndarray) -> None:
        self._n_pieces = len(table.pieces)
        self._word, self._piece = table.word, table.piece
        self._from = table.start
        self._to = table.start + table.length
        self._longest = int(sizes.max(initial=0))
        self._shape = (self._longest + 1, n_words)  # nodes: by position, then word
        self._ends = sizes * n_words + np.arange(n_words)

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
        n_words = self._shape[1]
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
        assert n_words == len(weights)
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

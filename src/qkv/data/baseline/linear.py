"""A linear model on the n-grams of a text: TF-IDF and logistic regression, without another library.

What is counted: words and pairs of words, and runs of 2 to 5 characters inside a word with a space at either end (those
of at least two texts). A text of several columns, with [SEP] between them, is counted once as a whole and once by
column; further features are the words that two columns share, and how many (shares and lengths, in bins). A count n
weighs (1 + ln n) idf with idf = 1 + ln((1 + texts) / (1 + texts with it)), and each kind (words, characters, bins) has
length 1 in every text (Salton and Buckley 1988; Wang and Manning 2012, ACL). The weights minimize
`STRENGTH` times the summed loss plus half their squares, by L-BFGS (Nocedal 1980); the bias is not penalized. Two
classes share one vector of weights. N-grams are known by 64-bit hashes, so that none needs to be stored as text.
"""

import dataclasses
import hashlib
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import ClassVar

import numpy as np
import torch

from qkv.randomness import generator

WORDS = re.compile(r"\w+(?:'\w+)?|[^\w\s]")
"""What counts as a word: letters and digits, or one mark."""
STRENGTH = 4.0
"""C of the regression: the inverse of its penalty."""
MOST_FEATURES = 1 << 19
"""N-grams that have a weight; beyond, those of the most texts do."""
TOLERANCE = 1e-4
"""The minimum is found where no slope of the loss per text is larger."""
BETWEEN = " [SEP] "
"""Between two columns of a text."""
_LENGTHS = range(2, 6)
_BINNED = 1 << 16
"""Keys below are bins: four bits each for two columns, what is compared, and the bin; no n-gram has one in practice."""
_BINS, _MOST_COLUMNS = 10, 16
_CHUNK = 2000
_ROUNDS = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Vectors:
    """Sparse rows: what stands in row i begins at `starts[i]`."""

    starts: np.ndarray
    """int64 [n + 1]."""
    columns: np.ndarray
    """int64 [n_values]: the feature of each value."""
    values: np.ndarray
    """float64 [n_values]."""

    def times(self, weights: np.ndarray) -> np.ndarray:
        """The rows times a matrix [n_features, n_out]: float64 [n, n_out]."""
        starts, columns, values = map(torch.from_numpy, (self.starts, self.columns, self.values))
        with warnings.catch_warnings(action="ignore"):  # torch calls its sparse tensors new
            rows = torch.sparse_csr_tensor(starts, columns, values, (len(self.starts) - 1, len(weights)))
        return (rows @ torch.from_numpy(np.ascontiguousarray(weights, dtype=np.float64))).numpy()

    def turned(self, n_features: int) -> "Vectors":
        """The transposed matrix, a row for each feature."""
        order = np.argsort(self.columns, kind="stable")
        rows = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        starts = np.concatenate([[0], np.cumsum(np.bincount(self.columns, minlength=n_features))])
        return Vectors(starts=starts, columns=rows[order], values=self.values[order])


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear:
    """The n-grams that it knows, and their weights."""

    keys: np.ndarray
    """uint64 [n_features], increasing: the hash of each n-gram, odd for one of characters; below 2**16 a bin."""
    idf: np.ndarray
    """float64 [n_features]."""
    weights: np.ndarray
    """float32 [n_features, n_out]; n_out is 1 for two classes."""
    bias: np.ndarray
    """float64 [n_out]."""

    occurrences: "ClassVar[Occurrences]"
    """What is counted."""

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """TF-IDF of each text."""
        return _weighted(_counted(texts, self.keys, self.occurrences), self.keys, self.idf)

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        """Weights times vectors, plus bias: float64 [n, n_out]."""
        parts = [self.vectors(texts[i : i + _CHUNK]).times(self.weights) for i in range(0, len(texts), _CHUNK)]
        return np.concatenate([np.zeros((0, len(self.bias))), *parts]) + self.bias

    def logits(self, texts: Sequence[str]) -> np.ndarray:
        """The score of each class for each text: float64 [n, n_classes]; the first of two classes has 0."""
        return classes_of(self.scores(texts))

    def weight_of(self, word: str, of: int) -> float | None:
        """The weight of one word for a class, of two classes for one against the other; None where it has none."""
        key = np.uint64(hash_of(word.lower()) & ~1)
        at = int(np.searchsorted(self.keys, key))
        if at == len(self.keys) or self.keys[at] != key:
            return None
        row = self.weights[at]
        return float(row[of] if len(row) > 1 else (2 * of - 1) * row[0])

    def tensors(self) -> dict[str, np.ndarray]:
        """What is stored of it, by name."""
        return {name: np.ascontiguousarray(value) for name, value in vars(self).items()}


def fit_linear(
    texts: Sequence[str],
    classes: np.ndarray,
    n_classes: int,
    *,
    held: np.ndarray | None = None,
    class_weights: np.ndarray | None = None,
    tolerance: float = TOLERANCE,
    kind: type[Linear] = Linear,
) -> tuple[Linear, np.ndarray]:
    """(the model of all texts, the logits [n_held, n_classes] that one without the held texts gives to these).

    classes: int64 [n]; held: bool [n], None holds none; `class_weights` [n_classes] multiply each text's loss. The
    second counts what stands in the other texts alone, as the first will in new ones.
    """
    each = None if class_weights is None else class_weights[classes]
    n_out = 1 if n_classes == 2 else n_classes
    loss = of_classes(classes)
    linear, scores = fit_scores(texts, loss, n_out, held=held, each=each, tolerance=tolerance, kind=kind)
    return linear, classes_of(scores)


def fit_scores(
    texts: Sequence[str],
    loss: "Loss",
    n_out: int,
    *,
    held: np.ndarray | None = None,
    each: np.ndarray | None = None,
    strength: float = STRENGTH,
    tolerance: float = TOLERANCE,
    kind: type[Linear] = Linear,
) -> tuple[Linear, np.ndarray]:
    """The same for the scores [n_held, n_out] of any loss of all texts, each of which weighs `each` [n]."""
    each = np.ones(len(texts)) if each is None else each
    held = np.zeros(len(texts), dtype=bool) if held is None else held
    counts = _numbered(_counted(texts, None, kind.occurrences))
    keys, idf, x = _vocabulary(*counts, ~np.zeros_like(held))
    table = np.zeros((len(keys) + 1, n_out))
    scores = np.zeros((0, n_out))
    if held.any():
        others, _, unseen = _vocabulary(*counts, ~held)
        fitted = _fitted(unseen, loss, each * ~held, np.zeros((len(others) + 1, n_out)), tolerance, strength)
        scores = (unseen.times(fitted[:-1]) + fitted[-1])[held]
        known = np.isin(others, keys)
        table[np.searchsorted(keys, others[known])], table[-1] = fitted[:-1][known], fitted[-1]
    table = _fitted(x, loss, each, table, tolerance, strength)
    return kind(keys=keys, idf=idf, weights=table[:-1].astype(np.float32), bias=table[-1]), scores


def cross_validated(texts: Sequence[str], classes: np.ndarray, n_classes: int, folds: np.ndarray) -> np.ndarray:
    """The logits [n, n_classes] that each text gets from a model of the other folds; folds int64 [n], from 0."""
    counts = _numbered(_counted(texts, None, Linear.occurrences))
    logits = np.zeros((len(texts), n_classes))
    for fold in range(int(folds.max()) + 1):
        mine = folds == fold
        keys, _, x = _vocabulary(*counts, ~mine)
        start = np.zeros((len(keys) + 1, 1 if n_classes == 2 else n_classes))
        table = _fitted(x, of_classes(classes), 1.0 - mine, start, TOLERANCE)
        logits[mine] = classes_of(x.times(table[:-1]) + table[-1])[mine]
    return logits


def fit_dense(
    x: np.ndarray, classes: np.ndarray, n_classes: int, strength: float = 1.0, tolerance: float = TOLERANCE
) -> tuple[np.ndarray, np.ndarray]:
    """(weights [d, n_out], bias [n_out]) of logistic regression on dense vectors x [n, d], for `classes_of`."""
    start = np.zeros((x.shape[1] + 1, 1 if n_classes == 2 else n_classes))
    table = least(x.__matmul__, x.T.__matmul__, of_classes(classes), np.ones(len(x)), start, tolerance, strength)
    return table[:-1], table[-1]


def _fitted(
    x: Vectors, loss: "Loss", each: np.ndarray, start: np.ndarray, tolerance: float, strength: float = STRENGTH
) -> np.ndarray:
    """`least` of sparse vectors."""
    return least(x.times, x.turned(len(start) - 1).times, loss, each, start, tolerance, strength)


Loss = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Scores float64 [n, n_out] -> (the loss of each text [n], its slopes [n, n_out])."""


def of_classes(classes: np.ndarray) -> Loss:
    """Cross-entropy with classes int64 [n]; one score is the log-odds of the second of two."""
    rows = np.arange(len(classes))

    def loss(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logs = log_softmax(classes_of(scores))
        slope = np.exp(logs)
        slope[rows, classes] -= 1
        return -logs[rows, classes], slope[:, -scores.shape[1] :]

    return loss


def of_sets(wanted: np.ndarray) -> Loss:
    """The cross-entropies of independent labels, summed; wanted [n, n_labels] is 1 for each label that a text has."""

    def loss(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (np.logaddexp(0, scores) - wanted * scores).sum(1), sigmoid(scores) - wanted

    return loss


def of_values(values: np.ndarray) -> Loss:
    """Half the squared error; values [n]."""

    def loss(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        away = scores - values[:, None]
        return 0.5 * np.square(away).sum(1), away

    return loss


def sigmoid(scores: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-scores)), without overflow."""
    return np.exp(-np.logaddexp(0, -scores))


_Product = Callable[[np.ndarray], np.ndarray]


def least(
    times: _Product,
    across: _Product,
    loss: Loss,
    each: np.ndarray,
    start: np.ndarray,
    tolerance: float,
    strength: float,
) -> np.ndarray:
    """The weights, the bias in the last row, of the least loss: float64 [n_features + 1, n_out] as `start`.

    `times` and `across` multiply the vectors, and their transpose, by a matrix; `each` [n] weighs the texts' losses.
    """
    scale = 1 / (strength * max(1.0, float(each.sum())))

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        table = flat.reshape(start.shape)
        nats, slope = loss(times(table[:-1]) + table[-1])
        slope = each[:, None] * slope
        grad = strength * np.concatenate([across(slope), slope.sum(0, keepdims=True)])
        grad[:-1] += table[:-1]
        return scale * (
            strength * float((each * nats).sum()) + 0.5 * float(np.vdot(table[:-1], table[:-1]))
        ), scale * grad.ravel()

    return minimize(objective, start.ravel(), tolerance).reshape(start.shape)


def read_linear(tensors: dict[str, np.ndarray], kind: type[Linear] = Linear) -> Linear:
    """What `Linear.tensors` gave."""
    return kind(**{name: tensors[name] for name in ("keys", "idf", "weights", "bias")})


def balanced(classes: np.ndarray, n_classes: int) -> np.ndarray:
    """Weights that give every class the same sum over these texts, 1 in the mean: float64 [n_classes]."""
    return len(classes) / (n_classes * np.maximum(np.bincount(classes, minlength=n_classes), 1))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Of each row [n, n_classes]."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def minimize(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray, tolerance: float
) -> np.ndarray:
    """Where a smooth convex function, given as (value, gradient), is least: until no slope is above the tolerance."""
    x = torch.from_numpy(start.copy())
    by = torch.optim.LBFGS(
        [x], max_iter=_ROUNDS, tolerance_grad=tolerance, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        value, grad = objective(x.numpy().copy())
        x.grad = torch.from_numpy(grad)
        return value

    by.step(closure)
    return x.numpy()


def sample(name: str, classes: np.ndarray, most: int) -> np.ndarray:
    """Which of the training part is fitted on, int64: so many in order, then the first of each class that has none
    among them; not every n-th, since classes may alternate from row to row.
    """
    if len(classes) <= most:
        return np.arange(len(classes))
    drawn = np.sort(generator(name).permutation(len(classes))[:most])
    _, firsts = np.unique(classes, return_index=True)
    return np.concatenate([drawn, firsts[~np.isin(classes[firsts], classes[drawn])]])


# counting


def classes_of(scores: np.ndarray) -> np.ndarray:
    """Scores [n, n_out] as logits [n, n_classes]."""
    return np.concatenate([np.zeros_like(scores), scores], axis=1) if scores.shape[1] == 1 else scores


@dataclass(frozen=True, eq=False)
class _Counts:
    """How often each text has each n-gram, by text and n-gram."""

    rows: np.ndarray
    keys: np.ndarray
    times: np.ndarray
    n: int


def _counted(texts: Sequence[str], known: np.ndarray | None, occurrences: "Occurrences") -> _Counts:
    """The n-grams of texts, of `known` ones alone where it is given: then `keys` are places in it."""
    parts = []
    for first in range(0, len(texts), _CHUNK):
        rows, keys = occurrences(texts[first : first + _CHUNK])
        if known is None:
            distinct, numbers = np.unique(keys, return_inverse=True)
        else:
            at = np.minimum(np.searchsorted(known, keys), max(0, len(known) - 1))
            there = known[at] == keys if len(known) else np.zeros(len(keys), dtype=bool)
            rows, numbers, distinct = rows[there], at[there], np.arange(len(known))
        cells, times = np.unique(rows * max(1, len(distinct)) + numbers, return_counts=True)
        row, number = np.divmod(cells, max(1, len(distinct)))
        parts.append((row + first, distinct[number], times))
    if not parts:
        return _Counts(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64), 0)
    rows, numbers, times = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _Counts(rows, numbers, times, len(texts))


def _numbered(counts: _Counts) -> tuple[np.ndarray, _Counts]:
    """(the different n-grams, increasing; the counts with their places for hashes)."""
    keys, numbers = np.unique(counts.keys, return_inverse=True)
    return keys, dataclasses.replace(counts, keys=numbers)


def _vocabulary(keys: np.ndarray, counts: _Counts, taken: np.ndarray) -> tuple[np.ndarray, np.ndarray, Vectors]:
    """The n-grams of the `taken` texts, bool [n], that get a weight, their idf, and the vectors of all texts."""
    n_texts = np.bincount(counts.keys[taken[counts.rows]], minlength=len(keys))
    chosen = (n_texts >= 2) | ((n_texts == 1) & (keys & np.uint64(1) == 0))
    if chosen.sum() > MOST_FEATURES:
        order = np.argsort(np.where(chosen, -n_texts, 1), kind="stable")
        chosen = np.isin(np.arange(len(keys)), order[:MOST_FEATURES])
    stays, place = chosen[counts.keys], np.cumsum(chosen) - 1
    kept = _Counts(counts.rows[stays], place[counts.keys[stays]], counts.times[stays], counts.n)
    idf = 1 + np.log((1 + taken.sum()) / (1 + n_texts[chosen]))
    return keys[chosen], idf, _weighted(kept, keys[chosen], idf)


def _weighted(counts: _Counts, keys: np.ndarray, idf: np.ndarray) -> Vectors:
    """TF-IDF of counts whose keys are places, each kind of length 1."""
    values = (1 + np.log(counts.times)) * idf[counts.keys]
    of_key = np.where(keys < _BINNED, 2, keys & np.uint64(1)).astype(np.int64)
    kinds = 3 * counts.rows + of_key[counts.keys]
    values = values / np.sqrt(np.bincount(kinds, values**2, minlength=3 * counts.n))[kinds]
    starts = np.searchsorted(counts.rows, np.arange(counts.n + 1))
    return Vectors(starts=starts, columns=np.asarray(counts.keys, dtype=np.int64), values=values)


@lru_cache(1 << 16)
def hash_of(text: str) -> int:
    """64 bits of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def pairs_of(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The even hash of two words in a row."""
    with np.errstate(over="ignore"):
        mixed = (left ^ (left >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15) + right
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
    return (mixed ^ (mixed >> np.uint64(27))) & ~np.uint64(1)


def numbered(lists: list[list[str]]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """(different words, the number of each word of all lists in order, the list that it stands in)."""
    seen: dict[str, int] = {}
    numbers = np.array([seen.setdefault(word, len(seen)) for words in lists for word in words], dtype=np.int64)
    return list(seen), numbers, np.repeat(np.arange(len(lists)), [len(words) for words in lists])


def _grams(word: str) -> list[int]:
    """The odd hashes of the runs of characters of one word."""
    padded = f" {word} "
    return [hash_of(padded[i : i + n]) | 1 for n in _LENGTHS for i in range(len(padded) - n + 1)]


def _occurrences(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(text, hash) of every n-gram of every text: int64 [m], uint64 [m]."""
    lower = [text.lower() for text in texts]
    owners, hashes = _of_words([WORDS.findall(text) for text in lower])
    of_texts, by_column = of_columns(texts)
    words, numbers, outer = numbered([text.split() for text in lower])
    rows, grams = spread([_grams(word) for word in words], numbers)
    return np.concatenate([owners, outer[rows], of_texts]), np.concatenate([hashes, grams, by_column])


Occurrences = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]
"""Texts -> (text, hash) of every feature of every text: int64 [m], uint64 [m]."""
Linear.occurrences = staticmethod(_occurrences)


def spread(keys: Sequence[Sequence[int]], numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The keys of each word of a list that is `numbers` [n]: (place in the list int64 [m], key uint64 [m])."""
    sizes = np.array([len(found) for found in keys], dtype=np.int64)
    flat = np.array([key for found in keys for key in found], dtype=np.uint64)
    each = sizes[numbers]
    firsts = (np.cumsum(sizes) - sizes)[numbers]
    places = np.arange(int(each.sum())) - np.repeat(np.cumsum(each) - each, each) + np.repeat(firsts, each)
    return np.repeat(np.arange(len(numbers)), each), flat[places]


def _of_words(lists: list[list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """(list, even hash) of every word and pair of words: int64 [m], uint64 [m]."""
    words, numbers, owners = numbered(lists)
    hashes = np.array([hash_of(word) & ~1 for word in words], dtype=np.uint64)[numbers]
    inside = owners[1:] == owners[:-1]
    both = pairs_of(hashes[:-1], hashes[1:])[inside]
    return np.concatenate([owners, owners[1:][inside]]), np.concatenate([hashes, both])


def of_columns(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(text, key) of what columns add: words and pairs of words by column, those that two share, and bins; texts of
    one column have none. int64 [m], uint64 [m].
    """
    split = {i: text.split(BETWEEN) for i, text in enumerate(texts) if BETWEEN in text}
    places = [(i, k) for i, columns in split.items() for k in range(len(columns))]
    words = [WORDS.findall(split[i][k].lower()) for i, k in places]
    owners, hashes = _of_words(words)
    at = np.array(places, dtype=np.int64).reshape(-1, 2)
    rows, keys = [at[owners, 0]], [pairs_of(hashes, (at[owners, 1] + 1).astype(np.uint64))]
    first = {i: n for n, (i, k) in enumerate(places) if k == 0}
    for i, columns in split.items():
        for a, b in combinations(range(min(len(columns), _MOST_COLUMNS)), 2):
            left, right = words[first[i] + a], words[first[i] + b]
            shared = np.array([hash_of(word) & ~1 for word in sorted({*left} & {*right})], dtype=np.uint64)
            pair = _MOST_COLUMNS * a + b
            bins = [((pair << 4) + k << 4) + found for k, found in enumerate(_bins(left, right))]
            keys += [
                pairs_of(shared, np.full(len(shared), 256 + pair, dtype=np.uint64)),
                np.array(bins, dtype=np.uint64),
            ]
            rows.append(np.full(len(shared) + len(bins), i))
    return np.concatenate(rows), np.concatenate(keys)


def _bins(left: list[str], right: list[str]) -> list[int]:
    """How alike two columns are, each in 0..10: shared words of all, of the left and of the right ones; runs of four
    characters; and 5 plus twice the binary logarithm of how many times as many words the right one has.
    """
    found = []
    for one, other in (({*left}, {*right}), tuple({*_runs(" ".join(words))} for words in (left, right))):
        shared = len(one & other)
        found += [shared / max(1, n) for n in (len(one | other), len(one), len(other))]
    longer = 0.5 + 0.2 * np.log2(max(1, len(right)) / max(1, len(left)))
    return [int(round(_BINS * min(1.0, max(0.0, share)))) for share in (*found, longer)]


def _runs(text: str) -> list[str]:
    return [text[i : i + 4] for i in range(len(text) - 3)]

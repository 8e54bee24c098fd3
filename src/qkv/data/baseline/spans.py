"""What counting says of the answer to a question: logistic regression on words, overlaps and distances.

Each word of a text has a score as the first and as the last word of the answer, the sum of the weights of its features.
Both are softmaxes over the words of the text; the weights minimize the summed loss plus half their squares. Features
are the word, its neighbors and their shapes ("Xx-9"); which words around it are in the question, how far the nearest
ones are, and the rank of its sentence by how much of the question it holds (TF-IDF over the text's sentences); and
pairs of these with the question's interrogative, the word behind that, and its other words (after the baseline of
Rajpurkar et al. 2016, arXiv 1606.05250). Features share weights by hash (Weinberger et al. 2009, arXiv 0902.2206).
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import zip_longest

import numpy as np

from qkv.data.baseline.linear import BETWEEN, TOLERANCE, WORDS, hash_of, least, numbered, pairs_of
from qkv.data.baseline.words import shape_of

MOST_FITTED = 200_000
"""Words of training texts that the weights are fitted to."""
_WEIGHTS, _CHUNK = 1 << 16, 1000
_ASKING = {*"who whom whose what which when where why how".split()}
_COMMON, _FAR, _MOST, _NEAR = 3, 9, 6, 2
"""Letters up to which a word is taken for a function word, places up to which a distance counts, words of the question
that are paired with those of the text, and words on either side that are compared with it."""


def fit_spans(texts: Sequence[list[str]], ends: np.ndarray, tolerance: float = TOLERANCE) -> np.ndarray:
    """Weights float64 [n_weights, 2] of texts behind questions; ends [n_words, 2] is 1 where answers begin and end."""
    sizes, features = np.array([len(text) for text in texts]), [*_features(texts)]
    starts, each = np.cumsum(sizes) - sizes, np.repeat(np.arange(len(sizes)), sizes)
    never = 1e9 * (np.diff(each, prepend=-1) > 0)[:, None]

    def loss(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shifted = scores - never - np.maximum.reduceat(scores - never, starts)[each]
        logs = shifted - np.log(np.add.reduceat(np.exp(shifted), starts))[each]
        return -(ends * logs).sum(1), np.exp(logs) - ends

    def across(slope: np.ndarray) -> np.ndarray:
        return np.stack([sum(np.bincount(f, one, _WEIGHTS) for f in features) for one in slope.T], axis=1)

    start, tolerance = np.zeros((_WEIGHTS + 1, 2)), tolerance * len(sizes) / len(each)
    return least(lambda w: _sums(w, features), across, loss, np.ones(len(each)), start, tolerance, 1.0)[:-1]


def span_scores(weights: np.ndarray, texts: Sequence[list[str]]) -> np.ndarray:
    """The scores of each word as either end, those of questions without meaning: float64 [n_words, 2]."""
    parts = (texts[i : i + _CHUNK] for i in range(0, len(texts), _CHUNK))
    return np.concatenate([_sums(weights, _features(part)) for part in parts])


def _sums(weights: np.ndarray, features: Iterable[np.ndarray]) -> np.ndarray:
    return sum((weights.take(each, axis=0) for each in features), np.zeros(2))


def _features(texts: Sequence[list[str]]) -> Iterator[np.ndarray]:
    """Which weight each word has for each feature: uint16 [n_words]; 0 for all of a text whose question lacks it."""
    words, numbers, owners = numbered([["", *text[1:]] for text in texts])
    h, s = (np.array([hash_of(of(word)) for word in words], dtype=np.uint64)[numbers] for of in (str.lower, shape_of))
    asked = [WORDS.findall(text[0].partition(BETWEEN)[0].lower()) for text in texts]
    shared = np.array([w.lower() in some for text, some in zip(texts, map(set, asked), strict=True) for w in text])
    content = shared & np.array([len(word) > _COMMON for word in words])[numbers]
    stops = np.array([word in ".!?" for word in words])[numbers]  # "", the question, too
    sentence = np.cumsum((np.diff(owners, prepend=-1) > 0) | np.roll(stops, 1)) - 1
    padded = np.pad(sentence, _FAR, constant_values=-1)

    def moved(values: np.ndarray, by: int) -> np.ndarray:
        """What is `by` words on from each in its sentence; 0 where there is none."""
        there = slice(_FAR + by, _FAR + by + len(values))
        return np.pad(values, _FAR)[there] * (padded[there] == sentence)

    away, which = np.full((2, len(h)), _FAR + 1), np.zeros((2, len(h)), dtype=np.uint64)
    for k in range(_FAR, 0, -1):
        for side, by in enumerate((-k, k)):
            there = moved(content, by)
            away[side, there], which[side, there] = k, moved(h, by)[there]
    rank = _ranks(h, shared, sentence, owners)
    left, right, before, behind = (moved(x, k) for x in (h, s) for k in (-1, 1))
    near = sum(moved(shared, k) << _NEAR + k for k in range(-_NEAR, _NEAR + 1))
    (back, on), (last, following) = away, which
    at = [next((i for i, word in enumerate(some) if word in _ASKING), 0) for some in asked]
    heads = [[hash_of(" ".join(some[i : i + n])) for some, i in zip(asked, at, strict=True)] for n in (1, 2)]
    kind, head = np.array(heads, dtype=np.uint64)[:, owners]
    alone = [(s,), (kind, s), (head, s), (before, s, behind), (near,), (near, head), (rank,), (rank, head, s),
             (back, s), (on, s), (back, on, s), (rank, back, s), (h,), (left,), (right,), (head, h), (head, left),
             (head, right), (head, rank, left), (back, last, kind), (on, following, kind), (back, left)]  # fmt: skip
    yield from (_key(np.full(1, i), *parts).astype(np.uint16) for i, parts in enumerate(alone))
    told = [[hash_of(word) for word in some if len(word) > _COMMON and word not in _ASKING] for some in asked]
    for column in zip_longest(*(some[-_MOST:] for some in told), fillvalue=0):
        word = np.array(column, dtype=np.uint64)[owners]
        for i, x in enumerate((s, left, right), 1):
            yield np.where(word, _key(np.full(1, -i), word, x), 0).astype(np.uint16)


def _ranks(hashed: np.ndarray, shared: np.ndarray, sentence: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """The rank of each word's sentence from 0, by the words of the question in it, of which rare ones weigh more."""
    texts = owners[np.flatnonzero(np.diff(sentence, prepend=-1))]
    n, at = np.bincount(texts), np.flatnonzero(shared)
    at = at[np.unique(_key(sentence[at], hashed[at]), return_index=True)[1]]
    _, which, times = np.unique(_key(owners[at], hashed[at]), return_inverse=True, return_counts=True)
    held = np.bincount(sentence[at], np.log((n[owners[at]] + 1) / times[which]), len(texts))
    return (np.argsort(np.lexsort((-held, texts))) - (np.cumsum(n) - n)[texts])[sentence]


def _key(*parts: np.ndarray) -> np.ndarray:
    return reduce(pairs_of, (part.astype(np.uint64) for part in parts)) >> np.uint64(16)

"""A strong baseline for answers in texts: a linear model of the first and of the last word, without a Transformer.

Each word has a score as either; both are a softmax over the words of a text, of which the question is one. What is
counted of a word: it, its neighbors and their shapes; which words around it are in the question, how far the nearest
ones are, and the rank of its sentence by how much of the question it holds (TF-IDF over the text's sentences); and
pairs of these with the question's interrogative, the word behind that, and its other words (after the baseline of
Rajpurkar et al. 2016, arXiv 1606.05250).
"""

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from qkv.data.baseline.linear import WORDS, Linear, Loss, fit_scores, hash_of, pairs_of
from qkv.data.baseline.words import runs_of, shape_of
from qkv.data.examples import Answered
from qkv.tasks.labels.answer import Span, best_spans

_ASKING = {*"who whom whose what which when where why how".split()}
_COMMON, _FAR, _MOST, _NEAR = 3, 9, 6, 2
"""Letters up to which a word is taken for a function word, places up to which a distance counts, words of the question
that are paired with those of the text, and words on either side that are compared with it."""

Place = tuple[int, Sequence[str]]
"""The number of a word, and the words of its text; the first is the question."""


class OfSpans(Linear):
    """Of words in their texts."""


def of_ends(owners: np.ndarray, classes: np.ndarray) -> Loss:
    """The cross-entropies of both ends of each answer; int64 [n_words] each: the text of a word, and 1 for a first
    word, 2 for a last one, 3 for both.
    """
    starts = np.array([first for first, _ in runs_of(owners)], dtype=np.int64)
    each, wanted = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(owners)))), ends_of(classes)

    def loss(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shifted = scores - np.maximum.reduceat(scores, starts)[each]
        logs = shifted - np.log(np.add.reduceat(np.exp(shifted), starts))[each]
        return -(wanted * logs).sum(1), np.exp(logs) - wanted

    return loss


def logistic(train: Answered, test: Answered) -> list[Span]:
    """The answers of a logistic regression that was fitted to one part, to the questions of another."""
    loss = of_ends(train.owners, train.classes)
    linear, _ = fit_scores(read(train), loss, 2, kind=OfSpans)  # type: ignore[arg-type]
    return best_spans(linear.scores(read(test)), test.owners)  # type: ignore[arg-type]


def read(part: Answered) -> list[Place]:
    """Each word in its text."""
    return [(i, text) for a, b in runs_of(part.owners) for text in [part.words[a:b]] for i in range(b - a)]


def ends_of(classes: np.ndarray) -> np.ndarray:
    """Whether an answer begins, and ends, with each word: float64 [n, 2]."""
    return (classes[:, None] & [1, 2] > 0).astype(np.float64)


def in_question(words: Sequence[str]) -> np.ndarray:
    """1 for each word behind the first that is in it, in any case, else 0: int64 [n - 1]."""
    asked = {*WORDS.findall(words[0].lower())}
    return np.array([word.lower() in asked for word in words[1:]], dtype=np.int64)


def _occurrences(places: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """(place, key) of every feature: int64 [m], uint64 [m]; odd keys where a word is known by its letters."""
    keys = [np.zeros((0, 1), dtype=np.uint64)]
    for _, some in groupby(places, key=lambda place: id(place[1])):
        numbers, (words, *_) = zip(*some, strict=True)
        keys.append(_features(words)[list(numbers)])
    n = max(found.shape[1] for found in keys)
    table = np.concatenate([np.pad(found, ((0, 0), (0, n - found.shape[1]))) for found in keys])
    rows, columns = np.nonzero(table)
    return rows, table[rows, columns]


OfSpans.occurrences = staticmethod(_occurrences)


def _features(words: Sequence[str]) -> np.ndarray:
    """The keys of the question, which has one, and of each word behind it: uint64 [n, n_features]; 0 is no feature."""
    asked, text = WORDS.findall(words[0].lower()), words[1:]
    h, s = (np.array([hash_of(of(word)) for word in text], dtype=np.uint64) for of in (str.lower, shape_of))
    shared = in_question(words)
    content = (shared > 0) & np.array([len(word) > _COMMON for word in text], dtype=bool)
    sentence = np.cumsum([0, *(word in ".!?" for word in text[:-1])])
    rank = _ranks(h, shared, sentence)[sentence]
    left, right, before, behind = (_moved(x, k) for x in (h, s) for k in (-1, 1))
    near = sum(_moved(shared << _NEAR + k, k) for k in range(-_NEAR, _NEAR + 1))
    (back, last), (on, following) = (_nearest(content, sentence, h, way) for way in (-1, 1))
    at = next((i for i, word in enumerate(asked) if word in _ASKING), 0)
    kind, head = hash_of(" ".join(asked[at : at + 1])), hash_of(" ".join(asked[at : at + 2]))
    told = [hash_of(word) for word in asked if len(word) > _COMMON and word not in _ASKING][-_MOST:]
    shapes = [(s,), (kind, s), (head, s), (before, s, behind), (near,), (near, head), (rank,), (rank, head, s),
              (back, s), (on, s), (back, on, s), (rank, back, s)]  # fmt: skip
    letters = [(h,), (left,), (right,), (head, h), (head, left), (head, right), (head, rank, left), (back, last, kind),
               (on, following, kind), (back, left)]  # fmt: skip
    n = len(shapes) + len(letters)
    pairs = [(word, x) for word in told for x in (s, left, right)]
    keys = np.zeros((len(words), n + len(pairs)), dtype=np.uint64)
    for i, parts in enumerate([*shapes, *letters, *pairs]):
        key = np.uint64(hash_of(f"feature {i if i < n else n + (i - n) % 3}"))
        for part in parts:
            key = pairs_of(key, np.asarray(part, dtype=np.uint64))
        keys[1:, i] = key
    keys[1:, len(shapes) :] |= np.uint64(1)
    keys[0, 0] = 2
    return keys


def _ranks(hashed: np.ndarray, shared: np.ndarray, sentence: np.ndarray) -> np.ndarray:
    """The rank of each sentence from 0 by the words of the question that it holds; a word weighs the more, the fewer
    sentences have it.
    """
    n = int(sentence[-1]) + 1
    found = {(word, of) for word, of, there in zip(hashed.tolist(), sentence.tolist(), shared, strict=True) if there}
    words, owners = (np.array(x, dtype=np.uint64) for x in zip(*found, strict=True)) if found else (hashed[:0],) * 2
    _, number, times = np.unique(words, return_inverse=True, return_counts=True)
    scores = np.bincount(owners.astype(np.int64), np.log((n + 1) / times)[number], minlength=n)
    return np.argsort(np.argsort(-scores, kind="stable"), kind="stable")


def _nearest(content: np.ndarray, sentence: np.ndarray, hashed: np.ndarray, way: int) -> tuple[np.ndarray, np.ndarray]:
    """(how far the nearest content word of the question is, which it is), before (-1) or behind (1) a word in its
    sentence.
    """
    away, which = np.full(len(content), _FAR + 1), np.zeros(len(content), dtype=np.uint64)
    for k in range(_FAR, 0, -1):
        there = _moved(content, way * k, _FAR) & (_moved(sentence + 1, way * k, _FAR) == sentence + 1)
        away[there], which[there] = k, _moved(hashed, way * k, _FAR)[there]
    return away, which


def _moved(values: np.ndarray, by: int, most: int = _NEAR) -> np.ndarray:
    """The value `by` places on from each; 0 where there is none."""
    return np.pad(values, most)[most + by : most + by + len(values)]

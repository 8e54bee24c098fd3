"""What counting says of a hidden token from both sides: n-grams read forward and backward, multiplied.

    P(w | left, right)  ~  (P(w | left) P(w | right))^a / P(w)^c,  normalized over the vocabulary

P(w | left) is the interpolated Kneser-Ney n-gram of `ngrams`, P(w | right) the same of the reversed text, P(w) the
unigram. With a = c = 1 this is Bayes' rule for sides that are independent given w; neighbors are not, so a, c and the
order are fitted to hidden tokens of the last tenth of the training text, with n-grams of the other nine (a product of
experts with two weights: Hinton 2002, "Training products of experts by minimizing contrastive divergence"). All counts
are then taken again from the whole training text. A neighbor that is itself hidden, or outside the window, is read as a
token that was never met: the n-gram falls back to the tokens nearer by.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from qkv.data.baseline.ngrams import Grams
from qkv.data.baseline.text import MOST_COUNTED, kept_or_made, spread
from qkv.data.caching import cache_key
from qkv.data.corpus import Corpus
from qkv.jsontypes import JsonObject
from qkv.randomness import generator

ORDERS = range(2, 8)
"""Tried in turn, until one does worse than the one before."""
HELD_OUT, RATE = 0.1, 0.15
MOST_FITTED, LEAST_FITTED, CELLS_FITTED = 4096, 256, 1 << 22
"""Hidden tokens that weights are fitted to; so many as keep [token, d_vocab] within CELLS_FITTED."""
CELLS_SCORED = 1 << 27
"""Hidden tokens times d_vocab that are scored at most: seconds."""
_CELLS = 1 << 21
_LARGEST = 2.0
"""Of a weight: a few held-out tokens that are all guessed rightly would have it without end."""


class Hidden(NamedTuple):
    """A text of which some tokens are hidden."""

    shown: np.ndarray
    """int64 [n]: ids below d_vocab; d_vocab where a token is hidden or is no neighbor of those beside it."""
    places: np.ndarray
    """int64 [n_hidden]: where in `shown` the hidden tokens are."""
    answers: np.ndarray
    """int64 [n_hidden]: what they are."""


class BothSides(NamedTuple):
    """Nats of hidden tokens; `order` n reads n - 1 tokens on either side."""

    unigram: np.ndarray
    """float64 [n_hidden]."""
    ngram: np.ndarray
    """float64 [n_hidden]."""
    order: int
    weights: tuple[float, float]
    """a and c."""


def most_scored(d_vocab: int) -> int:
    """Hidden tokens that are scored, the first ones: what takes seconds."""
    return max(1, CELLS_SCORED // d_vocab)


def hidden_baselines(corpus: Corpus, text: Hidden, cache: Path | None) -> tuple[JsonObject, np.ndarray]:
    """(`unigram`, `ngram`: mean nats per hidden token of a validation `text`, `ngram_order`, `weights` and a `note` on
    what was sampled; float32 [n_hidden]: nats of each under the n-gram). From the cache where it was kept."""
    d_vocab = corpus.tokenizer.d_vocab

    def make() -> tuple[JsonObject, np.ndarray]:
        found = both_sides(spread(corpus.train.ids, MOST_COUNTED), text, d_vocab)
        facts = {"unigram": float(found.unigram.mean()), "ngram": float(found.ngram.mean())}
        return facts | {"ngram_order": found.order, "weights": found.weights, "note": _note(corpus, text)}, found.ngram

    return kept_or_made(cache, _name(corpus, text), make)


def _name(corpus: Corpus, text: Hidden) -> str:
    """Where they are kept."""
    hashes = (hashlib.sha256(part.tobytes()).hexdigest() for part in text)
    return f"baselines/both-{cache_key(corpus.sha256, corpus.tokenizer.sha256, len(corpus.train), *hashes)}.json"


def expected_seconds(corpus: Corpus, text: Hidden, cache: Path | None) -> float:
    """About how long `hidden_baselines` takes on a core of its own, by sizes alone; 0 where they are kept."""
    if cache is not None and (cache / _name(corpus, text)).is_file():
        return 0.0
    d_vocab, n_train = corpus.tokenizer.d_vocab, min(len(corpus.train), MOST_COUNTED)
    fitted = d_vocab * min(_most_fitted(d_vocab), RATE * HELD_OUT * n_train)
    return 2e-6 * n_train + 1.2e-6 * fitted + 4e-8 * min(CELLS_SCORED, RATE * len(corpus.val) * d_vocab)


def _most_fitted(d_vocab: int) -> int:
    return max(LEAST_FITTED, min(MOST_FITTED, CELLS_FITTED // d_vocab))


def _note(corpus: Corpus, text: Hidden) -> str:
    notes = []
    if len(corpus.train) > MOST_COUNTED:
        notes.append(f"n-grams counted on {MOST_COUNTED:,} of {len(corpus.train):,} training tokens, in even blocks")
    if len(text.places) >= most_scored(corpus.tokenizer.d_vocab):
        notes.append(f"n-grams scored on the first {len(text.places):,} hidden validation tokens")
    return "; ".join(notes)


def both_sides(train: np.ndarray, text: Hidden, d_vocab: int) -> BothSides:
    """Count on `train` (int [n_tokens]), and score the hidden tokens of `text`."""
    train = np.asarray(train, dtype=np.int64)
    order, weights = _fitted(train, d_vocab)
    logs = _Logs(train, text, d_vocab, order)
    step, nats = max(1, _CELLS // d_vocab), []
    for first in range(0, len(text.places), step):
        at = slice(first, first + step)
        nats.append(-_chosen(_normalized(weights, logs.sides(at), logs.unigram), text.answers[at]))
    return BothSides(-logs.unigram[text.answers], np.concatenate(nats), order, weights)


def _fitted(train: np.ndarray, d_vocab: int) -> tuple[int, tuple[float, float]]:
    """The order and the weights that give hidden tokens at the end of `train` the lowest loss."""
    cut = len(train) - int(HELD_OUT * len(train))
    keys, end = generator("both sides").random(len(train) - cut), train[cut:]
    places = np.flatnonzero(keys < RATE)
    shown = end.copy()
    shown[places] = d_vocab
    places = places[:: -(-len(places) // _most_fitted(d_vocab)) or 1]
    if not len(places):  # too short a text to fit anything
        return ORDERS[0], (1.0, 1.0)
    held_out, best = Hidden(shown, places, end[places]), (np.inf, ORDERS[0], (1.0, 1.0))
    for order in ORDERS:
        logs = _Logs(train[:cut], held_out, d_vocab, order)
        nats, weights = _weights(logs.sides(slice(None)), logs.unigram, held_out.answers)
        if nats >= best[0]:
            break
        best = nats, order, weights
    return best[1:]


def _weights(sides: np.ndarray, unigram: np.ndarray, answers: np.ndarray) -> tuple[float, tuple[float, float]]:
    """(mean nats, (a, c)) at the minimum of a convex loss, by Newton's method: its gradient is the mean of
    (sides, -unigram) under the model minus that of the answers, its curvature their covariance under the model."""
    weights, answered = np.ones(2), np.array([_chosen(sides, answers).mean(), -unigram[answers].mean()])
    for _ in range(12):
        p = np.exp(_normalized((weights[0], weights[1]), sides, unigram))
        first, second = (p * sides).sum(1), -p @ unigram
        gradient = np.array([first.mean(), second.mean()]) - answered
        both = ((p * sides) @ -unigram - first * second).mean()
        own = ((p * sides**2).sum(1) - first**2).mean(), (p @ unigram**2 - second**2).mean()
        step = np.linalg.solve(np.array([[own[0], both], [both, own[1]]]) + 1e-9 * np.eye(2), gradient)
        weights = np.clip(weights - step, 0.0, _LARGEST)
        if np.abs(step).max() < 1e-4:
            break
    a, c = float(weights[0]), float(weights[1])
    return float(-_chosen(_normalized((a, c), sides, unigram), answers).mean()), (a, c)


def _normalized(weights: tuple[float, float], sides: np.ndarray, unigram: np.ndarray) -> np.ndarray:
    """log P, float64 [n, d_vocab]."""
    logits = weights[0] * sides - weights[1] * unigram
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def _chosen(rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return rows[np.arange(len(tokens)), tokens]


class _Logs:
    """Logarithms of what both sides say of every token of the vocabulary at the hidden places of a text."""

    def __init__(self, train: np.ndarray, text: Hidden, d_vocab: int, order: int) -> None:
        n = len(text.shown)
        self._d_vocab = d_vocab
        after = np.append(d_vocab, text.shown)  # nothing is read across the end of the training text
        self._forward = _levels(train, after, text.places + 1, order)
        before = np.append(d_vocab, text.shown[::-1])
        self._backward = _levels(train[::-1], before, n - text.places, order)
        nothing = np.zeros(1, dtype=np.int64)
        self.unigram: np.ndarray = np.log(_rows(_levels(train, nothing, nothing, 1), slice(0, 1), d_vocab)[0])
        """float64 [d_vocab]: log P(w)."""

    def sides(self, at: slice) -> np.ndarray:
        """log P(w | left) + log P(w | right), float64 [n_hidden, d_vocab] of some of the places."""
        forward, backward = (_rows(side, at, self._d_vocab) for side in (self._forward, self._backward))
        return np.log(forward) + np.log(backward)


class _Level(NamedTuple):
    """The n-grams of one order that were met, by context."""

    begins: np.ndarray
    """int64 [n_contexts + 1]: where each context's own begin in the two that follow."""
    tokens: np.ndarray
    shares: np.ndarray
    """float64: (count - D) / all of the context."""
    back_off: np.ndarray
    """float64 [n_contexts]: what is left for the order below."""
    contexts: np.ndarray
    """int64 [n_places]: the context of each place."""


def _levels(train: np.ndarray, shown: np.ndarray, places: np.ndarray, order: int) -> list[_Level]:
    """Orders 1 to `order`, each but the last by continuation counts, as the contexts to the left of `places` ask."""
    stream = np.concatenate([train, shown])
    at = places + len(train)
    grams, contexts, found = Grams.first(stream, len(train)), np.zeros(len(at), dtype=np.int64), []
    for n in range(1, order + 1):
        longer = grams.longer(stream, len(train)) if n < order else None
        counts = grams.counts if longer is None else grams.continuations(longer)
        share, back_off = grams.split(counts, 1)
        tokens = np.empty(len(counts), dtype=np.int64)
        tokens[grams.number[n - 1 :]] = stream[n - 1 :]
        met = np.flatnonzero(counts)
        met = met[np.argsort(grams.context[met], kind="stable")]
        begins = np.searchsorted(grams.context[met], np.arange(grams.n_contexts + 1))
        found.append(_Level(begins, tokens[met], share[met], back_off, contexts))
        if longer is not None:
            contexts, grams = grams.number[at - 1], longer
    return found


def _rows(levels: list[_Level], at: slice, d_vocab: int) -> np.ndarray:
    """P(w | context) of every token w, float64 [n_places, d_vocab] of some of the places; rows sum to 1."""
    n_rows = len(levels[0].contexts[at])
    found = np.full((n_rows, d_vocab), 1.0 / d_vocab)
    for level in levels:
        contexts = level.contexts[at]
        found *= level.back_off[contexts, None]
        n = level.begins[contexts + 1] - level.begins[contexts]
        own = np.repeat(level.begins[contexts] - np.cumsum(n) + n, n) + np.arange(n.sum())
        found[np.repeat(np.arange(n_rows), n), level.tokens[own]] += level.shares[own]
    return found

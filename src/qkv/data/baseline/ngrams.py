"""Interpolated Kneser-Ney n-grams over token ids, all orders in one sweep, in arrays.

Kneser and Ney 1995 ("Improved backing-off for m-gram language modeling"), in the notation of Chen and Goodman 1998
(TR-10-98, section 3):

    P(w | h)   = max(c(hw) - D, 0) / c(h.) + D N1+(h.) / c(h.) * P'(w | h without its first token)
    P'(w | h)  = the same with N1+(.hw), the number of different tokens seen before hw, in place of c(hw)
    D          = n1 / (n1 + 2 n2), with n_k the number of n-grams of that order counted k times
    at the end   the uniform distribution over d_vocab

With three discounts (for counts of 1, 2, and 3 or more) it is Chen and Goodman's modified smoothing. An order-n model
takes plain counts c at order n and continuation counts N1+ below, so that one sweep over the orders gives the models of
all orders. Each n-gram of the text is a number (ranks of pairs, order by order); counting is sorting, and nothing is a
dictionary. Only the probabilities of the tokens to be scored are computed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


def ngram_losses(
    train: np.ndarray, val: np.ndarray, d_vocab: int, most: int, discounts: int = 1
) -> Iterator[np.ndarray]:
    """For orders 1, 2, ... `most` in turn: nats of each token of `val` after the first, float64 [len(val) - 1].

    train, val: integers [n_tokens], ids below d_vocab. A token near the beginning of `val` has a shorter context. Each
    model is fitted to `train` alone. `discounts` is 1 (Kneser-Ney) or 3 (modified). Memory: about 60 bytes a token.
    """
    assert discounts in (1, 3)
    n_train = len(train)
    stream = np.concatenate([train, val]).astype(np.int64)
    in_val = np.arange(n_train, len(stream))
    lower = np.full(len(val), 1.0 / d_vocab)  # P' of the order below, for each token of val
    grams = Grams.first(stream, n_train)
    for order in range(1, most + 1):
        context_fits = np.arange(len(val)) >= order - 1  # else P' of the order below stands
        here = in_val[context_fits]
        plain = lower.copy()
        plain[context_fits] = grams.probabilities(here, grams.counts, lower[context_fits], discounts)
        yield -np.log(plain[1:])
        if order == most:
            return
        longer = grams.longer(stream, n_train)
        continuations = grams.continuations(longer)
        lower[context_fits] = grams.probabilities(here, continuations, lower[context_fits], discounts)
        grams = longer


@dataclass(frozen=True, kw_only=True, eq=False)
class Grams:
    """The n-grams of one order in a stream whose first n_train tokens are trained on."""

    order: int
    number: np.ndarray
    """int64 [n_stream]: number of the n-gram that ends at each position (undefined where it would begin before 0)."""
    context: np.ndarray
    """int64 [n_grams]: number of each n-gram's context, its tokens but the last, among the (n-1)-grams."""
    suffix: np.ndarray
    """int64 [n_grams]: number of its tokens but the first, among the (n-1)-grams."""
    n_contexts: int
    counts: np.ndarray
    """int64 [n_grams]: how often each occurs in the training part."""

    @classmethod
    def first(cls, stream: np.ndarray, n_train: int) -> "Grams":
        """Single tokens, whose one context is empty."""
        size = int(stream.max(initial=0)) + 1
        nothing = np.zeros(size, dtype=np.int64)
        counts = np.bincount(stream[:n_train], minlength=size)
        return cls(order=1, number=stream, context=nothing, suffix=nothing, n_contexts=1, counts=counts)

    def longer(self, stream: np.ndarray, n_train: int) -> "Grams":
        """The n-grams of one token more: the ranks of (number of the n-gram before, token)."""
        order = self.order + 1
        size = np.int64(stream.max(initial=0) + 1)
        ordered, places = _sorted_with_places(self.number[order - 2 : -1] * size + stream[order - 1 :])
        first = np.ones(len(ordered), dtype=bool)
        np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
        number = np.empty(len(stream), dtype=np.int64)
        number[order - 1 :][places] = np.cumsum(first) - 1
        example = places[first] + (order - 1)
        # An n-gram of training text lies in it whole; those that reach across the border count for neither.
        counts = np.bincount(number[order - 1 : n_train], minlength=len(example))
        return Grams(
            order=order,
            number=number,
            context=self.number[example - 1],
            suffix=self.number[example],
            n_contexts=len(self.counts),
            counts=counts,
        )

    def continuations(self, longer: "Grams") -> np.ndarray:
        """N1+(. gram): how many different tokens stand before each n-gram in the training part, int64 [n_grams]."""
        return np.bincount(longer.suffix[longer.counts > 0], minlength=len(self.counts))

    def probabilities(self, positions: np.ndarray, counts: np.ndarray, lower: np.ndarray, kinds: int) -> np.ndarray:
        """P(token | context) at those positions, float64, from counts of this order and P' of the order below."""
        share, back_off = self.split(counts, kinds)
        gram = self.number[positions]
        return share[gram] + back_off[self.context[gram]] * lower

    def split(self, counts: np.ndarray, kinds: int) -> tuple[np.ndarray, np.ndarray]:
        """(each n-gram's own share of its context, float64 [n_grams]; what of each context is left for the order below,
        float64 [n_contexts]), by these counts. All is left where a context was never met."""
        taken = _discounts(counts, kinds)[np.minimum(counts, 3)]
        totals = np.bincount(self.context, weights=counts, minlength=self.n_contexts)
        kept_back = np.bincount(self.context, weights=taken, minlength=self.n_contexts)
        seen = totals > 0
        totals[~seen] = 1.0
        return (counts - taken) / totals[self.context], np.where(seen, kept_back / totals, 1.0)


def _sorted_with_places(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The keys (int64 >= 0) in order, and where each stood.

    Sorting key and place as one number is several times as fast as an argsort; it is used where 63 bits hold both.
    """
    bits = int(len(keys)).bit_length()
    if int(keys.max(initial=0)) >> (63 - bits):
        places = np.argsort(keys, kind="stable")
        return keys[places], places
    both = np.sort(keys << bits | np.arange(len(keys)))
    return both >> bits, both & ((1 << bits) - 1)


def _discounts(counts: np.ndarray, kinds: int) -> np.ndarray:
    """What is taken off a count of 0, 1, 2, 3 and more, from counts of counts; float64 [4], none above its count.

    kinds 1: one discount n1 / (n1 + 2 n2). kinds 3: D1, D2, D3+ by Chen and Goodman. Where counts of counts are
    missing, as in tiny texts, a discount of 1/2 serves for all; none is below 0.1, so that no token has probability 0.
    """
    n = [int((counts == k).sum()) for k in range(5)]
    if min(n[1 : kinds + 2]) == 0:
        return np.array([0.0, 0.5, 0.5, 0.5])
    share = n[1] / (n[1] + 2 * n[2])
    if kinds == 1:
        return np.array([0.0, share, share, share])
    found = [k - (k + 1) * share * n[k + 1] / n[k] for k in (1, 2, 3)]
    return np.array([0.0, *(min(max(d, 0.1), k) for k, d in zip((1, 2, 3), found, strict=True))])

"""The array n-grams, from one side and from both, against a slow dictionary of counts, and against the known figure."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from qkv.data.baseline import both_sides as module
from qkv.data.baseline.both_sides import Hidden, both_sides
from qkv.data.baseline.ngrams import _sorted_with_places, ngram_losses
from qkv.tokenizers.tokenizer import fit_tokenizer


class SlowKneserNey:
    """Kneser-Ney of one order, by dictionaries and recursion, straight from the formula."""

    def __init__(self, train: list[int], order: int, d_vocab: int, discounts: int) -> None:
        self.order, self.d_vocab = order, d_vocab
        raw = {n: Counter(tuple(train[i : i + n]) for i in range(len(train) - n + 1)) for n in range(1, order + 2)}
        self.counts = {}
        for n in range(1, order + 1):
            self.counts[n] = raw[n] if n == order else Counter(gram[1:] for gram in raw[n + 1])
        self.discounts = {n: self._discounts(self.counts[n], discounts) for n in self.counts}

    @staticmethod
    def _discounts(counts: Counter, kinds: int) -> list[float]:
        n = [0, *(sum(1 for c in counts.values() if c == k) for k in (1, 2, 3, 4))]
        if 0 in n[1 : kinds + 2]:
            return [0.0, 0.5, 0.5, 0.5]
        y = n[1] / (n[1] + 2 * n[2])
        if kinds == 1:
            return [0.0, y, y, y]
        return [0.0, *(min(max(k - (k + 1) * y * n[k + 1] / n[k], 0.1), k) for k in (1, 2, 3))]

    def probability(self, context: tuple[int, ...], token: int, n: int | None = None) -> float:
        n = self.order if n is None else n
        if n == 0:
            return 1 / self.d_vocab
        context = context[len(context) - (n - 1) :] if n > 1 else ()
        following = {gram[-1]: c for gram, c in self.counts[n].items() if gram[:-1] == context}
        lower = self.probability(context[1:], token, n - 1)
        total = sum(following.values())
        if not total:
            return lower
        d = self.discounts[n]
        count = following.get(token, 0)
        kept_back = sum(d[min(c, 3)] for c in following.values())
        return (count - d[min(count, 3)]) / total + kept_back / total * lower


@pytest.fixture(scope="module")
def ids() -> tuple[list[int], list[int]]:
    draws = np.random.default_rng(3)
    stream = [0, 1, 2]
    for _ in range(900):  # a source of order 2 with surprises
        stream.append(int((stream[-1] * 3 + stream[-2]) % 7) if draws.random() < 0.7 else int(draws.integers(0, 9)))
    return stream[:700], stream[700:780] + [11, 12, 11, 3]  # some tokens that training never saw


@pytest.mark.parametrize("discounts", [1, 3])
def test_all_orders_equal_a_dictionary_of_counts(ids: tuple[list[int], list[int]], discounts: int) -> None:
    train, val = ids
    found = list(ngram_losses(np.array(train), np.array(val), 13, 5, discounts))
    assert len(found) == 5
    for order, nats in enumerate(found, start=1):
        slow = SlowKneserNey(train, order, 13, discounts)
        for i in range(1, len(val)):
            n = min(order, i + 1)  # a token near the beginning has a shorter context, of continuation counts
            expected = slow.probability(tuple(val[max(0, i - order + 1) : i]), val[i], n)
            assert nats[i - 1] == pytest.approx(-math.log(expected), abs=1e-9)


@pytest.mark.parametrize("discounts", [1, 3])
def test_probabilities_of_all_next_tokens_sum_to_one(ids: tuple[list[int], list[int]], discounts: int) -> None:
    train, val = ids
    for context in (val[10:16], [11, 12, 5, 6, 0], train[40:46]):
        sums = np.zeros(5)
        for token in range(13):
            with_token = np.array([*context, token])
            last = [nats[-1] for nats in ngram_losses(np.array(train), with_token, 13, 5, discounts)]
            sums += np.exp(-np.array(last))
        assert sums == pytest.approx(np.ones(5), abs=1e-9)


def test_what_is_scored_is_never_counted(ids: tuple[list[int], list[int]]) -> None:
    train, val = np.array(ids[0]), np.array(ids[1])
    for whole, part in zip(ngram_losses(train, val, 13, 4), ngram_losses(train, val[:50], 13, 4), strict=True):
        assert whole[:49] == pytest.approx(part, abs=1e-12)


@pytest.mark.parametrize("most", [50, 1 << 62])
def test_sorting_gives_keys_in_order_and_their_places_even_for_keys_of_62_bits(most: int) -> None:
    keys = np.random.default_rng(0).integers(0, most, 400)
    ordered, places = _sorted_with_places(keys)
    assert (ordered == np.sort(keys)).all() and (keys[places] == ordered).all()
    assert sorted(places.tolist()) == list(range(400))


def test_on_tinyshakespeare_characters_the_6_gram_is_best_with_1_558_nats(tinyshakespeare: Path) -> None:
    text = tinyshakespeare.read_text()
    ids = fit_tokenizer("char", [text]).encode(text)
    cut = len(ids) * 9 // 10
    losses = [float(nats.mean()) for nats in ngram_losses(ids[:cut], ids[cut:], 65, 8)]
    assert int(np.argmin(losses)) + 1 == 6
    assert losses[5] == pytest.approx(1.558, abs=0.003)
    modified = [float(nats.mean()) for nats in ngram_losses(ids[:cut], ids[cut:], 65, 7, discounts=3)]
    assert min(modified) == pytest.approx(1.5165, abs=0.001)  # the stronger smoothing, for the record


# counting from both sides of a hidden token

D_VOCAB = 9


@pytest.fixture(scope="module")
def two_sided() -> np.ndarray:
    """A source whose tokens follow from both neighbors, with surprises."""
    draws, stream = np.random.default_rng(5), [0, 1]
    for _ in range(1998):
        stream.append(int((3 * stream[-1] + stream[-2]) % 7) if draws.random() < 0.4 else int(draws.integers(0, 8)))
    return np.array(stream)


def hidden(ids: np.ndarray, places: list[int]) -> Hidden:
    shown = ids.copy()
    shown[places] = D_VOCAB
    return Hidden(shown, np.array(places), ids[places])


class Slow:
    """log P(w | left) + log P(w | right), and log P(w), from dictionaries; what is hidden was never counted."""

    def __init__(self, train: np.ndarray, order: int) -> None:
        self.order, self.forward = order, SlowKneserNey(train.tolist(), order, D_VOCAB, 1)
        self.backward = SlowKneserNey(train[::-1].tolist(), order, D_VOCAB, 1)
        self.one = SlowKneserNey(train.tolist(), 1, D_VOCAB, 1)
        self.unigram = np.log([self.one.probability((), w) for w in range(D_VOCAB)])

    def sides(self, text: Hidden) -> np.ndarray:
        n, edge, found = self.order - 1, [D_VOCAB] * self.order, []
        shown = [*edge, *text.shown.tolist(), *edge]
        for place in text.places + self.order:
            left, right = tuple(shown[place - n : place]), tuple(shown[place + n : place : -1])
            both = [(self.forward.probability(left, w), self.backward.probability(right, w)) for w in range(D_VOCAB)]
            found.append(np.log(both).sum(1))
        return np.array(found)

    def log_p(self, text: Hidden, a: float, c: float) -> np.ndarray:
        logits = a * self.sides(text) - c * self.unigram
        return logits - np.log(np.exp(logits).sum(1, keepdims=True))


TEXT = hidden(
    np.array([3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 8, 7, 0, 2]), [0, 3, 4, 8, 10, 13]
)  # ends, neighbors, a rare token


def test_it_is_the_product_of_both_sides_over_the_vocabulary(two_sided: np.ndarray) -> None:
    found = both_sides(two_sided, TEXT, D_VOCAB)
    logs = Slow(two_sided, found.order).log_p(TEXT, *found.weights)
    rows = np.arange(len(TEXT.places))
    assert found.ngram == pytest.approx(-logs[rows, TEXT.answers], abs=1e-9)
    assert found.unigram == pytest.approx(-Slow(two_sided, 1).unigram[TEXT.answers], abs=1e-12)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_each_side_is_a_distribution(two_sided: np.ndarray, order: int) -> None:
    levels = module._levels(two_sided, np.append(D_VOCAB, TEXT.shown), TEXT.places + 1, order)
    rows = module._rows(levels, slice(None), D_VOCAB)
    assert rows.min() > 0 and rows.sum(1) == pytest.approx(1, abs=1e-12)


def test_order_and_weights_have_the_lowest_loss_on_what_was_held_out(two_sided: np.ndarray) -> None:
    order, weights = module._fitted(two_sided, D_VOCAB)
    cut = 1800
    keys = module.generator("both sides").random(200)
    end = hidden(two_sided[cut:], [int(i) for i in np.flatnonzero(keys < 0.15)])
    rows = np.arange(len(end.places))

    def loss(order: int, a: float, c: float) -> float:
        return -Slow(two_sided[:cut], order).log_p(end, a, c)[rows, end.answers].mean()

    least = loss(order, *weights)
    assert weights != (1.0, 1.0) and least < loss(order, 1.0, 1.0)
    for a, c in ((0.02, 0), (-0.02, 0), (0, 0.02), (0, -0.02)):
        moved = weights[0] + a, weights[1] + c
        assert loss(order, *moved) > least


def test_two_sides_say_more_than_one_or_none(two_sided: np.ndarray) -> None:
    val = two_sided[:600]
    text = hidden(val, list(range(5, 595, 5)))
    found = both_sides(two_sided[600:], text, D_VOCAB)
    assert found.ngram.mean() < found.unigram.mean() - 0.1
    slow = SlowKneserNey(two_sided[600:].tolist(), found.order, D_VOCAB, 1)
    n = found.order - 1
    one = [-math.log(slow.probability(tuple(val[p - n : p].tolist()), int(val[p]))) for p in text.places]
    assert found.ngram.mean() < np.mean(one)


def test_a_text_too_short_to_fit_anything_is_counted_all_the_same() -> None:
    found = both_sides(np.array([1, 2, 3]), TEXT, D_VOCAB)
    assert (found.order, found.weights) == (2, (1.0, 1.0)) and np.isfinite(found.ngram).all()

"""The array n-grams against a slow dictionary of counts, and against the known figure."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

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

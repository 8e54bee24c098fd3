"""The lattice sums over every way to cut a word, and the fit finds likelier pieces."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from qkv.data.lattice import Lattice, Substrings
from qkv.data.unigram import _digamma, fit_pieces

WORDS = ["banana", "ban", "nab", "a", "bananab", "nn"]
WEIGHTS = np.array([3.0, 1.0, 2.0, 5.0, 1.0, 4.0])


def cuts(word: str) -> list[list[str]]:
    places = range(1, len(word))
    found = []
    for n in range(len(word)):
        for chosen in combinations(places, n):
            bounds = [0, *chosen, len(word)]
            found.append([word[a:b] for a, b in zip(bounds, bounds[1:], strict=False)])
    return found


@pytest.fixture(scope="module")
def table() -> Substrings:
    return Substrings(WORDS, 4)


@pytest.fixture(scope="module")
def scores(table: Substrings) -> np.ndarray:
    draws = np.random.default_rng(0)
    values = np.log(draws.random(len(table.pieces)))
    values[[i for i, piece in enumerate(table.pieces) if piece in ("na", "bana")]] = -np.inf
    return values


def test_substrings_are_all_there_and_named_rightly(table: Substrings) -> None:
    expected = Counter(
        (w, s, word[s : s + n])
        for w, word in enumerate(WORDS)
        for s in range(len(word))
        for n in range(1, 5)
        if s + n <= len(word)
    )
    found = Counter(
        (int(w), int(s), table.pieces[p]) for w, s, p in zip(table.word, table.start, table.piece, strict=True)
    )
    assert found == expected
    assert len(set(table.pieces)) == len(table.pieces)
    inside = table.proper()
    whole = [(w, p) for w, p in zip(inside.word, inside.piece, strict=True) if table.pieces[p] == WORDS[w]]
    assert whole == []


def test_expected_counts_equal_a_sum_over_all_cuts(table: Substrings, scores: np.ndarray) -> None:
    lattice = Lattice(table, len(WORDS), np.array([len(word) for word in WORDS]))
    by_piece = dict(zip(table.pieces, scores, strict=True))
    expected = Counter()
    for word, weight in zip(WORDS, WEIGHTS, strict=True):
        likelihoods = [np.exp(sum(by_piece.get(p, -np.inf) for p in cut)) for cut in cuts(word)]
        for cut, likelihood in zip(cuts(word), likelihoods, strict=True):
            for piece in cut:
                expected[piece] += weight * likelihood / sum(likelihoods)
    found = lattice.expected_counts(scores, WEIGHTS)
    assert found == pytest.approx([expected[piece] for piece in table.pieces], abs=1e-9)


def test_best_cuts_equal_a_search_over_all_cuts(table: Substrings, scores: np.ndarray) -> None:
    lattice = Lattice(table, len(WORDS), np.array([len(word) for word in WORDS]))
    by_piece = dict(zip(table.pieces, scores, strict=True))
    used = Counter()
    best = []
    for word, weight in zip(WORDS, WEIGHTS, strict=True):
        totals = [sum(by_piece.get(p, -np.inf) for p in cut) for cut in cuts(word)]
        best.append(max(totals))
        for piece in cuts(word)[int(np.argmax(totals))]:
            used[piece] += weight
    assert lattice.best_scores(scores) == pytest.approx(best)
    assert lattice.best_counts(scores, WEIGHTS) == pytest.approx([used[piece] for piece in table.pieces])


def test_digamma_has_its_known_values() -> None:
    euler = 0.5772156649015329
    assert _digamma(np.array([1.0, 2.0, 0.5, 100.0])) == pytest.approx(
        [-euler, 1 - euler, -euler - 2 * np.log(2), np.log(100) - 1 / 200 - 1 / 120000], abs=1e-8
    )


def test_pieces_are_frequent_strings_and_every_letter(prose: str) -> None:
    counts = Counter(prose.split())
    pieces = fit_pieces(counts, 150)
    assert len(pieces) == 150
    assert [score for _, score in pieces] == sorted((score for _, score in pieces), reverse=True)
    names = {piece for piece, _ in pieces}
    assert set("".join(counts)) <= names
    assert any(len(piece) > 3 for piece in names)
    assert sum(np.exp(score) for _, score in pieces) < 1.01


def test_more_pieces_make_the_text_likelier(prose: str) -> None:
    counts = Counter(prose.split())
    words = sorted(counts)
    weights = np.array([counts[word] for word in words], dtype=float)
    table = Substrings(words, 16)
    lattice = Lattice(table, len(words), np.array([len(word) for word in words]))
    totals = []
    for n in (60, 120, 300):
        by_piece = dict(fit_pieces(counts, n))
        scores = np.array([by_piece.get(piece, -np.inf) for piece in table.pieces])
        totals.append(float((lattice.best_scores(scores) * weights).sum()))
    assert totals == sorted(totals)


def test_a_text_of_a_few_letters_still_fits() -> None:
    assert [piece for piece, _ in fit_pieces({"a": 3}, 10)] == ["a"]
    assert len(fit_pieces({"abc": 1, "def": 2}, 3)) == 3

"""The lattice sums over every way to cut a word, and the fit finds likelier pieces."""

import tracemalloc
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from qkv.tokenizers.unigram import _digamma, fit_pieces
from qkv.tokenizers.unigram_lattice import Lattice, Letters, Substrings

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


def every(words: list[str], longest: int) -> Substrings:
    """All substrings of that many letters at most, numbered by their hashes."""
    letters = Letters(words)
    hashes = [letters.hashes(letters.places(n), n) for n in range(1, longest + 1)]
    return Substrings(letters, longest, np.unique(np.concatenate(hashes)))


@pytest.fixture(scope="module")
def table() -> Substrings:
    return every(WORDS, 4)


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
    word, start, length, piece = table.edges(0, len(WORDS))
    assert Counter(zip(word.tolist(), start.tolist(), map(table.pieces.__getitem__, piece), strict=True)) == expected
    assert length.tolist() == [len(table.pieces[p]) for p in piece] and table.n_edges().sum() == len(piece)
    assert len(set(table.pieces)) == len(table.pieces)
    word, _, _, piece = table.proper().edges(0, len(WORDS))
    assert len(word) and not [w for w, p in zip(word, piece, strict=True) if table.pieces[p] == WORDS[w]]


def test_pieces_that_are_chosen_stand_where_they_stood_with_all_others(table: Substrings) -> None:
    some = Substrings(Letters(WORDS), 4, table.hashes[::3])
    assert some.pieces == table.pieces[::3]
    for first, last in ((0, 6), (1, 4), (5, 6)):
        everything, found = table.edges(first, last), some.edges(first, last)
        kept = np.isin(everything[3], np.arange(len(table.pieces))[::3])
        assert [column.tolist() for column in found[:3]] == [column[kept].tolist() for column in everything[:3]]
        assert (found[3] * 3).tolist() == everything[3][kept].tolist()


def test_expected_counts_equal_a_sum_over_all_cuts(table: Substrings, scores: np.ndarray) -> None:
    lattice = Lattice(table)
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
    lattice = Lattice(table)
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


def test_blocks_of_words_give_the_sums_of_all_at_once(table: Substrings, scores: np.ndarray, monkeypatch) -> None:
    whole = Lattice(table)
    monkeypatch.setattr("qkv.tokenizers.unigram_lattice.BLOCK_EDGES", 20)
    blocks = Lattice(table)
    assert len(whole._bounds) == 2 < len(blocks._bounds) < len(WORDS) + 1
    assert blocks.expected_counts(scores, WEIGHTS) == pytest.approx(whole.expected_counts(scores, WEIGHTS))
    assert blocks.best_scores(scores).tolist() == whole.best_scores(scores).tolist()
    assert blocks.best_counts(scores, WEIGHTS).tolist() == whole.best_counts(scores, WEIGHTS).tolist()


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
    table = every(words, 16)
    lattice = Lattice(table)
    totals = []
    for n in (60, 120, 300):
        by_piece = dict(fit_pieces(counts, n))
        scores = np.array([by_piece.get(piece, -np.inf) for piece in table.pieces])
        totals.append(float((lattice.best_scores(scores) * weights).sum()))
    assert totals == sorted(totals)


def test_a_text_of_a_few_letters_still_fits() -> None:
    assert [piece for piece, _ in fit_pieces({"a": 3}, 10)] == ["a"]
    assert len(fit_pieces({"abc": 1, "def": 2}, 3)) == 3


def unspaced(n: int) -> str:
    """Letters at random, among which one word stands again and again."""
    draws = np.random.default_rng(0)
    letters = "".join(draws.choice(list("ACGT"), size=n))
    return "".join(letters[i : i + 30] + "GATTACA" for i in range(0, n, 30))


def test_stretches_without_spaces_are_cut_for_the_fit_and_not_left_out() -> None:
    assert sorted(piece[:4] for piece, _ in fit_pieces({"ab" * 50: 1}, 3)) == ["a", "abab", "b"]
    pieces = dict(fit_pieces({unspaced(9000): 1}, 40))
    assert set("ACGT") <= set(pieces) and "GATTACA" in pieces
    assert fit_pieces({}, 8) == fit_pieces({"": 3}, 8) == []


def test_memory_of_the_fit_is_bounded_by_the_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten megabytes without a space took many GB: now some hundred bytes a letter, and but so many are fitted."""
    peaks = []
    for n, most in ((8_000, 1 << 22), (24_000, 9_000)):
        monkeypatch.setattr("qkv.tokenizers.unigram.MOST_LETTERS", most)
        tracemalloc.start()
        fit_pieces({unspaced(n): 1}, 60)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[0] < 1000 * 10_000 and peaks[1] < 1.5 * peaks[0]


def test_of_too_many_words_the_most_frequent_are_fitted_and_all_letters_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"the": 90, "cat": 50, "sat": 40} | {f"x{c}y{c}" * 5: 1 for c in "abcdefghijklmnopqrstuvw漢"}
    monkeypatch.setattr("qkv.tokenizers.unigram.MOST_LETTERS", 30)
    pieces = dict(fit_pieces(counts, 200))
    assert set("".join(counts)) <= set(pieces) and "the" in pieces and not any("xkyk" in piece for piece in pieces)
    assert pieces["漢"] == min(pieces.values())
    assert fit_pieces(dict(reversed(counts.items())), 200) == list(pieces.items())

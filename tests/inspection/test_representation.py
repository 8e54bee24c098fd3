"""Each measure against its definition by loops, its baseline where nothing is to be found, and planted answers."""

import itertools

import numpy as np
import pytest

from qkv.inspection.contextual import Contextual
from qkv.inspection.representation import (
    RIDGE,
    isotropy,
    layer_measures,
    probe_accuracy,
    random_pairs,
    self_similarity,
)
from qkv.randomness import generator


def cos(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def drawn(n=60, d=6, n_ids=5, shift=0.5):
    draws = generator("tests", "representation", n, d)
    return draws.normal(size=(n, d)) + shift, draws.integers(n_ids, size=n)


def texts(vectors, ids, window=10):
    """[layer, n, d] as windows."""
    n = vectors.shape[1]
    return [
        Contextual(
            text="", tokens=[], ids=ids[a : a + window], layers=[f"l{i}" for i in range(len(vectors))],
            vectors=vectors[:, a : a + window],
        )
        for a in range(0, n, window)
    ]  # fmt: skip


def test_similarities_are_the_means_that_they_say():
    vectors, ids = drawn()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = [cos(vectors[i], vectors[j]) for i, j in itertools.combinations(range(60), 2) if ids[i] != ids[j]]
    assert random_pairs(unit, ids) == pytest.approx(np.mean(pairs), rel=1e-12)
    of_id = [
        np.mean([cos(vectors[i], vectors[j]) for i, j in itertools.permutations(np.flatnonzero(ids == t), 2)])
        for t in np.unique(ids)
    ]
    assert self_similarity(unit, ids) == pytest.approx(np.mean(of_id), rel=1e-12)
    (found,) = layer_measures(texts(vectors[None], ids))
    by_window = [np.mean([cos(vectors[a : a + 10].mean(0), v) for v in vectors[a : a + 10]]) for a in range(0, 60, 10)]
    assert found.in_window == pytest.approx(np.mean(by_window), rel=1e-12)
    explained = []
    for t in np.unique(ids):
        s = np.linalg.svd(vectors[ids == t], compute_uv=False)
        explained.append(s[0] ** 2 / (s**2).sum())
    assert found.explained == pytest.approx(np.mean(explained), rel=1e-10)


def test_where_ids_and_windows_mean_nothing_each_measure_is_its_baseline():
    vectors, ids = drawn(n=4000, d=16, n_ids=20)
    (found,) = layer_measures(texts(vectors[None], ids, window=20))
    assert found.self_similarity == pytest.approx(found.random_pairs, abs=0.01)
    assert found.in_window == pytest.approx(found.in_window_random, abs=0.01)
    assert found.explained == pytest.approx(found.explained_random, abs=0.01)
    assert abs(found.probe - found.n_largest) < 0.04 and abs(found.probe_control - found.n_largest) < 0.04
    assert found.n_classes == 20 and found.random_pairs > 0.1  # the common direction that the baseline takes off


def test_a_static_vector_for_each_token_is_found_by_all_of_them():
    draws = generator("tests", "static")
    table, ids = draws.normal(size=(10, 16)), draws.integers(10, size=800)
    (found,) = layer_measures(texts(table[ids][None], ids, window=20))
    assert found.self_similarity == pytest.approx(1) and found.explained == pytest.approx(1)
    assert found.probe == 1 and found.probe_control < 0.3
    assert abs(found.random_pairs) < 0.3 and found.explained_random < 0.6


def test_isotropy_is_one_for_a_cross_and_falls_with_a_common_direction():
    cross = np.concatenate([np.eye(5), -np.eye(5)])
    assert isotropy(cross) == pytest.approx(1)
    vectors, _ = drawn(n=2000, d=8, shift=0.0)
    shifted = isotropy(vectors + 2.0)
    assert isotropy(vectors) > 0.8 > 0.3 > shifted > 0
    assert isotropy(7 * vectors) == pytest.approx(isotropy(vectors)) and isotropy(np.zeros((4, 3))) is None


def test_the_probe_is_ridge_regression():
    """The same weights by least squares on a table with the ridge as further rows."""
    vectors, labels = drawn(n=90, d=6, n_ids=4)
    vectors[np.arange(90), labels] += 1.0
    train, test = slice(0, 60), slice(60, 90)
    x = vectors[train] - vectors[train].mean(0)
    ridge = RIDGE * (x**2).sum() / 6
    y = np.eye(4)[labels[train]]
    rows = np.concatenate([x, np.sqrt(ridge) * np.eye(6)])
    weights = np.linalg.lstsq(rows, np.concatenate([y - y.mean(0), np.zeros((6, 4))]), rcond=None)[0]
    answers = ((vectors[test] - vectors[train].mean(0)) @ weights + y.mean(0)).argmax(1)
    mine = probe_accuracy(vectors[train], labels[train], vectors[test], labels[test], 4)
    assert mine == (answers == labels[test]).mean() and 0.3 < mine < 1


def test_too_little_text_says_nothing():
    vectors, _ = drawn(n=6)
    (found,) = layer_measures(texts(vectors[None], np.arange(6), window=6))
    assert found.self_similarity is found.explained is found.probe is None and found.n_classes == 0
    assert found.random_pairs is not None and found.in_window is not None

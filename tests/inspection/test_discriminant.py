"""The probe on planted vectors whose answer is known: identity there, absent, or a Gaussian channel of known nats."""

import numpy as np
import pytest

from qkv.inspection.probes.discriminant import FEWEST, common_labels, dealt_parts, told
from qkv.randomness import generator

N, CLASSES, D_MODEL = 6000, 20, 8


def labels(n=N, classes=CLASSES):
    """By 1 / rank, as tokens come."""
    share = 1 / np.arange(1, classes + 1)
    return generator("tests", "discriminant", n).choice(classes, size=n, p=share / share.sum())


def found(vectors, ids):
    parts = dealt_parts(np.arange(len(ids)))
    return told(vectors, ids, parts, common_labels(ids, parts))


def test_a_static_vector_moved_by_its_position_is_named_without_error():
    """More tokens than coordinates, and positions far larger than the tokens: what does not depend on the token is
    taken out, along the directions in which it lies."""
    draws, ids = generator("tests", "static"), labels()
    table, places = draws.normal(size=(CLASSES, D_MODEL)), np.zeros((N, D_MODEL))
    places[:, :3] = 10 * draws.normal(size=(N, 3))
    for vectors in (table[ids], table[ids] + places):
        probe = found(vectors, ids)
        assert probe.accuracy == 1.0 and probe.information == pytest.approx(probe.entropy, abs=1e-3)
        assert probe.by_chance < 0.4 and probe.n_classes == CLASSES


def test_one_vector_that_is_told_wrongly_costs_no_more_than_the_others_allow():
    """All that set the trust are told without error, so it is whole, and one of those scored is another's."""
    draws, ids = generator("tests", "outlier"), labels()
    table = draws.normal(size=(CLASSES, D_MODEL))
    vectors = table[ids] + 1e-3 * draws.normal(size=(N, D_MODEL))
    (scored,) = np.nonzero(dealt_parts(np.arange(N)) == 2)
    before = found(vectors, ids)
    vectors[scored[0]] = table[(ids[scored[0]] + 1) % CLASSES]
    probe = found(vectors, ids)
    n = len(scored)
    share = np.bincount(ids) / N
    most = (np.log(n + 1) - np.log(share.min())) / n
    assert probe.accuracy == pytest.approx(1 - 1 / n) and before.accuracy == 1.0
    assert 0 < before.information - probe.information < 1.1 * most < 0.01


def test_vectors_that_say_nothing_are_worth_nothing():
    ids = labels()
    probe = found(generator("tests", "nothing").normal(size=(N, D_MODEL)), ids)
    largest = (ids == 0).mean()
    assert abs(probe.information) < 0.01 and probe.accuracy == pytest.approx(largest, abs=0.04)
    assert probe.by_chance == pytest.approx(largest, abs=0.04)
    share = np.bincount(ids) / N
    assert probe.entropy == pytest.approx(-(share * np.log(share)).sum(), abs=0.05)
    same = found(np.ones((N, D_MODEL)), ids)
    assert same.information == pytest.approx(0.0, abs=1e-9)


def test_the_information_of_a_gaussian_channel_is_found():
    """Two tokens alike often, means 2a apart, noise of 1: ln 2 - E ln(1 + exp(-2a (a + z))), by integration."""
    a = 0.8
    z = np.linspace(-9, 9, 20001)
    normal = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    true = np.log(2) - (normal * np.log1p(np.exp(-2 * a * (a + z)))).sum() * (z[1] - z[0])
    draws = generator("tests", "channel")
    ids = draws.integers(2, size=40_000)
    vectors = draws.normal(size=(40_000, 5)) @ np.diag([1.0, 30.0, 0.1, 2.0, 1.0])
    vectors[:, 0] += a * (2 * ids - 1)
    probe = found(vectors, ids)
    assert probe.information == pytest.approx(true, abs=0.015)
    assert probe.accuracy == pytest.approx((normal * (z < a)).sum() * (z[1] - z[0]), abs=0.015)


def test_an_invertible_map_changes_nothing_and_random_labels_for_tokens_are_the_same_task():
    draws, ids = generator("tests", "map"), labels()
    vectors = draws.normal(size=(CLASSES, D_MODEL))[ids] + 0.7 * draws.normal(size=(N, D_MODEL))
    plain = found(vectors, ids)
    assert 0.3 < plain.accuracy < 0.95 and 0.3 < plain.information < plain.entropy
    mapped = found(vectors @ draws.normal(size=(D_MODEL, D_MODEL)) + 7.0, ids)
    assert mapped.information == pytest.approx(plain.information, abs=2e-3)
    renamed = found(vectors, draws.permutation(CLASSES)[ids])
    assert renamed.accuracy == pytest.approx(plain.accuracy, abs=1e-12)
    assert renamed.information == pytest.approx(plain.information, abs=1e-9)


def test_only_tokens_that_are_met_often_enough_in_every_part_are_asked_for():
    ids = np.array([0, 1, 2, 0] * 8)
    parts = np.array([0, 1, 2, 0] * 8)
    assert not len(common_labels(ids, parts)), "0 is in one part only"
    ids, parts = np.arange(60) % 4, np.arange(60) // 4 % 3
    assert common_labels(ids, parts).tolist() == [0, 1, 2, 3] and FEWEST <= 5
    assert not len(common_labels(ids[:12], parts[:12]))
    assert dealt_parts(np.arange(8)).tolist() == [0, 1, 0, 2, 0, 1, 0, 2]

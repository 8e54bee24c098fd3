"""Rows of a token table, their neighbours, and the weights of a folder, against closed forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from qkv.errors import AddressError, RunFolderError
from qkv.folder.run_folder import RunFolder
from qkv.inspection.neighbours import largest_by_chance, nearest, neighbours
from qkv.inspection.stored_run import stored
from qkv.inspection.token_rows import drifts, moved, rank_correlation, row_history, row_story, summary, turns

scipy_stats = pytest.importorskip("scipy.stats", reason="scipy is the oracle of rank correlations")


def tables(n=7, d=5, seed=0):
    draws = np.random.default_rng(seed)
    return draws.standard_normal((n, d)).astype(np.float32), draws.standard_normal((n, d)).astype(np.float32)


def test_a_story_tells_length_drift_and_turn_of_one_row():
    before, after = np.array([[9, 9], [3, 0]], dtype=np.float32), np.array([[9, 9], [3, 4]], dtype=np.float32)
    story = row_story(before, after, 1, np.array([5, 6]))
    assert (story.norm_before, story.norm_after, story.count) == (3, 5, 6)
    assert story.drift == pytest.approx(4 / 3)
    assert story.turn == pytest.approx(np.degrees(np.arctan2(4, 3)))
    assert story.most_moved.tolist() == [1, 0]
    still = row_story(before, before, 1)
    assert (still.drift, still.turn, still.count) == (0, 0, None)
    assert row_story(np.zeros((1, 2)), after, 0).turn is None
    assert row_story(np.zeros((1, 2)), after, 0).drift == pytest.approx(np.sqrt(162))


def test_drifts_of_a_table_are_those_of_its_rows():
    before, after = tables()
    expected = [row_story(before, after, i).drift for i in range(7)]
    np.testing.assert_allclose(drifts(before, after), expected, rtol=1e-12)


def test_moved_ranks_rows_and_breaks_ties_by_number():
    drift = np.array([0.5, 2.0, 0.0, 2.0, 1.0])
    assert moved(drift, 3) == [1, 3, 4]
    assert moved(drift, 2, least=True) == [2, 0]
    assert moved(drift, 9, among=np.array([True, False, True, False, True])) == [4, 0, 2]


def test_a_summary_keeps_rows_seen_never_seen_and_special_apart():
    drift = np.array([9.0, 1.0, 2.0, 3.0, 0.0, 0.25])
    counts = np.array([0, 10, 20, 30, 0, 0])
    told = summary(drift, counts, frozenset({0}))
    assert (told.n_rows, told.n_seen, told.n_unseen) == (6, 3, 2)
    assert (told.median, told.largest, told.furthest, told.largest_unseen) == (2, 3, 3, 0.25)
    assert told.with_count is None
    uncounted = summary(drift)
    assert (uncounted.n_seen, uncounted.n_unseen, uncounted.largest_unseen) == (None, None, None)
    assert uncounted.largest == 9


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=3, max_size=30))
@settings(max_examples=50, deadline=None)
def test_rank_correlation_is_spearmans(pairs):
    x, y = np.array(pairs, dtype=float).T
    got = rank_correlation(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert got is None
    else:
        assert got == pytest.approx(scipy_stats.spearmanr(x, y).statistic, abs=1e-12)


def test_nearest_rows_are_those_of_largest_cosine():
    table, _ = tables(50, 8)
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    cosines = unit @ unit[3]
    expected = [int(i) for i in np.argsort(-cosines) if i != 3][:5]
    got = nearest(table, 3, 5)
    assert [n.id for n in got] == expected
    assert [n.cosine for n in got] == pytest.approx(cosines[expected], abs=1e-6)
    assert len(nearest(table, 3, 500)) == 49


def test_zero_rows_are_nobodys_neighbours():
    table, _ = tables()
    table[2] = 0
    assert 2 not in [n.id for n in nearest(table, 0, 10)] and nearest(table, 2, 10) == ()


def test_neighbours_say_how_many_stayed_and_what_chance_would_give():
    before, after = tables(200, 16)
    same = neighbours(before, before, 5, 10)
    assert same.kept == 10 and same.before == same.after
    other = neighbours(before, after, 5, 10)
    assert other.kept <= 4
    assert other.after[0].cosine == pytest.approx(other.null_cosine, abs=0.25)


@pytest.mark.parametrize(("n", "d"), [(65, 32), (512, 128), (100, 2), (2000, 16)])
def test_the_chance_of_neighbours_is_the_median_of_the_largest_cosine_of_random_rows(n, d):
    draws = np.random.default_rng(n)
    squares = draws.chisquare(d - 1, size=(400, n))
    first = draws.standard_normal((400, n))
    largest = (first / np.sqrt(first**2 + squares)).max(axis=1)
    assert (largest < largest_by_chance(n, d)).mean() == pytest.approx(0.5, abs=0.08)


def test_weights_are_read_at_the_steps_that_were_kept(tmp_path):
    for step in (0, 8, 16):
        folder = tmp_path / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        save_file({"W_E": np.full((2, 2), step, dtype=np.float32)}, folder / "model.safetensors")
    (tmp_path / "checkpoints" / ".part-step-00000032").mkdir()
    assert list(RunFolder(tmp_path).weights()) == [0, 8, 16]
    assert stored(tmp_path, "W_E", 8)[0, 0] == 8
    assert stored(tmp_path, "W_E")[0, 0] == 16  # not finished: the newest checkpoint
    save_file({"W_E": np.full((2, 2), 20, dtype=np.float32)}, tmp_path / "model.safetensors")
    assert stored(tmp_path, "W_E")[0, 0] == 20
    with pytest.raises(RunFolderError, match="no snapshot of step 9; nearest: 0, 8, 16"):
        stored(tmp_path, "W_E", 9)
    with pytest.raises(AddressError, match="'W_E'"):
        stored(tmp_path, "W_F")
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(RunFolderError, match="is damaged: it is no whole safetensors file"):
        stored(tmp_path, "W_E")
    with pytest.raises(RunFolderError, match="no weights yet"):
        stored(tmp_path / "empty", "W_E")


def test_turns_and_a_row_s_history_are_those_of_each_row_alone():
    before, after = tables(20, 6)
    before[3], after[4] = 0, 0
    for i, degrees in enumerate(turns(before, after)):
        alone = row_story(before, after, i).turn
        assert np.isnan(degrees) if alone is None else degrees == pytest.approx(alone, rel=1e-9)
    moments = row_history({0: before, 8: (before + after) / 2, 64: after}, 7)
    assert [m.step for m in moments] == [0, 8, 64] and moments[0].drift == 0
    assert moments[2].drift == pytest.approx(2 * moments[1].drift)
    assert moments[2].turn == row_story(before, after, 7).turn and row_history({}, 7) == []

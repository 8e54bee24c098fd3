"""The reader: what comes out is what went in, by name, by step and by arm."""

import itertools
import sqlite3
import threading
import tracemalloc

import numpy as np
import pytest

from qkv.errors import AddressError
from qkv.telemetry import NULL_ARM, RUN_ARM, AddressRow, MeasureRow, Store, Telemetry

ADDRESSES = ("W_E", "L0.W_Q", "L0.W_K", "L1.W_Q", "L1.W_K")
WATCH = {"level": "light", "looks": 1, "numbers": 2, "seconds": 0.5, "share": 0.01}
SITES = ("embed", "attn", "attn", "attn", "attn")


@pytest.fixture
def path(tmp_path):
    """Run and null: value of measure m, address i at step s is arm * 100 + s + i / 10, undefined for W_E at step 0."""
    path = tmp_path / "telemetry.sqlite"
    with Store(path) as store:
        store.register_measures([MeasureRow(name=m, meaning=f"what {m} is") for m in ("norm", "drift")])
        store.register_addresses(
            [
                AddressRow(address=a, site=s, layer=None if s == "embed" else int(a[1]), kind=a[-3:], shape=(2, 3))
                for a, s in zip(ADDRESSES, SITES, strict=True)
            ]
        )
        for arm, steps in ((RUN_ARM, (0, 1, 2, 4, 8)), (NULL_ARM, (0, 1, 2, 4))):
            for step in steps:
                values = [arm * 100 + step + i / 10 for i in range(5)]
                store.add_values(step, "norm", ADDRESSES, [None if step == 0 else values[0], *values[1:]], arm=arm)
                if step != 8:
                    store.add_values(step, "drift", ADDRESSES, values, arm=arm)
    return path


def test_a_series_is_what_was_recorded_without_undefined_steps(path):
    with Telemetry(path) as telemetry:
        alone = telemetry.series("L1.W_Q", "norm")["L1.W_Q"]
        assert alone.step.tolist() == [0, 1, 2, 4, 8]
        assert alone.value.tolist() == pytest.approx([0.3, 1.3, 2.3, 4.3, 8.3])
        assert telemetry.series("W_E", "norm")["W_E"].step.tolist() == [1, 2, 4, 8]
        several = telemetry.series("L*.W_Q", "norm", NULL_ARM)
        assert list(several) == ["L0.W_Q", "L1.W_Q"]
        assert several["L1.W_Q"].value.tolist() == pytest.approx([100.3, 101.3, 102.3, 104.3])


def test_one_series_alone_and_the_same_among_others_agree(path):
    with Telemetry(path) as telemetry:
        together = telemetry.series("**", "drift")
        for address in ADDRESSES:
            alone = telemetry.series(address, "drift")[address]
            np.testing.assert_array_equal(alone.step, together[address].step)
            np.testing.assert_array_equal(alone.value, together[address].value)


def test_a_tied_matrix_answers_to_its_second_name(tmp_path):
    with Store(tmp_path / "t.sqlite") as store:
        store.register_addresses([AddressRow(address="W_E", site="embed", tied_to="W_U, dec.W_E")])
        for arm in (RUN_ARM, NULL_ARM):
            store.add_values(3, "drift", ["W_E"], [0.5], arm=arm)
    with Telemetry(tmp_path / "t.sqlite") as telemetry:
        for name in ("W_U", "dec.W_E"):
            assert telemetry.series(name, "drift")["W_E"].value.tolist() == [0.5]
            assert [row.about.address for row in telemetry.latest(name)] == ["W_E"]
            assert telemetry.grid("drift", name).addresses == ("W_E",)
            assert [pair.address for pair in telemetry.against_null("drift", name)] == ["W_E"]
        with pytest.raises(AddressError, match="matches nothing"):
            telemetry.series("L0.W_E", "drift")


def test_a_grid_marks_what_is_undefined(path):
    with Telemetry(path) as telemetry:
        grid = telemetry.grid("norm")
    assert grid.addresses == ADDRESSES
    assert grid.step.tolist() == [0, 1, 2, 4, 8]
    assert np.isnan(grid.value[0, 0]) and np.isfinite(grid.value).sum() == 24


def test_an_address_is_known_whose_measure_was_taken_neither_first_nor_last(tmp_path):
    with Store(tmp_path / "t.sqlite") as store:
        store.register_measures([MeasureRow(name="update_ratio", meaning="an update by a weight")])
        rows = [AddressRow(address=a, site="attn", layer=0, kind=a[3:], shape=(2, 3)) for a in ("L0.W_Q", "L0.W_K")]
        store.register_addresses(rows)
        for step, taken in ((0, "L0.W_K"), (3, "L0.W_Q"), (4, "L0.W_K")):
            store.add_values(step, "update_ratio", [taken], [step / 10])
    with Telemetry(tmp_path / "t.sqlite") as telemetry:
        assert telemetry.series("L0.W_Q", "update_ratio")["L0.W_Q"].value.tolist() == pytest.approx([0.3])
        grid = telemetry.grid("update_ratio")
        assert grid.addresses == ("L0.W_Q", "L0.W_K")
        assert np.isfinite(grid.value).tolist() == [[False, True, False], [True, False, True]]


def test_the_matrix_table_takes_each_measure_at_its_own_newest_step(path):
    with Telemetry(path) as telemetry:
        table = {row.about.address: row for row in telemetry.latest()}
        assert list(table) == list(ADDRESSES)
        assert table["L1.W_K"].values == pytest.approx({"norm": 8.4, "drift": 4.4})
        assert table["L1.W_K"].step == 8
        early = telemetry.latest("W_E", at=0)[0]
        assert early.values == {"norm": None, "drift": 0.0}


def test_run_and_null_are_compared_at_the_last_step_that_both_have(path):
    with Telemetry(path) as telemetry:
        for measure in ("norm", "drift"):
            pairs = telemetry.against_null(measure)
            assert {pair.step for pair in pairs} == {4}
            assert [pair.address for pair in pairs] == list(ADDRESSES)
            assert all(pair.null == pytest.approx(pair.value + 100) for pair in pairs)
        assert {pair.step for pair in telemetry.against_null("norm", at=3)} == {2}
        assert [pair.address for pair in telemetry.against_null("norm", "attn", at=0)] == list(ADDRESSES[1:])
        assert telemetry.against_null("norm", null_arm=7) == []


def test_names_that_are_not_there_are_errors_that_show_the_nearest(path):
    with Telemetry(path) as telemetry:
        with pytest.raises(AddressError, match="'norm'"):
            telemetry.series("**", "nrm")
        with pytest.raises(AddressError, match="L0.W_Q"):
            telemetry.series("L0.W_V", "norm")
        with pytest.raises(AddressError, match="has no values in this arm"):
            telemetry.grid("norm", arm=5)


def test_a_measure_that_is_a_list_says_how_it_is_read(path):
    with Store(path) as store:
        store.add_vector(3, "drift", "L0.W_Q", np.ones(4))
    with Telemetry(path) as telemetry, pytest.raises(AddressError, match=r"vectors\('L0.W_Q', 'drift'\)"):
        telemetry.series("**", "drift", arm=5)


def test_measures_and_addresses_explain_themselves(path):
    with Telemetry(path) as telemetry:
        assert [m.meaning for m in telemetry.measures()] == ["what norm is", "what drift is"]
        first = telemetry.addresses()[1]
        assert (first.address, first.site, first.layer, first.kind, first.shape) == ("L0.W_Q", "attn", 0, "W_Q", (2, 3))
        assert [arm.name for arm in telemetry.arms()] == ["run", "random labels"]


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<i4", "<i8"])
def test_vectors_come_back_bit_for_bit(tmp_path, dtype):
    values = np.random.default_rng(0).integers(-1000, 1000, 17).astype(dtype)
    with Store(tmp_path / "t.sqlite") as store:
        for step in (1, 5, 9):
            store.add_vector(step, "row_drift", "W_E", values + step)
    with Telemetry(tmp_path / "t.sqlite") as telemetry:
        assert list(telemetry.vectors("W_E", "row_drift")) == [1, 5, 9]
        newest = telemetry.vector("W_E", "row_drift", at=8)
        assert newest is not None and newest.dtype == values.dtype
        np.testing.assert_array_equal(newest, values + 5)
        assert telemetry.vector("W_E", "row_drift", at=0) is None
        assert telemetry.vector("W_U", "row_drift") is None


def test_words_and_facts_come_back(tmp_path):
    with Store(tmp_path / "t.sqlite") as store:
        store.add_evaluation(3, 2.0, is_best=True, bits_per_byte=2.9)
        store.add_evaluation(6, 1.5, is_best=True, train_loss=1.4)
        store.add_evaluation(9, 1.5, is_best=False)
        store.add_sample(3, "To be", " or not")
        store.add_event(4, "spike", "the loss doubled", address="L0.W_Q", evidence={"loss": 9.5})
        store.add_session(4, "interrupt", "Ctrl-C")
        store.set_fact("baselines", {"unigram": 3.3, "order": None})
        store.set_clock_fact("watch", WATCH)
    with Telemetry(tmp_path / "t.sqlite") as telemetry:
        best = telemetry.best_evaluation()
        assert best is not None and (best.step, best.loss, best.train_loss, best.is_best) == (6, 1.5, 1.4, True)
        assert telemetry.samples()[0].text == " or not"
        assert telemetry.events()[0].evidence == {"loss": 9.5}
        assert telemetry.sessions()[0].sentence == "Ctrl-C"
        assert telemetry.facts() == {"baselines": {"unigram": 3.3, "order": None}, "watch": WATCH}
        assert telemetry.fact("watch") == WATCH and telemetry.fact("nothing", 5) == 5


def test_an_empty_run_reads_as_empty(tmp_path):
    Store(tmp_path / "t.sqlite").close()
    with Telemetry(tmp_path / "t.sqlite") as telemetry:
        assert telemetry.last_step() == 0
        assert telemetry.steps().loss.shape == (0,)
        assert telemetry.clock().wall_seconds.shape == (0,)
        assert telemetry.evaluations() == telemetry.samples() == telemetry.latest() == []
        assert telemetry.best_evaluation() is None


def test_a_long_series_is_read_in_blocks(path):
    n = 20_000
    with Store(path) as store:
        for step in range(1, n + 1):
            store.add_step(step, tokens=step * 64, loss=None if step % 3 == 0 else 1 / step, lr=1e-3, grad_norm=None)
    with Telemetry(path) as telemetry:
        telemetry.steps()
        tracemalloc.start()
        steps = telemetry.steps()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert telemetry.tokens_seen() == n * 64 and telemetry.tokens_seen(NULL_ARM) is None
    assert peak < 150 * n  # five numbers twice, and the block; rows as tuples take 250 bytes each
    counted = np.arange(1, n + 1)
    np.testing.assert_array_equal(steps.step, counted, strict=True)
    np.testing.assert_array_equal(steps.tokens, 64 * counted, strict=True)
    np.testing.assert_array_equal(steps.loss, np.where(counted % 3 == 0, np.nan, 1 / counted), strict=True)
    assert np.isnan(steps.grad_norm).all() and steps.lr.tolist() == [1e-3] * n


def test_the_file_can_be_read_while_it_is_written(tmp_path):
    path = tmp_path / "t.sqlite"
    done, seen = threading.Event(), []

    def read() -> None:
        with Telemetry(path) as telemetry:
            while not done.is_set():
                steps = telemetry.steps()
                assert steps.step.tolist() == list(range(len(steps.step)))
                seen.append(len(steps.step))

    with Store(path) as store:
        reader = threading.Thread(target=read)
        reader.start()
        for step in itertools.count():
            store.add_step(step, tokens=step, loss=1.0, lr=0.1, grad_norm=1.0)
            store.flush()
            if step >= 200 and len(seen) > 3 or not reader.is_alive():
                break
        done.set()
        reader.join()
    assert seen and seen == sorted(seen)


def test_the_view_for_people_answers_plain_sql(path):
    connection = sqlite3.connect(path)
    rows = connection.execute(
        "SELECT step, value FROM history WHERE address = 'L0.W_Q' AND measure = 'drift' AND arm = 'run' ORDER BY step"
    ).fetchall()
    connection.close()
    assert rows == [(step, pytest.approx(step + 0.1)) for step in (0, 1, 2, 4)]

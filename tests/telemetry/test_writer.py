"""The writer: transactions, resume, errors, one file at the end."""

import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.errors import RunFolderError, StorageError
from qkv.telemetry import NULL_ARM, AddressRow, MeasureRow, Memory, Store, Telemetry

STEPPED = ("steps", "evaluations", "measurements", "recorded", "vectors", "samples", "events", "facts")
NAMES = ("addresses", "measures", "arms")


def content(path: Path) -> dict[str, list]:
    """Every table whose rows are functions of the step, as it lies in the file."""
    connection = sqlite3.connect(path)
    try:
        return {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in (*NAMES, *STEPPED)}
    finally:
        connection.close()


def a_step(store: Store, step: int, arm: int = 0) -> None:
    """Everything that a training might write at one step, each value a function of the step."""
    store.add_step(step, tokens=step * 64, loss=5 / (1 + step), lr=0.1, grad_norm=1 / (1 + step), arm=arm)
    if step % 2 == 0:
        store.add_values(step, "norm", ["W_E", "L0.W_Q"], [step * 1.5, None], arm=arm)
        store.add_vector(step, "row_drift", "W_E", np.full(3, step, dtype=np.float32), arm=arm)
    if step % 3 == 0:
        store.add_evaluation(step, 2 / (1 + step), is_best=True, arm=arm)
        store.add_values(step, f"only_from_{step}", [f"late.{step}"], [1.0], arm=arm)
        store.set_fact(f"fact.{step}", {"at": step}, step=step)
        store.add_event(step, "spike", f"at {step}", arm=arm)
        store.add_sample(step, "To", f"be {step}", arm=arm)
    store.add_clock(step, step * 0.01 + os.getpid(), arm=arm)
    store.flush()


def begin(store: Store) -> None:
    store.register_measures([MeasureRow(name="norm", formula="|W|"), MeasureRow(name="row_drift")])
    store.register_addresses([AddressRow(address="W_E", site="embed", shape=(3, 2)), AddressRow(address="L0.W_Q")])


@given(kill=st.integers(0, 12), checkpoint=st.integers(0, 12))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_killed_and_resumed_writer_leaves_the_rows_of_an_undisturbed_one(tmp_path, kill, checkpoint):
    checkpoint = min(kill, checkpoint)
    paths = [tmp_path / f"{kill}-{checkpoint}-{name}.sqlite" for name in ("whole", "killed")]
    for path in paths:
        path.unlink(missing_ok=True)
    with Store(paths[0]) as store:
        begin(store)
        for step in range(13):
            a_step(store, step)
    killed = Store(paths[1])
    begin(killed)
    for step in range(kill + 1):
        a_step(killed, step)
    killed._connection.close()  # as a kill leaves it: no close(), a write-ahead log beside the file
    with Store(paths[1]) as store:
        store.drop_after(checkpoint)
        begin(store)
        for step in range(checkpoint + 1, 13):
            a_step(store, step)
    assert content(paths[0]) == content(paths[1])


def test_a_process_that_dies_leaves_a_readable_file_with_every_flushed_row(tmp_path):
    path = tmp_path / "telemetry.sqlite"
    script = f"""
        import os
        from qkv.telemetry import Store
        store = Store({str(path)!r}, flush_seconds=1e9)
        for step in range(50):
            store.add_step(step, tokens=step, loss=1.0, lr=0.1, grad_norm=1.0)
            store.add_values(step, "norm", ["W_E"], [float(step)])
            if step <= 40:
                store.flush()
        os._exit(9)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=60)
    assert done.returncode == 9
    with Telemetry(path) as telemetry:
        assert telemetry.last_step() == 40
        assert telemetry.series("W_E", "norm")["W_E"].value.tolist() == list(map(float, range(41)))
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_one_file_remains_after_close_and_closing_twice_is_fine(tmp_path):
    store = Store(tmp_path / "telemetry.sqlite")
    store.add_step(1, tokens=1, loss=1.0, lr=0.1, grad_norm=1.0)
    store.close()
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["telemetry.sqlite"]


def test_closing_while_someone_reads_loses_nothing(tmp_path):
    path = tmp_path / "telemetry.sqlite"
    store = Store(path)
    store.add_step(1, tokens=1, loss=1.0, lr=0.1, grad_norm=1.0)
    store.flush()
    with Telemetry(path) as telemetry:
        telemetry._connection.execute("BEGIN")
        assert telemetry.last_step() == 1
        store.add_step(2, tokens=2, loss=1.0, lr=0.1, grad_norm=1.0)
        store._connection.execute("PRAGMA busy_timeout = 50")
        store.close()
    with Telemetry(path) as telemetry:
        assert telemetry.last_step() == 2


def test_nothing_is_written_before_a_flush_and_everything_after(tmp_path):
    path = tmp_path / "telemetry.sqlite"
    with Store(path, flush_seconds=1e9) as store, Telemetry(path) as telemetry:
        store.add_step(1, tokens=1, loss=1.0, lr=0.1, grad_norm=1.0)
        assert len(telemetry.steps().step) == 0
        store.flush()
        assert telemetry.steps().step.tolist() == [1]


def test_a_transaction_that_fails_writes_nothing_of_it(tmp_path):
    path = tmp_path / "telemetry.sqlite"
    store = Store(path)
    store.add_step(1, tokens=1, loss=1.0, lr=0.1, grad_norm=1.0)
    store._buffers["evaluations"].append((0, 1, None, None, None, None, 1))  # a loss must be there
    with pytest.raises(RunFolderError, match="NOT NULL"):
        store.flush()
    with Telemetry(path) as telemetry:
        assert len(telemetry.steps().step) == 0
    store._buffers["evaluations"].clear()
    store.close()


def test_arms_are_dropped_apart(tmp_path):
    with Store(tmp_path / "t.sqlite") as store:
        for arm in (0, NULL_ARM):
            for step in range(5):
                a_step(store, step, arm)
        store.drop_after(2, arm=NULL_ARM)
        store.flush()
        with Telemetry(store.path) as telemetry:
            assert telemetry.steps(0).step.tolist() == [0, 1, 2, 3, 4]
            assert telemetry.steps(NULL_ARM).step.tolist() == [0, 1, 2]


def test_numbers_that_are_not_finite_are_stored_as_nothing(tmp_path):
    with Store(tmp_path / "t.sqlite") as store:
        store.add_values(1, "drift", ["a", "b", "c", "d"], [float("nan"), float("inf"), -float("inf"), 1.0])
        store.add_step(1, tokens=1, loss=float("inf"), lr=0.1, grad_norm=float("nan"))
        store.flush()
        rows = store._connection.execute("SELECT value FROM measurements ORDER BY address").fetchall()
        assert rows == [(None,), (None,), (None,), (1.0,)]
        assert store._connection.execute("SELECT loss, grad_norm FROM steps").fetchall() == [(None, None)]


def test_a_block_of_any_size_arrives_whole(tmp_path):
    with Store(tmp_path / "t.sqlite") as store:
        for n in (1, 299, 300, 301, 700):
            addresses = store.register_addresses([AddressRow(address=f"{n}.{i}") for i in range(n)])
            store.add_block(n, [store.measure_id("norm")], addresses, np.arange(n, dtype=float)[None])
        store.flush()
        with Telemetry(store.path) as telemetry:
            for n in (1, 299, 300, 301, 700):
                rows = telemetry._rows("SELECT value FROM measurements WHERE step = ? ORDER BY address", n, kinds="R")
                assert [row[0] for row in rows] == list(range(n))


def test_a_file_that_is_not_ours_is_refused_and_left_alone(tmp_path):
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE precious (x)")
    connection.commit()
    connection.close()
    before = other.read_bytes()
    for opened in (Store, Telemetry):
        with pytest.raises(RunFolderError, match="another application"):
            opened(other)
    assert other.read_bytes() == before
    text = tmp_path / "text.sqlite"
    text.write_text("not a database at all, but long enough to have a header " * 20)
    for opened in (Store, Telemetry):
        with pytest.raises(RunFolderError, match="damaged"):
            opened(text)


def test_a_newer_schema_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "t.sqlite"
    Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.commit()
    connection.close()
    with pytest.raises(RunFolderError, match="schema 99.*get a newer one: git -C .* pull"):
        Telemetry(path)


def test_a_file_cut_off_in_the_middle_is_called_damaged(tmp_path):
    path = tmp_path / "t.sqlite"
    with Store(path) as store:
        for step in range(2000):
            store.add_step(step, tokens=1, loss=1.0, lr=0.1, grad_norm=1.0)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(RunFolderError, match="damaged"):
        Telemetry(path).steps()


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(RunFolderError, match="no telemetry"):
        Telemetry(tmp_path / "telemetry.sqlite")


def test_two_writers_at_once_are_told(tmp_path):
    with Store(tmp_path / "t.sqlite") as store:
        second = Store(store.path)
        store._connection.execute("BEGIN IMMEDIATE")
        second._connection.execute("PRAGMA busy_timeout = 20")
        second.add_step(1, tokens=1, loss=1.0, lr=0.1, grad_norm=1.0)
        with pytest.raises(RunFolderError, match="locked"):
            second.flush()
        store._connection.execute("ROLLBACK")
        second.close()
        with Telemetry(store.path) as telemetry:
            assert telemetry.last_step() == 1


def test_a_full_disk_is_a_storage_error(tmp_path):
    with Store(tmp_path / "t.sqlite") as store:
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        for step in range(5000):
            store.add_event(step, "spike", "x" * 200)
        with pytest.raises(StorageError, match="disk is full"):
            store.flush()
        store._buffers["events"].clear()


def test_a_folder_that_is_not_there_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="folder exists"):
        Store(tmp_path / "nowhere" / "t.sqlite")


def test_a_finished_run_on_a_read_only_disk_can_be_read(tmp_path):
    path = tmp_path / "run" / "telemetry.sqlite"
    path.parent.mkdir()
    with Store(path) as store:
        store.add_step(7, tokens=1, loss=1.0, lr=0.1, grad_norm=1.0)
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        with Telemetry(path) as telemetry:
            assert telemetry.last_step() == 7
    finally:
        path.parent.chmod(0o755)


def test_means_of_training_losses_come_from_the_rows(tmp_path):
    with Store(tmp_path / "t.sqlite") as store:
        for step in range(1, 11):
            store.add_step(step, tokens=step, loss=float(step), lr=0.1, grad_norm=1.0)
        assert store.mean_train_loss(4, 8) == 6.5
        assert store.mean_train_loss(10, 20) is None
        store.add_evaluation(4, 1.0, is_best=True)
        assert (store.last_evaluation(8), store.last_evaluation(4)) == (4, 0)


def compare(path, memory, measure):
    with Telemetry(path) as fresh, Telemetry(path, memory) as again:
        expected, found = fresh.grid(measure), again.grid(measure)
    assert found.addresses == expected.addresses
    np.testing.assert_array_equal(found.step, expected.step)
    np.testing.assert_array_equal(found.value, expected.value)


def test_a_memory_reads_only_what_is_new_and_gives_what_a_fresh_reading_gives(tmp_path):
    path, memory = tmp_path / "telemetry.sqlite", Memory()
    with Store(path) as store:
        begin(store)
        for step in (0, 1, 2, 5):
            store.add_values(step, "norm", ["W_E", "L0.W_Q"], [1.0 + step, None if step == 2 else 2.0 * step])
            store.flush()
            compare(path, memory, "norm")
        store.register_addresses([AddressRow(address="L1.W_Q")])
        store.add_values(5, "norm", ["L1.W_Q"], [7.0])  # more at the last step, of an address that is new
        store.add_values(9, "norm", ["L1.W_Q"], [8.0])
        store.add_values(9, "row_drift", ["W_E"], [0.5])
        store.flush()
        compare(path, memory, "norm")
        compare(path, memory, "row_drift")
    compare(path, memory, "norm")
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM measurements WHERE step < 9")
    with Telemetry(path, memory) as again:
        assert again.grid("norm").value[0, 0] == 1.0  # remembered, not read


def test_a_validation_loss_that_is_no_number_is_refused_before_it_spoils_what_follows(tmp_path: Path) -> None:
    with Store(tmp_path / "t.sqlite") as store:
        with pytest.raises(AssertionError):
            store.add_evaluation(1, float("nan"), is_best=False)
        a_step(store, 2)
    assert len(content(tmp_path / "t.sqlite")["steps"]) == 1

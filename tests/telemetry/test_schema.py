"""A telemetry file of somebody else: nothing in it runs, nothing in it is followed, nothing in it can hang."""

import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from qkv.errors import DamagedFileError, RunFolderError, StorageError
from qkv.folder.run_folder import RunFolder
from qkv.telemetry import Store, Telemetry, schema

ENDLESS = "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t)"
STRANGERS = {
    "a table in the place of ours": (
        "DROP TABLE steps",
        f"CREATE VIEW steps AS {ENDLESS} SELECT 0 AS arm, i AS step, i AS tokens, 1.0 AS loss, 1.0 AS lr,"
        " 1.0 AS grad_norm FROM t",
    ),
    "another view": (f"CREATE VIEW extra AS {ENDLESS} SELECT i FROM t",),
    "another text of our view": ("DROP VIEW history", f"CREATE VIEW history AS {ENDLESS} SELECT i FROM t"),
    "a trigger": ("CREATE TRIGGER spy AFTER INSERT ON steps BEGIN DELETE FROM evaluations; END",),
    "an index over an expression": ("CREATE INDEX slow ON steps (abs(loss))",),
    "another table": ("CREATE TABLE more (x)",),
    "another column": ("ALTER TABLE steps ADD COLUMN more TEXT",),
    "a column that is computed": ("ALTER TABLE facts ADD COLUMN more TEXT AS (hex(value))",),
    "a check hidden behind quotes": (
        "DROP TABLE facts",
        "CREATE TABLE facts (key TEXT PRIMARY KEY, step INTEGER, value TEXT NOT NULL CHECK (value <> '--' OR abs(1)))",
    ),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Ours, of two updates."""
    with Store(tmp_path / "telemetry.sqlite") as store:
        for step in (1, 2):
            store.add_step(step, tokens=10 * step, loss=3.0 / step, lr=0.1, grad_norm=1.0)
    return tmp_path / "telemetry.sqlite"


def alter(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def refused(opening: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(DamagedFileError) as error:
        opening(path)
    return str(error.value)


@pytest.mark.parametrize("statements", STRANGERS.values(), ids=list(STRANGERS))
def test_what_schema_sql_does_not_have_is_refused_for_reading_and_for_writing(path, statements):
    alter(path, *statements)
    before, began = path.read_bytes(), time.monotonic()
    for opening in (Telemetry, Store):
        assert "which qkv did not write" in refused(opening, path)
    assert path.read_bytes() == before and time.monotonic() - began < 10


def test_a_file_of_ours_whose_comments_and_spaces_differ_is_ours(path, tmp_path):
    """Comments stand in the text that SQLite keeps, and change from one version of schema.sql to the next."""
    script = schema._script()
    assert "-- training tokens seen so far" in script
    other = script.replace("-- training tokens seen so far", "-- of the text").replace(
        "    loss       REAL", "  loss REAL"
    )
    with closing(sqlite3.connect(tmp_path / "older.sqlite")) as database:
        database.executescript(other)
    with Telemetry(tmp_path / "older.sqlite") as telemetry:
        assert telemetry.last_step() == 0
    assert schema._plain("CHECK (a <> '-- b  c')  -- d\n") == "CHECK(a<>'-- b  c')"


def test_a_statement_that_does_not_end_is_ended(path, monkeypatch):
    monkeypatch.setattr(schema, "MOST_SECONDS", 0.2)
    with closing(schema.open_reader(path)) as reader, pytest.raises(RunFolderError, match="within 0.2 s"):
        with schema.explained(path, "read"):
            reader.begin(0.2)
            reader.execute(f"{ENDLESS} SELECT count(*) FROM t").fetchall()


def test_a_reader_writes_nothing_and_trusts_no_schema(path):
    with closing(schema.open_reader(path)) as reader:
        for statement in ("DELETE FROM steps", "CREATE TABLE x (y)", "PRAGMA user_version = 7"):
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                reader.execute(statement)
        assert reader.execute("PRAGMA trusted_schema").fetchone() == (0,)
        assert reader.execute("PRAGMA query_only").fetchone() == (1,)


SPOILT = (
    "UPDATE steps SET loss = 'abc' WHERE step = 2",
    "UPDATE steps SET tokens = 1e300",
    "UPDATE steps SET grad_norm = x'00ff'",
    "INSERT INTO evaluations VALUES (0, 'abc', 1.0, 1.0, 1.0, 1.0, 0)",
    "INSERT INTO evaluations VALUES (0, 9223372036854775807, 1.0, 1.0, 1.0, 1.0, 0)",
    "INSERT INTO evaluations VALUES (0, 2, 'abc', 1.0, 1.0, 1.0, 0)",
    "INSERT INTO samples VALUES (0, 1, x'ff', 'text')",
    "INSERT INTO events VALUES (0, 1, 'spike', '', 'words', '[1')",
    "INSERT INTO facts VALUES ('watch', NULL, 'not json')",
    "INSERT INTO addresses VALUES (1, 'W_E', 'embed', 'x', NULL, 'W_E', '[1]', NULL)",
    "INSERT INTO addresses VALUES (1, 'W_E', 'embed', NULL, NULL, 'W_E', '1,', NULL)",
)
"""What no writer of ours puts into a table."""


def read_all(telemetry: Telemetry) -> None:
    telemetry.steps(), telemetry.clock(), telemetry.evaluations(), telemetry.samples(), telemetry.events()
    telemetry.facts(), telemetry.addresses(), telemetry.measures(), telemetry.arms(), telemetry.sessions()


@pytest.mark.parametrize("statement", SPOILT)
def test_a_value_of_another_type_is_refused_where_it_is_read_and_found_by_who_looks_for_faults(path, statement):
    with Telemetry(path) as telemetry:
        assert telemetry.faults() == []
        read_all(telemetry)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)
    with Telemetry(path) as telemetry:
        with pytest.raises(DamagedFileError, match="qkv did not write"):
            read_all(telemetry)
        assert "not of the type of its column" in telemetry.faults()[0]
    with pytest.raises(DamagedFileError, match="not of the type of its column"):
        Store(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("watch", "[1, 2]"), ("watch", '{"level": "light"}'), ("special_tokens", '{"a": "b"}'), ("machines", "[1]"),
     ("loss_less_ngram", '{"difference": 1e999, "low": 0, "high": 0, "windows": 1}'), ("null", "[" * 100_000)],
)  # fmt: skip
def test_a_fact_of_another_form_is_refused(path, key, value):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO clock_facts VALUES (?, ?)", (key, value))
    with Telemetry(path) as telemetry:
        for read in (telemetry.facts, lambda: telemetry.fact(key)):
            with pytest.raises(DamagedFileError, match="qkv did not write"):
                read()


def test_a_fact_that_is_nothing_is_as_one_that_is_not_there(path):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO facts VALUES ('special_tokens', NULL, 'null')")
    with Telemetry(path) as telemetry:
        assert telemetry.facts() == {} and telemetry.fact("special_tokens", 3) == 3


def test_a_list_that_is_cut_short_is_refused(path):
    with Store(path) as store:
        store.add_vector(2, "spectrum", "W_E", [1.0, 2.0])
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE vectors SET data = x'0011'")
    with Telemetry(path) as telemetry, pytest.raises(DamagedFileError, match="a list of 2 bytes"):
        telemetry.vector("W_E", "spectrum")


def test_a_writer_that_died_while_it_made_the_tables_is_gone_on_with(path):
    alter(path, "DROP TABLE clock_facts", "DROP VIEW history")
    with Store(path) as store:
        store.set_clock_fact("machines", [{"cores": 1}])
    with Telemetry(path) as telemetry:
        assert telemetry.fact("machines") == [{"cores": 1}] and telemetry.last_step() == 2


def test_a_change_that_the_power_cut_off_while_it_was_sealed_is_taken_back_by_a_reader(path, tmp_path):
    (tmp_path / "after").mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA cache_size = 1")  # what is changed is written to the file before it is committed
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE filler (x)")
        connection.executemany("INSERT INTO filler VALUES (?)", [("x" * 4000,)] * 50)
        for file in tmp_path.glob("telemetry.sqlite*"):
            shutil.copy(file, tmp_path / "after")
        connection.execute("ROLLBACK")
    assert (tmp_path / "after/telemetry.sqlite-journal").stat().st_size
    (tmp_path / "after/manifest.json").touch()
    with pytest.raises(StorageError):  # a finished run is not changed, not even to mend it
        Telemetry(tmp_path / "after/telemetry.sqlite")
    (tmp_path / "after/manifest.json").unlink()
    with Telemetry(tmp_path / "after/telemetry.sqlite") as telemetry, Telemetry(path) as before:
        assert telemetry.faults() == before.faults() == []
        assert telemetry.steps().step.tolist() == before.steps().step.tolist()


def test_one_altered_loss_of_a_finished_run_is_not_shown(tmp_path):
    with RunFolder.create(tmp_path / "run") as run:
        run.write("config.toml", "")
        with Store(run.telemetry) as store:
            store.add_step(1, tokens=10, loss=3.0, lr=0.1, grad_norm=1.0)
        shutil.copy(run.telemetry, tmp_path / "unsealed.sqlite")
        run.seal({})
    for file in (run.telemetry, tmp_path / "unsealed.sqlite"):
        alter(file, "UPDATE steps SET loss = 1.0")
    assert "its bytes are not those that were written" in refused(Telemetry, run.telemetry)
    with Telemetry(run.telemetry, altered=True) as telemetry:  # as verify reads it
        assert telemetry.steps().loss.tolist() == [1.0]
    with Telemetry(tmp_path / "unsealed.sqlite") as telemetry:  # nothing vouches for a file by itself
        assert telemetry.steps().loss.tolist() == [1.0]


def test_in_the_place_of_lost_telemetry_there_is_nothing(path):
    with Telemetry.lost(path) as telemetry:
        assert telemetry.is_lost and telemetry.ends() == (0, 0) and not telemetry.measures()
        assert telemetry.latest() == [] and telemetry.facts() == {} and telemetry.evaluations() == []

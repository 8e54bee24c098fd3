"""The schema of telemetry: its rows as dataclasses, and opening a file that must hold it and nothing else.

schema.sql has every table and column; here are the rows as they go in by name and come out. Steps count updates made;
losses are in nats per token; arrays are NumPy; None, or NaN in an array, is "undefined".

One writer per file, any number of readers, also while it is written (SQLite's write-ahead log). A file may come from
somebody else, and a database can hold programs: views, triggers, expressions. So every object in it must be one of
schema.sql, word for word, before anything is asked of it; files of another application and of a newer schema are
refused; what the schema says is not trusted by SQLite either, and a reader's statement ends at a deadline.
"""

import functools
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qkv.errors import DamagedFileError, QkvError, RunFolderError, StorageError
from qkv.folder import verified
from qkv.folder.run_folder import RunFolder
from qkv.folder.verified import Damage, check_file
from qkv.installing import update
from qkv.jsontypes import JsonObject

RUN_ARM = 0
NULL_ARM = 1
LEDGER_ARM = 2
"""Losses of the run itself on the ledger's probe batch."""


@dataclass(frozen=True, kw_only=True)
class AddressRow:
    """Something that can be measured, as the `addresses` table describes it."""

    address: str
    site: str = ""
    layer: int | None = None
    head: int | None = None
    kind: str = ""
    shape: tuple[int, ...] = ()
    tied_to: str | None = None


@dataclass(frozen=True, kw_only=True)
class MeasureRow:
    """A measure, as the `measures` table describes it."""

    name: str
    meaning: str = ""
    formula: str = ""
    range: str = ""
    source: str = ""
    property_of: str = "parametrisation"
    null: str = ""
    decision: str = ""


@dataclass(frozen=True)
class Arm:
    """One training in the file."""

    arm: int
    name: str
    description: str


@dataclass(frozen=True)
class Steps:
    """One entry per update; arrays [n_steps]; NaN where a number was not defined."""

    step: np.ndarray
    tokens: np.ndarray
    loss: np.ndarray
    lr: np.ndarray
    grad_norm: np.ndarray


@dataclass(frozen=True)
class Clock:
    """What the clock said; arrays [n]; differs from one execution to the next."""

    step: np.ndarray
    wall_seconds: np.ndarray
    tokens_per_second: np.ndarray
    watch_seconds: np.ndarray


@dataclass(frozen=True)
class Evaluation:
    """The whole validation split at a step; losses in nats per token."""

    step: int
    loss: float
    train_loss: float | None
    bits_per_byte: float | None
    metric: float | None
    is_best: bool


@dataclass(frozen=True)
class Series:
    """One measure of one address over steps: `step` int64 [n], `value` float64 [n], both without undefined ones."""

    address: str
    measure: str
    arm: int
    step: np.ndarray
    value: np.ndarray

    def __repr__(self) -> str:
        span = f", {self.step[0]} to {self.step[-1]}" if len(self.step) else ""
        return f"Series({self.address!r}, {self.measure!r}, at {len(self.step)} steps{span})"


@dataclass(frozen=True)
class Grid:
    """One measure of many addresses: `value[i, j]` float64 is address i at `step[j]`, NaN where undefined."""

    measure: str
    arm: int
    addresses: tuple[str, ...]
    step: np.ndarray
    value: np.ndarray


@dataclass(frozen=True)
class MatrixRow:
    """One line of the matrix table: the last recorded value of every measure, None where undefined."""

    about: AddressRow
    step: int
    values: dict[str, float | None]


@dataclass(frozen=True)
class Compared:
    """One address at one step, in the run and in the random-label control (the null)."""

    address: str
    measure: str
    step: int
    value: float
    null: float

    @property
    def ratio(self) -> float | None:
        """value / null; None where the null is 0."""
        return self.value / self.null if self.null else None


@dataclass(frozen=True)
class Sample:
    """What the model wrote after a prompt."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class Event:
    """Something that happened, with its numbers."""

    step: int
    kind: str
    address: str
    sentence: str
    evidence: JsonObject


@dataclass(frozen=True)
class Session:
    """Something that happened to the process rather than to the model."""

    step: int
    kind: str
    sentence: str


# opening a file

SCHEMA_VERSION = 1
APPLICATION_ID = int.from_bytes(b"qkv\x01", "big")
BUSY_SECONDS = 5.0
MOST_SECONDS = 30.0
"""Of one statement of a reader, or of one block of its rows; a series of a long run takes under a second."""

_LOOK_EVERY = 100_000
"""Instructions of SQLite between two looks at the clock: about a millisecond."""
_HARDENED = ("PRAGMA trusted_schema = OFF", "PRAGMA cell_size_check = ON", "PRAGMA mmap_size = 0")


class Connection(sqlite3.Connection):
    """A connection whose statements, or blocks of rows, end at a deadline once it has begun."""

    def begin(self, seconds: float = MOST_SECONDS) -> None:
        """Let what is asked next end after so many seconds: SQLite then calls it interrupted."""
        ends = time.monotonic() + seconds
        self.set_progress_handler(lambda: time.monotonic() > ends, _LOOK_EVERY)


@contextmanager
def _connected(place: str, *, uri: bool = False) -> Iterator[Connection]:
    """A connection to a file that may be anybody's, left open unless what is done with it here fails."""
    connection = sqlite3.connect(
        place, uri=uri, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, factory=Connection
    )
    try:
        for pragma in _HARDENED:
            connection.execute(pragma)
        yield connection
    except BaseException:
        connection.close()
        raise


def open_writer(path: Path) -> Connection:
    """A connection that may write; makes the file and its tables where they are missing.

    The connection is in autocommit mode (the caller says BEGIN and COMMIT) and may be used from other threads if the
    caller takes turns. Raises RunFolderError or StorageError.
    """
    with explained(path, "opened for writing"), _connected(str(path)) as connection:
        _check_identity(connection, path, empty_is_fine=True)
        if wrong := misfit(connection):
            raise DamagedFileError(f"{path} is damaged: {wrong}; move it away (the history in it is lost)")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # a kill loses nothing; a power cut, the last events
        connection.executescript(_script())
        return connection


def open_reader(path: Path, *, altered: bool = False) -> Connection:
    """A connection that cannot write, also while another process trains; with `altered` also to a file whose bytes are
    not those that a finished run has the hash of.

    Raises RunFolderError where the file is missing, of another application or of a newer schema, DamagedFileError where
    it is not what was written or holds anything that schema.sql does not.
    """
    if not path.is_file():
        raise RunFolderError(
            f"{path} does not exist; this folder holds no telemetry; a training writes it from its first step"
        )
    if not altered:
        check_file(path)
    is_open = not path.with_name("manifest.json").exists()  # nothing changes a finished run, whose hashes are kept
    if is_open and path.with_name(path.name + "-journal").exists() and os.access(path.parent, os.W_OK):
        with explained(path, "read"), _connected(str(path)) as connection:  # a power cut while it was sealed:
            _objects(connection)  # SQLite takes that change back, which a reader alone may not
            connection.close()
    uri = path.resolve().as_uri() + "?mode=ro"
    log = path.with_name(path.name + "-wal")
    if not os.access(path.parent, os.W_OK) and not log.exists():
        uri += "&immutable=1"  # a finished run on a read-only disk: SQLite could not make its shared-memory file there
    with explained(path, "read"), _connected(uri, uri=True) as connection:
        connection.begin()
        connection.execute("PRAGMA query_only = ON")
        _check_identity(connection, path, empty_is_fine=False)
        return connection


def damage(folder: RunFolder) -> tuple[Damage, ...]:
    """The damage that `qkv.folder.verified` finds, and telemetry that holds what qkv did not write."""
    found = verified.damage(folder)
    if not folder.telemetry.is_file() or any(one.file == folder.telemetry.name for one in found):
        return found
    try:
        open_reader(folder.telemetry).close()
    except DamagedFileError as error:
        return (*found, Damage(folder.telemetry.name, str(error)))
    except QkvError:  # not there yet, locked, of a newer version: not damaged
        pass
    return found


def open_nothing() -> Connection:
    """A connection to telemetry in which nothing was recorded, in memory."""
    with _connected(":memory:") as connection:
        connection.executescript(_script())
        return connection


def seal(connection: sqlite3.Connection) -> bool:
    """Fold the write-ahead log into the file and remove it, so that one file remains; False if a reader prevents it."""
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0] == "delete"
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return False
        raise


def _check_identity(connection: sqlite3.Connection, path: Path, *, empty_is_fine: bool) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    found = _objects(connection)
    if not found and application in (0, APPLICATION_ID):
        if empty_is_fine:
            return
        raise RunFolderError(
            f"{path} holds no telemetry; wait for the first step, or move it away where the training is over"
        )
    if application != APPLICATION_ID:
        raise RunFolderError(f"{path} is an SQLite file of another application; expected the telemetry of a qkv run")
    if version > SCHEMA_VERSION:
        raise RunFolderError(
            f"{path} has telemetry schema {version}; this qkv reads up to {SCHEMA_VERSION}; get a newer one: {update()}"
        )
    foreign = sorted(found - _known_objects())
    if foreign:
        kind, name, _ = foreign[0]
        raise DamagedFileError(
            f"{path} is damaged: it holds the {kind} {name!r:.60}, which qkv did not write; its numbers are not read:"
            " take the file from the run's own folder again, or move it away (the history in it is lost)"
        )


_STORED = {"INTEGER": "integer", "REAL": "real", "TEXT": "text", "BLOB": "blob"}


def misfit(connection: sqlite3.Connection) -> str:
    """The first table with a value that is not of the type of its column, or no JSON where that is, as a sentence; ""
    where all are. Every row is read.
    """
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    for table in tables:
        tests = []
        for name, kind, is_needed in connection.execute(_COLUMNS, (table,)).fetchall():
            column, null = f'"{name}"', "" if is_needed else ", 'null'"
            tests.append(f"typeof({column}) IN ('{_STORED[kind]}'{null})")
            if kind == "INTEGER":
                tests.append(f"({column} IS NULL OR {column} BETWEEN 0 AND {1 << 53})")
            if (table, name) in _JSON:
                tests.append(f"json_valid({column})")
        if connection.execute(f"SELECT 1 FROM {table} WHERE NOT ({' AND '.join(tests)}) LIMIT 1").fetchone():
            return f"table {table} holds a value that is not of the type of its column"
    return ""


_COLUMNS = """SELECT name, type, "notnull" OR pk FROM pragma_table_info(?)"""
_JSON = (("addresses", "shape"), ("events", "evidence"), ("facts", "value"), ("clock_facts", "value"))


def _objects(connection: sqlite3.Connection) -> frozenset[tuple[str, str, str]]:
    """(kind, name, text without comments and spaces) of every table, view, index and trigger of a database."""
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    return frozenset((str(kind), str(name), _plain(str(sql or ""))) for kind, name, sql in rows)


@functools.cache
def _known_objects() -> frozenset[tuple[str, str, str]]:
    """The same of schema.sql."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_script())
        return _objects(connection)


@functools.lru_cache(maxsize=64)
def _plain(sql: str) -> str:
    """A statement of SQL without its comments and spaces, which differ between versions of schema.sql."""
    return re.sub(r"""('[^']*'|"[^"]*")|--[^\n]*|\s+""", r"\1", sql)


@functools.cache
def _script() -> str:
    """All of schema.sql in one transaction: after a power cut there are all tables or none."""
    return f"BEGIN; {Path(__file__).with_name('schema.sql').read_text(encoding='utf-8')} COMMIT;"


def _explanation(error: sqlite3.Error, path: Path, doing: str) -> QkvError:
    """The error of ours that says what SQLite's means: a fault of the folder, or of the disk under it."""
    text = str(error)
    if text == "interrupted":
        return RunFolderError(
            f"{path} could not be {doing} within {MOST_SECONDS:g} s: this machine is too busy, or the file is damaged;"
            " try again, or move it away (the history in it is lost)"
        )
    if "locked" in text or "busy" in text:
        return RunFolderError(f"{path} is locked by another program; close it (or the other training) and try again")
    if "disk is full" in text:
        return StorageError(
            f"the disk is full: {path} could not be {doing}; free some space, then resume with --resume"
        )
    if "readonly" in text or "unable to open" in text or "disk I/O" in text:
        return StorageError(f"{path} could not be {doing} ({text}); check that the folder exists and may be written")
    if "not a database" in text or "malformed" in text:
        return DamagedFileError(
            f"{path} is damaged ({text}); weights and checkpoints are not in it: "
            "move it away, the history in it is lost"
        )
    return RunFolderError(f"{path} could not be {doing}: {text}")


@contextmanager
def explained(path: Path, doing: str) -> Iterator[None]:
    """Whatever SQLite raises inside leaves as one of our errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explanation(error, path, doing) from error

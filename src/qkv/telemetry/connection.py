"""Opening telemetry.sqlite for writing or reading, and saying in words what went wrong.

One writer per file, any number of readers, also while it is written (SQLite's write-ahead log). This module holds no
query; it refuses files of another application and of a newer schema.

A file may come from somebody else, and a database can hold programs: views, triggers, expressions. So every object in
it must be one of schema.sql, word for word, before anything is asked of it; what the schema says is not trusted by
SQLite either, and a reader's statement ends at a deadline.
"""

import functools
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from qkv.errors import DamagedFileError, QkvError, RunFolderError, StorageError
from qkv.folder import verified
from qkv.folder.run_folder import RunFolder
from qkv.folder.verified import Damage, check_file
from qkv.installing import update

__all__ = [
    "SCHEMA_VERSION",
    "Reader",
    "damage",
    "explain",
    "explained",
    "open_nothing",
    "open_reader",
    "open_writer",
    "seal",
]

SCHEMA_VERSION = 1
APPLICATION_ID = int.from_bytes(b"qkv\x01", "big")
BUSY_SECONDS = 5.0
MOST_SECONDS = 30.0
"""Of one statement of a reader, or of one block of its rows; a series of a long run takes under a second."""

_LOOK_EVERY = 100_000
"""Instructions of SQLite between two looks at the clock: about a millisecond."""
_HARDENED = ("PRAGMA trusted_schema = OFF", "PRAGMA cell_size_check = ON", "PRAGMA mmap_size = 0")


class Reader(sqlite3.Connection):
    """A connection whose statements, or blocks of rows, end at a deadline."""

    def begin(self, seconds: float = MOST_SECONDS) -> None:
        """Let what is asked next end after so many seconds: SQLite then calls it interrupted."""
        ends = time.monotonic() + seconds
        self.set_progress_handler(lambda: time.monotonic() > ends, _LOOK_EVERY)


def open_writer(path: Path) -> sqlite3.Connection:
    """A connection that may write; makes the file and its tables where they are missing.

    The connection is in autocommit mode (the caller says BEGIN and COMMIT) and may be used from other threads if the
    caller takes turns. Raises RunFolderError or StorageError.
    """
    with explained(path, "opened for writing"):
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            for pragma in _HARDENED:
                connection.execute(pragma)
            _check_identity(connection, path, empty_is_fine=True)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(
                "PRAGMA synchronous = NORMAL"
            )  # a killed process loses nothing; a power cut, the last events
            connection.executescript(_script())
        except BaseException:
            connection.close()
            raise
    return connection


def open_reader(path: Path, *, altered: bool = False) -> Reader:
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
    uri = path.resolve().as_uri() + "?mode=ro"
    log = path.with_name(path.name + "-wal")
    if not os.access(path.parent, os.W_OK) and not log.exists():
        uri += "&immutable=1"  # a finished run on a read-only disk: SQLite could not make its shared-memory file there
    with explained(path, "read"):
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, factory=Reader
        )
        try:
            connection.begin()
            for pragma in (*_HARDENED, "PRAGMA query_only = ON"):
                connection.execute(pragma)
            _check_identity(connection, path, empty_is_fine=False)
        except BaseException:
            connection.close()
            raise
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


def open_nothing() -> Reader:
    """A connection to telemetry in which nothing was recorded, in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=Reader)
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
    return Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")


def explain(error: sqlite3.Error, path: Path, doing: str) -> QkvError:
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
        raise explain(error, path, doing) from error

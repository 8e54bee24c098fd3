"""Opening telemetry.sqlite for writing or reading, and saying in words what went wrong.

One writer per file, any number of readers, also while it is written (SQLite's write-ahead log). This module holds no
query; it refuses files of another application and of a newer schema.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.errors import QkvError, RunFolderError, StorageError
from qkv.installing import update

__all__ = ["SCHEMA_VERSION", "explain", "explained", "open_reader", "open_writer", "seal"]

SCHEMA_VERSION = 1
APPLICATION_ID = int.from_bytes(b"qkv\x01", "big")
BUSY_SECONDS = 5.0


def open_writer(path: Path) -> sqlite3.Connection:
    """A connection that may write; makes the file and its tables where they are missing.

    The connection is in autocommit mode (the caller says BEGIN and COMMIT) and may be used from other threads if the
    caller takes turns. Raises RunFolderError or StorageError.
    """
    with explained(path, "opened for writing"):
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _check_identity(connection, path, empty_is_fine=True)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(
                "PRAGMA synchronous = NORMAL"
            )  # a killed process loses nothing; a power cut, the last events
            connection.executescript(Path(__file__).with_name("schema.sql").read_text(encoding="utf-8"))
        except BaseException:
            connection.close()
            raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write, also while another process trains.

    Raises RunFolderError where the file is missing, damaged, of another application or of a newer schema.
    """
    if not path.is_file():
        raise RunFolderError(
            f"{path} does not exist; this folder holds no telemetry; a training writes it from its first step"
        )
    uri = path.resolve().as_uri() + "?mode=ro"
    log = path.with_name(path.name + "-wal")
    if not os.access(path.parent, os.W_OK) and not log.exists():
        uri += "&immutable=1"  # a finished run on a read-only disk: SQLite could not make its shared-memory file there
    with explained(path, "read"):
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _check_identity(connection, path, empty_is_fine=False)
        except BaseException:
            connection.close()
            raise
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
    n_tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if n_tables == 0 and application in (0, APPLICATION_ID):
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


def explain(error: sqlite3.Error, path: Path, doing: str) -> QkvError:
    """The error of ours that says what SQLite's means: a fault of the folder, or of the disk under it."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return RunFolderError(f"{path} is locked by another program; close it (or the other training) and try again")
    if "disk is full" in text:
        return StorageError(
            f"the disk is full: {path} could not be {doing}; free some space, then resume with --resume"
        )
    if "readonly" in text or "unable to open" in text or "disk I/O" in text:
        return StorageError(f"{path} could not be {doing} ({text}); check that the folder exists and may be written")
    if "not a database" in text or "malformed" in text:
        return RunFolderError(
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

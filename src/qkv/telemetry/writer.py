"""The one writer of a run's telemetry: rows are buffered in order and written in one transaction per event.

What it holds and what each column means is written in schema.sql. Names (addresses, measures) get their numbers in the
order in which they are first given, so that two executions of the same run write the same rows. reader.py reads.
"""

import json
import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from qkv.jsontypes import JsonMapping
from qkv.telemetry.schema import RUN_ARM, AddressRow, Connection, MeasureRow, explained, open_writer, seal

_INSERT = {
    "steps": "INSERT OR REPLACE INTO steps VALUES (?,?,?,?,?,?)",
    "evaluations": "INSERT OR REPLACE INTO evaluations VALUES (?,?,?,?,?,?,?)",
    "recorded": "INSERT OR REPLACE INTO recorded VALUES (?,?,?)",
    "vectors": "INSERT OR REPLACE INTO vectors VALUES (?,?,?,?,?,?)",
    "samples": "INSERT OR REPLACE INTO samples VALUES (?,?,?,?)",
    "events": "INSERT OR REPLACE INTO events VALUES (?,?,?,?,?,?)",
    "facts": "INSERT OR REPLACE INTO facts VALUES (?,?,?)",
    "sessions": "INSERT INTO sessions (arm, step, kind, sentence) VALUES (?,?,?,?)",
    "clock": "INSERT OR REPLACE INTO clock VALUES (?,?,?,?,?)",
    "clock_facts": "INSERT OR REPLACE INTO clock_facts VALUES (?,?)",
}
_STEPPED = ("steps", "evaluations", "measurements", "recorded", "vectors", "samples", "events", "clock")
_DTYPES = ("<f4", "<f8", "<i4", "<i8")
_BLOCK = 3 * 300
"""Numbers in one statement; SQLite before 3.32 takes at most 999 parameters."""

_Row: TypeAlias = tuple[int | float | str | bytes | None, ...]
"""The values of one row, in the order of its table's columns."""


class Store:
    """Telemetry being written. Use as a context manager, or call `close`.

    `add_*` and `set_fact` only buffer; `flush` writes what is buffered in one transaction. `add_step` also flushes once
    the oldest buffered row is `flush_seconds` old, so that a page that watches stays fresh. After a kill every flushed
    row is there. Non-finite numbers are stored as NULL.

    Raises RunFolderError (locked, damaged, foreign, newer) or StorageError (disk full, no permission).
    """

    def __init__(self, path: str | Path, *, flush_seconds: float = 1.0) -> None:
        self.path = Path(path)
        self.flush_seconds = flush_seconds
        self._turn = threading.RLock()
        self._connection: Connection | None = open_writer(self.path)
        self._buffers: dict[str, list[_Row]] = {table: [] for table in _INSERT}
        self._blocks: list[tuple[int, int, list[float]]] = []
        """Measurements: arm, step, then (measure, address, value)*."""
        self._oldest = 0.0
        self._load_names()

    # names

    def _load_names(self) -> None:
        with explained(self.path, "read"):
            connection = self._open()
            self._addresses = dict(connection.execute("SELECT address, id FROM addresses"))
            self._measures = dict(connection.execute("SELECT name, id FROM measures"))

    def add_arm(self, arm: int, name: str, description: str) -> None:
        """Name a further training whose rows share this file; 0 and 1 are there from the start."""
        self._write("INSERT OR REPLACE INTO arms VALUES (?,?,?)", [(arm, name, description)])

    def register_addresses(self, rows: Iterable[AddressRow]) -> list[int]:
        """Describe what will be measured, in canonical order; returns their numbers. Known ones keep theirs."""
        rows, new = list(rows), []
        for row in rows:
            if row.address not in self._addresses:
                number = self._addresses[row.address] = len(self._addresses) + 1
                values = astuple(row)
                new.append((number, *values[:5], json.dumps(list(row.shape)), row.tied_to))
        self._write("INSERT INTO addresses VALUES (?,?,?,?,?,?,?,?)", new)
        return [self._addresses[row.address] for row in rows]

    def register_measures(self, rows: Iterable[MeasureRow]) -> list[int]:
        """Describe the measures that will be used, in order of their registry; returns their numbers."""
        rows, new = list(rows), []
        for row in rows:
            if row.name not in self._measures:
                number = self._measures[row.name] = len(self._measures) + 1
                new.append((number, *astuple(row)))
        self._write("INSERT INTO measures VALUES (?,?,?,?,?,?,?,?,?)", new)
        return [self._measures[row.name] for row in rows]

    def address_id(self, address: str) -> int:
        """The number of an address, registering it bare (no site, no shape) where it is new."""
        number = self._addresses.get(address)
        return number if number is not None else self.register_addresses([AddressRow(address=address)])[0]

    def measure_id(self, measure: str) -> int:
        """The number of a measure, registering it bare where it is new."""
        number = self._measures.get(measure)
        return number if number is not None else self.register_measures([MeasureRow(name=measure)])[0]

    # rows of steps

    def add_step(
        self,
        step: int,
        *,
        tokens: int,
        loss: float | None,
        lr: float | None,
        grad_norm: float | None,
        arm: int = RUN_ARM,
    ) -> None:
        """One update: tokens seen so far, training loss (nats per token), rate, gradient norm before clipping."""
        self._buffer("steps", (arm, step, tokens, _real(loss), _real(lr), _real(grad_norm)))
        if time.monotonic() - self._oldest > self.flush_seconds:
            self.flush()

    def add_evaluation(
        self,
        step: int,
        loss: float,
        *,
        is_best: bool,
        train_loss: float | None = None,
        bits_per_byte: float | None = None,
        metric: float | None = None,
        arm: int = RUN_ARM,
    ) -> None:
        """The whole validation split at a step; `loss` in nats per token and finite."""
        assert math.isfinite(loss), "a validation loss is a number"
        row = (arm, step, float(loss), _real(train_loss), _real(bits_per_byte), _real(metric), int(is_best))
        self._buffer("evaluations", row)

    def add_values(
        self, step: int, measure: str, addresses: Sequence[str], values: Sequence[float | None], *, arm: int = RUN_ARM
    ) -> None:
        """One measure of many addresses at a step."""
        numbers = [self.address_id(address) for address in addresses]
        block = np.array([[np.nan if value is None else value for value in values]])
        self.add_block(step, [self.measure_id(measure)], numbers, block, arm=arm)

    def add_block(
        self, step: int, measures: Sequence[int], addresses: Sequence[int], values: np.ndarray, *, arm: int = RUN_ARM
    ) -> None:
        """Several measures of the same addresses at a step: `values` [measure, address], with the numbers that
        `register_measures` and `register_addresses` returned. Anything not finite is stored as NULL."""
        assert values.shape == (len(measures), len(addresses)), "one value for each measure and address"
        keys = [(m, a) for m in measures for a in addresses]
        finite = np.where(np.isfinite(values), values, np.nan).ravel().tolist()  # SQLite stores NaN as NULL
        numbers: list[float] = [x for (m, a), value in zip(keys, finite, strict=True) for x in (m, a, value)]
        with self._turn:
            self._mark()
            self._blocks.append((arm, step, numbers))
            self._buffers["recorded"] += [(arm, m, step) for m in measures]

    def add_vector(
        self, step: int, measure: str, address: str, values: np.ndarray | Sequence[float], *, arm: int = RUN_ARM
    ) -> None:
        """A measure that is a list of numbers [n], stored as float32, float64, int32 or int64 as given."""
        array = np.ascontiguousarray(values)
        dtype = array.dtype.newbyteorder("<").str
        if dtype not in _DTYPES:
            dtype = "<f4" if array.dtype.kind == "f" else "<i8"
        data = array.astype(dtype).tobytes()
        self._buffer("vectors", (arm, step, self.measure_id(measure), self.address_id(address), dtype, data))

    def add_sample(self, step: int, prompt: str, text: str, *, arm: int = RUN_ARM) -> None:
        """What the model wrote after `prompt` at a step."""
        self._buffer("samples", (arm, step, prompt, text))

    def add_event(
        self,
        step: int,
        kind: str,
        sentence: str,
        *,
        address: str = "",
        evidence: JsonMapping | None = None,
        arm: int = RUN_ARM,
    ) -> None:
        """Something that happened, with the numbers behind the sentence."""
        self._buffer("events", (arm, step, kind, address, sentence, _json(evidence or {})))

    def set_fact(self, key: str, value: object, *, step: int | None = None) -> None:
        """One value for the run (anything JSON holds); with `step`, dropped on a resume from before that step."""
        self._buffer("facts", (key, step, _json(value)))

    # rows of clocks

    def add_clock(
        self,
        step: int,
        wall_seconds: float,
        *,
        tokens_per_second: float | None = None,
        watch_seconds: float | None = None,
        arm: int = RUN_ARM,
    ) -> None:
        """What the clock said at a step: never part of what a resumed run must reproduce."""
        self._buffer("clock", (arm, step, float(wall_seconds), _real(tokens_per_second), _real(watch_seconds)))

    def add_session(self, step: int, kind: str, sentence: str, *, arm: int = RUN_ARM) -> None:
        """Something that happened to the process, not to the model: started, resumed, interrupted, a file skipped."""
        self._buffer("sessions", (arm, step, kind, sentence))

    def set_clock_fact(self, key: str, value: object) -> None:
        """A fact that depends on the clock or the machine."""
        self._buffer("clock_facts", (key, _json(value)))

    # what the writer itself may ask

    def mean_train_loss(self, after: int, upto: int, *, arm: int = RUN_ARM) -> float | None:
        """Mean training loss of the updates after step `after` up to step `upto`; None where there were none."""
        return self._asked("SELECT avg(loss) FROM steps WHERE arm = ? AND step > ? AND step <= ?", arm, after, upto)

    def last_evaluation(self, before: int, *, arm: int = RUN_ARM) -> int:
        """The step of the last evaluation before step `before`; 0 where there was none."""
        return self._asked("SELECT coalesce(max(step), 0) FROM evaluations WHERE arm = ? AND step < ?", arm, before)

    def last_recorded(self, measure: str, *, arm: int = RUN_ARM) -> int:
        """The newest step at which a measure was taken; -1 where there is none."""
        return self._asked(
            "SELECT coalesce(max(step), -1) FROM recorded"
            " WHERE arm = ? AND measure = (SELECT id FROM measures WHERE name = ?)",
            arm, measure,
        )  # fmt: skip

    def clock_fact(self, key: str) -> Any:
        """A fact that `set_clock_fact` wrote; None where there is none."""
        found = self._asked("SELECT value FROM clock_facts WHERE key = ?", key)
        return None if found is None else json.loads(found)

    def _asked(self, sql: str, *values: int | str) -> Any:
        """The one value that a question has for an answer, None where it has none; what is buffered counts."""
        self.flush()
        with self._turn, explained(self.path, "read"):
            row = self._open().execute(sql, values).fetchone()
        return None if row is None else row[0]

    # transactions

    def flush(self) -> None:
        """Write everything buffered in one transaction; nothing of it is written if that fails."""
        with self._turn:
            full = [(table, rows) for table, rows in self._buffers.items() if rows]
            if not full and not self._blocks:
                return
            with self._transaction() as connection:
                for arm, step, numbers in self._blocks:
                    for start in range(0, len(numbers), _BLOCK):
                        part = numbers[start : start + _BLOCK]
                        connection.execute(_block_insert(len(part) // 3), (arm, step, *part))
                for table, rows in full:
                    connection.executemany(_INSERT[table], rows)
            self._blocks.clear()
            for _, rows in full:
                rows.clear()

    def sync(self) -> None:
        """`flush`, and make it survive a power cut: to be called before a checkpoint is published."""
        self.flush()
        with self._turn, explained(self.path, "written"):
            self._open().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def drop_after(self, step: int, *, arm: int = RUN_ARM) -> None:
        """Forget everything that this arm wrote about later steps, so that a resumed run writes it again.

        Names that were first used after `step` are forgotten with it: the resumed run numbers them as the first did.
        Call it before anything is registered.
        """
        with self._turn:
            self._blocks.clear()
            for rows in self._buffers.values():
                rows.clear()
            with self._transaction() as connection:
                for table in _STEPPED:
                    connection.execute(f"DELETE FROM {table} WHERE arm = ? AND step > ?", (arm, step))
                if arm == RUN_ARM:
                    connection.execute("DELETE FROM facts WHERE step > ?", (step,))
                for names, column in (("addresses", "address"), ("measures", "measure")):
                    used = f"(SELECT {column} FROM measurements UNION SELECT {column} FROM vectors)"
                    connection.execute(
                        f"DELETE FROM {names} WHERE id > (SELECT coalesce(max({column}), 0) FROM {used})"
                    )
            self._load_names()

    def close(self) -> None:
        """Write what is buffered, fold the write-ahead log into the file and close; once more does nothing."""
        with self._turn:
            if self._connection is None:
                return
            try:
                self.flush()
                with explained(self.path, "closed"):
                    seal(self._connection)
            finally:
                self._connection.close()
                self._connection = None

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # inside

    def _open(self) -> Connection:
        assert self._connection is not None, "the store is closed"
        return self._connection

    def _mark(self) -> None:
        if not self._blocks and not any(self._buffers.values()):
            self._oldest = time.monotonic()

    def _buffer(self, table: str, row: _Row) -> None:
        with self._turn:
            self._mark()
            self._buffers[table].append(row)

    def _write(self, sql: str, rows: list[_Row]) -> None:
        if rows:
            with self._turn, self._transaction() as connection:
                connection.executemany(sql, rows)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """All of it or nothing of it."""
        with explained(self.path, "written"):
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


@cache
def _block_insert(n_rows: int) -> str:
    """One statement for many measurements of one arm and step: a third of the cost of as many statements."""
    rows = ",".join(["(?,?,?)"] * n_rows)
    return f"INSERT OR REPLACE INTO measurements SELECT ?, ?, * FROM (VALUES {rows})"


def _real(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)

"""Typed reads of a run's telemetry; nothing else in the project writes SQL to read it.

Everything can be read while the training still writes. A series leaves out the steps at which its measure is
undefined; a grid marks them NaN, because an array needs something there: show both as a dash. Steps count updates made.
(CROSS JOIN makes SQLite take the look-ups in the order written.)
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from qkv.errors import AddressError, DamagedFileError, unknown
from qkv.jsontypes import MOST, JsonObject, is_like
from qkv.telemetry.schema import (
    NULL_ARM,
    RUN_ARM,
    AddressRow,
    Arm,
    Clock,
    Compared,
    Evaluation,
    Event,
    Grid,
    MatrixRow,
    MeasureRow,
    Sample,
    Series,
    Session,
    Steps,
    explained,
    misfit,
    open_nothing,
    open_reader,
)
from qkv.telemetry.selectors import select

MOST_REMEMBERED = 64_000_000
"""Bytes of numbers that a `Memory` keeps."""
MANY = 16_384
"""Updates that are read at a time where a run is read from end to end."""
BLOCK = 4096
"""Rows of a long result that are Python objects at a time: a tuple takes several times the room of its numbers."""
_KINDS: dict[str, tuple[type, ...]] = {"i": (int,), "r": (float, int), "s": (str,), "b": (bytes,)}
"""What a letter says of a value that is read; a capital also allows NULL."""
_FACTS: dict[str, object] = {
    "tokens_counted": {"counted": int, "of": int},
    "special_tokens": {str: int},
    "loss_less_ngram": {"difference": float, "low": float, "high": float, "windows": int},
    "watch": {"level": str, "looks": int, "numbers": int, "seconds": float},
    "ledger.probe": {"every": int},
    "ledger.rows": dict,
    "baselines": dict,
    "agreement": dict,
    "machines": [dict],
    "ledger": dict,
    "null": dict,
}
"""What the facts that are read by name look like; those of a task are checked by the task."""
_NAMED = "SELECT address, id FROM addresses ORDER BY id"
_HAVING_LISTS = (
    "SELECT a.address FROM addresses a WHERE a.id IN (SELECT address FROM vectors WHERE measure ="
    " (SELECT id FROM measures WHERE name = ?)) ORDER BY a.id LIMIT 1"
)


@dataclass(frozen=True)
class _Cells:
    """Every number of one measure of one arm; NaN where it is undefined or was not taken."""

    ids: np.ndarray
    """int64 [n], of the addresses that it was taken of, in canonical order."""
    steps: np.ndarray
    """int64 [step]"""
    values: np.ndarray
    """float64 [n, step]"""


class Memory:
    """Grids read before. The last step of a measure is read again, since more may have been recorded at it."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], _Cells] = {}

    def get(self, arm: int, measure: int) -> _Cells | None:
        """What is known of a measure of an arm."""
        return self._held.get((arm, measure))

    def keep(self, arm: int, measure: int, cells: _Cells) -> None:
        """Remember this grid, if there is room for it."""
        self._held.pop((arm, measure), None)
        if sum(c.values.nbytes for c in list(self._held.values())) + cells.values.nbytes <= MOST_REMEMBERED:
            self._held[arm, measure] = cells


class Telemetry:
    """A read-only view of telemetry.sqlite. Use as a context manager, or call `close`.

    Raises RunFolderError for a missing, damaged, locked, foreign or newer file; AddressError for a selector that
    matches nothing or a measure that was not recorded.
    """

    is_lost = False
    """Whether what was recorded cannot be read, and this is in its place."""

    def __init__(self, path: str | Path, memory: Memory | None = None, *, altered: bool = False) -> None:
        """`memory` is kept from one opening of a file to the next: of a running training only new rows are read.

        With `altered` a file is read too whose bytes are not those that a finished run has the hash of.
        """
        self.path = Path(path)
        self._connection = open_reader(self.path, altered=altered)
        self._memory = memory
        self._addresses: list[AddressRow] = []

    @classmethod
    def lost(cls, path: str | Path) -> "Telemetry":
        """Empty telemetry, to show the rest of a run whose own is damaged."""
        found = cls.__new__(cls)
        found.path, found._connection, found._memory, found._addresses = Path(path), open_nothing(), None, []
        found.is_lost = True
        return found

    def close(self) -> None:
        self._connection.close()

    def hold(self) -> None:
        """Let all that is read until `close` be of one moment, while a training goes on writing."""
        self._connection.execute("BEGIN")

    def __enter__(self) -> "Telemetry":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # what there is

    def arms(self) -> list[Arm]:
        """The trainings that wrote at least one step or measurement."""
        rows = self._rows(
            "SELECT arm, name, description FROM arms WHERE EXISTS (SELECT 1 FROM steps WHERE steps.arm = arms.arm) "
            "OR EXISTS (SELECT 1 FROM recorded WHERE recorded.arm = arms.arm) ORDER BY arm",
            kinds="iss",
        )
        return [Arm(*row) for row in rows]

    def addresses(self) -> list[AddressRow]:
        """Everything measured, in canonical order."""
        if len(self._addresses) == self._value("SELECT count(*) FROM addresses"):
            return list(self._addresses)
        found = self._described("addresses", AddressRow, "ssIIssS")
        for row in found:
            row["shape"] = tuple(self._json(row["shape"], [int]))
        self._addresses = [AddressRow(**row) for row in found]
        return list(self._addresses)

    def token_table(self) -> str:
        """The address of the first table that tokens enter by: `W_E`, or `enc.W_E` of an encoder-decoder."""
        table = "SELECT address FROM addresses WHERE kind = 'W_E' ORDER BY id LIMIT 1"
        return self._value(table, kinds="s") or "W_E"

    def measures(self) -> list[MeasureRow]:
        """Every measure, with its meaning, formula, range, source, property, null and decision."""
        return [MeasureRow(**row) for row in self._described("measures", MeasureRow, "ssssssss")]

    def last_step(self, arm: int = RUN_ARM) -> int:
        """The last update that was written; 0 before the first."""
        return self._value("SELECT coalesce(max(step), 0) FROM steps WHERE arm = ?", arm)

    def recorded_steps(self, measure: str, arm: int = RUN_ARM) -> np.ndarray:
        """The steps int64 [n] at which a measure was taken."""
        sql = "SELECT step FROM recorded WHERE arm = ? AND measure = ? ORDER BY step"
        return np.array([row[0] for row in self._rows(sql, arm, self._measure_id(measure), kinds="i")], dtype=np.int64)

    def last_recorded(self, arm: int = RUN_ARM) -> int:
        """The last step at which any measure was taken; -1 before the first."""
        return self._value("SELECT coalesce(max(step), -1) FROM recorded WHERE arm = ?", arm)

    def last_loss(self, arm: int = RUN_ARM) -> tuple[int, float | None]:
        """(last update that was written, loss of its batch in nats per token); (0, None) before the first."""
        rows = self._rows("SELECT step, loss FROM steps WHERE arm = ? ORDER BY step DESC LIMIT 1", arm, kinds="iR")
        return rows[0] if rows else (0, None)

    def n_evaluations(self, arm: int = RUN_ARM) -> int:
        """How many evaluations were written."""
        return self._value("SELECT count(*) FROM evaluations WHERE arm = ?", arm)

    # curves

    def steps(self, arm: int = RUN_ARM, at: np.ndarray | None = None, after: int = -1) -> Steps:
        """Loss, learning rate and gradient norm of every update behind step `after`, or of the steps of `at`."""
        if at is None:
            return self._steps("AND step > ? ORDER BY step", arm, after)
        return self._steps("AND step IN (SELECT value FROM json_each(?)) ORDER BY step", arm, json.dumps(at.tolist()))

    def steps_by_block(self, arm: int = RUN_ARM) -> Iterator[Steps]:
        """`steps`, at most `MANY` updates at a time: what reads a long run needs no more room than for a short one."""
        after = -1
        while len((found := self._steps("AND step > ? ORDER BY step LIMIT ?", arm, after, MANY)).step):
            after = int(found.step[-1])
            yield found

    def ends(self, arm: int = RUN_ARM) -> tuple[int, int]:
        """(first, last) update that was written down; (0, 0) before the first."""
        first, last = (f"(SELECT {end}(step) FROM steps WHERE arm = ?)" for end in ("min", "max"))  # each one look-up
        return self._rows(f"SELECT coalesce({first}, 0), coalesce({last}, 0)", arm, arm, kinds="ii")[0]

    def updates(self, arm: int = RUN_ARM) -> tuple[int, int, int]:
        """(how many updates were written down, the first, the last); (0, 0, 0) before the first."""
        ends = "SELECT coalesce(min(step), 0), coalesce(max(step), 0), count(*) FROM steps WHERE arm = ?"
        first, last, n = self._rows(ends, arm, kinds="iii")[0]
        return n, first, last

    def tokens_seen(self, arm: int = RUN_ARM) -> int | None:
        """Training tokens up to the last update, repeats included; None before the first."""
        return self._value("SELECT tokens FROM steps WHERE arm = ? ORDER BY step DESC LIMIT 1", arm, kinds="i")

    def wall_seconds(self, arm: int = RUN_ARM) -> float | None:
        """Wall seconds that the clock wrote last; None before the first."""
        return self._value("SELECT wall_seconds FROM clock WHERE arm = ? ORDER BY step DESC LIMIT 1", arm, kinds="r")

    def clock(self, arm: int = RUN_ARM) -> Clock:
        """Wall seconds, speed, and the seconds that watching took."""
        step, wall, speed, watch = self._columns(
            4, "SELECT step, wall_seconds, tokens_per_second, watch_seconds FROM clock WHERE arm = ? ORDER BY step", arm
        )
        return Clock(self._whole(step), wall, speed, watch)

    def evaluations(self, arm: int = RUN_ARM) -> list[Evaluation]:
        """Every evaluation, in order of step."""
        rows = self._rows(
            "SELECT step, loss, train_loss, bits_per_byte, metric, is_best FROM evaluations "
            "WHERE arm = ? ORDER BY step",
            arm,
            kinds="irRRRi",
        )
        return [Evaluation(*row[:5], is_best=bool(row[5])) for row in rows]

    def best_evaluation(self, arm: int = RUN_ARM) -> Evaluation | None:
        """The evaluation of lowest loss, the earliest of equals."""
        return min(self.evaluations(arm), key=lambda e: (e.loss, e.step), default=None)

    # measurements

    def series(self, selector: str, measure: str, arm: int = RUN_ARM) -> dict[str, Series]:
        """One measure of the selected addresses over steps, by address in canonical order."""
        number, known = self._measure_id(measure), self._recorded_addresses(measure, arm)
        chosen = self._select(selector, known, measure)
        if len(chosen) == 1:
            columns = self._columns(
                2,
                "SELECT r.step, m.value FROM recorded r CROSS JOIN measurements m "
                "ON m.arm = r.arm AND m.step = r.step AND m.measure = r.measure AND m.address = ? "
                "WHERE r.arm = ? AND r.measure = ? ORDER BY r.step",
                known[chosen[0]], arm, number,
            )  # fmt: skip
            return {chosen[0]: _series(chosen[0], measure, arm, *columns)}
        grid = self._grid(number, measure, [known[a] for a in chosen], chosen, arm)
        return {a: _series(a, measure, arm, grid.step, grid.value[i]) for i, a in enumerate(chosen)}

    def everything(self, arm: int = RUN_ARM) -> Iterator[dict[str, Series]]:
        """Every series of every measure of one number, heads and circuits included, one measure after another."""
        for row in self.measures():
            known = self._recorded_addresses(row.name, arm)
            if known:
                grid = self._grid(self._measure_id(row.name), row.name, list(known.values()), list(known), arm)
                yield {a: _series(a, row.name, arm, grid.step, grid.value[i]) for i, a in enumerate(known)}

    def grid(self, measure: str, selector: str = "**", arm: int = RUN_ARM) -> Grid:
        """One measure of many addresses at all its steps: what a map of layers and matrices is drawn from."""
        number = self._measure_id(measure)
        cells = self._cells(number, arm)
        taken = set(cells.ids.tolist())
        known = {address: n for address, n in self._rows(_NAMED, kinds="si") if n in taken}
        chosen = self._select(selector, known, measure)
        return self._grid(number, measure, [known[a] for a in chosen], chosen, arm)

    def at(self, step: int, measure: str, arm: int = RUN_ARM) -> dict[str, float | None]:
        """A measure of every address at exactly one step; empty where it was not taken then."""
        rows = self._rows(
            "SELECT a.address, m.value FROM measurements m JOIN addresses a ON a.id = m.address "
            "WHERE m.arm = ? AND m.step = ? AND m.measure = (SELECT id FROM measures WHERE name = ?) "
            "ORDER BY m.address",
            arm, step, measure, kinds="sR",
        )  # fmt: skip
        return dict(rows)

    def latest(self, selector: str = "**", arm: int = RUN_ARM, at: int | None = None) -> list[MatrixRow]:
        """The matrix table: for each address the newest value of each measure, no later than step `at`."""
        about = {row.address: row for row in self.addresses()}
        table: dict[str, dict[str, float | None]] = {address: {} for address in about}
        steps: dict[str, int] = {}
        for measure in self.measures():
            wanted = set(self._recorded_addresses(measure.name, arm))
            taken = self.recorded_steps(measure.name, arm)
            for step in reversed(taken.tolist() if at is None else taken[taken <= at].tolist()):
                if not wanted:
                    break
                for address, value in self.at(step, measure.name, arm).items():
                    if address in wanted:
                        wanted.discard(address)
                        table[address][measure.name] = value
                        steps[address] = max(step, steps.get(address, 0))
        if not steps:
            return []
        chosen = self._chosen(selector, [a for a in about if a in steps])
        return [MatrixRow(about[a], steps[a], table[a]) for a in chosen]

    def against_null(
        self, measure: str, selector: str = "**", *, at: int | None = None, null_arm: int = NULL_ARM
    ) -> list[Compared]:
        """Run and random-label control at the last step that both have (no later than `at`); empty without a control.

        Measures taken at different steps are never compared: a drift grows with the number of updates.
        """
        number = self._measure_id(measure)
        rows = self._rows(
            "SELECT a.address, x.step, x.value, y.value FROM "
            "(SELECT max(p.step) AS step FROM recorded p JOIN recorded q ON q.arm = ? AND q.measure = p.measure "
            " AND q.step = p.step WHERE p.arm = ? AND p.measure = ? AND p.step <= ?) r "
            "JOIN measurements x ON x.arm = ? AND x.step = r.step AND x.measure = ? "
            "JOIN measurements y ON y.arm = ? AND y.step = r.step AND y.measure = ? AND y.address = x.address "
            "JOIN addresses a ON a.id = x.address WHERE x.value IS NOT NULL AND y.value IS NOT NULL ORDER BY a.id",
            null_arm, RUN_ARM, number, 2**62 if at is None else at, RUN_ARM, number, null_arm, number,
            kinds="sirr",
        )  # fmt: skip
        by_address = {address: Compared(address, measure, step, value, null) for address, step, value, null in rows}
        if not by_address:
            return []
        return [by_address[a] for a in self._chosen(selector, list(by_address))]

    def vector(self, address: str, measure: str, *, at: int | None = None, arm: int = RUN_ARM) -> np.ndarray | None:
        """The newest list-valued measure [n] no later than step `at`; None where there is none."""
        found = self.vectors(address, measure, arm=arm, at=at, newest_only=True)
        return next(iter(found.values()), None)

    def vectors(
        self, address: str, measure: str, *, arm: int = RUN_ARM, at: int | None = None, newest_only: bool = False
    ) -> dict[int, np.ndarray]:
        """A list-valued measure at each of its steps, by step."""
        rows = self._rows(
            "SELECT step, dtype, data FROM vectors WHERE arm = ? AND step <= ? "
            "AND measure = (SELECT id FROM measures WHERE name = ?) "
            "AND address = (SELECT id FROM addresses WHERE address = ?) "
            f"ORDER BY step {'DESC LIMIT 1' if newest_only else ''}",
            arm, 2**62 if at is None else at, measure, address, kinds="isb",
        )  # fmt: skip
        return {step: self._list(dtype, data) for step, dtype, data in rows}

    def all_vectors(self, measure: str, *, arm: int = RUN_ARM) -> dict[str, dict[int, np.ndarray]]:
        """A list-valued measure of every address that has it: address -> step -> [n], steps rising."""
        rows = self._rows(
            "SELECT a.address, step, dtype, data FROM vectors JOIN addresses a ON a.id = vectors.address "
            "WHERE arm = ? AND measure = (SELECT id FROM measures WHERE name = ?) ORDER BY a.id, step",
            arm, measure, kinds="sisb",
        )  # fmt: skip
        found: dict[str, dict[int, np.ndarray]] = {}
        for address, step, dtype, data in rows:
            found.setdefault(address, {})[step] = self._list(dtype, data)
        return found

    # words and facts

    def samples(self, arm: int = RUN_ARM) -> list[Sample]:
        """Every sample, in order of step."""
        rows = self._rows("SELECT step, prompt, text FROM samples WHERE arm = ? ORDER BY step, rowid", arm, kinds="iss")
        return [Sample(*row) for row in rows]

    def events(self, arm: int = RUN_ARM) -> list[Event]:
        """What happened, in order of step."""
        rows = self._rows(
            "SELECT step, kind, address, sentence, evidence FROM events WHERE arm = ? ORDER BY step, rowid",
            arm,
            kinds="issss",
        )
        return [Event(*row[:4], evidence=self._json(row[4], dict)) for row in rows]

    def sessions(self, arm: int = RUN_ARM) -> list[Session]:
        """What happened to the process, in order: differs from one execution to the next."""
        rows = self._rows("SELECT step, kind, sentence FROM sessions WHERE arm = ? ORDER BY id", arm, kinds="iss")
        return [Session(*row) for row in rows]

    def facts(self) -> JsonObject:
        """Every fact that is something, those of the clock included."""
        both = "SELECT key, value FROM facts UNION ALL SELECT key, value FROM clock_facts ORDER BY key"
        found = {key: self._json(value, _FACTS.get(key, object)) for key, value in self._rows(both, kinds="ss")}
        return {key: value for key, value in found.items() if value is not None}

    def fact(self, key: str, default: Any = None) -> Any:
        """One fact, or `default`."""
        both = "SELECT value FROM facts WHERE key = ? UNION ALL SELECT value FROM clock_facts WHERE key = ?"
        written = self._value(both, key, key, kinds="s")
        value = None if written is None else self._json(written, _FACTS.get(key, object))
        return default if value is None else value

    def faults(self) -> list[str]:
        """What SQLite itself finds wrong with the file's pages and indices, and values that are not of the type that
        schema.sql gives their column; empty where it is whole.
        """
        with explained(self.path, "read"):
            self._connection.begin(math.inf)  # as long as the file is large
            rows = self._connection.execute("PRAGMA integrity_check(10)").fetchall()
            found = [row[0] for row in rows if row[0] != "ok"]
            return found or ([wrong] if (wrong := misfit(self._connection)) else [])

    # inside

    def _rows(self, sql: str, *values: int | str, kinds: str) -> list[tuple[Any, ...]]:
        """All rows; `kinds` has a letter of `_KINDS` for each column. Raises DamagedFileError for another type."""
        with explained(self.path, "read"):
            self._connection.begin()
            rows = self._connection.execute(sql, values).fetchall()
        for column, kind in enumerate(kinds):
            taken = (*_KINDS[kind.lower()], *((type(None),) if kind.isupper() else ()))
            for row in rows:
                value = row[column]
                if type(value) not in taken or (kind in "iI" and value is not None and not -1 <= value < MOST):
                    raise self._damaged(f"{str(value)[:40]!r} stands where that cannot be")
        return rows

    def _damaged(self, why: str) -> DamagedFileError:
        return DamagedFileError(
            f"{self.path} is damaged: {why}, which qkv did not write; weights and checkpoints are not in it: move it"
            " away, the history in it is lost"
        )

    def _value(self, sql: str, *values: int | str, kinds: str = "i") -> Any:
        """The first value of the first row; None where there is no row."""
        rows = self._rows(sql, *values, kinds=kinds)
        return rows[0][0] if rows else None

    def _json(self, text: str, like: object) -> Any:
        """A value that was written as JSON; null fits every form. Raises DamagedFileError for another form."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise self._damaged(f"{text[:40]!r} is no JSON") from None
        if value is not None and not is_like(value, like):
            raise self._damaged(f"{text[:40]!r} stands where that cannot be")
        return value

    def _list(self, dtype: str, data: bytes) -> np.ndarray:
        try:
            return np.frombuffer(data, dtype=dtype)
        except (ValueError, TypeError):
            raise self._damaged(f"a list of {len(data)} bytes and type {dtype[:8]!r} stands") from None

    def _whole(self, numbers: np.ndarray) -> np.ndarray:
        """float64 as int64. Raises DamagedFileError where one is no whole number."""
        if not (np.abs(numbers) < MOST).all():
            raise self._damaged("a number of updates or tokens that cannot be")
        return numbers.astype(np.int64)

    def _described(self, table: str, row: type[AddressRow | MeasureRow], kinds: str) -> list[JsonObject]:
        """What a table of names says of each, by the fields of its dataclass."""
        columns = [field.name for field in fields(row)]
        quoted = ", ".join(f'"{name}"' for name in columns)  # "null" is a word of SQL
        rows = self._rows(f"SELECT {quoted} FROM {table} ORDER BY id", kinds=kinds)
        return [dict(zip(columns, values, strict=True)) for values in rows]

    def _columns(self, n: int, sql: str, *values: int | str) -> list[np.ndarray]:
        """The `n` columns of a long result as float64 arrays, NULL as NaN."""
        blocks = [np.zeros((n, 0))]
        with explained(self.path, "read"):
            self._connection.begin()
            cursor = self._connection.execute(sql, values)
            while rows := cursor.fetchmany(BLOCK):
                try:
                    blocks.append(np.array(rows, dtype=np.float64).T)
                except (ValueError, TypeError, OverflowError):
                    raise self._damaged("something that is no number stands among its numbers") from None
                self._connection.begin()
        return list(np.concatenate(blocks, axis=1))

    def _steps(self, which: str, *values: int | str) -> Steps:
        """Updates of the arm that `values` begin with, those that the end of the question asks for."""
        step, tokens, loss, lr, grad_norm = self._columns(
            5, f"SELECT step, tokens, loss, lr, grad_norm FROM steps WHERE arm = ? {which}", *values
        )
        return Steps(self._whole(step), self._whole(tokens), loss, lr, grad_norm)

    def _measure_id(self, measure: str) -> int:
        number = self._value("SELECT id FROM measures WHERE name = ?", measure)
        if number is None:
            names = [row[0] for row in self._rows("SELECT name FROM measures ORDER BY id", kinds="s")]
            nothing = f"no measure {measure!r} was recorded: nothing was measured in this run, as with --watch off"
            raise AddressError(unknown("measure", measure, names) if names else nothing)
        return number

    def _recorded_addresses(self, measure: str, arm: int) -> dict[str, int]:
        """Addresses that this measure has at any step, by name, in canonical order; steps differ in what they took."""
        rows = self._rows(
            "SELECT a.address, a.id FROM addresses a WHERE a.id IN ("
            " SELECT m.address FROM recorded r CROSS JOIN measurements m"
            " ON m.arm = r.arm AND m.step = r.step AND m.measure = r.measure WHERE r.arm = ? AND r.measure = ?"
            ") ORDER BY a.id",
            arm, self._measure_id(measure), kinds="si",
        )  # fmt: skip
        return dict(rows)

    def _select(self, selector: str, known: dict[str, int], measure: str) -> list[str]:
        if not known:
            having = [row[0] for row in self._rows(_HAVING_LISTS, measure, kinds="s")]
            if having:
                raise AddressError(
                    f"measure {measure!r} is a list of numbers for each matrix, not one number; type:"
                    f" run.telemetry().vectors({having[0]!r}, {measure!r}), which gives it by step"
                )
            raise AddressError(f"measure {measure!r} has no values in this arm of {self.path.name}")
        return self._chosen(selector, list(known))

    def _chosen(self, selector: str, known: Sequence[str]) -> list[str]:
        """What a selector names of these; what was recorded of a shared matrix answers to its other names too."""
        others = {name: row.address for row in self.addresses() if row.tied_to for name in row.tied_to.split(", ")}
        return select(selector, known, {row.address: row.site for row in self.addresses()}, others)

    def _grid(self, number: int, measure: str, ids: Sequence[int], chosen: Sequence[str], arm: int) -> Grid:
        cells = self._cells(number, arm)
        return Grid(measure, arm, tuple(chosen), cells.steps, cells.values[np.searchsorted(cells.ids, ids)])

    def _cells(self, number: int, arm: int) -> _Cells:
        """Every number of a measure, those remembered and those since."""
        held = self._memory.get(arm, number) if self._memory is not None else None
        since = int(held.steps[-1]) if held is not None and len(held.steps) else -1
        recorded = "SELECT step FROM recorded WHERE arm = ? AND measure = ? AND step >= ? ORDER BY step"
        taken = self._rows(recorded, arm, number, since, kinds="i")
        if held is not None and not taken:
            return held
        step, address, found = self._columns(
            3,
            "SELECT m.step, m.address, m.value FROM recorded r CROSS JOIN measurements m "
            "ON m.arm = r.arm AND m.step = r.step AND m.measure = r.measure "
            "WHERE r.arm = ? AND r.measure = ? AND +r.step >= ?",  # + keeps SQLite from searching m by that
            arm, number, since,
        )  # fmt: skip
        before = held or _Cells(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 0)))
        steps = np.union1d(before.steps, np.array(taken, dtype=np.int64))
        ids = np.union1d(before.ids, address.astype(np.int64))
        values = np.full((len(ids), len(steps)), np.nan)
        values[np.ix_(np.searchsorted(ids, before.ids), np.searchsorted(steps, before.steps))] = before.values
        known = np.isin(step, steps)  # a step recorded meanwhile has no column yet
        values[np.searchsorted(ids, address[known]), np.searchsorted(steps, step[known])] = found[known]
        cells = _Cells(ids, steps, values)
        if self._memory is not None:
            self._memory.keep(arm, number, cells)
        return cells


def _series(address: str, measure: str, arm: int, step: np.ndarray, value: np.ndarray) -> Series:
    defined = ~np.isnan(value)
    return Series(address, measure, arm, step[defined].astype(np.int64), value[defined])

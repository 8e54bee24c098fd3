"""Token rows of a table: one row through the run, and which rows moved most, least, or were never met."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkv.commands.printing import screen
from qkv.errors import AddressError, RunFolderError
from qkv.inspection.stored_run import stored
from qkv.inspection.token_rows import RowMoment, drifts, moved, row_history, turns
from qkv.instruments.tokens import counted_in
from qkv.jsontypes import JsonObject
from qkv.words import figure

if TYPE_CHECKING:
    from qkv.api import Run

N_ROWS = 8


@dataclass(frozen=True, eq=False)
class RowsTable:
    """Every row of a token table at a step against its start."""

    counts: np.ndarray | None
    """How often each token stands in the training text."""
    drift: np.ndarray
    turn: np.ndarray
    earned: np.ndarray | None
    """Nats, from the ledger; below 0 lowered the probe's loss."""
    gradient: np.ndarray | None
    """Seen in training, from the ledger."""
    label: Callable[[int], str]
    specials: tuple[int, ...] = ()
    """Tokens such as [MASK], which are met by other ways than the text."""
    counted_in: str = "the training text"

    def as_json(self) -> JsonObject:
        """Every row's numbers, by id."""
        ledger = {"gradient_seen": self.gradient, "earned": self.earned}
        return {"count": self.counts, "drift": self.drift, "turn": self.turn} | ledger

    def print(self) -> None:
        """The rows that moved most and least of those met, and those never met."""
        met = None if self.counts is None else self.counts > 0
        for title, least in (("rows that moved most", False), ("least", True)):
            ledger = ["gradient seen", "earned, nats"] if self.earned is not None else []
            rows = [self._row(i) for i in moved(self.drift, N_ROWS, least=least, among=met)]
            screen.print_table([title, "count", "drift", "turn", *ledger], rows)
        never = () if met is None else np.setdiff1d(np.flatnonzero(~met), self.specials)
        if len(never):
            largest = int(never[self.drift[never].argmax()])
            most, furthest = self._name(largest), figure(float(self.drift[largest]))
            where = f"do not occur in {self.counted_in}"
            print(f"{len(never):,} rows belong to tokens that {where}. Of these, {most} moved most: {furthest}")

    def _name(self, i: int) -> str:
        return screen.quoted(self.label(i))

    def _row(self, i: int) -> list[str]:
        count = "" if self.counts is None else f"{self.counts[i]:,}"
        ledger: list[str] = []
        if self.earned is not None and self.gradient is not None:
            ledger = [figure(float(self.gradient[i])), f"{self.earned[i]:+.2e}"]
        return [self._name(i), count, figure(float(self.drift[i])), figure(float(self.turn[i])), *ledger]


def rows_table(run: "Run", name: str, before: np.ndarray, after: np.ndarray, at: int | None) -> RowsTable:
    """Rows of W_E or columns of W_U, both given as [n_rows, d_model]."""
    with run.recorded() as telemetry:
        specials = tuple((telemetry.fact("special_tokens") or {}).values())
        where = counted_in(telemetry.fact("tokens_counted"))
    label = str if run.namer is None else run.namer.token
    earned, seen = (ledger_by_row(run, name, measure, at) for measure in ("earned_rows", "row_gradient"))
    return RowsTable(
        counts_of(run, name), drifts(before, after), turns(before, after), earned, seen, label, specials, where
    )


def counts_of(run: "Run", name: str) -> np.ndarray | None:
    """How often each token of a table stands in the training text; None where it was not counted.

    Of pairs in the side that the table reads, of W_U in the target, which it writes.
    """
    table = name if name.endswith("W_E") else "dec.W_E" if run.task.stack == "encoder-decoder" else "W_E"
    with run.recorded() as telemetry:
        return telemetry.vector(run.catalogue().aliases.get(table, table), "row_count")


def ledger_by_row(run: "Run", name: str, measure: str, at: int | None) -> np.ndarray | None:
    """What the ledger says of each row up to a step; None where none was kept."""
    storage = run.catalogue().entry(name).storage
    with run.recorded() as telemetry:
        try:
            return telemetry.vector(storage, measure, at=at)
        except AddressError:
            return None


def history(run: "Run", name: str, row: int, at: int | None) -> list[RowMoment]:
    """One row at every step whose weights were kept, up to `at`."""
    entry = run.catalogue().entry(name)
    tables: dict[int, np.ndarray] = {}
    for step in run.snapshots():
        if at is None or step <= at:
            try:
                table = stored(run.path, entry.storage, step)
            except RunFolderError:  # a damaged one is missing from the line
                continue
            tables[step] = table if entry.axis == 0 else table.T
    return row_history(tables, row) if 0 in tables else []

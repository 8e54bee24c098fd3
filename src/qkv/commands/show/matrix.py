"""`qkv show RUN ADDR`: one matrix, head, row or circuit, now and at its start."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from qkv.commands.printing import heat, screen
from qkv.commands.printing.measures import Measured, measured
from qkv.commands.printing.nearest import Nearest, nearest, said
from qkv.commands.show import token_rows
from qkv.errors import AddressError, typed
from qkv.inspection.neighbours import Neighbour, Neighbours, neighbours
from qkv.inspection.token_rows import RowMoment, RowStory, row_story
from qkv.jsontypes import JsonObject
from qkv.models.addresses import parse_address
from qkv.words import figure, many, number, signed

if TYPE_CHECKING:
    from qkv.api import Run

N_COMPONENTS = 8
N_NEIGHBOURS = 8
SIDE = 32
"""Rows and columns of a circuit's picture, at most."""


@dataclass(frozen=True)
class MatrixShown:
    """A matrix or one head of it, with its measures over the steps."""

    address: str
    step: int | None
    values: np.ndarray
    """As stored, [in, out], or 1-D."""
    measured: Measured
    """Its measures over the steps, beside the random-label control."""
    rows: token_rows.RowsTable | None = None
    """Of W_E and W_U: row by row."""
    lora: str = ""
    """The change by which its two factors were trained, if there was one."""

    def as_json(self) -> JsonObject:
        """Its measures over steps, and the weights' summary."""
        norm = float(np.linalg.norm(self.values))
        about = {"address": self.address, "step": self.step, "shape": self.values.shape, "norm": norm}
        rows = {} if self.rows is None else {"rows": self.rows.as_json()}
        return about | self.measured.as_json() | rows | ({"lora": self.lora} if self.lora else {})

    def print(self) -> None:
        """Measures with a line over steps each, then the weights as a map."""
        when = "" if self.step is None else f" at step {self.step:,}"
        shape = " x ".join(map(str, self.values.shape))
        print(f"{self.address}{when}: {shape}, norm {figure(float(np.linalg.norm(self.values)))}\n")
        if self.lora:
            print(f"Trained by {self.lora}: shown is the initial matrix plus the trained product of two factors.\n")
        if self.measured.series:
            self.measured.print()
            print()
        if self.rows is not None:
            self.rows.print()
            print()
        values = self.values if self.values.ndim == 2 else self.values[None]
        picture = heat.blocks(values, 40, screen.console().width - 2)
        each = heat.cells(values.shape, picture)
        print(f"one cell is the root mean square of {each} weights" if each else "every weight")
        heat.draw(picture)


@dataclass(frozen=True)
class RowShown:
    """One row of a table, at its start and now."""

    address: str
    story: RowStory
    near: Neighbours
    label: Callable[[int], str]
    """A row's number -> its token, or for positions the number itself."""
    history: list[RowMoment]
    """At every step whose weights were kept."""
    earned: float | None
    """Nats, from the ledger; None where none was kept."""
    started: bool
    """Whether its start was kept; without it there is nothing to compare with, as of an imported model."""

    def as_json(self) -> JsonObject:
        """Both rows whole, and the neighbours by cosine."""
        near = {
            name: [{"id": n.id, "token": self.label(n.id), "cosine": n.cosine} for n in side]
            for name, side in (("before", self.near.before), ("after", self.near.after))
        }
        story = self.story
        rows = {"id": story.id, "before": story.before, "after": story.after, "count": story.count}
        numbers = {"drift": story.drift, "turn": story.turn, "null_cosine": self.near.null_cosine}
        if not self.started:
            rows["before"], numbers["drift"], numbers["turn"], near["before"] = None, None, None, []
        numbers |= {"earned": self.earned}
        history = [vars(moment) for moment in self.history]
        return {"address": self.address, **rows, **numbers, "neighbours": near, "history": history}

    def print(self) -> None:
        """Norms, the components that moved most, both rows as strips, neighbours before and after."""
        console, story = screen.console(), self.story
        seen = "" if story.count is None else f"; it occurs {many(story.count, 'time')} in the training text"
        turn = "" if story.turn is None else f", turned by {number(story.turn)} degrees"
        drift = f", drift {figure(story.drift)}{turn}" if self.started else "; its start was not kept"
        print(f"{self.address}: {len(story.after)} components{drift}{seen}\n")
        moved = story.most_moved[:N_COMPONENTS]
        sides = [("before", story.before, story.norm_before), ("after", story.after, story.norm_after)]
        sides = sides if self.started else [("", *sides[1][1:])]
        rows = [(name, *map(figure, (norm, *row[moved].tolist()))) for name, row, norm in sides]
        screen.print_table(["", "norm", *(f"[{i}]" for i in moved)], rows)
        largest = float(max(np.abs(row).max() for _, row, _ in sides))
        for name, row, _ in sides:
            shown = row if len(row) <= console.width - 8 else heat.blocks(row[None], 1, console.width - 8)[0]
            console.print(name.ljust(7), heat.strip(shown, colour=console.is_terminal, largest=largest))
        if self.earned is not None:
            print(f"\nIts movement changed the loss of the probe batch by {signed(self.earned)} nats.")
        if self.history:
            print()
            lines = [(f"{m.step:,}", *map(figure, (m.norm, m.drift, m.turn))) for m in self.history]
            screen.print_table(["at step", "norm", "drift", "turn"], lines)
        if not self.near.after:
            return
        chance = f"{self.near.null_cosine:.2f}"
        print(f"\nNearest rows by cosine (the nearest of equally many random rows has about {chance}):")
        if not self.started:
            return screen.print_table(["row", "cosine"], [self._near(near) for near in self.near.after])
        table = [
            (*self._near(before), *self._near(after))
            for before, after in zip_longest(self.near.before, self.near.after)
        ]
        screen.print_table(["before", "", "after", ""], table)

    def _near(self, neighbour: Neighbour | None) -> tuple[str, str]:
        if neighbour is None:
            return "", ""
        return screen.quoted(self.label(neighbour.id)), f"{neighbour.cosine:.3f}"


@dataclass(frozen=True)
class CircuitShown:
    """A head's QK or OV, now or at a step."""

    address: str
    step: int | None
    shape: tuple[int, ...]
    norm: float
    trace: float
    singular_values: list[float]
    caveats: list[str]
    picture: np.ndarray
    """Root mean square of the product's entries, block by block, [at most `SIDE`, at most `SIDE`]."""
    measured: Measured

    def as_json(self) -> JsonObject:
        """Its numbers."""
        own = {name: value for name, value in vars(self).items() if name not in ("measured", "picture")}
        return own | self.measured.as_json()

    def print(self) -> None:
        """Numbers, spectrum, and what the product leaves out."""
        when = "" if self.step is None else f" at step {self.step:,}"
        print(f"{self.address}{when}: {' x '.join(map(str, self.shape))} of rank at most {len(self.singular_values)}")
        print(f"norm {figure(self.norm)}, trace {figure(self.trace)}")
        largest = ", ".join(figure(v) for v in self.singular_values[:8])
        print(f"singular values {largest}{' ...' if len(self.singular_values) > 8 else ''}")
        print(screen.sparkline(self.singular_values, 64))
        for caveat in self.caveats:
            print(caveat)
        if self.measured.series:
            print()
            self.measured.print()
        sides = "query dimension down, key dimension across" if self.address.endswith("QK") else "in down, out across"
        each = heat.cells(self.shape, self.picture) or "1 x 1"
        print(f"\none cell is the root mean square of {each} entries of the product; {sides}")
        heat.draw(self.picture)


@dataclass(frozen=True)
class PatternShown:
    """What one head attends to, on the run's fixed probe text, over the steps."""

    address: str
    measured: Measured

    def as_json(self) -> JsonObject:
        """Its measures over the steps."""
        return {"address": self.address} | self.measured.as_json()

    def print(self) -> None:
        """One line for each measure, and how to see the pattern itself."""
        print(f"{self.address} on the run's fixed probe text. For a text of your own, add --text TEXT.\n")
        self.measured.print()


Shown = MatrixShown | RowShown | CircuitShown | PatternShown


def look(run: "Run", address: str, at: int | None) -> Shown | Nearest:
    """What `address` names in this run, at a step; of weights that were not kept of it, at the nearest that were.

    Raises AddressError for what this model does not have, and for an activation, which needs a text; RunFolderError for
    a step beyond the last.
    """
    if parse_address(address).kind == "activation":
        return _pattern(run, address, at)
    if at is None:
        return _look(run, address, None, None)
    near = nearest(run, at)
    shown = _look(run, address, near[0], at)
    return said(run, shown, (at,), near, f"Measures are those recorded up to step {at:,}.")


def _pattern(run: "Run", address: str, at: int | None) -> PatternShown:
    with run.recorded() as telemetry:
        found = measured(telemetry, address, at)
    if found.series:
        return PatternShown(address, found)
    how = f"qkv show {typed(run.path)} {address} --text TEXT"
    raise AddressError(f"{address} is an activation, computed from a text: {how}")


def _look(run: "Run", address: str, at: int | None, asked: int | None) -> Shown:
    """`address` with the weights of step `at` and the measures up to `asked`."""
    parsed = parse_address(address)
    if parsed.kind == "circuit":
        return _circuit(run, address, at, asked)
    if parsed.token is not None:
        return _row(run, address, at)
    values = _stored(_values(run, address, at), parsed.name)
    with run.recorded() as telemetry:
        found = measured(telemetry, address, asked)
    rows = None
    if address in ("W_E", "W_U") and run.namer is not None and run.has_start:
        before = _values(run, address, 0)
        pair = (before, values) if address == "W_E" else (before.T, values.T)
        rows = token_rows.rows_table(run, address, *pair, at)
    change = run.lora.get(run.catalogue().part(address).entry.address, "")
    return MatrixShown(address, at, values, found, rows, change)


def _circuit(run: "Run", address: str, at: int | None, asked: int | None) -> CircuitShown:
    circuit = run.catalogue(at).circuit(address)
    with run.recorded() as telemetry:
        found = measured(telemetry, address, asked)
    return CircuitShown(
        address=address,
        step=at,
        shape=circuit.shape,
        norm=float(circuit.norm()),
        trace=float(circuit.trace()),
        singular_values=circuit.singular_values().tolist(),
        caveats=circuit.caveats(None if run.config.watched == "names" else run.config.model.layout),
        picture=_blocks(circuit.left.detach().double().numpy(), circuit.right.detach().double().numpy()),
        measured=found,
    )


def _blocks(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Root mean square of the entries of left @ right, block by block, from Gram matrices: the product is not made."""
    rows = [part.T @ part / len(part) for part in np.array_split(left, min(SIDE, len(left)))]
    parts = np.array_split(right, min(SIDE, right.shape[1]), axis=1)
    columns = [part @ part.T / part.shape[1] for part in parts]
    return np.sqrt(np.maximum(np.einsum("aij,bij->ab", np.array(rows), np.array(columns)), 0))


def _values(run: "Run", address: str, at: int | None) -> np.ndarray:
    return run.catalogue(at).view(address).detach().float().numpy()


def _stored(values: np.ndarray, name: str) -> np.ndarray:
    """The field's [n_heads, in, out] as one [in, out] table; anything else as it is."""
    if values.ndim < 3:
        return values
    if name == "W_O":
        return values.reshape(-1, values.shape[-1])
    return values.transpose(1, 0, 2).reshape(values.shape[1], -1)


def _row(run: "Run", address: str, at: int | None) -> RowShown:
    name = address.partition("[")[0]
    part = run.catalogue().part(address)
    row, of_tokens = part.piece, part.entry.kind in ("W_E", "W_U")
    assert row is not None
    if len(part.entry.shape) < 2:
        how = f"qkv show {typed(run.path)} {name}"
        raise AddressError(f"{address} is one number and no row of a table; all of them: {how}")
    before, after = (_values(run, name, step) for step in (0 if run.has_start else at, at))
    if part.entry.kind == "W_U":
        before, after = before.T, after.T
    counts = token_rows.counts_of(run, name) if of_tokens else None
    label = run.namer.token if of_tokens and run.namer is not None else str
    near = neighbours(before, after, row, N_NEIGHBOURS)
    earned = token_rows.ledger_by_row(run, name, "earned_rows", at) if of_tokens else None
    return RowShown(
        address=address,
        story=row_story(before, after, row, counts),
        near=near,
        label=label,
        history=token_rows.history(run, name, row, at),
        earned=None if earned is None else float(earned[row]),
        started=run.has_start,
    )

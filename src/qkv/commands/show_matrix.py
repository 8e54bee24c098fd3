"""`qkv show RUN ADDR`: one matrix, head, row or circuit, now and at its start."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.commands import heat, screen
from qkv.errors import AddressError
from qkv.instruments.registry import MEASURES
from qkv.models.addresses import parse_address
from qkv.telemetry import NULL_ARM, RUN_ARM, Series, Telemetry

if TYPE_CHECKING:
    from qkv.api import Run

__all__ = ["CircuitShown", "MatrixShown", "RowShown", "look"]

N_COMPONENTS = 8
N_NEIGHBOURS = 8


@dataclass(frozen=True)
class MatrixShown:
    """A matrix or one head of it, with its measures over the steps."""

    address: str
    step: int | None
    values: np.ndarray
    """As stored, [in, out], or 1-D."""
    series: list[Series]
    null: dict[str, float]
    """Measure -> last value when trained on random labels."""

    def as_json(self) -> dict[str, Any]:
        """Its measures over steps, and the weights' summary."""
        return {
            "address": self.address,
            "step": self.step,
            "shape": self.values.shape,
            "norm": float(np.linalg.norm(self.values)),
            "measures": {s.measure: {"step": s.step, "value": s.value} for s in self.series},
            "null": self.null,
        }

    def print(self) -> None:
        """Measures with a line over steps each, then the weights as a map."""
        when = "" if self.step is None else f" at step {self.step:,}"
        shape = " x ".join(map(str, self.values.shape))
        print(f"{self.address}{when}: {shape}, norm {screen.number(float(np.linalg.norm(self.values)))}\n")
        rows = [
            (s.measure, screen.number(s.value[0]), screen.number(s.value[-1]), screen.number(self.null.get(s.measure)),
             screen.sparkline(s.value.tolist(), 32), MEASURES[s.measure].property_of if s.measure in MEASURES else "")
            for s in self.series
        ]  # fmt: skip
        if rows:
            screen.print_table(["measure", "first", "last", "random labels", "over steps", "property of the"], rows)
            print()
        console = screen.console()
        values = self.values if self.values.ndim == 2 else self.values[None]
        picture = heat.blocks(values, 40, console.width - 2)
        each = -(-values.shape[0] // picture.shape[0]), -(-values.shape[1] // picture.shape[1])
        print(f"one cell is the root mean square of {each[0]} x {each[1]} weights" if max(each) > 1 else "every weight")
        for line in heat.heat(picture, colour=console.is_terminal):
            console.print(line)


@dataclass(frozen=True)
class RowShown:
    """One token's row of a table, at its start and now."""

    address: str
    before: np.ndarray
    after: np.ndarray
    neighbours_before: list[tuple[str, float]]
    neighbours_after: list[tuple[str, float]]

    @property
    def drift(self) -> float:
        """|after - before| / |before|, as the measure row_drift has it."""
        return float(np.linalg.norm(self.after - self.before) / (np.linalg.norm(self.before) or 1.0))

    def as_json(self) -> dict[str, Any]:
        """Both rows whole, and the neighbours by cosine."""
        return vars(self) | {"drift": self.drift}

    def print(self) -> None:
        """Norms, the components that moved most, both rows as strips, neighbours before and after."""
        console = screen.console()
        print(f"{self.address}: {len(self.after)} components, drift {screen.number(self.drift)}\n")
        moved = np.argsort(-np.abs(self.after - self.before))[:N_COMPONENTS]
        rows = [
            (name, *(screen.number(float(v)) for v in (np.linalg.norm(row), *row[moved])))
            for name, row in (("before", self.before), ("after", self.after))
        ]
        screen.print_table(["", "norm", *(f"[{i}]" for i in moved)], rows)
        largest = float(max(np.abs(self.before).max(), np.abs(self.after).max()))
        for name, row in (("before", self.before), ("after", self.after)):
            shown = heat.blocks(row[None], 1, console.width - 8)[0] if len(row) > console.width - 8 else row
            console.print(name.ljust(7), heat.strip(shown, colour=console.is_terminal, largest=largest))
        print()
        pairs = zip(self.neighbours_before, self.neighbours_after, strict=True)
        table = [(screen.shown(repr(a)), f"{x:.3f}", screen.shown(repr(b)), f"{y:.3f}") for (a, x), (b, y) in pairs]
        screen.print_table(["nearest before", "cosine", "nearest after", "cosine"], table)


@dataclass(frozen=True)
class CircuitShown:
    """A head's QK or OV, now."""

    address: str
    shape: tuple[int, ...]
    norm: float
    trace: float
    singular_values: list[float]
    caveats: list[str]

    def as_json(self) -> dict[str, Any]:
        """Its numbers."""
        return vars(self)

    def print(self) -> None:
        """Numbers, spectrum, and what the product leaves out."""
        print(f"{self.address}: {' x '.join(map(str, self.shape))} of rank at most {len(self.singular_values)}")
        print(f"norm {screen.number(self.norm)}, trace {screen.number(self.trace)}")
        largest = ", ".join(screen.number(v) for v in self.singular_values[:8])
        print(f"singular values {largest}{' ...' if len(self.singular_values) > 8 else ''}")
        print(screen.sparkline(self.singular_values, 64))
        for caveat in self.caveats:
            print(caveat)


def look(run: "Run", address: str, at: int | None) -> MatrixShown | RowShown | CircuitShown:
    """What `address` names in this run, at a step that has a snapshot.

    Raises AddressError for what this model does not have, and for an activation, which needs a text.
    """
    parsed = parse_address(address)
    if parsed.kind == "activation":
        raise AddressError(
            f"{address} is an activation, computed from a text: qkv show {run.path} {address} --text TEXT"
        )
    if parsed.kind == "circuit":
        circuit = run.matrix(address, at=at)
        spectrum = circuit.singular_values().tolist()
        caveats = circuit.caveats(run.config.model.layout)
        return CircuitShown(address, circuit.shape, float(circuit.norm()), float(circuit.trace()), spectrum, caveats)
    if parsed.token is not None:
        return _row(run, address, at)
    values = _stored(run.matrix(address, at=at).detach().float().numpy(), parsed.name)
    with Telemetry(run.path / "telemetry.sqlite") as telemetry:
        series = _series(telemetry, address, RUN_ARM, at)
        null = {s.measure: float(s.value[-1]) for s in _series(telemetry, address, NULL_ARM, at)}
    return MatrixShown(address, at, values, series, null)


def _stored(values: np.ndarray, name: str) -> np.ndarray:
    """The field's [n_heads, in, out] as one [in, out] table; anything else as it is."""
    if values.ndim < 3:
        return values
    return (
        values.reshape(-1, values.shape[-1])
        if name == "W_O"
        else values.transpose(1, 0, 2).reshape(values.shape[1], -1)
    )


def _series(telemetry: Telemetry, address: str, arm: int, at: int | None) -> list[Series]:
    found = []
    for measure in telemetry.measures():
        try:
            series = telemetry.series(address, measure.name, arm)[address]
        except (AddressError, KeyError):  # this measure is not taken of this matrix, or there is no such arm
            continue
        kept = series.step <= at if at is not None else slice(None)
        if len(series.step[kept]):
            found.append(Series(address, measure.name, arm, series.step[kept], series.value[kept]))
    return found


def _row(run: "Run", address: str, at: int | None) -> RowShown:
    name = address.partition("[")[0]
    rows, nearest = [], []
    for step in (0, at):
        row, table = (run.matrix(a, at=step).float().numpy() for a in (address, name))
        rows.append(row)
        nearest.append(_nearest(table.T if name == "W_U" else table, row, _labels(run, name)))
    return RowShown(address, *rows, *nearest)


def _labels(run: "Run", name: str) -> Callable[[int], str]:
    return str if name == "W_pos" else run.tokenizer.token


def _nearest(table: np.ndarray, row: np.ndarray, label: Callable[[int], str]) -> list[tuple[str, float]]:
    """The rows of `table` with the largest cosine with `row`, itself left out; a row of zeros has cosine 0."""
    norms = np.linalg.norm(table, axis=1) * np.linalg.norm(row)
    cosines = table @ row / np.where(norms > 0, norms, 1.0)
    order = [int(i) for i in np.argsort(-cosines) if not np.array_equal(table[i], row)][:N_NEIGHBOURS]
    return [(label(i), float(cosines[i])) for i in order]

"""The map's payload from telemetry: every matrix x recorded steps x measures, with the random-label control.

Steps are thinned where there are more than a page needs, and that is said; nothing is interpolated or filled in.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from qkv.errors import AddressError
from qkv.telemetry import NULL_ARM, RUN_ARM, AddressRow, Grid, MeasureRow, Telemetry
from qkv.views.report.packed import Packed, pack, payload
from qkv.views.sections.matrices import Role, role_of, short_kind

N_COLUMNS = 90
LABELS = {"drift": "drift", "update_ratio": "update / weight", "grad_norm": "gradient norm", "norm": "norm"}
"""Short labels of the measures a map can show; any other measure is shown under its own name."""
FIRST = ("drift", "update_ratio", "grad_norm", "norm")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixRow:
    """One row of the map: a catalogue entry."""

    address: str
    layer: int | None
    scope: str
    kind: str
    role: Role
    site: str
    shape: tuple[int, ...]
    unmoved: bool = False
    """Whether its drift is exactly 0 at every recorded step: it was frozen, or got no gradient."""
    tied_to: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureNote(MeasureRow):
    """What a measure is: formula, range, source, what it is a property of, what to compare it with (`null`), and a
    decision that it informs; with a short label."""

    label: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class MovingNote:
    """When one kind of matrix moved: steps by which shares of its final drift were done, medians over layers."""

    kind: str
    role: str
    tenth: float
    half: float
    nine_tenths: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """Every row x every step x every measure, with the random-label control where there is one."""

    steps: tuple[int, ...]
    measures: tuple[MeasureNote, ...]
    values: dict[str, Packed]
    """measure -> float32 [row, step]; NaN where there is none."""
    null_steps: tuple[int, ...] = ()
    null_values: dict[str, Packed] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapSection(Measured):
    """Every matrix at every recorded step."""

    rows: tuple[MatrixRow, ...]
    moving: tuple[MovingNote, ...] = ()
    """By kind, the first to have done half of its moving first; from every recorded step, drawn or not."""
    thinned: str = ""


def map_section(telemetry: Telemetry) -> MapSection | None:
    """The map of a run; None where nothing was measured."""
    whole = {row.address: row for row in telemetry.addresses() if row.head is None and row.site}
    grids = _grids(telemetry, RUN_ARM)
    recorded = {address for grid in grids.values() for address in grid.addresses}
    rows = [row for address, row in whole.items() if address in recorded]
    if not rows or not grids:
        return None
    every = sorted({int(step) for grid in grids.values() for step in grid.step})
    nulls = {name: grid for name, grid in _grids(telemetry, NULL_ARM).items() if name in grids}
    null_every = sorted({int(step) for grid in nulls.values() for step in grid.step})
    both = sorted(set(every) & set(null_every))
    steps = thin_steps(every, N_COLUMNS, keep=both[-1:])
    null_steps = [step for step in null_every if step in set(steps)] or thin_steps(null_every, N_COLUMNS)
    addresses = [row.address for row in rows]
    about = {measure.name: measure for measure in telemetry.measures()}
    names = sorted(
        grids, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), list(about).index(name))
    )
    return MapSection(
        rows=tuple(_row(row, grids.get("drift")) for row in rows),
        steps=tuple(steps),
        measures=tuple(measure_note(about[name]) for name in names),
        values={name: pack(table(grids[name], addresses, steps)) for name in names},
        null_steps=tuple(null_steps),
        null_values={name: pack(table(grid, addresses, null_steps)) for name, grid in nulls.items()},
        moving=_moving(rows, grids["drift"]) if "drift" in grids else (),
        thinned=f"{len(steps)} of {len(every)} are drawn" if len(steps) < len(every) else "",
    )


def thin_steps(steps: Sequence[int], n: int, keep: Sequence[int] = ()) -> list[int]:
    """At most n of `steps`: first, last and those in `keep`; half spread evenly, half in log(1 + step)."""
    if len(steps) <= n:
        return list(steps)
    array = np.asarray(steps)
    half = (n - len(keep)) // 2
    even = np.searchsorted(array, np.linspace(array[0], array[-1], half))
    logs = np.searchsorted(array, np.expm1(np.linspace(np.log1p(array[0]), np.log1p(array[-1]), half)))
    chosen = {int(array[min(i, len(array) - 1)]) for i in [*even, *logs]}
    return sorted(chosen | set(keep) | {int(array[0]), int(array[-1])})


def _grids(telemetry: Telemetry, arm: int) -> Mapping[str, Grid]:
    """Every measure that this arm has of whole matrices, by name."""
    grids = {}
    for measure in telemetry.measures():
        try:
            grids[measure.name] = telemetry.grid(measure.name, arm=arm)
        except AddressError:  # this arm has no value of it
            continue
    return grids


def table(grid: Grid, addresses: Sequence[str], steps: Sequence[int]) -> np.ndarray:
    """float32 [address, step], NaN where it was not recorded."""
    table = np.full((len(addresses), len(steps)), np.nan, dtype=np.float32)
    row_of = {address: i for i, address in enumerate(grid.addresses)}
    column_of = {int(step): j for j, step in enumerate(grid.step)}
    rows = [i for i, address in enumerate(addresses) if address in row_of]
    columns = [j for j, step in enumerate(steps) if step in column_of]
    taken = np.ix_([row_of[addresses[i]] for i in rows], [column_of[steps[j]] for j in columns])
    table[np.ix_(rows, columns)] = grid.value[taken]
    return table


def _row(row: AddressRow, drifts: Grid | None) -> MatrixRow:
    kind = short_kind(row.address)
    scope = row.address.split(".")[0] if row.address.startswith(("enc.", "dec.")) else ""
    unmoved = False
    if drifts is not None and row.address in drifts.addresses:
        trained = drifts.value[drifts.addresses.index(row.address)][drifts.step > 0]
        unmoved = len(trained) > 0 and bool((trained == 0).all())
    return payload(MatrixRow, row, scope=scope, kind=kind, role=role_of(kind), unmoved=unmoved)


def _moving(rows: Sequence[AddressRow], drifts: Grid) -> tuple[MovingNote, ...]:
    """By kind of matrix, when a tenth, half and nine tenths of its last drift were reached; those that moved."""
    reached: dict[str, list[list[float]]] = {}
    for row in rows:
        if len(row.shape) < 2 or row.address not in drifts.addresses:
            continue
        values = np.nan_to_num(drifts.value[drifts.addresses.index(row.address)])
        if len(values) and values[-1] > 0:
            steps = [float(drifts.step[np.argmax(values >= share * values[-1])]) for share in (0.1, 0.5, 0.9)]
            reached.setdefault(short_kind(row.address), []).append(steps)
    notes = []
    for kind, found in reached.items():
        tenth, half, nine_tenths = (float(step) for step in np.median(np.array(found), axis=0))
        notes.append(MovingNote(kind=kind, role=role_of(kind), tenth=tenth, half=half, nine_tenths=nine_tenths))
    return tuple(sorted(notes, key=lambda note: note.half))


def measure_note(measure: MeasureRow) -> MeasureNote:
    """What a measure is, with the short label of a page."""
    return payload(MeasureNote, measure, label=LABELS.get(measure.name, measure.name.replace("_", " ")))

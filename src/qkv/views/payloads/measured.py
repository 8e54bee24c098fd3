"""Measures of every matrix and head over steps, and what each earned."""

import dataclasses
from typing import Literal

from qkv.views.report.packed import Packed

__all__ = [
    "GridSection",
    "HeadRow",
    "LedgerSection",
    "LedgerRow",
    "MapSection",
    "MatrixRow",
    "MeasureNote",
    "MovingNote",
    "OtherRun",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixRow:
    """One row of the map: a catalogue entry."""

    address: str
    layer: int | None
    scope: str
    kind: str
    role: Literal["E", "Q", "K", "V", "O", "MLP", "norm"]
    site: str
    shape: tuple[int, ...]
    unmoved: bool = False
    """Whether its drift is exactly 0 at every recorded step: it was frozen, or got no gradient."""
    tied_to: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureNote:
    """What a measure is: formula, range, source, what it is a property of, what to compare it with (`null`), and a
    decision that it informs."""

    name: str
    label: str
    formula: str
    range: str
    source: str
    property_of: str
    null: str
    meaning: str = ""
    decision: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MovingNote:
    """When one kind of matrix moved: steps by which shares of its final drift were done, medians over layers."""

    kind: str
    role: str
    tenth: float
    half: float
    nine_tenths: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapSection:
    """Every matrix x every recorded step x every measure, with the random-label control where there is one."""

    rows: tuple[MatrixRow, ...]
    steps: tuple[int, ...]
    measures: tuple[MeasureNote, ...]
    values: dict[str, Packed]
    """measure -> float32 [row, step]; NaN where it was not recorded."""
    null_steps: tuple[int, ...] = ()
    null_values: dict[str, Packed] = dataclasses.field(default_factory=dict)
    moving: tuple[MovingNote, ...] = ()
    """By kind, the first to have done half of its moving first; from every recorded step, drawn or not."""
    thinned: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadRow:
    """One head of a matrix, or one head's circuit."""

    address: str
    place: str
    """The address without head and kind: `L2`, `dec.L1.cross`."""
    layer: int
    head: int
    kind: str
    role: Literal["E", "Q", "K", "V", "O", "MLP", "norm"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridSection:
    """Every head x every step x every measure that heads have."""

    rows: tuple[HeadRow, ...]
    steps: tuple[int, ...]
    measures: tuple[MeasureNote, ...]
    values: dict[str, Packed]
    """measure -> float32 [row, step]; NaN where there is none."""
    origin: str
    """Where the numbers come from, in words."""
    null_steps: tuple[int, ...] = ()
    null_values: dict[str, Packed] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherRun:
    """Another run of the same matrices, to stand beside this one."""

    name: str
    map: MapSection | None
    grid: GridSection | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """What one matrix, one head or one kind of matrix earned."""

    address: str
    role: Literal["E", "Q", "K", "V", "O", "MLP", "norm"]
    nats: float
    """By which its movement changed the loss; below 0 lowered it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerSection:
    """Which matrix earned the loss, each list by what was earned, and how closely the account closes."""

    matrices: tuple[LedgerRow, ...]
    heads: tuple[LedgerRow, ...]
    kinds: tuple[LedgerRow, ...]
    first_step: int
    last_step: int
    n_entries: int
    change: float
    """Of the loss of the ledger's probe, nats."""
    error: float
    """All that was earned less that change, nats."""

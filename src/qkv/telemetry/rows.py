"""What telemetry is made of, as frozen dataclasses: what goes in by name, and what comes out.

Steps count updates made; losses are in nats per token; arrays are NumPy; None, or NaN in an array, is "undefined".
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "LEDGER_ARM",
    "NULL_ARM",
    "RUN_ARM",
    "AddressRow",
    "Arm",
    "Clock",
    "Compared",
    "Evaluation",
    "Event",
    "Grid",
    "MatrixRow",
    "MeasureRow",
    "Sample",
    "Series",
    "Session",
    "Steps",
]

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
    evidence: dict[str, Any]


@dataclass(frozen=True)
class Session:
    """Something that happened to the process rather than to the model."""

    step: int
    kind: str
    sentence: str

"""Every measure, by name and by the look that takes it. Words and numbers only; views and help texts read this.

A new measure is one module in `measures/`, with its entry in a tuple `MEASURES`, and one line in `MODULES`.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TypeVar, cast

from qkv.errors import ConfigError, unknown
from qkv.extensions import Registry, instance_of
from qkv.instruments.measures.measure import Measure, Property

MODULES = ("movement", "spectrum", "gradient", "circuits", "directions", "rows", "attention")
"""Modules of `measures/`, in the order in which their measures are recorded."""

MEASURES: Registry[Measure] = Registry(
    "measures",
    {item.name: item for module in MODULES for item in import_module(f"qkv.instruments.measures.{module}").MEASURES},
    instance_of(Measure),
)
"""Every measure by name, in the order in which they are recorded; those that other packages add come last."""

F = TypeVar("F", bound=Callable[..., object])


class _Functions(Mapping[str, F]):
    """Measure -> its function of one kind of thing, of each that has one; other packages are asked when it is read."""

    def __init__(self, kind: Callable[[Measure], F | None]) -> None:
        self._kind = kind

    def _all(self) -> dict[str, F]:
        of_all = {name: of for name, item in MEASURES.items() if (of := self._kind(item)) is not None}
        return {name: of if name in MEASURES.built_in else _guarded(name, of) for name, of in of_all.items()}

    def __getitem__(self, name: str) -> F:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def _guarded(name: str, of: F) -> F:
    """A function of another package, which is named where it fails."""

    @functools.wraps(of)
    def guarded(*given: object) -> object:
        try:
            return of(*given)
        except Exception as error:
            raise MEASURES.failed(name, error) from error

    return cast(F, guarded)


LIGHT = _Functions(lambda item: item.of_matrix)
"""Taken of every catalogue entry and every head around an update."""

AT_REST = _Functions(lambda item: item.of_matrix if item.at_rest else None)
"""Those that need no update."""

CIRCUIT = _Functions(lambda item: item.of_circuit)
"""Taken of the circuits QK and OV; `symmetric_share` of QK only."""

SPECTRAL = _Functions(lambda item: item.of_spectrum)
"""Taken of every matrix, head and circuit."""

STATISTICS = _Functions(lambda item: item.of_attention)
"""Taken of what every head attends to on the probe."""

ANGLES = ("angle_to_k", "angle_to_q")
"""Between the spaces that the matrices of one head read."""


def measure(name: str) -> Measure:
    """A measure by name. Raises ConfigError with the nearest names."""
    if name not in MEASURES:
        raise ConfigError(unknown("measure", name, MEASURES))
    return MEASURES[name]


def property_of(name: str, kind: str) -> Property:
    """What a measure of that kind of matrix belongs to: everything of the circuits QK and OV to the function."""
    return "function" if kind in ("QK", "OV") else measure(name).property_of

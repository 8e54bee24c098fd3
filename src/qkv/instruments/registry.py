"""Every measure, by name and by the look that takes it. Words and numbers only; views and help texts read this.

A new measure is one module in `measures/`, with its entry in a tuple `MEASURES`, and one line in `MODULES`.
"""

from collections.abc import Mapping
from importlib import import_module

from qkv.errors import ConfigError, unknown
from qkv.instruments.measures.measure import Measure, Property

MODULES = (
    "movement",
    "spectrum",
    "gradient",
    "circuits",
    "directions",
    "rows",
    "attention",
)
"""Modules of `measures/`, in the order in which their measures are recorded."""

MEASURES: Mapping[str, Measure] = {
    item.name: item for module in MODULES for item in import_module(f"qkv.instruments.measures.{module}").MEASURES
}
"""Every measure by name, in the order in which they are recorded."""

OF_MATRIX = {name: item.of_matrix for name, item in MEASURES.items() if item.of_matrix is not None}
LIGHT = tuple(OF_MATRIX)
"""Taken of every catalogue entry and every head around an update."""

AT_REST = tuple(name for name in LIGHT if MEASURES[name].at_rest)
"""Those that need no update."""

OF_CIRCUIT = {name: item.of_circuit for name, item in MEASURES.items() if item.of_circuit is not None}
CIRCUIT = tuple(OF_CIRCUIT)
"""Taken of the circuits QK and OV; `symmetric_share` of QK only."""

OF_SPECTRUM = {name: item.of_spectrum for name, item in MEASURES.items() if item.of_spectrum is not None}
SPECTRAL = tuple(OF_SPECTRUM)
"""Taken of every matrix, head and circuit."""

OF_ATTENTION = {name: item.of_attention for name, item in MEASURES.items() if item.of_attention is not None}
STATISTICS = tuple(OF_ATTENTION)
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

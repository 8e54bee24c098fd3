"""What every measure is: name, meaning, formula, range, source, property, what to compare it with, and one decision.

Words, and the function by which the recorder takes it. In formulas `W` is the matrix at a step, `S` the same at step 0,
`G` the gradient of the loss, `dW` the last update.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from torch import Tensor

from qkv.instruments.attention_rows import Rows
from qkv.instruments.readings import CircuitReading, MatrixReading
from qkv.shapes import Float64
from qkv.telemetry import MeasureRow

N_SINGULAR = 8
"""How many of the largest singular values are recorded as a list, and how many directions make a top subspace."""

Property = Literal["function", "parametrisation"]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What a measure is, where it comes from, and how not to be fooled by it.

    One that no function below takes has a method of its own in `measurements.py`.
    """

    name: str
    """As in `run.history(selector, name)`; a list's as in `run.telemetry().vectors(address, name)`."""
    meaning: str
    """One plain sentence."""
    formula: str
    """In the words of this module's head."""
    range: str
    """Lowest to highest value, and the unit."""
    source: str
    """Author, year, arXiv id."""
    null: str
    """What to compare it with: its value at the start, of random matrices, or in the random-label control."""
    decision: str
    """One decision that it informs."""
    property_of: Property = "parametrisation"
    """Of a raw matrix; see `registry.property_of` for circuits."""
    of_matrix: Callable[[MatrixReading], np.ndarray] | None = None
    """Of every matrix and every head, where one pass over all weights tells: float64 [n]."""
    at_rest: bool = False
    """Whether `of_matrix` needs no update."""
    of_circuit: Callable[[CircuitReading], np.ndarray] | None = None
    """Of every circuit QK and OV, where their factors tell: float64 [n]."""
    of_spectrum: Callable[[Float64[np.ndarray, "*batch k"]], Float64[np.ndarray, "*batch"]] | None = None
    """Of every matrix, head and circuit, where its singular values tell, which fall."""
    of_attention: Callable[[Rows], Float64[Tensor, "batch n_heads query_pos"]] | None = None
    """Of every head on the probe: one number for each row of its pattern, whose mean is recorded."""
    is_largest: bool = False
    """Whether the largest row is recorded, and not the mean."""

    def row(self) -> MeasureRow:
        """The same for the telemetry file, which explains itself."""
        return MeasureRow(**{field.name: getattr(self, field.name) for field in fields(MeasureRow)})

"""One matrix, head or circuit at one step, every number of it: what a live page asks when a cell is clicked."""

from dataclasses import dataclass

import numpy as np
import torch

from qkv.errors import UserError
from qkv.instruments.measures import singular_values
from qkv.models.factored import FactoredMatrix
from qkv.models.matrices import Catalogue
from qkv.views.report.packed import Packed, pack
from qkv.views.viewer import Viewer

__all__ = ["MatrixAnswer", "matrix_of"]

MOST_NUMBERS = 1_200_000
"""Of one matrix that are sent at once; of a longer one the first rows."""
WIDEST_SPECTRUM = 2048


@dataclass(frozen=True)
class MatrixAnswer:
    """A matrix in the field's shape (heads [d_model, d_head], of W_O [d_head, d_model]; W_E [tokens, d_model])."""

    address: str
    step: int
    shape: tuple[int, int]
    values: Packed
    """float32 [rows, columns], the first rows where not all fit."""
    start: Packed | None
    """The same at step 0, where it was kept."""
    start_step: int
    spectrum: Packed | None
    """float32, singular values, falling; None for a matrix too wide to take them at once."""
    start_spectrum: Packed | None
    notes: tuple[str, ...]
    """What this product leaves out (circuits), or what was cut."""


def matrix_of(viewer: Viewer, address: str, step: int | None) -> MatrixAnswer:
    """The numbers behind an address. Raises AddressError for one that this model does not have."""
    at, steps = viewer.nearest(step), viewer.steps()
    now, notes = _read(viewer.catalogue(at), viewer, address)
    first = steps[0] if steps else at
    start = _read(viewer.catalogue(first), viewer, address)[0] if first < at else None
    table, before = _table(now), None if start is None else _table(start)
    rows = min(len(table), max(1, MOST_NUMBERS // max(1, table.shape[1])))
    if rows < len(table):
        notes = (*notes, f"The first {rows:,} of {len(table):,} rows.")
    return MatrixAnswer(
        address=address,
        step=at,
        shape=(int(table.shape[0]), int(table.shape[1])),
        values=pack(table[:rows]),
        start=None if before is None else pack(before[:rows]),
        start_step=first,
        spectrum=_spectrum(now),
        start_spectrum=None if start is None else _spectrum(start),
        notes=notes,
    )


def _read(catalogue: Catalogue, viewer: Viewer, address: str) -> tuple[torch.Tensor | FactoredMatrix, tuple[str, ...]]:
    if address.rpartition(".")[2] in ("QK", "OV"):
        circuit = catalogue.circuit(address)
        return circuit, tuple(circuit.caveats(viewer.config.model.layout if viewer.has_code else None))
    part = catalogue.part(address)
    values = (part.entry.parameter if part.piece is None else part.view()).detach()
    if values.ndim > 2:
        raise UserError(f"{address} has {values.ndim} axes; expected a matrix or one head of it")
    if part.entry.transposed and part.piece is None:
        values = values.T
    return values, ()


def _table(values: torch.Tensor | FactoredMatrix) -> np.ndarray:
    with torch.no_grad():
        table = values.product() if isinstance(values, FactoredMatrix) else values
    table = table.float()
    return (table[None] if table.ndim == 1 else table).numpy()


def _spectrum(values: torch.Tensor | FactoredMatrix) -> Packed | None:
    """Singular values; of a product from its factors."""
    if isinstance(values, FactoredMatrix):
        return pack(values.singular_values().detach().numpy())
    if values.ndim < 2 or min(values.shape) > WIDEST_SPECTRUM:
        return None
    return pack(singular_values(values).numpy())

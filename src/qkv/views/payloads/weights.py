"""Pictures of the weights."""

import dataclasses

from qkv.views.report.packed import Packed

__all__ = ["ExactBlock", "MatricesSection", "MatrixPicture"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExactBlock:
    """A small part of a matrix, every weight as stored."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    start: Packed | None
    last: Packed
    chosen: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixPicture:
    """One matrix at the snapshots: how large the weights are, and how far they have moved, block by block."""

    address: str
    shape: tuple[int, ...]
    reduction: str
    block: tuple[int, int]
    size: Packed
    """[snapshot, row block, column block]: root mean square of the weights in a block."""
    change: Packed | None
    """[snapshot, row block, column block]: root mean square of (weights - start) in a block."""
    axes: tuple[str, str] = ("in", "out")
    n_heads: int = 0
    head_axis: int = 1
    exact: ExactBlock | None = None
    spectrum: Packed | None = None
    """[snapshot, rank]: singular values, falling; None where they would take too long."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatricesSection:
    """Pictures of the weights at the snapshots."""

    steps: tuple[int, ...]
    items: tuple[MatrixPicture, ...]

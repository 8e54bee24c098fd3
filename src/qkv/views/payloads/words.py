"""Rows of W_E: how far they moved, and where they lie."""

import dataclasses
from typing import Literal

from qkv.views.report.packed import Packed

__all__ = ["RowsSection", "TokenRow", "TrioSection", "WordsSection"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenRow:
    """One row of W_E, before and after."""

    token: str
    token_id: int
    count: int | None
    drift: float | None
    why: Literal["frequent", "moved", "unseen"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsSection:
    """The token table W_E row by row: how far each moved against how often it was met."""

    tokens: tuple[str, ...]
    token_ids: Packed
    counts: Packed | None
    """How often each stands in the training text."""
    drift: Packed
    step: int
    """The step of `drift`: the last that was recorded."""
    n_rows: int
    n_unseen: int | None
    largest_unseen_drift: float | None
    drawn: str
    """Which rows are drawn, in words; empty when all are."""
    null_step: int | None = None
    """The last step that run and random-label control both recorded: drifts grow with updates, so only equal steps
    compare."""
    drift_then: Packed | None = None
    """Drift of the run at `null_step`."""
    null_drift: Packed | None = None
    """Drift in the random-label control at `null_step`."""
    shown: tuple[TokenRow, ...] = ()
    example: int | None = None
    """Id of the row to begin with, one of `shown`."""
    start: Packed | None = None
    """[row of `shown`, d_model]: before training, bit for bit."""
    last: Packed | None = None
    """The same at `last_step`; None where no weights after an update were kept."""
    last_step: int | None = None
    """The last step whose weights were kept: before `step` where a run was stopped, or still trains."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrioSection:
    """Cosines between the first words of a `WordsSection`, each read alone, in the first layer, at its steps."""

    n: int
    """Words."""
    x: Packed
    """[step, word, word]"""
    heads: Packed
    """[step, (q, k, v), head, word, word]"""
    other_basis: Packed | None
    """[step, (q, k), head, word, word] of the same function in another basis inside each head; None where the layout
    (rotary positions, QK-norm) ties the basis down."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordsSection:
    """Rows of W_E as points: the most frequent tokens, their neighbours among each other, and a map of them."""

    steps: tuple[int, ...]
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    counts: tuple[int, ...] | None
    n_rows: int
    places: Packed
    """[step, token, 2]: on the two directions of their largest variance at the last step."""
    shares: tuple[float, float]
    """Of all variance of the drawn tokens at the last step, on these directions."""
    nearest: Packed
    """int32 [step, token, rank]: numbers of the nearest tokens."""
    cosines: Packed
    """[step, token, rank]"""
    null_cosine: float
    """The largest cosine to expect among as many random directions."""
    trio: TrioSection | None = None

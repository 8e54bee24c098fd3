"""What the Playground section needs."""

import dataclasses
from typing import Any

from qkv.views.report.packed import Packed

__all__ = ["PlaySection"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlaySection:
    """A run as the playground takes it."""

    name: str
    step: int | None
    settings: dict[str, Any]
    """The configuration's model: its kind, the keys of its sizes and layout, and the run's changes as one text."""
    tokens: tuple[str, ...] | None
    """The vocabulary; None where tokens are not characters."""
    parameters: int
    weights: dict[str, Packed] | None
    """By address, of the last step; None where there are too many."""

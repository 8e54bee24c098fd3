"""What a trainer hands back and what a probe is handed: two records between the parts of a study."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qkv.recipe import Parts
from qkv.studies.engine.design import Trial
from qkv.training.record import Observer

__all__ = ["Finished", "Trained"]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """How a trainer left the model; by default untouched."""

    best_loss: float = math.inf
    """Lowest validation loss that was measured on the way; infinity where none was."""
    best_step: int = 0
    curve: tuple[tuple[int, float], ...] = ()
    """(step, validation loss)."""
    train_loss: float = math.nan
    """Mean over the last tenth of the steps; NaN where there were none."""
    steps: int = 0
    measures: Mapping[str, float] = field(default_factory=dict)
    """What the trainer measured itself."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A trained model with everything around it, for probes to measure; they leave it as they found it."""

    trial: Trial
    parts: Parts
    loss: float
    """On the validation part, nats per target."""
    watched: Mapping[str, Observer] = field(default_factory=dict)
    """By the name of its probe, what looked on while the arm was trained."""

    @property
    def model(self) -> Any:
        """The model, evaluated as it stands."""
        return self.parts.model

    @property
    def corpus(self) -> Any:
        """What it was trained on."""
        return self.parts.corpus

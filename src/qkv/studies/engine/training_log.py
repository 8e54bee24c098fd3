"""What a trainer hands back and what a probe is handed: two records between the parts of a study."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv.errors import SourceError
from qkv.recipe import Parts
from qkv.studies.engine.design import Trial
from qkv.tasks.batch import Batch
from qkv.training.record import Observer

_BATCH_TOKENS = 2048


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

    @property
    def rows(self) -> np.ndarray:
        """The table of embeddings, W_E: [d_vocab, d_model]."""
        return self.parts.catalogue.view("W_E").detach().numpy()

    def val_batches(self) -> Iterator[Batch]:
        """The validation part in batches of about two thousand tokens."""
        sizes = self.model.config.sizes
        return self.parts.task.val_batches(self.corpus, sizes, max(1, _BATCH_TOKENS // sizes.n_ctx))

    def too_small(self, lacking: str) -> SourceError:
        """The error for a text that holds too little of what a probe asks for: what there is, and what is expected."""
        return SourceError(f"{self.corpus.name!r} is too small for this study: {lacking}. Give a longer text")

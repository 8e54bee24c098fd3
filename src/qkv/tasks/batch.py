"""What a model sees in one forward pass, and what it is asked for."""

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from qkv.randomness import uniforms


class Drop(Protocol):
    """Dropout handed in by the trainer: `drop(site, x) -> x` of the same shape; None means no dropout."""

    def __call__(self, site: str, x: Tensor, /) -> Tensor:
        """x [batch, ...], row i being example i of the batch."""
        ...

    def onto(self, stream: Tensor, site: str, x: Tensor) -> Tensor:
        """stream + drop(site, x)."""
        ...

    def placed(self, owners: Tensor, places: Tensor) -> "Drop":
        """The same where rows hold several examples: see `qkv.training.dropout.Dropping.placed`."""
        ...


class Batch(NamedTuple):
    """What a model sees in one forward pass, and what it is asked for.

    Targets are flat, with the flat index of the position that must answer each of them, so that the output matrix is
    applied only where an answer is wanted.
    """

    inputs: Tensor
    """int64 [batch, pos]; token ids. Or uint8 [batch, channels, height, width]: images."""
    targets: Tensor
    """int64 [n_targets]; the ids that should be answered."""
    positions: Tensor | None = None
    """int64 [n_targets], increasing: index into batch * pos; None means that every position answers, in order."""
    mask: Tensor | None = None
    """bool [batch, pos], True = real token; None means that nothing is padded."""
    documents: Tensor | None = None
    """int64 [batch, pos]; positions attend only within equal numbers; None means that the whole row is one context."""
    places: Tensor | None = None
    """int64 [batch, pos]; where a row holds several examples: which position of its own example each one is."""
    words: Tensor | None = None
    """int64 [batch, pos]; where words are asked for: which word of its row a position belongs to, from 0; -1: none. The
    mean of a word's positions answers, and `positions` are their last ones."""
    smoothing: float = 0.0
    """Share of each target that is spread over all answers while training (Szegedy et al. 2015, arXiv 1512.00567)."""
    examples: Tensor | None = None
    """int64 [batch]: the name of each row in draws of dropout; None where row i is the i-th example asked for."""
    answers: Tensor | None = None
    """float32 [n_targets, n_classes]: probabilities that are learned in the place of targets; None: targets are."""
    types: Tensor | None = None
    """int64 [batch, pos]: the row of W_type that is added at each position; None: the first, where there is one."""
    source: Tensor | None = None
    """int64 [batch, source_pos]: of a translation, what its inputs and targets translate."""
    source_mask: Tensor | None = None
    """bool [batch, source_pos], True = real token; None means that nothing is padded."""

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return Batch(*(part.to(device) if isinstance(part, Tensor) else part for part in self))  # type: ignore

    @property
    def n_targets(self) -> int:
        """How many answers the loss sums over."""
        return self.targets.numel()


def n_positions(batch: Batch, each: int) -> int:
    """How many positions a model sees of a batch, padding included; `each` is how many an image has."""
    return len(batch.inputs) * each if batch.inputs.dim() == 4 else batch.inputs.numel()


def rows_of(batch: Batch) -> Tensor:
    """The row (window; of words the text) that each target of a batch belongs to: int64 [n_targets]."""
    if batch.words is not None and batch.documents is not None and batch.positions is not None:
        return batch.documents.flatten()[batch.positions]
    width = batch.inputs.shape[1]
    if batch.positions is None:
        return torch.arange(batch.n_targets, device=batch.targets.device) // width
    return batch.positions // width


def places_of(batch: Batch) -> Tensor:
    """Where in its window (or example) each target is asked for, from 0: int64 [n_targets]."""
    width = batch.inputs.shape[1]
    flat = (
        torch.arange(batch.inputs.numel(), device=batch.targets.device) if batch.positions is None else batch.positions
    )
    return flat % width if batch.places is None else batch.places.flatten()[flat]


def with_uniform_labels(
    batch: Batch, labels: np.ndarray, seed: int, step: int, examples: np.ndarray, *, by_place: bool
) -> Batch:
    """The same inputs, every target an independent uniform draw from `labels` (int64 [n]): of the random-label control.

    A draw is a pure function of (seed, step, example), and `by_place` of the place in its window, whatever else is in
    the batch, so that nothing can be memorized: the lowest expected loss of any model is ln(n). `examples` are the
    global indices (int64) that `batch` was made of; without `by_place` each has one target.
    """
    names = examples if batch.examples is None else batch.examples.numpy()
    if by_place:
        names = (names[rows_of(batch).numpy()] << 24) + places_of(batch).numpy()
    drawn = (uniforms(names, seed, "uniform labels", step) * len(labels)).astype(np.int64)
    return batch._replace(targets=torch.from_numpy(labels[drawn]), answers=None)

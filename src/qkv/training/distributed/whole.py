"""How the weights of a training are held: whole by every process. What the loop asks of them, by one set of names.

`shards.Shards` answers the same where weights, gradients and optimizer state are shared out among processes, and
`captured.Captured` where a device plays an update that it has recorded.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from qkv.training.checkpoint import Checkpoint, Checkpoints, TrainingState
from qkv.training.distributed.ranks import Ranks
from qkv.training.optimizers import Optimizer
from qkv.training.precision import Machine
from qkv.training.record import Constraint

if TYPE_CHECKING:
    from qkv.folder.run_folder import RunFolder
    from qkv.models.matrices import Catalogue
    from qkv.models.zoo import Model
    from qkv.tasks.batch import Batch, Drop
    from qkv.training.dropout import Dropping


Loss = Callable[["Model", "Batch", "Drop | None"], tuple[Tensor, int]]
"""`Objective.loss`, of the model or of what stands for it where a rank holds rows of it: (sum of nats, number of
targets)."""


class Weights:
    """Every rank holds everything, so most of this is the catalogue's and the optimizer's own."""

    in_lockstep = False
    """Whether a rank that passes forward needs every other one to do so as well."""

    def __init__(
        self, model: "Model", catalogue: "Catalogue", optimizer: Optimizer, loss: Loss, ranks: Ranks, machine: Machine
    ) -> None:
        self.model, self.catalogue, self.optimizer, self.ranks = model, catalogue, optimizer, ranks
        self._loss, self.machine = loss, machine

    # a step

    def loss(self, batch: "Batch", drop: "Dropping | None" = None) -> tuple[Tensor, int]:
        """(sum of nats, number of targets) of a batch, by the task."""
        return self._loss(self.model, batch, drop)

    def enter(self, constraint: Constraint, step: int) -> None:
        """Let the constraint write and freeze what it does before a step."""
        constraint.before_step(step)

    def learn(self, batch: "Batch", drop: "Dropping | None", n_targets: int) -> Tensor:
        """Pass one micro-batch forward and backward: its share of the mean over `n_targets` adds its gradients.

        Returns that share, a scalar without a history.
        """
        if self.machine.device != "cpu":
            batch = batch.to(self.machine.device)
        with self.machine.passing():
            nats, _ = self.loss(batch, drop)
        share = nats / max(1, n_targets)  # nothing was hidden in any text: nothing to learn
        if share.requires_grad:  # with everything frozen there is nothing to go back through
            self.backward(share)
        return share.detach()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of one micro-batch to those before."""
        loss.backward()

    def sum_gradients(self) -> None:
        """Make the gradients those of the whole batch."""
        self.ranks.sum_gradients(self.optimizer.parameters)

    def clip_and_measure(self, clip: float) -> tuple[float, np.ndarray]:
        """The global norm of the gradients before they are clipped, and that of each, NaN where there is none."""
        with self.machine.natively():
            return self.optimizer.clip_and_measure(clip)

    def update(self, lr_scale: float) -> None:
        """One update of every parameter that has a gradient."""
        with self.machine.natively():
            self.optimizer.step(lr_scale)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self.optimizer.zero_grad()

    def let_go(self) -> None:
        """Release what only updates need: there are no more of them."""
        self.zero_grad()

    # what is looked at

    def agree(self, wanted: bool) -> bool:
        """Whether whole weights are wanted by a rank, where that takes part of all of them."""
        return False

    def show(self, *, gradients: bool = False) -> None:
        """Make the catalogue and the optimizer that observers read those of now."""

    def hide(self) -> None:
        """Release what was shown."""

    def put_back(self) -> None:
        """Copy the present weights into the model that was handed in, for its further use."""

    def first_non_finite(self, *, gradients: bool = False) -> str:
        """The first address, in the catalogue's order, whose weights (or gradient) are not all finite, or ""."""
        for address in self.catalogue.addresses:
            parameter = self.catalogue.entry(address).parameter
            tensor = parameter.grad if gradients else parameter.detach()
            # A finite sum proves the whole tensor finite; only where it is not is every element looked at.
            if tensor is not None and not math.isfinite(float(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
                return address
        return ""

    def culprit(self) -> tuple[str, str]:
        """(address, words for a person): where numbers were lost first; the address is "" where all are finite."""
        weights, gradient = self.first_non_finite(), self.first_non_finite(gradients=True)
        words = f"the first matrix with a non-finite gradient is {gradient}" if gradient else "every gradient is finite"
        if weights:
            words += f", and the weights of {weights} are not finite"
        return gradient or weights, words

    def compare(self, step: int) -> None:
        """Make sure that no rank computed wrongly, as far as that shows in the weights."""
        self.ranks.compare(self.optimizer.parameters, step)

    # what is kept

    def load(self, resume: Checkpoint) -> None:
        """Take over weights and optimizer state of a checkpoint."""
        self.catalogue.load_state(resume.weights())
        self.optimizer.load_state(resume.optimizer_state())

    def checkpoints(self, folder: "RunFolder", resume: Checkpoint | None) -> Checkpoints:
        """What writes the checkpoints of this training, on the first rank."""
        return Checkpoints(folder, self.catalogue, self.optimizer, resume=resume)

    def save(self, checkpoints: Checkpoints | None, folder: "RunFolder | None", state: TrainingState) -> None:
        """Write a checkpoint; every rank calls it, and the first one alone has `checkpoints`."""
        if checkpoints is not None:
            checkpoints.save(state)

"""The training loop."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from qkv.training.config import TrainingConfig
from qkv.training.record import Constraint, Observer, Outcome

if TYPE_CHECKING:
    from qkv.folder import RunFolder
    from qkv.models.matrices import Catalogue
    from qkv.training.checkpoint import Checkpoint
    from qkv.training.optimizers import Optimizer
    from qkv.training.precision import Machine

__all__ = ["run"]


def run(
    *,
    model: nn.Module,
    catalogue: "Catalogue",
    task: Any,
    corpus: Any,
    config: TrainingConfig,
    optimizer: "Optimizer",
    machine: "Machine",
    seed: int,
    folder: "RunFolder | None" = None,
    constraint: Constraint | None = None,
    observers: Sequence[Observer] = (),
    resume: "Checkpoint | None" = None,
    deadline_seconds: float | None = None,
    random_labels: bool = False,
) -> Outcome:
    """Train `model` until its horizon, target, wall time or patience ends.

    The recipe has built everything: `plan.at_start()` gave the catalogue, `make_optimizer(catalogue, config.optimizer)`
    the optimizer, `checkpoint.latest_valid(folder)` the checkpoint to resume from (whose weights and optimizer state
    the loop loads). `folder` None writes nothing (the random-label null). `deadline_seconds` is the wall time left for
    this loop, final work of others already taken off; it is needed with `config.minutes` (not on a resume, where the
    recorded horizon is used) and None otherwise. Dropout is `model.config.layout.dropout`.

    Raises NonFiniteError, Interrupted (both after saving what is good), StorageError.
    """
    raise AssertionError("being written")

"""What training tells those who watch it, and the two protocols: observers read, constraints write.

**Step numbers.** Weights *at step n* are the weights after n updates; step 0 is the start. The update that leads from
step n to step n + 1 is made with the rate of n, on the batch of n, under `constraint.before_step(n)` and
`after_step(n)`. Its `StepRecord.step` is n + 1: the loss and gradient are those of the weights at n, and once
`after_update` is called the weights are those at n + 1. So "everything up to step n" is complete exactly when the
checkpoint of step n is written, and a resume from there drops whatever is labelled later.

An observer changes no weights, gradients, optimizer state or global random state: watching never changes a run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import nn

    from qkv.models.matrices import Catalogue
    from qkv.tasks.data import Data
    from qkv.tasks.evaluation import Objective
    from qkv.training.config import TrainingConfig
    from qkv.training.optimizers import Optimizer
    from qkv.training.precision import Machine

StopReason = Literal["steps", "minutes", "loss", "budget", "interrupt", "nan", "spike", "diverged"]
"""Why a run ended: its horizon, its wall time, its target loss, patience, a signal, a non-finite number, a spike, or
losses far above those of guessing."""


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What an observer may look at; given once, before the first update."""

    seed: int
    """The seed that names every draw."""
    start_step: int = 0
    """The step this process starts from; above 0 on a resume."""
    steps: int = 0
    """The horizon in updates; 0 while `minutes` is still being measured."""
    model: "nn.Module"
    """The model in training, with the weights of `start_step`."""
    catalogue: "Catalogue"
    task: "Objective"
    corpus: "Data | None" = None
    """What it trains on; None of a training that is not ours."""
    config: "TrainingConfig"
    machine: "Machine"
    optimizer: "Optimizer | None" = None
    """Its state by address, to be read only; None of a training that is not ours."""
    folder: Path | None = None
    """The run folder; None where nothing is written."""


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One update, as seen from outside; see the module's note on step numbers."""

    step: int
    """Updates done once this one is: 1 for the first."""
    steps: int
    """The horizon; 0 while it is still being measured."""
    tokens: int
    """Real (unpadded) positions seen since step 0, this update included."""
    loss: float
    """Mean nats per target of this update's batch, at the weights before it."""
    lr: float
    """The base learning rate (`optimizer.lr`) times the schedule's factor."""
    grad_norm: float
    """Global 2-norm of the gradient before clipping."""
    wall_seconds: float
    """Seconds of training since step 0, earlier sessions of a resumed run included."""
    seconds_left: float | None = None
    """Until the clock ends the run, at 0 or above; None where it does not."""
    catalogue: "Catalogue"
    """Parameters and gradients by address: gradients after clipping; weights before or after, by the call."""
    optimizer: "Optimizer"
    """Optimizer state, to be read only."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord:
    """One pass over the full validation split."""

    step: int
    """The step whose weights were scored."""
    loss: float
    """Mean nats per target."""
    n_targets: int
    is_best: bool
    seconds: float
    """Wall time of the pass."""
    wall_seconds: float
    """Seconds of training since step 0, this pass included."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something worth a sentence: a horizon fixed, patience ended, a checkpoint skipped, a number gone."""

    step: int
    kind: str
    """One word: horizon, patience, target, nan, interrupt, checkpoint."""
    sentence: str
    """For a person."""
    address: str = ""
    """The matrix it speaks of, if it does."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a training ended."""

    steps: int
    """Updates done in all."""
    horizon: int
    """Updates the schedule was made for."""
    tokens: int
    """Real positions seen in all."""
    best_loss: float
    """Lowest full-validation loss, nats per target; NaN where none was measured."""
    best_step: int
    """Its step; -1 where none was measured."""
    last_loss: float
    """Full-validation loss at the last step; NaN where it was not measured (a run that was interrupted)."""
    stopped_because: StopReason
    train_seconds: float
    """Wall time of the loop over all sessions: updates, validation, checkpoints and watching."""
    tokens_per_second: float
    """Tokens of this session by its seconds; 0 where it made no update."""
    resumed_from_step: int | None
    """The step this session resumed from; None if it is not a resume."""


class Observer:
    """Reads a training and never changes it. A subclass overrides what it needs; every default does nothing."""

    @property
    def reads_weights(self) -> bool:
        """Whether it ever reads weights, gradients or optimizer state: where they are sharded, that has to be known."""
        return True

    def reads(self, step: int) -> bool:
        """Whether it reads them around the update that leads to `step`, which it then also `wants`."""
        return self.reads_weights and self.wants(step)

    def on_start(self, context: RunContext) -> None:
        """Before the first update of this session: forget everything labelled later than `context.start_step`."""

    def wants(self, step: int) -> bool:
        """Whether to be shown the update that leads to `step`: a function of `step` and what `on_start` told."""
        return False

    def before_update(self, record: StepRecord) -> None:
        """Gradients are there, weights not yet changed. Only where `wants(record.step)`."""

    def after_update(self, record: StepRecord) -> None:
        """Weights are those at `record.step`; gradients are still there. Only where `wants(record.step)`."""

    def on_evaluation(self, evaluation: EvaluationRecord) -> None:
        """After each pass over the full validation split."""

    def on_event(self, event: Event) -> None:
        """Something worth a sentence."""

    def on_checkpoint(self, step: int) -> None:
        """Before the checkpoint of `step` is written: make everything up to `step` durable now."""

    def on_end(self, outcome: Outcome) -> None:
        """After the last checkpoint is on disk, however the run ended (interrupt and NaN included)."""


class Listener(Observer):
    """Is told of every update, and reads no weights."""

    @property
    def reads_weights(self) -> bool:
        return False

    def wants(self, step: int) -> bool:
        return True


class Constraint(Protocol):
    """Writes weights by rule (`changes.Plan`). Its start is made before the optimizer is built, by the recipe."""

    def before_step(self, step: int) -> None:
        """Before the forward pass of the update from `step` to `step + 1`; the first call after a resume at `step`."""

    def after_step(self, step: int) -> None:
        """After that update: put back what must not have moved."""

    def acts_at(self, step: int) -> bool:
        """Whether something begins or ends to act before the update from `step`, so that the loss may jump."""
        ...

"""What a training is given, and one session of it: the state that moves, its clock, its files and who watches.

A session goes from a start (step 0, or a checkpoint) to an end. A run that goes back after a spike begins another one
in the same process. `loop` moves a session from step to step, `trouble` ends one that cannot go on.

Ctrl-C and SIGTERM are a request (`StopSignals`): the step in progress is finished, then the loop saves and stops. A
second signal does not wait. In a thread other than the main one Python delivers no signals; nothing is installed.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, Generic, TypedDict, TypeVar

from qkv.errors import Interrupted, typed
from qkv.tasks.data import DataT
from qkv.tasks.evaluation import Objective
from qkv.training.checkpoint import Checkpoint, Checkpoints, TrainingState
from qkv.training.config import TrainingConfig
from qkv.training.distributed.ranks import ALONE, Ranks
from qkv.training.distributed.whole import Weights
from qkv.training.optimizers import Optimizer
from qkv.training.precision import Machine
from qkv.training.record import Constraint, Event, Observer, Outcome, RunContext, StepRecord
from qkv.training.schedules import Pace, decay_end
from qkv.training.spikes import Watch, rate_factor, skipped
from qkv.training.validation import Validation

if TYPE_CHECKING:
    from qkv.folder.run_folder import RunFolder
    from qkv.models.matrices import Catalogue
    from qkv.models.zoo import Model

ModelT = TypeVar("ModelT", bound="Model")

Handler = Callable[[int, FrameType | None], object] | int | None
"""What Python does on a signal, as `signal.signal` tells it."""

_STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}


class StopSignals:
    """While entered, notes SIGINT and SIGTERM in `exit_status` instead of dying of them."""

    def __init__(self) -> None:
        self.exit_status = 0
        """130 or 143 once a signal came; 0 before."""
        self._before: dict[signal.Signals, Handler] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _STATUS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def received(self) -> bool:
        return self.exit_status != 0

    def _note(self, number: int, frame: FrameType | None) -> None:
        status = _STATUS[signal.Signals(number)]
        if self.exit_status:
            raise Interrupted("stopped at once; what the last checkpoint holds is kept", exit_status=status)
        self.exit_status = status


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingSetup(Generic[DataT, ModelT]):
    """What a training is given. The recipe has built everything."""

    model: ModelT
    """What is trained; dropout is `model.config.layout.dropout`."""
    catalogue: "Catalogue"
    """Its matrices by address, as `plan.at_start()` gave it."""
    task: Objective[DataT, ModelT]
    corpus: DataT
    config: TrainingConfig
    """How much, how often it is checked, when it ends."""
    optimizer: Optimizer
    """Made by `make_optimizer(catalogue, config.optimizer)`."""
    machine: Machine
    seed: int
    """Names every draw."""
    folder: "RunFolder | None" = None
    """Where checkpoints are written; None writes nothing."""
    constraint: Constraint | None = None
    """What changes do to weights before and after an update."""
    observers: Sequence[Observer] = ()
    resume: Checkpoint | None = None
    """The checkpoint to go on from, by `checkpoint.latest_valid(folder)`: its weights and optimizer state are loaded
    here; a training that is finished there is returned as it is."""
    deadline_seconds: float | None = None
    """The wall time the loop may take, final work of others already taken off. A training without `schedule.steps`
    needs it; a resumed one ignores it where its horizon is settled."""
    random_labels: bool = False
    """Train the random-label control (`qkv.tasks.batch.with_uniform_labels`), and do not validate."""
    scores_start: bool = False
    """Validate the weights of step 0 as well, so that they are the best ones where no update makes them better."""
    stop_after: int = 0
    """End after so many updates of the horizon's schedule; 0 is never."""
    ranks: Ranks = ALONE
    """The processes that share each batch: all make the same call, each with the same parts; rank 0 alone writes into
    `folder`, and it alone should be given observers."""


class SetupChanges(TypedDict, total=False):
    """Fields of a `TrainingSetup` that a caller may set beside the parts of a run."""

    config: TrainingConfig
    folder: "RunFolder | None"
    constraint: Constraint | None
    observers: Sequence[Observer]
    resume: Checkpoint | None
    deadline_seconds: float | None
    random_labels: bool
    scores_start: bool
    stop_after: int
    ranks: Ranks


class Session:
    """One session of a training. Nothing is loaded, written or told before `begin`."""

    def __init__(
        self,
        setup: TrainingSetup,
        weights: Weights,
        signals: StopSignals,
        resume: Checkpoint | None,
        deadline_seconds: float | None,
    ) -> None:
        self.started = time.perf_counter()
        self.setup, self.weights, self.signals, self.resume = setup, weights, signals, resume
        self.state = state = TrainingState() if resume is None else replace(resume.state)
        """All that moves, beside weights and optimizer state."""
        self.was_finished = state.is_finished
        self.seconds_before, self.tokens_before = state.train_seconds, state.tokens
        self.saved_step = -1 if resume is None else state.step
        """The step of the newest checkpoint; -1 where it is to be written again."""
        self.exit_status = 0
        """Of a signal that a rank has received; 0 before."""
        self.checkpoints: Checkpoints | None = None
        """What writes them; None on other ranks than the first, and where nothing is written."""
        self.spikes = Watch(setup.catalogue.addresses, state.recent_losses, state.gradient_logs)
        self.skipped_batches, self.rate_factor = skipped(state.rollbacks), rate_factor(state.rollbacks)
        self.sizes = setup.model.config.sizes
        self.tokens_per_step = setup.config.batch_size * setup.task.positions(setup.corpus, self.sizes)
        self.validation = Validation(
            setup.model,
            setup.task,
            setup.corpus,
            setup.config,
            setup.machine,
            stop=self.is_interrupted,
            ranks=setup.ranks,
            loss=weights.loss,
            in_lockstep=weights.in_lockstep,
        )
        self.pace = Pace(setup.config.schedule, state, deadline_seconds, validation_share=self.validation.share)

    def begin(self) -> None:
        """Load what is resumed, and tell those who watch."""
        setup, state, resume = self.setup, self.state, self.resume
        if resume is not None:
            self.weights.load(resume)
        is_best_gone = False
        if setup.folder is not None and setup.ranks.is_first:
            self.checkpoints = self.weights.checkpoints(setup.folder, resume)
            is_best_gone = not self.checkpoints.restore_best(state)
        if setup.ranks.of_first(is_best_gone):
            self.tell("checkpoint", f"the best weights, of step {state.best_step}, are gone; the best is reset")
            state.best_loss, state.best_step = None, -1
        context = RunContext(
            seed=setup.seed,
            start_step=state.step,
            steps=self.ends_at(state.step),
            model=setup.model,
            catalogue=setup.catalogue,
            task=setup.task,
            corpus=setup.corpus,
            config=setup.config,
            machine=setup.machine,
            optimizer=setup.optimizer,
            folder=None if setup.folder is None else setup.folder.path,
        )
        self.show_observers("on_start", context)
        for number, rollback in enumerate(state.rollbacks, 1):
            if rollback.to == state.step:  # its row would be gone with those of the steps that are made again
                self.tell(f"rollback {number}", str(rollback), rollback.address)

    def close(self) -> None:
        """Release gradients and the writing thread, also after an error."""
        self.weights.let_go()
        if self.checkpoints is not None:
            self.checkpoints.close()

    # time

    def seconds(self) -> float:
        """Since this session began."""
        return time.perf_counter() - self.started

    def clock(self) -> float:
        """The same, by the clock of rank 0: what decisions are made by."""
        return self.setup.ranks.of_first(self.seconds())

    def train_seconds(self) -> float:
        """Of all sessions."""
        return self.seconds_before + self.seconds()

    def validation_seconds(self) -> float:
        """To keep for the last validation: what the latest one took, or what a few batches of it promise."""
        if not self.validation.seconds and not self.setup.random_labels:
            self.validation.seconds = self.setup.ranks.of_first(self.validation.expected_seconds())
        return self.validation.seconds

    def is_interrupted(self) -> bool:
        """Whether a signal has reached this process or another rank."""
        self.exit_status = self.exit_status or int(self.setup.ranks.highest(self.signals.exit_status))
        return self.exit_status != 0

    def ends_at(self, step: int) -> int:
        """The end that the update to `step` is on the way to; 0 where it is not known yet."""
        return decay_end(max(0, step - 1), self.state.horizon) if self.state.horizon else 0

    # observers

    def call_observers(self, moment: str, *what: object) -> None:
        """Call the method `moment` of each observer, in their order."""
        for observer in self.setup.observers:
            getattr(observer, moment)(*what)

    def show_observers(self, moment: str, *what: object) -> None:
        """The same; they may read the weights of now."""
        is_shown = self.weights.agree(any(observer.reads_weights for observer in self.setup.observers))
        if is_shown:
            self.weights.show()
        self.call_observers(moment, *what)
        if is_shown:
            self.weights.hide()

    def tell(self, kind: str, sentence: str, address: str = "") -> None:
        """An event, to those who watch."""
        event = Event(step=self.state.step, kind=kind, sentence=sentence, address=address)
        self.call_observers("on_event", event)

    def step_record(self, step: int, tokens: int, loss: float, scale: float, grad_norm: float) -> StepRecord:
        """One update, for observers."""
        return StepRecord(
            step=step,
            steps=self.ends_at(step),
            tokens=tokens,
            loss=loss,
            lr=self.setup.config.optimizer.lr * scale,
            grad_norm=grad_norm,
            wall_seconds=self.train_seconds(),
            seconds_left=self.pace.left(self.seconds()),
            catalogue=self.setup.catalogue,
            optimizer=self.setup.optimizer,
        )

    def outcome(self) -> Outcome:
        """How it stands."""
        state, seconds, resume = self.state, self.seconds(), self.setup.resume
        last_loss = state.last_loss if state.evaluated_step == state.step else None
        return Outcome(
            steps=state.step,
            horizon=state.horizon,
            tokens=state.tokens,
            best_loss=math.nan if state.best_loss is None else state.best_loss,
            best_step=state.best_step,
            last_loss=math.nan if last_loss is None else last_loss,
            stopped_because=state.stopped_because,  # type: ignore[arg-type]
            train_seconds=self.seconds_before + (0.0 if self.was_finished else seconds),
            tokens_per_second=(state.tokens - self.tokens_before) / seconds,
            resumed_from_step=None if resume is None else resume.state.step,
        )

    def resume_command(self, option: str = "") -> str:
        """What goes on with this run, to be typed."""
        out = "RUN" if self.setup.folder is None else typed(self.setup.folder.path)
        return f"qkv train --out {out} --resume {option}".strip()

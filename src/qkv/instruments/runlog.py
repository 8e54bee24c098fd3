"""Writes down what training says of itself: losses, rates, evaluations, events, the clock. Measures nothing.

What depends on the step alone goes to tables that a resumed run reproduces row for row; what depends on the clock or on
the fate of the process (wall seconds, an interruption, a horizon measured in minutes) goes to tables of its own.
"""

from qkv.telemetry import RUN_ARM, Store
from qkv.training.record import EvaluationRecord, Event, Listener, Outcome, RunContext, StepRecord

CLOCK_SECONDS = 0.5
"""At most one row of the clock in that many seconds."""

_OF_THE_PROCESS = frozenset({"horizon", "interrupt", "checkpoint", "resume"})
"""Kinds of events that another execution of the same run would not have."""


class RunLog(Listener):
    """Losses, evaluations and events of one training, into arm `arm` of `store`; sees every update."""

    def __init__(self, store: Store, *, arm: int = RUN_ARM) -> None:
        self.store, self.arm = store, arm
        self.watch_seconds: float | None = None
        """Seconds spent measuring so far, set by a class that measures."""
        self._context: RunContext | None = None
        self._clock = (0.0, 0)
        self._speed: float | None = None

    def on_start(self, context: RunContext) -> None:
        """Drop what an earlier session wrote beyond the step this one starts from; at step 0, all it wrote."""
        self._context, self._clock, self._speed = context, (0.0, 0), None
        self.store.drop_after(context.start_step if context.start_step > 0 else -1, arm=self.arm)

    def after_update(self, record: StepRecord) -> None:
        """One row of losses; a row of the clock now and then."""
        self.store.add_step(
            record.step, tokens=record.tokens, loss=record.loss, lr=record.lr, grad_norm=record.grad_norm, arm=self.arm
        )
        seconds, tokens = self._clock
        if record.wall_seconds - seconds >= CLOCK_SECONDS or not tokens:
            self._tick(record.step, record.wall_seconds, record.tokens)

    def on_evaluation(self, evaluation: EvaluationRecord) -> None:
        """Validation loss, beside the mean training loss since the evaluation before."""
        assert self._context is not None
        total = evaluation.loss * evaluation.n_targets
        last = self.store.last_evaluation(evaluation.step, arm=self.arm)
        self.store.add_evaluation(
            evaluation.step,
            evaluation.loss,
            is_best=evaluation.is_best,
            train_loss=self.store.mean_train_loss(last, evaluation.step, arm=self.arm),
            bits_per_byte=self._context.task.bits_per_byte(self._context.corpus, total),
            arm=self.arm,
        )
        self.store.flush()

    def on_event(self, event: Event) -> None:
        """A sentence, beside the run's steps or beside the process."""
        if event.kind in _OF_THE_PROCESS:
            self.store.add_session(event.step, event.kind, event.sentence, arm=self.arm)
        else:
            self.store.add_event(event.step, event.kind, event.sentence, address=event.address, arm=self.arm)

    def on_checkpoint(self, step: int) -> None:
        """Everything up to `step` survives whatever comes."""
        self.store.sync()

    def on_end(self, outcome: Outcome) -> None:
        """The last row of the clock, and why it ended."""
        if outcome.steps:
            self._tick(outcome.steps, outcome.train_seconds, outcome.tokens)
        self.store.add_session(outcome.steps, "end", f"stopped because: {outcome.stopped_because}", arm=self.arm)
        self.store.flush()

    def _tick(self, step: int, seconds: float, tokens: int) -> None:
        before, tokens_before = self._clock
        if tokens_before and tokens > tokens_before and seconds > before:
            self._speed = (tokens - tokens_before) / (seconds - before)
        self.store.add_clock(
            step, seconds, tokens_per_second=self._speed, watch_seconds=self.watch_seconds, arm=self.arm
        )
        self._clock = (seconds, tokens)

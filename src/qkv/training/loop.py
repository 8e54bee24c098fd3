"""The training loop: evaluate, save, stop or make one more update.

It builds nothing and decides little: when to validate is up to `validation`, when to save to `checkpoint`, how long to
`pace`.
Everything that depends on a step is a pure function of (seed, step), so a run that was killed and resumed from its last
checkpoint ends with the same bytes as one that was left alone.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.errors import Interrupted, NonFiniteError
from qkv.tasks.task import n_positions
from qkv.training.checkpoint import Checkpoint, Checkpoints, TrainingState, is_due, mark_stopped
from qkv.training.config import TrainingConfig
from qkv.training.dropout import make_drop
from qkv.training.interrupt import StopSignals
from qkv.training.nonfinite import culprit, first_non_finite
from qkv.training.optimizers import Optimizer, clip_gradients
from qkv.training.pace import Pace
from qkv.training.precision import Machine
from qkv.training.record import Constraint, EvaluationRecord, Event, Observer, Outcome, RunContext, StepRecord, Watchers
from qkv.training.schedules import lr_scale
from qkv.training.validation import Validation

if TYPE_CHECKING:
    from qkv.folder import RunFolder
    from qkv.models.matrices import Catalogue

__all__ = ["run"]

_SMOOTHING = 0.9
"""Of the training loss, for guessing when a target may be near."""


def run(
    *,
    model: Any,
    catalogue: "Catalogue",
    task: Any,
    corpus: Any,
    config: TrainingConfig,
    optimizer: Optimizer,
    machine: Machine,
    seed: int,
    folder: "RunFolder | None" = None,
    constraint: Constraint | None = None,
    observers: Sequence[Observer] = (),
    resume: Checkpoint | None = None,
    deadline_seconds: float | None = None,
    random_labels: bool = False,
    stop_after: int = 0,
) -> Outcome:
    """Train `model` until its horizon, target, wall time or patience ends.

    The recipe has built everything: `plan.at_start()` gave the catalogue, `make_optimizer(catalogue, config.optimizer)`
    the optimizer, `checkpoint.latest_valid(folder)` the checkpoint to resume from (its weights and optimizer state are
    loaded here; one that is finished is returned as it is). `folder` None writes nothing. `deadline_seconds` is the
    wall time this loop may take, final work of others already taken off; a run without `schedule.steps` needs it, a
    resumed one ignores it where its horizon is known. Dropout is `model.config.layout.dropout`. `random_labels` trains
    on the null of `Task.train_batch`, and does not validate. `stop_after` ends the run after so many updates of the
    horizon's schedule.

    Raises NonFiniteError, Interrupted (both once what is good is saved) and StorageError.
    """
    with machine.active(), StopSignals() as signals:
        training = _Training(
            model=model,
            catalogue=catalogue,
            task=task,
            corpus=corpus,
            config=config,
            optimizer=optimizer,
            machine=machine,
            seed=seed,
            folder=folder,
            constraint=constraint,
            watchers=Watchers(observers),
            random_labels=random_labels,
            stop_after=stop_after,
            signals=signals,
        )
        try:
            training.begin(resume, deadline_seconds)
            while not training.is_over():
                training.update()
            return training.end()
        finally:
            training.close()


@dataclass(kw_only=True, eq=False)
class _Training:
    """One session of a training: the parts it was given, and the state that they move."""

    model: Any
    catalogue: "Catalogue"
    task: Any
    corpus: Any
    config: TrainingConfig
    optimizer: Optimizer
    machine: Machine
    seed: int
    folder: "RunFolder | None"
    constraint: Constraint | None
    watchers: Watchers
    random_labels: bool
    stop_after: int
    signals: StopSignals
    checkpoints: Checkpoints | None = None

    # one session, from its first moment to its last

    def begin(self, resume: Checkpoint | None, deadline: float | None) -> None:
        """Load what is resumed, and tell those who watch."""
        self.started = time.perf_counter()
        self.state = state = TrainingState() if resume is None else resume.state
        if resume is not None:
            self.catalogue.load_state(resume.weights())
            self.optimizer.load_state(resume.optimizer_state())
        self.resumed_from = None if resume is None else state.step
        self.saved_step = -1 if resume is None else state.step
        self.was_finished, self.seconds_before, self.tokens_before = (
            state.is_finished,
            state.train_seconds,
            state.tokens,
        )
        self.loss = self.machine.compiled(self.task.loss)
        self.sizes, self.dropout = self.model.config.sizes, self.model.config.layout.dropout
        self.tokens_per_step = self.config.batch_size * self.task.positions(self.corpus, self.sizes)
        stop = self.signals.received
        self.validation = Validation(self.model, self.task, self.corpus, self.config, self.machine, stop=stop)
        self.pace = Pace(self.config.schedule, state, deadline, validation_share=self.validation.share)
        if self.folder is not None:
            self.checkpoints = Checkpoints(self.folder, self.catalogue, self.optimizer, resume=resume)
            if not self.checkpoints.restore_best(state):
                self.tell("checkpoint", f"the best weights, of step {state.best_step}, are gone; the best starts anew")
                state.best_loss, state.best_step = None, -1
        self.watchers.tell("on_start", self.context())
        if resume is not None:
            self.watchers.tell("on_resume", state.step)

    def is_over(self) -> bool:
        """Evaluate and save where this step asks for it; whether it is the last one."""
        if self.was_finished:
            return True
        state = self.state
        self.evaluate()
        reason = self.reason_to_stop()
        if reason:
            self.evaluate(always=True)
        state.stopped_because = "interrupt" if self.signals.received() else reason
        due = is_due(state.step, state.horizon, self.tokens_per_step, self.machine.device)
        if state.stopped_because or ((due or state.evaluated_step == state.step) and self.saved_step != state.step):
            self.save()
        return bool(state.stopped_because)

    def update(self) -> None:
        """From step n to step n + 1."""
        state, step = self.state, self.state.step
        if self.constraint is not None:
            self.constraint.before_step(step)
        loss, tokens = self.gradients(step)
        grad_norm = clip_gradients(self.optimizer.parameters, self.config.optimizer.clip)
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise self.lost_numbers(f"the loss is {loss:g} and the gradient norm {grad_norm:g}", step + 1)
        scale = lr_scale(step, self.config.schedule, state.horizon)
        watching = self.watchers.wanting(step + 1)
        record = self.record(step + 1, state.tokens + tokens, loss, scale, grad_norm)
        for observer in watching:
            observer.before_update(record)
        self.optimizer.step(scale)
        if self.constraint is not None:
            self.constraint.after_step(step)
        state.step, state.tokens = step + 1, state.tokens + tokens
        before = loss if state.train_loss is None else state.train_loss
        state.train_loss = _SMOOTHING * before + (1 - _SMOOTHING) * loss
        for observer in watching:
            observer.after_update(record)
        self.optimizer.zero_grad()
        if self.pace.measure(state, self.seconds(), self.validation.seconds):
            self.tell("horizon", f"{state.horizon} updates fit into the time")

    def end(self) -> Outcome:
        """Everything on disk, everyone told."""
        if self.checkpoints is not None:
            self.checkpoints.wait()
        outcome = self.outcome()
        self.watchers.tell("on_end", outcome)
        if self.state.stopped_because == "interrupt":
            resume = f"; continue with: qkv train --out {self.folder.path} --resume" if self.folder is not None else ""
            raise Interrupted(f"stopped at step {outcome.steps}{resume}", exit_status=self.signals.exit_status)
        return outcome

    def close(self) -> None:
        """Let go of gradients and the writing thread, also after an error."""
        self.optimizer.zero_grad()
        if self.checkpoints is not None:
            self.checkpoints.close()

    # what a step is made of

    def gradients(self, step: int) -> tuple[float, int]:
        """Add up the gradient of the mean loss over one batch, micro-batch by micro-batch: (loss, real positions)."""
        first = step * self.config.batch_size
        examples = np.arange(first, first + self.config.batch_size, dtype=np.int64)
        parts = np.array_split(examples, self.config.accumulate)
        how = {"random_labels": self.random_labels}
        batches = [self.task.train_batch(self.corpus, self.sizes, self.seed, step, part, **how) for part in parts]
        n_targets = sum(batch.targets.numel() for batch in batches)
        loss, tokens = 0.0, 0
        for part, batch in zip(parts, batches, strict=True):
            if self.machine.device != "cpu":
                batch = batch.to(self.machine.device)
            with self.machine.autocast():
                names = part if batch.examples is None else batch.examples.cpu().numpy()
                nats, _ = self.loss(self.model, batch, make_drop(self.dropout, self.seed, step, names))
            share = nats / n_targets
            if share.requires_grad:  # with everything frozen there is nothing to go back through
                share.backward()
            loss += float(share.detach())
            tokens += n_positions(batch, self.sizes.n_ctx) if batch.mask is None else int(batch.mask.sum())
        return loss, tokens

    def evaluate(self, *, always: bool = False) -> None:
        """Score the whole validation split, where it is time to, and keep count of the best."""
        state, began = self.state, time.perf_counter()
        loss = None if self.random_labels else self.validation.measure(state, always=always)
        if loss is None:
            return
        if not math.isfinite(loss):
            raise self.lost_numbers(f"the validation loss is {loss:g}", state.step)
        is_best = state.best_loss is None or loss < state.best_loss
        if is_best:
            state.best_loss, state.best_step = loss, state.step
        state.last_loss, state.evaluated_step = loss, state.step
        state.stale = 0 if is_best else state.stale + 1
        self.validation.seconds = time.perf_counter() - began
        evaluation = EvaluationRecord(
            step=state.step,
            loss=loss,
            n_targets=self.validation.n_targets,
            is_best=is_best,
            seconds=self.validation.seconds,
            wall_seconds=self.seconds_before + self.seconds(),
        )
        self.watchers.tell("on_evaluation", evaluation)

    def reason_to_stop(self) -> str:
        """Why this step is the last one; empty where it is not."""
        state, config = self.state, self.config
        evaluated = state.evaluated_step == state.step
        if config.until_loss and evaluated and state.last_loss is not None and state.last_loss <= config.until_loss:
            self.tell("target", f"validation loss {state.last_loss:.4f} is at the target of {config.until_loss:g}")
            return "loss"
        if config.patience and evaluated and state.stale >= config.patience:
            self.tell("patience", f"no better validation loss in {state.stale} validations; best at {state.best_step}")
            return "budget"
        if self.stop_after and state.step >= self.stop_after:
            return "steps"
        if state.horizon and state.step >= state.horizon:
            return "steps" if state.horizon in (config.schedule.steps, config.schedule.most_steps) else "minutes"
        if self.pace.is_over(self.seconds(), self.validation.seconds):
            self.tell("horizon", f"the time is up at step {state.step} of {state.horizon}")
            return "minutes"
        return ""

    def save(self) -> None:
        """One checkpoint, of finite weights, after what was measured up to here is durable."""
        state = self.state
        if first_non_finite(self.catalogue, gradients=False):
            raise self.lost_numbers("weights are not finite", state.step)
        state.train_seconds = self.seconds_before + self.seconds()
        self.saved_step = state.step
        self.watchers.tell("on_checkpoint", state.step)
        if self.checkpoints is not None:
            self.checkpoints.save(state)

    # words and records

    def seconds(self) -> float:
        """Since this session began."""
        return time.perf_counter() - self.started

    def tell(self, kind: str, sentence: str, address: str = "") -> None:
        """Tell those who watch."""
        self.watchers.tell("on_event", Event(step=self.state.step, kind=kind, sentence=sentence, address=address))

    def lost_numbers(self, what: str, step: int) -> NonFiniteError:
        """Write down that the run ended here, and say which matrix was first."""
        address, words = culprit(self.catalogue)
        sentence = f"{what} at step {step}; {words}"
        self.state.stopped_because = "nan"
        self.tell("nan", sentence, address)
        kept = -1
        if self.folder is not None and self.checkpoints is not None:
            self.checkpoints.wait()
            kept = mark_stopped(self.folder, "nan")
        self.watchers.tell("on_end", self.outcome())
        where = f"; the checkpoint of step {kept} is kept" if kept >= 0 else ""
        return NonFiniteError(f"{sentence}{where}; try a lower learning rate (--set lr=..., --set muon_lr=...)")

    def context(self) -> RunContext:
        """What observers may look at."""
        return RunContext(
            seed=self.seed,
            start_step=self.state.step,
            steps=self.state.horizon,
            tokens_per_step=self.tokens_per_step,
            model=self.model,
            catalogue=self.catalogue,
            task=self.task,
            corpus=self.corpus,
            config=self.config,
            machine=self.machine,
            optimizer=self.optimizer,
            folder=None if self.folder is None else self.folder.path,
        )

    def record(self, step: int, tokens: int, loss: float, scale: float, grad_norm: float) -> StepRecord:
        """One update, for observers."""
        return StepRecord(
            step=step,
            steps=self.state.horizon,
            tokens=tokens,
            loss=loss,
            lr=self.config.optimizer.lr * scale,
            lr_scale=scale,
            grad_norm=grad_norm,
            wall_seconds=self.seconds_before + self.seconds(),
            catalogue=self.catalogue,
            optimizer=self.optimizer,
        )

    def outcome(self) -> Outcome:
        """How it stands."""
        state, seconds = self.state, self.seconds()
        evaluated = state.evaluated_step == state.step and state.last_loss is not None
        return Outcome(
            steps=state.step,
            horizon=state.horizon,
            tokens=state.tokens,
            best_loss=math.nan if state.best_loss is None else state.best_loss,
            best_step=state.best_step,
            last_loss=state.last_loss if evaluated and state.last_loss is not None else math.nan,
            stopped_because=state.stopped_because,  # type: ignore[arg-type]
            train_seconds=self.seconds_before + (0.0 if self.was_finished else seconds),
            tokens_per_second=(state.tokens - self.tokens_before) / seconds,
            resumed_from_step=self.resumed_from,
        )

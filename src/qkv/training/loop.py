"""The training loop: evaluate, save, stop or make one more update.

It builds nothing and decides little: when to validate is `validation`'s, when to save `checkpoint`'s, how long `pace`'s.
Everything that depends on a step is a pure function of (seed, step), so a run that was killed and resumed from its last
checkpoint ends with the same bytes as one that was left alone.
"""

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from qkv.errors import Interrupted, NonFiniteError
from qkv.training.checkpoint import Checkpoint, Checkpoints, TrainingState, is_due, mark_stopped
from qkv.training.config import TrainingConfig
from qkv.training.dropout import make_drop
from qkv.training.interrupt import StopSignals
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


def run(
    *,
    model: nn.Module,
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
    on the null of `Task.train_batch`, and does not validate. `stop_after` ends at that step whatever the horizon of the
    schedule is; 0 is off.

    Raises NonFiniteError, Interrupted (both once what is good is saved) and StorageError.
    """
    training = _Training(
        model, catalogue, task, corpus, config, optimizer, machine, seed, folder, constraint, observers, random_labels
    )
    training.stop_after = stop_after
    with machine.active(), StopSignals() as signals:
        try:
            training.begin(resume, deadline_seconds, signals)
            while not training.is_over():
                training.update()
            return training.end()
        finally:
            training.close()


class _Training:
    """One session of a training: the parts it was given and the state they move."""

    def __init__(
        self,
        model: Any,
        catalogue: "Catalogue",
        task: Any,
        corpus: Any,
        config: TrainingConfig,
        optimizer: Optimizer,
        machine: Machine,
        seed: int,
        folder: "RunFolder | None",
        constraint: Constraint | None,
        observers: Sequence[Observer],
        random_labels: bool,
    ) -> None:
        self.model, self.catalogue, self.task, self.corpus, self.config = model, catalogue, task, corpus, config
        self.optimizer, self.machine, self.seed, self.folder, self.constraint = (
            optimizer,
            machine,
            seed,
            folder,
            constraint,
        )
        self.random_labels, self.watchers = random_labels, Watchers(observers)
        self.loss = machine.compiled(task.loss)
        self.sizes, self.dropout = model.config.sizes, model.config.layout.dropout
        self.tokens_per_step = config.batch_size * self.sizes.n_ctx
        self.state = TrainingState()
        self.checkpoints: Checkpoints | None = None
        self.stop_after = 0

    # one session, from its first moment to its last

    def begin(self, resume: Checkpoint | None, deadline: float | None, signals: StopSignals) -> None:
        """Load what is resumed, and tell those who watch."""
        self.started, self.signals = time.perf_counter(), signals
        if resume is not None:
            self.catalogue.load_state(resume.weights())
            self.optimizer.load_state(resume.optimizer_state())
            self.state = resume.state
        self.resumed_from = None if resume is None else self.state.step
        self.seconds_before, self.tokens_before = self.state.train_seconds, self.state.tokens
        self.was_finished = self.state.is_finished
        self.validation = Validation(
            self.model, self.task, self.corpus, self.config, self.machine, stop=lambda: bool(signals.exit_status)
        )
        share = self.validation.share(self.config.schedule.steps or 1000)
        self.pace = Pace(self.config.schedule, self.state, deadline, validation_share=share)
        if self.folder is not None:
            self.checkpoints = Checkpoints(self.folder, self.catalogue, self.optimizer, resume=resume)
            if not self.checkpoints.restore_best(self.state):
                self.state.best_loss, self.state.best_step = None, -1
        self.saved_step = -1 if self.resumed_from is None else self.resumed_from
        self.watchers.tell("on_start", self.context())
        if self.resumed_from is not None:
            self.watchers.tell("on_resume", self.resumed_from)

    def is_over(self) -> bool:
        """Evaluate and save where this step asks for it; whether it is the last one."""
        state = self.state
        if self.was_finished:
            return True
        if not self.random_labels and self.validation.is_due(state):
            self.evaluate()
        reason = self.reason_to_stop()
        if reason in ("steps", "minutes", "budget") and state.evaluated_step != state.step and not self.random_labels:
            self.evaluate()
        state.stopped_because = "interrupt" if self.signals.exit_status else reason
        wanted = state.evaluated_step == state.step or is_due(
            state.step, state.horizon, self.tokens_per_step, self.machine.device
        )
        if state.stopped_because or (wanted and self.saved_step != state.step):
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
            raise self.non_finite(loss, grad_norm)
        scale = lr_scale(step, self.config.schedule, state.horizon)
        watching = self.watchers.wanting(step + 1)
        record = self.record(step + 1, state.tokens + tokens, loss, scale, grad_norm) if watching else None
        for observer in watching:
            observer.before_update(record)
        self.optimizer.step(scale)
        if self.constraint is not None:
            self.constraint.after_step(step)
        state.step, state.tokens = step + 1, state.tokens + tokens
        state.train_loss = loss if state.train_loss is None else _SMOOTHING * state.train_loss + (1 - _SMOOTHING) * loss
        for observer in watching:
            observer.after_update(record)
        self.optimizer.zero_grad()
        if self.pace.measure(state, self.seconds()):
            self.tell("horizon", f"{state.horizon} updates fit into the time")

    def end(self) -> Outcome:
        """Everything on disk, everyone told."""
        if self.checkpoints is not None:
            self.checkpoints.wait()
        outcome = self.outcome()
        self.watchers.tell("on_end", outcome)
        if self.signals.exit_status:
            raise Interrupted(self.resume_line("interrupted"), exit_status=self.signals.exit_status)
        return outcome

    def close(self) -> None:
        """Let go of gradients and the writing thread, also after an error."""
        self.optimizer.zero_grad()
        if self.checkpoints is not None:
            self.checkpoints.close()

    # what a step is made of

    def gradients(self, step: int) -> tuple[float, int]:
        """Add up the gradient of the mean loss over one batch, micro-batch by micro-batch: (loss, real positions)."""
        examples = np.arange(step * self.config.batch_size, (step + 1) * self.config.batch_size, dtype=np.int64)
        parts = np.array_split(examples, self.config.accumulate)
        batches = [
            self.task.train_batch(self.corpus, self.sizes, self.seed, step, part, random_labels=self.random_labels)
            for part in parts
        ]
        n_targets = sum(batch.targets.numel() for batch in batches)
        loss, tokens = 0.0, 0
        for part, batch in zip(parts, batches, strict=True):
            if self.machine.device != "cpu":
                batch = batch.to(self.machine.device)
            drop = make_drop(self.dropout, self.seed, step, part)
            with self.machine.autocast():
                nats, _ = self.loss(self.model, batch, drop)
            share = nats / n_targets
            if share.requires_grad:  # nothing to train is a run too: everything frozen
                share.backward()
            loss += float(share.detach())
            tokens += batch.inputs.numel() if batch.mask is None else int(batch.mask.sum())
        return loss, tokens

    def evaluate(self) -> None:
        """Score the whole validation split; keep count of the best."""
        state, began = self.state, time.perf_counter()
        loss = self.validation.full(state)
        if loss is None:
            return
        if not math.isfinite(loss):
            raise self.non_finite(loss, 0.0)
        is_best = state.best_loss is None or loss < state.best_loss
        if is_best:
            state.best_loss, state.best_step = loss, state.step
        state.last_loss, state.evaluated_step = loss, state.step
        state.stale = 0 if is_best else state.stale + 1
        self.validation.seconds = time.perf_counter() - began
        self.watchers.tell(
            "on_evaluation",
            EvaluationRecord(
                step=state.step,
                loss=loss,
                n_targets=self.validation.n_targets,
                is_best=is_best,
                seconds=self.validation.seconds,
                wall_seconds=self.seconds_before + self.seconds(),
            ),
        )

    def reason_to_stop(self) -> str:
        """Empty while there is none."""
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
            return "steps" if config.schedule.steps else "minutes"
        if self.pace.is_over(self.seconds(), self.validation.seconds):
            self.tell("horizon", f"the time is up at step {state.step} of {state.horizon}")
            return "minutes"
        return ""

    def save(self) -> None:
        """One checkpoint, after what was measured up to here is durable."""
        state = self.state
        state.train_seconds = self.seconds_before + self.seconds()
        self.saved_step = state.step
        self.watchers.tell("on_checkpoint", state.step)
        if self.checkpoints is not None:
            bad = self.first_non_finite(gradients=False)
            if bad:
                raise self.non_finite(math.nan, math.nan)
            self.checkpoints.save(state)

    # words and records

    def seconds(self) -> float:
        """Since this session began."""
        return time.perf_counter() - self.started

    def tell(self, kind: str, sentence: str, address: str = "") -> None:
        """Tell those who watch."""
        self.watchers.tell("on_event", Event(step=self.state.step, kind=kind, sentence=sentence, address=address))

    def resume_line(self, what: str) -> str:
        """What to type next."""
        where = "" if self.folder is None else f"; continue with: qkv train --out {self.folder.path} --resume"
        return f"{what} at step {self.state.step}{where}"

    def first_non_finite(self, *, gradients: bool) -> str:
        """The first address, in the catalogue's order, whose gradient (or weights) are not all finite; else empty."""
        for address, parameter in zip(self.catalogue.addresses, self.optimizer.parameters, strict=True):
            tensor = parameter.grad if gradients else parameter.detach()
            if tensor is not None and not math.isfinite(float(tensor.sum())):
                if not torch.isfinite(tensor).all():
                    return address
        return ""

    def non_finite(self, loss: float, grad_norm: float) -> NonFiniteError:
        """Write down that the run ended here, and say which matrix was first."""
        step = self.state.step
        culprit, what = self.first_non_finite(gradients=False), "weights are"
        if not culprit:
            culprit, what = self.first_non_finite(gradients=True), "gradient is"
        matrix = f"the first matrix whose {what} not finite is {culprit}" if culprit else "every gradient is finite"
        sentence = f"the loss is {loss:g} and the gradient norm {grad_norm:g} at step {step}; {matrix}"
        self.state.stopped_because = "nan"
        self.tell("nan", sentence, culprit)
        kept = -1
        if self.folder is not None and self.checkpoints is not None:
            self.checkpoints.wait()
            kept = mark_stopped(self.folder, "nan")
        self.watchers.tell("on_end", self.outcome())
        where = f"; the checkpoint of step {kept} is kept" if kept >= 0 else ""
        return NonFiniteError(f"{sentence}{where}; try a lower rate (--set lr=..., --set muon_lr=...)")

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
        state.train_seconds = self.seconds_before + (0.0 if self.was_finished else seconds)
        evaluated = state.evaluated_step == state.step and state.last_loss is not None
        return Outcome(
            steps=state.step,
            horizon=state.horizon,
            tokens=state.tokens,
            best_loss=math.nan if state.best_loss is None else state.best_loss,
            best_step=state.best_step,
            last_loss=state.last_loss if evaluated and state.last_loss is not None else math.nan,
            stopped_because=state.stopped_because,  # type: ignore[arg-type]
            train_seconds=state.train_seconds,
            tokens_per_second=(state.tokens - self.tokens_before) / seconds,
            resumed_from_step=self.resumed_from,
        )

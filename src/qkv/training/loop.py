"""The training loop: evaluate, save, stop or make one more update.

It builds nothing and decides little: when to validate is up to `validation`, when to save to `checkpoint`, how long to
`pace`.
Everything that depends on a step is a pure function of (seed, step), so a run that was killed and resumed from its last
checkpoint ends with the same bytes as one that was left alone.
"""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkv.errors import Interrupted, NonFiniteError, RankLostError, RunError, SpikeError, typed
from qkv.tasks.batch import n_positions
from qkv.training.checkpoint import (
    Checkpoint,
    Checkpoints,
    TrainingState,
    go_back,
    is_due,
    latest_valid,
    mark_stopped,
)
from qkv.training.config import TrainingConfig
from qkv.training.distributed.ranks import ALONE, Ranks
from qkv.training.distributed.shards import Shards
from qkv.training.distributed.whole import Weights
from qkv.training.dropout import make_drop
from qkv.training.graph_replay.update import captured
from qkv.training.interrupt import StopSignals
from qkv.training.optimizers import Optimizer
from qkv.training.pace import Pace
from qkv.training.precision import Machine
from qkv.training.record import (
    Constraint,
    EvaluationRecord,
    Event,
    Observer,
    Outcome,
    RunContext,
    StepRecord,
    StopReason,
    Watchers,
)
from qkv.training.schedules import decay_end, lr_scale
from qkv.training.spikes import MOST_ROLLBACKS, ONSET, Rollback, Watch, rate_factor, skipped
from qkv.training.validation import Validation
from qkv.training.waiting import watching_cores

if TYPE_CHECKING:
    from qkv.folder.run_folder import RunFolder
    from qkv.models.matrices import Catalogue
    from qkv.models.zoo import Model
    from qkv.tasks.task import Data, Task

__all__ = ["run"]

_SMOOTHING = 0.9
"""Of the training loss, for guessing when a target may be near."""


def run(
    *,
    model: "Model",
    catalogue: "Catalogue",
    task: "Task",
    corpus: "Data",
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
    scores_start: bool = False,
    stop_after: int = 0,
    ranks: Ranks = ALONE,
) -> Outcome:
    """Train `model` until its horizon, target, wall time or patience ends.

    The recipe has built everything: `plan.at_start()` gave the catalogue, `make_optimizer(catalogue, config.optimizer)`
    the optimizer, `checkpoint.latest_valid(folder)` the checkpoint to resume from (its weights and optimizer state are
    loaded here; one that is finished is returned as it is). `folder` None writes nothing. `deadline_seconds` is the
    wall time this loop may take, final work of others already taken off; a run without `schedule.steps` needs it, a
    resumed one ignores it where its horizon is settled. Dropout is `model.config.layout.dropout`. `random_labels`
    trains the random-label control of `Task.train_batch`, and does not validate. `scores_start` validates the weights
    of step 0 as well, so that they are the best ones where no update makes them better. `stop_after` ends the run after
    so many updates of the horizon's schedule. `ranks` are the processes that share each batch: all make the same call,
    each with the same parts; rank 0 alone writes into `folder`, and it alone should be given observers.

    A spike of the loss (`spikes`) is met as `config.on_spike` says; going back is a resume inside this session.

    Raises NonFiniteError, SpikeError, RankLostError, Interrupted (all once what is good is saved) and StorageError.
    """
    session_start, is_resumed = (0, False) if resume is None else (resume.state.step, True)
    loss = machine.compiled(task.loss)
    threads = machine.threads if machine.device == "cpu" else 1
    with machine.active(), watching_cores(threads), StopSignals() as signals:
        parts = (model, catalogue, optimizer, loss, ranks, machine)
        if machine.shard and ranks.world > 1:
            held: Weights = Shards(*parts, config.optimizer)
        elif machine.captures and ranks.world == 1 and _is_recordable(config, constraint, machine):
            held = captured(machine)(*parts)
        else:
            held = Weights(*parts)
        while True:
            training = _Training(
                held=held,
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
                scores_start=scores_start,
                stop_after=stop_after,
                ranks=ranks,
                signals=signals,
                session_start=session_start,
                is_resumed=is_resumed,
            )
            try:
                training.begin(resume, deadline_seconds)
                while not training.is_over():
                    training.update()
                return training.end()
            except _Again as again:
                resume = again.checkpoint
                if deadline_seconds is not None:
                    deadline_seconds = max(1.0, deadline_seconds - training.clock())
            except RankLostError as error:
                raise training.lost_rank(error) from error
            finally:
                training.close()


def _is_recordable(config: TrainingConfig, constraint: Constraint | None, machine: Machine) -> bool:
    """Whether an update is one batch, and whatever a change does in it is heard by a recording."""
    return config.accumulate == 1 and (constraint is None or machine.device == "cpu")


class _Again(Exception):
    """Not an error: the training goes on from an earlier checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.checkpoint = checkpoint


@dataclass(kw_only=True, eq=False)
class _Training:
    """One session of a training: the parts it was given, and the state that they move."""

    held: Weights
    model: "Model"
    catalogue: "Catalogue"
    task: "Task"
    corpus: "Data"
    config: TrainingConfig
    optimizer: Optimizer
    machine: Machine
    seed: int
    folder: "RunFolder | None"
    constraint: Constraint | None
    watchers: Watchers
    random_labels: bool
    scores_start: bool
    stop_after: int
    ranks: Ranks
    signals: StopSignals
    session_start: int
    is_resumed: bool
    checkpoints: Checkpoints | None = None
    exit_status: int = 0
    """Of a signal that a rank has received; 0 before."""

    # one session, from its first moment to its last

    def begin(self, resume: Checkpoint | None, deadline: float | None) -> None:
        """Load what is resumed, and tell those who watch."""
        self.started = time.perf_counter()
        self.state = state = TrainingState() if resume is None else resume.state
        if resume is not None:
            self.held.load(resume)
        self.resumed_from = self.session_start if self.is_resumed else None
        self.watch = Watch(self.catalogue.addresses, state.recent_losses, state.gradient_logs)
        self.ahead, self.rates = skipped(state.rollbacks), rate_factor(state.rollbacks)
        self.saved_step = -1 if resume is None else state.step
        self.was_finished, self.seconds_before, self.tokens_before = (
            state.is_finished,
            state.train_seconds,
            state.tokens,
        )
        self.sizes, self.dropout = self.model.config.sizes, self.model.config.layout.dropout
        self.tokens_per_step = self.config.batch_size * self.task.positions(self.corpus, self.sizes)
        how = {"loss": self.held.loss, "in_lockstep": self.held.in_lockstep, "ranks": self.ranks}
        self.validation = Validation(
            self.model, self.task, self.corpus, self.config, self.machine, stop=self.is_interrupted, **how
        )
        self.pace = Pace(self.config.schedule, state, deadline, validation_share=self.validation.share)
        is_best_gone = False
        if self.folder is not None and self.ranks.is_first:
            self.checkpoints = self.held.checkpoints(self.folder, resume)
            is_best_gone = not self.checkpoints.restore_best(state)
        if self.ranks.of_first(is_best_gone):
            self.tell("checkpoint", f"the best weights, of step {state.best_step}, are gone; the best is reset")
            state.best_loss, state.best_step = None, -1
        with self.at_rest():
            self.watchers.tell("on_start", self.context())
        if resume is not None:
            self.watchers.tell("on_resume", state.step)
        for number, rollback in enumerate(state.rollbacks, 1):
            if rollback.to == state.step:  # its row would be gone with those of the steps that are made again
                self.tell(f"rollback {number}", str(rollback), rollback.address)

    def is_over(self) -> bool:
        """Evaluate and save where this step asks for it; whether it is the last one."""
        if self.was_finished:
            return True
        state = self.state
        self.evaluate(always=self.scores_start and state.step == 0)
        reason = self.reason_to_stop()
        if reason:
            self.held.let_go()
            self.evaluate(always=True)
        state.stopped_because = "interrupt" if self.is_interrupted() else reason
        due = is_due(state.step, state.horizon, self.tokens_per_step, self.machine.device)
        if state.stopped_because or ((due or state.evaluated_step == state.step) and self.saved_step != state.step):
            self.save()
        return bool(state.stopped_because)

    def update(self) -> None:
        """From step n to step n + 1."""
        state, step = self.state, self.state.step
        if self.constraint is not None:
            self.held.enter(self.constraint, step)
            if self.constraint.acts_at(step):
                self.watch.forget()
        loss, tokens = self.gradients(step)
        grad_norm, each = self.held.clip_and_measure(self.config.optimizer.clip)
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise self.lost_numbers(f"the loss is {loss:g} and the gradient norm {grad_norm:g}", step + 1)
        self.look_for_spike(loss, each)
        scale = lr_scale(step, self.config.schedule, state.horizon, state.decays_from) * self.rates
        watching = self.watchers.wanting(step + 1)
        record = self.record(step + 1, state.tokens + tokens, loss, scale, grad_norm)
        is_shown = self.held.agree(any(observer.reads(step + 1) for observer in watching))
        if is_shown:
            self.held.show(gradients=True)
        for observer in watching:
            observer.before_update(record)
        self.held.update(scale)
        if self.constraint is not None:
            self.constraint.after_step(step)
        state.step, state.tokens = step + 1, state.tokens + tokens
        before = loss if state.train_loss is None else state.train_loss
        state.train_loss = _SMOOTHING * before + (1 - _SMOOTHING) * loss
        if is_shown:
            self.held.show(gradients=True)
        for observer in watching:
            observer.after_update(record)
        if is_shown:
            self.held.hide()
        self.held.zero_grad()
        if self.pace.measure(state, self.clock(), self.reserve):
            self.tell("horizon", f"about {state.horizon:,} updates fit into the time, at the pace so far")

    def end(self) -> Outcome:
        """Everything on disk, everyone told."""
        if self.checkpoints is not None:
            self.checkpoints.wait()
        self.ranks.meet()
        outcome = self.outcome()
        with self.at_rest():
            self.watchers.tell("on_end", outcome)
        if self.state.stopped_because == "interrupt":
            resume = f"; continue with: {self.resume_with()}" if self.folder is not None else ""
            raise Interrupted(f"stopped at step {outcome.steps}{resume}", exit_status=self.exit_status)
        self.held.put_back()
        return outcome

    def close(self) -> None:
        """Release gradients and the writing thread, also after an error."""
        self.held.let_go()
        if self.checkpoints is not None:
            self.checkpoints.close()

    # what a step is made of

    def gradients(self, step: int) -> tuple[float, int]:
        """Add up the gradient of the mean loss over one batch, micro-batch by micro-batch, rank by rank.

        Returns (that mean loss, real positions); both and the gradients are the same on every rank.
        """
        step += self.ahead
        first = step * self.config.batch_size
        examples = self.ranks.share(np.arange(first, first + self.config.batch_size, dtype=np.int64))
        parts = np.array_split(examples, min(self.config.accumulate, len(examples)))
        how = {"random_labels": self.random_labels}
        batches = [self.task.train_batch(self.corpus, self.sizes, self.seed, step, part, **how) for part in parts]
        (n_targets,) = self.ranks.sum(sum(batch.targets.numel() for batch in batches))
        loss, tokens = 0.0, 0
        for part, batch in zip(parts, batches, strict=True):
            names = part if batch.examples is None else batch.examples.numpy()
            loss += float(self.held.learn(batch, make_drop(self.dropout, self.seed, step, names), int(n_targets)))
            tokens += n_positions(batch, self.sizes.n_ctx) if batch.mask is None else int(batch.mask.sum())
        self.held.sum_gradients()
        loss, tokens = self.ranks.sum(loss, tokens)
        return loss, int(tokens)

    def reserve(self) -> float:
        """Seconds to keep for the last validation: what the latest one took, or what a few batches of it promise."""
        if not self.validation.seconds and not self.random_labels:
            self.validation.seconds = self.ranks.of_first(self.validation.expected_seconds())
        return self.validation.seconds

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
        self.saved_step = -1  # a checkpoint of this step, left by an interruption, knows nothing of it
        self.validation.seconds = self.ranks.of_first(time.perf_counter() - began)
        evaluation = EvaluationRecord(
            step=state.step,
            loss=loss,
            n_targets=self.validation.n_targets,
            is_best=is_best,
            seconds=self.validation.seconds,
            wall_seconds=self.seconds_before + self.seconds(),
        )
        with self.at_rest():
            self.watchers.tell("on_evaluation", evaluation)

    def reason_to_stop(self) -> str:
        """Why this step is the last one; empty where it is not."""
        state, config = self.state, self.config
        evaluated = 0 < state.step == state.evaluated_step
        if config.until_loss and evaluated and state.last_loss is not None and state.last_loss <= config.until_loss:
            self.tell("target", f"validation loss {state.last_loss:.4f} is at the target of {config.until_loss:g}")
            return "loss"
        if config.patience and evaluated and state.stale >= config.patience:
            self.tell("patience", f"no better validation loss in {state.stale} validations; best at {state.best_step}")
            return "budget"
        if self.stop_after and state.step >= self.stop_after:
            return "steps"
        if state.horizon and state.step >= state.horizon and not self.goes_on():
            return "steps" if state.horizon in (config.schedule.steps, config.schedule.most_steps) else "minutes"
        if state.step and self.pace.is_over(self.clock(), self.validation.seconds):
            of = f" of {state.horizon}" if state.horizon else ""
            self.tell("horizon", f"the time is up at step {state.step}{of}")
            return "minutes"
        return ""

    def goes_on(self) -> bool:
        """Whether there is an update more at the horizon or beyond it.

        Where `stop_after` says so, or where the target was missed, this decay has brought the lowest loss and there is
        time for another.
        """
        state, target = self.state, self.config.until_loss
        if self.stop_after or state.step < decay_end(state.step - 1, state.horizon):
            return True
        more = decay_end(state.step, state.horizon) - state.step
        if not target or state.stale or not self.pace.has_time_for(more, state, self.clock(), self.reserve()):
            return False
        self.tell("horizon", f"{state.last_loss:.4f} is above the target of {target:g}: {more:,} updates more")
        return True

    def save(self) -> None:
        """One checkpoint, of finite weights, after what was measured up to here is durable."""
        state = self.state
        if self.held.first_non_finite():
            raise self.lost_numbers("weights are not finite", state.step)
        self.held.compare(state.step)
        state.train_seconds = self.seconds_before + self.seconds()
        state.recent_losses, state.gradient_logs = self.watch.losses(), self.watch.logs()
        self.saved_step = state.step
        with self.at_rest():
            self.watchers.tell("on_checkpoint", state.step)
        self.held.save(self.checkpoints, self.folder, state)

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """Observers may read the weights of now inside."""
        is_shown = self.held.agree(self.watchers.read_weights)
        if is_shown:
            self.held.show()
        yield
        if is_shown:
            self.held.hide()

    # words and records

    def seconds(self) -> float:
        """Since this session began."""
        return time.perf_counter() - self.started

    def clock(self) -> float:
        """The same, by the clock of rank 0: what decisions are made by."""
        return self.ranks.of_first(self.seconds())

    def is_interrupted(self) -> bool:
        """Whether a signal has reached this process or another rank."""
        self.exit_status = self.exit_status or int(self.ranks.highest(self.signals.exit_status))
        return self.exit_status != 0

    def tell(self, kind: str, sentence: str, address: str = "") -> None:
        """Tell those who watch."""
        self.watchers.tell("on_event", Event(step=self.state.step, kind=kind, sentence=sentence, address=address))

    def look_for_spike(self, loss: float, norms: np.ndarray) -> None:
        """Take in the loss of the update that is being made, and do what was asked for where it has spiked."""
        state = self.state
        if state.first_loss is None:
            state.first_loss = loss
        if (before := self.watch.add(loss, norms, state.first_loss)) is None:
            return
        address, times = self.watch.culprit()
        where = f"; the gradient of {address} grew most, to {times:.3g} times its usual size" if address else ""
        sentence = f"the training loss rose from {before:.3f} to {loss:.3f} and stayed there, at step {state.step + 1}"
        if self.config.on_spike == "ignore":
            self.tell("spike", sentence + where, address)
            self.watch.forget()
            return
        if self.config.on_spike == "rollback":
            self.roll_back(state.step - ONSET, address)
            how = f"no whole checkpoint from before it is left; go on with {self.resume_with('--on-spike ignore')}"
            if len(state.rollbacks) >= MOST_ROLLBACKS:
                how = f"that is once more after {MOST_ROLLBACKS} returns; train again with a lower rate"
        else:
            how = f"resume with {self.resume_with('--on-spike rollback')} (or ignore), or train again with a lower rate"
        raise self.stopped("spike", sentence + where, address, how, SpikeError)

    def roll_back(self, before: int, address: str) -> None:
        """Go on from the newest whole checkpoint up to step `before` without the batches since; return if none is."""
        state = self.state
        if self.folder is None or len(state.rollbacks) >= MOST_ROLLBACKS:
            return
        if self.checkpoints is not None:
            self.checkpoints.wait()
        self.ranks.meet()
        found, _ = latest_valid(self.folder, before=before)
        if found is None:
            return
        done = Rollback(seen=state.step + 1, to=found.state.step, halved=bool(state.rollbacks), address=address)
        self.ranks.meet()  # all have read what rank 0 now writes again
        if self.checkpoints is not None:
            spent = self.seconds_before + self.seconds()
            found = go_back(self.folder, found, rollbacks=(*state.rollbacks, done), train_seconds=spent)
        self.ranks.meet()
        if not self.ranks.is_first:
            found, _ = latest_valid(self.folder)
            assert found is not None and found.state.step == done.to
        if done.to < self.session_start:  # changes that act between the two are not in this session's plan
            raise SpikeError(f"{done}; go on from there with {self.resume_with()}")
        raise _Again(found)

    def resume_with(self, option: str = "") -> str:
        """The command that goes on with this run."""
        out = "RUN" if self.folder is None else typed(self.folder.path)
        return f"qkv train --out {out} --resume {option}".strip()

    def lost_numbers(self, what: str, step: int) -> RunError:
        """Go back where that was asked for, else write down that the run ended here; say which matrix was first."""
        address, words = self.held.culprit()
        if self.config.on_spike == "rollback":
            self.roll_back(self.state.step, address)
        rates = ("lr", "muon_lr") if self.config.optimizer.kind == "muon" else ("lr",)
        how = f"try a lower learning rate ({', '.join(f'--set {name}=...' for name in rates)})"
        return self.stopped("nan", f"{what} at step {step}; {words}", address, how, NonFiniteError)

    def lost_rank(self, error: RankLostError) -> RankLostError:
        """The error that says that another process ended, and how the run goes on."""
        kept = ""
        if self.folder is not None and self.checkpoints is not None:
            self.checkpoints.wait()
        found = None if self.folder is None else latest_valid(self.folder)[0]
        if found is not None:
            kept = f"; the checkpoint of step {found.state.step} is kept"
        return RankLostError(f"{error}, at step {self.state.step}{kept}; continue with: {self.resume_with()}")

    def stopped(self, reason: StopReason, sentence: str, address: str, how: str, kind: type[RunError]) -> RunError:
        """Write down why the run ends here without saving, and return the error that says so."""
        self.state.stopped_because = reason
        self.tell(reason, sentence, address)
        kept = -1
        if self.folder is not None and self.checkpoints is not None:
            self.checkpoints.wait()
            kept = mark_stopped(self.folder, reason)
        with self.at_rest():
            self.watchers.tell("on_end", self.outcome())
        where = f"; the checkpoint of step {kept} is kept" if kept >= 0 else ""
        return kind(f"{sentence}{where}; {how}")

    def context(self) -> RunContext:
        """What observers may look at."""
        return RunContext(
            seed=self.seed,
            start_step=self.state.step,
            steps=self.ends_at(self.state.step),
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

    def ends_at(self, step: int) -> int:
        """The end that the update to `step` is on the way to; 0 where it is not known yet."""
        return decay_end(max(0, step - 1), self.state.horizon) if self.state.horizon else 0

    def record(self, step: int, tokens: int, loss: float, scale: float, grad_norm: float) -> StepRecord:
        """One update, for observers."""
        return StepRecord(
            step=step,
            steps=self.ends_at(step),
            tokens=tokens,
            loss=loss,
            lr=self.config.optimizer.lr * scale,
            grad_norm=grad_norm,
            wall_seconds=self.seconds_before + self.seconds(),
            seconds_left=self.pace.left(self.seconds()),
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

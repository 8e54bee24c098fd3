"""The training loop: evaluate, save, stop or make one more update.

It builds nothing and decides little: when to validate is up to `validation`, when to save to `checkpoint`, how long to
`schedules`, what to do about a spike to `trouble`.
Everything that depends on a step is a pure function of (seed, step), so a run that was killed and resumed from its last
checkpoint ends with the same bytes as one that was left alone.
"""

import math
import time

import numpy as np

from qkv.errors import Interrupted
from qkv.tasks.batch import n_positions
from qkv.training.checkpoint import is_due
from qkv.training.distributed.shards import Shards
from qkv.training.distributed.whole import Loss, Weights
from qkv.training.dropout import make_drop
from qkv.training.graph_replay.update import captured
from qkv.training.record import EvaluationRecord, Outcome, StopReason
from qkv.training.schedules import decay_end, lr_scale
from qkv.training.session import Session, StopSignals, TrainingSetup
from qkv.training.spikes import ONSET
from qkv.training.trouble import LostNumbers, Spiked, Trouble, closing, recover
from qkv.training.waiting import watching_cores

_SMOOTHING = 0.9
"""Of the training loss, for guessing when a target may be near."""


def run(setup: TrainingSetup) -> Outcome:
    """Train until the horizon, the target, the wall time or the patience ends.

    A spike of the loss (`spikes`) is met as `config.on_spike` says; going back begins another session.

    Raises NonFiniteError, SpikeError, RankLostError, Interrupted (all once what is good is saved) and StorageError.
    """
    machine, resume, deadline = setup.machine, setup.resume, setup.deadline_seconds
    loss = machine.compiled(setup.task.loss)
    threads = machine.threads if machine.device == "cpu" else 1
    with machine.active(), watching_cores(threads), StopSignals() as signals:
        weights = _weights(setup, loss)
        while True:
            with closing(Session(setup, weights, signals, resume, deadline)) as session:
                try:
                    return _train(session)
                except Trouble as trouble:
                    resume = recover(session, trouble)
                    if deadline is not None:
                        deadline = max(1.0, deadline - session.clock())


def _weights(setup: TrainingSetup, loss: Loss) -> Weights:
    """How the weights are held and updated: shared out, by a recording, or plainly."""
    machine, ranks = setup.machine, setup.ranks
    parts = (setup.model, setup.catalogue, setup.optimizer, loss, ranks, machine)
    if machine.shard and ranks.world > 1:
        return Shards(*parts, setup.config.optimizer)
    # An update is one batch, and whatever a change does in it is heard by a recording.
    is_recordable = setup.config.accumulate == 1 and (setup.constraint is None or machine.device == "cpu")
    is_recordable = is_recordable and not setup.model.config.code  # what Python does there is not known
    if machine.captures and ranks.world == 1 and is_recordable:
        return captured(machine)(*parts)
    return Weights(*parts)


def _train(session: Session) -> Outcome:
    """One session, from its first moment to its last."""
    session.begin()
    while not session.was_finished:
        evaluate(session, always=session.setup.scores_start and session.state.step == 0)
        reason = reason_to_stop(session)
        if reason:
            session.weights.let_go()
            evaluate(session, always=True)
        reason = "interrupt" if session.is_interrupted() else reason
        session.state.stopped_because = reason or ""
        if reason or is_save_due(session):
            save(session)
        if reason:
            break
        update(session)
    return end(session)


def evaluate(session: Session, *, always: bool = False) -> None:
    """Score the whole validation split, where it is time to, and keep count of the best."""
    state, validation, began = session.state, session.validation, time.perf_counter()
    loss = None if session.setup.random_labels else validation.measure(state, always=always)
    if loss is None:
        return
    if not math.isfinite(loss):
        raise LostNumbers(f"the validation loss is {loss:g}", session, state.step)
    is_best = state.best_loss is None or loss < state.best_loss
    if is_best:
        state.best_loss, state.best_step = loss, state.step
    state.last_loss, state.evaluated_step = loss, state.step
    state.stale = 0 if is_best else state.stale + 1
    session.saved_step = -1  # a checkpoint of this step, left by an interruption, knows nothing of it
    validation.seconds = session.setup.ranks.of_first(time.perf_counter() - began)
    evaluation = EvaluationRecord(
        step=state.step,
        loss=loss,
        n_targets=validation.n_targets,
        is_best=is_best,
        seconds=validation.seconds,
        wall_seconds=session.train_seconds(),
    )
    session.show_observers("on_evaluation", evaluation)


def reason_to_stop(session: Session) -> StopReason | None:
    """Why this step is the last one; None where it is not."""
    state, config, target = session.state, session.setup.config, session.setup.config.until_loss
    evaluated = 0 < state.step == state.evaluated_step
    if target and evaluated and state.last_loss is not None and state.last_loss <= target:
        session.tell("target", f"validation loss {state.last_loss:.4f} is at the target of {target:g}")
        return "loss"
    if config.patience and evaluated and state.stale >= config.patience:
        session.tell("patience", f"no better validation loss in {state.stale} validations; best at {state.best_step}")
        return "budget"
    n_answers = len(session.setup.model.config.classes) or session.sizes.d_vocab
    if config.on_spike != "ignore" and session.spikes.has_diverged(state.first_loss or 0.0, n_answers, state.step):
        guessing = f"{ONSET} losses in a row are far above ln {n_answers} = {math.log(n_answers):.2f}, that of guessing"
        sentence = f"the training has diverged at step {state.step}: {guessing}; train again with a lower rate"
        session.tell("diverged", sentence)
        return "diverged"
    stop_after = session.setup.stop_after
    if stop_after and state.step >= stop_after:
        return "steps"
    if state.horizon and state.step >= state.horizon and not _goes_on(session):
        return "steps" if state.horizon in (config.schedule.steps, config.schedule.most_steps) else "minutes"
    if state.step and session.pace.is_over(session.clock(), session.validation.seconds):
        of = f" of {state.horizon}" if state.horizon else ""
        session.tell("horizon", f"the time is up at step {state.step}{of}")
        return "minutes"
    return None


def _goes_on(session: Session) -> bool:
    """Whether there is an update more at the horizon or beyond it.

    Where `stop_after` says so, or where the target was missed, this decay has brought the lowest loss and there is
    time for another.
    """
    state, target = session.state, session.setup.config.until_loss
    if session.setup.stop_after or state.step < decay_end(state.step - 1, state.horizon):
        return True
    more = decay_end(state.step, state.horizon) - state.step
    if not target or state.stale:
        return False
    if not session.pace.has_time_for(more, state, session.clock(), session.validation_seconds()):
        return False
    session.tell("horizon", f"{state.last_loss:.4f} is above the target of {target:g}: {more:,} updates more")
    return True


def is_save_due(session: Session) -> bool:
    """Whether a checkpoint of this step is to be written, and is not there yet."""
    state = session.state
    due = is_due(state.step, state.horizon, session.tokens_per_step, session.setup.machine.device)
    return (due or state.evaluated_step == state.step) and session.saved_step != state.step


def save(session: Session) -> None:
    """One checkpoint, of finite weights, after what was measured up to here is durable."""
    state, weights = session.state, session.weights
    if weights.first_non_finite():
        raise LostNumbers("weights are not finite", session, state.step)
    weights.compare(state.step)
    state.train_seconds = session.train_seconds()
    state.recent_losses, state.gradient_logs = session.spikes.losses(), session.spikes.logs()
    session.saved_step = state.step
    session.show_observers("on_checkpoint", state.step)
    weights.save(session.checkpoints, session.setup.folder, state)


def update(session: Session) -> None:
    """From step n to step n + 1."""
    setup, state, weights, step = session.setup, session.state, session.weights, session.state.step
    config, constraint = setup.config, setup.constraint
    if constraint is not None:
        weights.enter(constraint, step)
        if constraint.acts_at(step):
            session.spikes.forget()
    loss, tokens = take_gradients(session, step + session.skipped_batches)
    grad_norm, each = weights.clip_and_measure(config.optimizer.clip)
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        raise LostNumbers(f"the loss is {loss:g} and the gradient norm {grad_norm:g}", session, step + 1)
    look_for_spike(session, loss, each)
    scale = lr_scale(step, config.schedule, state.horizon, state.decays_from) * session.rate_factor
    record = session.step_record(step + 1, state.tokens + tokens, loss, scale, grad_norm)
    watching = [observer for observer in setup.observers if observer.wants(step + 1)]
    is_shown = weights.agree(any(observer.reads(step + 1) for observer in watching))
    if is_shown:
        weights.show(gradients=True)
    for observer in watching:
        observer.before_update(record)
    weights.update(scale)
    if constraint is not None:
        constraint.after_step(step)
    state.step, state.tokens = step + 1, state.tokens + tokens
    before = loss if state.train_loss is None else state.train_loss
    state.train_loss = _SMOOTHING * before + (1 - _SMOOTHING) * loss
    if is_shown:
        weights.show(gradients=True)
    for observer in watching:
        observer.after_update(record)
    if is_shown:
        weights.hide()
    weights.zero_grad()
    if session.pace.measure(state, session.clock(), session.validation_seconds):
        session.tell("horizon", f"about {state.horizon:,} updates fit into the time, at the pace so far")


def take_gradients(session: Session, step: int) -> tuple[float, int]:
    """Add up the gradient of the mean loss over the batch of a step, micro-batch by micro-batch, rank by rank.

    Returns (that mean loss, real positions); both and the gradients are the same on every rank.
    """
    setup, sizes, ranks = session.setup, session.sizes, session.setup.ranks
    size, dropout = setup.config.batch_size, setup.model.config.layout.dropout
    examples = ranks.share(np.arange(step * size, (step + 1) * size, dtype=np.int64))
    parts = np.array_split(examples, min(setup.config.accumulate, len(examples)))
    batches = [setup.task.train_batch(setup.corpus, sizes, setup.seed, step, part) for part in parts]
    if setup.random_labels:
        labels = setup.task.labels(setup.corpus, len(setup.model.config.classes) or sizes.d_vocab)
        batches = [
            setup.task.uniform(batch, labels, setup.seed, step, part)
            for part, batch in zip(parts, batches, strict=True)
        ]
    (n_targets,) = ranks.sum(sum(batch.targets.numel() for batch in batches))
    loss, tokens = 0.0, 0
    for part, batch in zip(parts, batches, strict=True):
        names = part if batch.examples is None else batch.examples.numpy()
        loss += float(session.weights.learn(batch, make_drop(dropout, setup.seed, step, names), int(n_targets)))
        tokens += n_positions(batch, sizes.n_ctx) if batch.mask is None else int(batch.mask.sum())
    session.weights.sum_gradients()
    loss, tokens = ranks.sum(loss, tokens)
    return loss, int(tokens)


def look_for_spike(session: Session, loss: float, norms: np.ndarray) -> None:
    """Take in the loss of the update that is being made. Raises Spiked where it has, unless that is to be ignored."""
    state, spikes = session.state, session.spikes
    if state.first_loss is None:
        state.first_loss = loss
    if (before := spikes.add(loss, norms, state.first_loss)) is None:
        return
    address, times = spikes.culprit()
    where = f"; the gradient of {address} grew most, to {times:.3g} times its usual size" if address else ""
    step = state.step + 1
    sentence = f"the training loss rose from {before:.3f} to {loss:.3f} and stayed there, at step {step}{where}"
    if session.setup.config.on_spike != "ignore":
        raise Spiked(sentence, address, state.step)
    session.tell("spike", sentence, address)
    spikes.forget()


def end(session: Session) -> Outcome:
    """Everything on disk, everyone told."""
    if session.checkpoints is not None:
        session.checkpoints.wait()
    session.setup.ranks.meet()
    outcome = session.outcome()
    session.show_observers("on_end", outcome)
    if session.state.stopped_because == "interrupt":
        resume = "" if session.setup.folder is None else f"; continue with: {session.resume_command()}"
        raise Interrupted(f"stopped at step {outcome.steps}{resume}", exit_status=session.exit_status)
    session.weights.put_back()
    return outcome

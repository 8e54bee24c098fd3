"""What is done where a training cannot go on: a spike of the loss, a number that is not finite, a rank that has ended.

A spike or a lost number is raised as `Trouble` and ends its session, not always the run: with `on_spike` "rollback"
the run goes back to a checkpoint from before it (see `spikes`), which is a resume inside the same process.
"""

import contextlib
from collections.abc import Iterator

from qkv.errors import NonFiniteError, RankLostError, RunError, SpikeError
from qkv.training.checkpoint import Checkpoint, go_back, latest_valid, mark_stopped
from qkv.training.session import Session
from qkv.training.spikes import MOST_ROLLBACKS, ONSET, Rollback


class Trouble(Exception):
    """Why a session cannot go on from where it is: `Spiked` or `LostNumbers`."""

    error: type[RunError]
    """What it is to the caller where the run does not go back."""

    def __init__(self, sentence: str, address: str, before: int) -> None:
        super().__init__(sentence)
        self.address, self.before = address, before
        """The matrix that was first; the last step whose weights know nothing of it."""

    def advice(self, session: Session) -> str:
        """What to type next."""
        raise NotImplementedError


class Spiked(Trouble):
    """The training loss jumped up and stayed there."""

    error = SpikeError

    def __init__(self, sentence: str, address: str, step: int) -> None:
        super().__init__(sentence, address, step - ONSET)

    def advice(self, session: Session) -> str:
        """By what was asked for."""
        if session.setup.config.on_spike != "rollback":
            rollback = session.resume_command("--on-spike rollback")
            return f"resume with {rollback} (or ignore), or train again with a lower rate"
        if len(session.state.rollbacks) >= MOST_ROLLBACKS:
            return f"that is once more after {MOST_ROLLBACKS} returns; train again with a lower rate"
        ignore = session.resume_command("--on-spike ignore")
        return f"no whole checkpoint from before it is left; go on with {ignore}"


class LostNumbers(Trouble):
    """A loss, a gradient or a weight is not finite."""

    error = NonFiniteError

    def __init__(self, what: str, session: Session, step: int) -> None:
        address, words = session.weights.culprit()
        super().__init__(f"{what} at step {step}; {words}", address, session.state.step)

    def advice(self, session: Session) -> str:
        """A lower rate."""
        rates = ("lr", "muon_lr") if session.setup.config.optimizer.kind == "muon" else ("lr",)
        return f"try a lower learning rate ({', '.join(f'--set {name}=...' for name in rates)})"


def recover(session: Session, trouble: Trouble) -> Checkpoint:
    """The checkpoint to go on from, where going back was asked for and is possible.

    Otherwise it is written down that the run ends here, without saving. Raises the error that says so.
    """
    found = _rolled_back(session, trouble) if session.setup.config.on_spike == "rollback" else None
    if found is not None:
        return found
    session.state.stopped_because = reason = "spike" if trouble.error is SpikeError else "nan"
    session.tell(reason, str(trouble), trouble.address)
    kept = -1
    if session.setup.folder is not None and session.checkpoints is not None:
        session.checkpoints.wait()
        kept = mark_stopped(session.setup.folder, reason)
    session.show_observers("on_end", session.outcome())
    where = f"; the checkpoint of step {kept} is kept" if kept >= 0 else ""
    raise trouble.error(f"{trouble}{where}; {trouble.advice(session)}") from None


def _rolled_back(session: Session, trouble: Trouble) -> Checkpoint | None:
    """The newest whole checkpoint from before the trouble, told to go on without the batches since; None without one.

    Raises SpikeError where it is from before this process began.
    """
    state, folder, ranks = session.state, session.setup.folder, session.setup.ranks
    if folder is None or len(state.rollbacks) >= MOST_ROLLBACKS:
        return None
    if session.checkpoints is not None:
        session.checkpoints.wait()
    ranks.meet()
    found, _ = latest_valid(folder, before=trouble.before)
    if found is None:
        return None
    to = found.state.step
    rollback = Rollback(seen=state.step + 1, to=to, halved=bool(state.rollbacks), address=trouble.address)
    ranks.meet()  # all have read what rank 0 now writes again
    if session.checkpoints is not None:
        rollbacks = (*state.rollbacks, rollback)
        found = go_back(folder, found, rollbacks=rollbacks, train_seconds=session.train_seconds())
    ranks.meet()
    if not ranks.is_first:
        found, _ = latest_valid(folder)
        assert found is not None and found.state.step == to
    resume = session.setup.resume
    if resume is not None and to < resume.state.step:  # changes that act between the two are not in this plan
        raise SpikeError(f"{rollback}; go on from there with {session.resume_command()}") from None
    return found


@contextlib.contextmanager
def closing(session: Session) -> Iterator[Session]:
    """Close the session at its end. Raises RankLostError, where another process ended, that says how to go on."""
    try:
        yield session
    except RankLostError as error:
        kept, folder = "", session.setup.folder
        if folder is not None and session.checkpoints is not None:
            session.checkpoints.wait()
        found = None if folder is None else latest_valid(folder)[0]
        if found is not None:
            kept = f"; the checkpoint of step {found.state.step} is kept"
        how = f"{kept}; continue with: {session.resume_command()}"
        raise RankLostError(f"{error}, at step {session.state.step}{how}") from error
    finally:
        session.close()

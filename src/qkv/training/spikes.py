"""When a training loss has spiked, which matrix was first, and what is done differently after a rollback.

A **spike** is five updates in a row whose losses all lie above the median m of the 59 before them by more than each of

    10 s, where s = 1.4826 median |loss - m| (a robust standard deviation: Rousseeuw and Croux 1993),
    4 (u - m), where u is exceeded by a tenth of the 59 (allows for the few mistakes of a good classifier),
    a quarter of what has been learned, (first loss - m) / 4,
    a quarter of m,
    0.1 nats.

Five in a row, since one hard batch is no spike; a median, since a few hard batches do not move it; a quarter of what
was learned, since noise of batches is a small part of that whatever task and batch size are. A loss that creeps up
(over-fitting, a rate that is too high) is none: patience and validation speak of these. A new window begins where a
change acts on a matrix, since the loss may then jump on purpose.

A training has **diverged** where the losses of five updates in a row are above four times ln n, the loss of guessing
evenly among n answers, and above twice its first loss: nothing is learned there, though every number may be finite.

The **culprit** is the matrix whose gradient grew most: |G| over the geometric mean of |G| before, of decay 0.95. It
names where to look and proves no cause.

**Rolling back** goes to the newest whole checkpoint from before the spike and skips the batches from there to the
spike, as Chowdhery et al. 2022 (PaLM, arXiv 2204.02311, section 5.1) did; from the second time on all rates are
halved too, and after the third the run stops. What was done is in the checkpoint's state, so a run that is killed
afterwards goes on exactly; skipped batches are simply those of other steps, since every batch is named by its step.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WINDOW = 64
"""Losses that are looked at: those before, and the last five."""
MOST_ROLLBACKS = 3
"""After these a run stops."""
ONSET = 5
"""Updates after which a spike is one."""
_DEVIATIONS = 10.0
_UPPER = 4.0
_SHARE = 0.25
_LEAST = 0.1
_DECAY = 0.95
_FAR = 4.0


def worse_than_guessing(loss: float, n_answers: int) -> bool:
    """Whether a loss (nats) is more than four times that of guessing evenly among `n_answers`."""
    return n_answers > 1 and loss > _FAR * math.log(n_answers)


def is_spike(losses: Sequence[float], first: float) -> float | None:
    """The median before the spike that the last five of these losses are; None where they are none.

    `losses` are those of the latest updates, oldest first; of fewer than 64 nothing is said. `first` is the loss of the
    run's first update.
    """
    if len(losses) < WINDOW:
        return None
    latest = list(losses)[-WINDOW:]
    before, low = latest[:-ONSET], min(latest[-ONSET:])
    if low - min(before) <= _LEAST:  # the median is no lower than the least: no need to look for it
        return None
    middle = statistics.median(before)
    spread = 1.4826 * statistics.median(abs(loss - middle) for loss in before)
    upper = sorted(before)[-max(1, len(before) // 10) - 1]
    needed = max(
        _DEVIATIONS * spread, _UPPER * (upper - middle), _SHARE * (first - middle), _SHARE * abs(middle), _LEAST
    )
    return middle if low - middle > needed else None


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """One return to a checkpoint, and what is done differently from there."""

    seen: int
    """The step at which the spike was seen."""
    to: int
    """The step of the checkpoint that was returned to: the batches of the updates from `to` to `seen` are skipped."""
    halved: bool
    """Whether all rates are halved from there on."""
    address: str
    """The matrix whose gradient grew most."""

    def __str__(self) -> str:
        rates = " and all rates are halved" if self.halved else ""
        return (
            f"back from step {self.seen} to step {self.to} after a spike in {self.address or 'the loss'};"
            f" {self.seen - self.to} batches are skipped{rates}"
        )


def skipped(rollbacks: Sequence[Rollback]) -> int:
    """By how many steps the data are ahead."""
    return sum(one.seen - one.to for one in rollbacks)


def rate_factor(rollbacks: Sequence[Rollback]) -> float:
    """What every rate is multiplied by."""
    return 0.5 ** sum(one.halved for one in rollbacks)


class Watch:
    """The latest losses, and the usual size of each matrix's gradient; all of it goes into the training's state."""

    def __init__(self, addresses: Sequence[str], losses: Sequence[float], logs: Sequence[float | None]) -> None:
        self._addresses = list(addresses)
        self._losses = deque(losses, maxlen=WINDOW)
        known = logs if len(logs) == len(self._addresses) else [None] * len(self._addresses)
        self._logs = np.array([math.nan if value is None else value for value in known], dtype=np.float64)

    def losses(self) -> tuple[float, ...]:
        """The latest ones, oldest first."""
        return tuple(self._losses)

    def logs(self) -> tuple[float | None, ...]:
        """The mean logarithm of each gradient's norm, None where there was none yet."""
        return tuple(None if math.isnan(value) else value for value in self._logs.tolist())

    def forget(self) -> None:
        """Begin a new window."""
        self._losses.clear()

    def add(self, loss: float, norms: np.ndarray, first: float) -> float | None:
        """Take in the loss and the gradients' norms [n_addresses] (NaN where there is none) of one update.

        Returns the median loss from which it has spiked, None where it has not; then `culprit` says where.
        """
        self._losses.append(loss)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(norms)
        self._grew = logs - self._logs
        there = np.isfinite(logs)
        before = np.where(np.isnan(self._logs), logs, self._logs)
        self._logs = np.where(there, _DECAY * before + (1 - _DECAY) * logs, self._logs)
        return is_spike(self._losses, first)

    def has_diverged(self, first: float, n_answers: int, step: int) -> bool:
        """Whether the latest losses are all far above guessing among `n_answers`, and above the first of the run.

        Not in a window that began after the run: a change may raise the loss on purpose. `step` is the latest update.
        """
        if len(self._losses) < min(step, WINDOW):
            return False
        latest = [loss for loss, _ in zip(reversed(self._losses), range(ONSET), strict=False)]
        return len(latest) == ONSET and min(latest) > 2 * first and worse_than_guessing(min(latest), n_answers)

    def culprit(self) -> tuple[str, float]:
        """(address, how many times its usual size) of the gradient that grew most in the latest update; or ("", 1)."""
        if not len(self._grew) or np.isnan(self._grew).all():
            return "", 1.0
        at = int(np.nanargmax(self._grew))
        return self._addresses[at], math.exp(min(float(self._grew[at]), 700.0))

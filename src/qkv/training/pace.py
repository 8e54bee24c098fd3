"""Wall time turned into a horizon: measured from the first updates, corrected once where the decay begins, then fixed.

With a warm-up and a plateau the rate does not depend on the horizon until the decay begins, so the correction costs
nothing in exactness: a run whose horizon came out as N makes the very updates of one that was given N steps. From the
correction on only the clock itself can end the run early.
"""

from qkv.training.checkpoint import TrainingState
from qkv.training.config import ScheduleConfig
from qkv.training.schedules import decay_start

__all__ = ["Pace"]

_WARM = 3
"""Updates that do not count: the first ones also allocate memory and fill caches."""
_FIRST_LOOK = 0.02
"""Share of the time after which the horizon is first estimated, at most `_FIRST_LOOK_SECONDS`."""
_FIRST_LOOK_SECONDS = 2.0
_MARGIN = 0.98
"""Share of the remaining time that is planned for: better to end a little early than to cut the decay off."""


class Pace:
    """Watches the clock of one session.

    `deadline` is in seconds after the session's start, None for no limit of time. `validation_share` is what
    validation is expected to add to the updates' own time. A state that brings a horizon keeps it.
    """

    def __init__(
        self, schedule: ScheduleConfig, state: TrainingState, deadline: float | None, *, validation_share: float = 0.0
    ) -> None:
        resumed_horizon = state.horizon if state.step else 0
        state.horizon = schedule.steps or resumed_horizon
        assert state.horizon or deadline is not None, "a run needs a number of steps or a time"
        self._schedule, self._validation_share = schedule, validation_share
        self._deadline = None if resumed_horizon else deadline
        self._fixed = state.horizon > 0
        self._mark: tuple[int, float] | None = None

    def measure(self, state: TrainingState, seconds: float) -> bool:
        """After an update, `seconds` into the session: set or correct `state.horizon`; True where it changed."""
        if self._fixed or self._deadline is None:
            return False
        if self._mark is None:
            if state.step >= _WARM:
                self._mark = (state.step, seconds)
            return False
        step, since = self._mark
        per_step = (seconds - since) / max(1, state.step - step)
        left = self._deadline - seconds
        before = state.horizon
        if not before:
            if seconds - since < min(_FIRST_LOOK_SECONDS, _FIRST_LOOK * self._deadline):
                return False
            per_step *= 1 + self._validation_share
        elif not self._decay_begins(state, seconds):
            return False
        else:
            self._fixed = True
        state.horizon = state.step + max(1, int(_MARGIN * left / max(per_step, 1e-9)))
        if self._decay_begins(state, seconds):
            self._fixed = True
        return state.horizon != before

    def is_over(self, seconds: float, reserve: float) -> bool:
        """Whether the time is up but for `reserve` seconds (the last validation)."""
        return self._deadline is not None and seconds + reserve >= self._deadline

    def _decay_begins(self, state: TrainingState, seconds: float) -> bool:
        """Whether the next update is (by steps or, on a slower machine, by time) the first of the decay."""
        assert self._deadline is not None
        by_time = seconds >= (1 - self._schedule.decay_share) * self._deadline
        return by_time or state.step >= decay_start(state.horizon, self._schedule)

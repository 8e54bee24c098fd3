"""The learning rate's factor as a pure function of the step: linear warm-up, plateau, decay (or warm-up and half a
cosine); and `Pace`, which makes its horizon from wall time.

The trapezoid of Zhai et al. 2022 ("Scaling vision transformers", arXiv 2106.04560) and Hu et al. 2024 (MiniCPM, arXiv
2404.06395): until the decay begins nothing depends on the horizon, so a horizon that is measured may still move. Beyond
the horizon the rate rises to where it would be on the way to a later one, and falls again: going on from decayed
weights costs little beside a plan for that end (Wen et al. 2024, arXiv 2410.05192).

Wall time is turned into a horizon: estimated from the first updates, settled where the decay begins, then fixed.

With a warm-up and a plateau the rate does not depend on the horizon until the decay begins, so settling it there costs
nothing in exactness: a run whose horizon came out as N makes the very updates of one that was given N steps. Where the
machine became slower, or the first estimate came late, the decay of N would have begun before: it then begins at the
step where that is seen, which the state keeps (`decays_from`). From then on only the clock itself can end the run
early.
"""

import math
from collections.abc import Callable

from qkv.training.checkpoint import TrainingState
from qkv.training.config import ScheduleConfig

_LONGER = 1.25
"""Of a training that goes on: the next end by the one before, ..."""
_BEYOND = 0.5
"""... and the share of that end over which the rate falls to it, of which what lies beyond the one before is made.

It is not that of the schedule, which the clock may have settled: horizon and step alone say every rate beyond.
"""

_WARM = 3
"""Updates that do not count: the first ones also allocate memory and fill caches."""
_FIRST_LOOK = 0.02
"""Share of the time after which the horizon is first estimated, at most `_FIRST_LOOK_SECONDS`."""
_FIRST_LOOK_SECONDS = 2.0
_MARGIN = 0.98
"""Share of the remaining time that is planned for: better to end a little early than to cut the decay off."""


def decay_start(horizon: int, schedule: ScheduleConfig) -> int:
    """The first step (0..horizon) whose update is made with less than the full rate."""
    start = horizon - int(schedule.decay_share * horizon)
    return max(start, min(schedule.warmup_steps, horizon)) if schedule.decay == "cosine" else start


def decay_end(step: int, horizon: int) -> int:
    """The end of the decay that the update from `step` is part of: the horizon, or 1.25, 1.25^2, ... times it."""
    end = horizon
    while end <= step:
        end = max(end + 1, round(_LONGER * end))
    return end


def lr_scale(step: int, schedule: ScheduleConfig, horizon: int = 0, decays_from: int = 0) -> float:
    """The factor, above 0 and at most 1, of the update that leads from `step` to `step + 1`.

    (step + 1) / (warmup_steps + 1) while warming up; from `decay_start` on a line from 1 down to `floor`, which it
    would reach at the horizon; beyond that on lines from two fifths to each `decay_end`. Under a cosine the share p of
    such a line that is behind becomes (1 - cos(pi p)) / 2. Where both apply the smaller counts. `horizon` 0 takes
    `schedule.steps`; where that is 0 as well (not yet measured) there is no decay. A decay that the clock settled late
    begins at `decays_from`.
    """
    horizon = horizon or schedule.steps
    warming = min(1.0, (step + 1) / (schedule.warmup_steps + 1))
    if horizon == 0:
        return warming
    end = decay_end(step, horizon)
    start = max(decays_from, decay_start(horizon, schedule)) if end == horizon else end - int(_BEYOND * end)
    if step < start:
        return warming
    left = (end - step) / (end - start + 1)
    if schedule.decay == "cosine":
        left = (1.0 + math.cos(math.pi * (1.0 - left))) / 2
    return min(warming, schedule.floor + (1.0 - schedule.floor) * left)


class Pace:
    """Watches the clock of one session.

    `deadline` is in seconds after the session's start, None for no limit of time. `validation_share` is what
    validation is expected to add to the updates' own time. A state that brings a settled horizon keeps it, whatever
    the time: its decay has begun. One whose horizon is still a guess goes on being measured.
    """

    def __init__(
        self, schedule: ScheduleConfig, state: TrainingState, deadline: float | None, *, validation_share: float = 0.0
    ) -> None:
        resumed_horizon = state.horizon if state.step else 0
        state.horizon = schedule.steps or resumed_horizon
        assert state.horizon or deadline is not None, "a run needs a number of steps or a time"
        self._schedule, self._validation_share = schedule, validation_share
        self._settled = bool(schedule.steps) or (
            resumed_horizon > 0 and (deadline is None or state.step >= decay_start(resumed_horizon, schedule))
        )
        if not self._settled:
            state.decays_from = 0
        self._deadline = None if resumed_horizon and self._settled else deadline
        self._first = state.step
        self._marks: list[tuple[int, float]] = []

    @property
    def is_settled(self) -> bool:
        """Whether the horizon will not be changed any more."""
        return self._settled

    def measure(self, state: TrainingState, seconds: float, reserve: Callable[[], float]) -> bool:
        """After an update, `seconds` into the session: estimate or settle `state.horizon`; True where it changed.

        `reserve()` seconds are kept for the last validation; it is asked only where the horizon is worked out.
        """
        if self._settled or self._deadline is None:
            return False
        if state.step >= _WARM and (not self._marks or state.step >= 2 * self._marks[-1][0]):
            self._marks.append((state.step, seconds))
        first = state.horizon == 0
        begins = not first and state.step >= decay_start(state.horizon, self._schedule)
        if not self._marks or self._marks[0][0] == state.step:  # nothing to tell the speed by: a guess stands
            self._settled = begins
            return False
        if first and seconds - self._marks[0][1] < min(_FIRST_LOOK_SECONDS, _FIRST_LOOK * self._deadline):
            return False
        horizon = self._affordable(state, seconds, reserve(), 1 + self._validation_share if first else 1.0)
        if state.step >= decay_start(horizon, self._schedule):  # the next update is the first of the decay
            self._settled, state.decays_from = True, state.step
        elif not first and not begins:
            return False
        before, state.horizon = state.horizon, horizon
        return state.horizon != before

    def is_over(self, seconds: float, reserve: float) -> bool:
        """Whether the time is up but for `reserve` seconds (the last validation)."""
        return self._deadline is not None and seconds + reserve >= self._deadline

    def left(self, seconds: float) -> float | None:
        """Seconds until the time is up, `seconds` into the session; None without a limit of time."""
        return None if self._deadline is None else max(0.0, self._deadline - seconds)

    def has_time_for(self, updates: int, state: TrainingState, seconds: float, reserve: float) -> bool:
        """Whether so many updates more fit into the time, `seconds` into the session, at its pace so far."""
        made = state.step - self._first
        if self._deadline is None or not made:
            return False
        return seconds + updates * seconds / made <= _MARGIN * (self._deadline - reserve)

    def _affordable(self, state: TrainingState, seconds: float, reserve: float, dearer: float) -> int:
        """Updates in all, at the speed of the later half of those so far."""
        assert self._deadline is not None
        step, since = next((m for m in reversed(self._marks) if 2 * m[0] <= state.step), self._marks[0])
        per_step = dearer * (seconds - since) / (state.step - step)
        affordable = state.step + max(1, int(_MARGIN * (self._deadline - seconds - reserve) / max(per_step, 1e-9)))
        return min(affordable, max(state.step, self._schedule.most_steps or affordable))

"""The learning rate's factor as a pure function of the step: linear warm-up, plateau, linear decay.

The trapezoid of Zhai et al. 2022 ("Scaling vision transformers", arXiv 2106.04560) and Hu et al. 2024 (MiniCPM, arXiv
2404.06395): until the decay begins nothing depends on the horizon, so a horizon that is measured may still move. Beyond
the horizon the rate rises to where it would be on the way to a later one, and falls again: going on from decayed
weights costs little beside a plan for that end (Wen et al. 2024, arXiv 2410.05192).
"""

from qkv.training.config import ScheduleConfig

__all__ = ["decay_end", "decay_start", "lr_scale"]

_LONGER = 1.25
"""Of a training that goes on: the next end by the one before, ..."""
_BEYOND = 0.5
"""... and the share of that end over which the rate falls to it, of which what lies beyond the one before is made.

It is not that of the schedule, which the clock may have settled: horizon and step alone say every rate beyond.
"""


def decay_start(horizon: int, schedule: ScheduleConfig) -> int:
    """The first step (0..horizon) whose update is made with less than the full rate."""
    return horizon - int(schedule.decay_share * horizon)


def decay_end(step: int, horizon: int) -> int:
    """The end of the decay that the update from `step` is part of: the horizon, or 1.25, 1.25^2, ... times it."""
    end = horizon
    while end <= step:
        end = max(end + 1, round(_LONGER * end))
    return end


def lr_scale(step: int, schedule: ScheduleConfig, horizon: int = 0, decays_from: int = 0) -> float:
    """The factor, above 0 and at most 1, of the update that leads from `step` to `step + 1`.

    (step + 1) / (warmup_steps + 1) while warming up; from `decay_start` on a line from 1 down to `floor`, which it
    would reach at the horizon; beyond that on lines from two fifths to each `decay_end`. Where both apply the smaller
    counts. `horizon` 0 takes `schedule.steps`; where that is 0 as well (not yet measured) there is no decay. A decay
    that the clock settled late begins at `decays_from`.
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
    return min(warming, schedule.floor + (1.0 - schedule.floor) * left)

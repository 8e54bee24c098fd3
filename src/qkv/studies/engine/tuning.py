"""Which training comes next: a pure function of the design and of the runs that are there.

The unit of replication is (tune, report): in every replicate each arm looks for its own learning rate on a seed and on
validation tokens that serve for nothing else, and is then reported at that rate on the replicate's seed and on other
tokens. The rate is the vertex of a quadratic in log rate around the best one tried, so it may lie anywhere, and its
error differs between replicates: it is in the spread between them. Where trainings are dear, the rate is pooled
(`Grid.pooled`): a few replicates tune, and all take the vertex of their mean losses, whose error is in no interval.

The optimum should lie inside the grid: where the best rate is at an edge the grid grows past it, to `Grid.reach` steps
from its centre and no further. A rate that is best at the last edge is taken, and counted as such (`Choice.interior`).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from qkv.studies.engine.design import Arm, Design, Grid, Trial

Losses = Callable[[str], float | None]
"""Key of a run -> its loss at the last step in nats; inf where it diverged, None where it is not there yet."""
_AROUND, _CLIP = 2, 0.5
"""Steps of the grid on each side of the best rate that the quadratic is fitted to, and how far its vertex may lie from
it: beyond half a step it would be nearer to a rate that was tried and found worse."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training that is due, and what for."""

    trial: Trial
    replicate: int
    role: str
    """tune or report"""
    k: float
    """Its learning rate in steps of the grid from the centre."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A learning rate that was chosen."""

    k: float
    """In steps of the grid from the centre."""
    rate: float
    interior: bool
    """Whether worse rates lie on both sides of it."""


def next_point(losses: Mapping[int, float], grid: Grid) -> int | None:
    """The grid point to try next, None where tuning is settled.

    The first of the start grid, then past the best edge.
    """
    half = grid.points // 2
    for k in sorted(range(-half, half + 1), key=abs):
        if k not in losses:
            return k
    best, low, high = _best(losses), min(losses), max(losses)
    if best == low and low > -grid.reach:
        return low - 1
    if best == high and high < grid.reach:
        return high + 1
    return None


def _best(losses: Mapping[int, float]) -> int:
    """The point of the lowest loss; of equal ones the slowest, since all of them may have diverged."""
    return min(losses, key=lambda k: (losses[k], k))


def vertex(losses: Mapping[int, float]) -> float:
    """The rate of the least loss, in steps of the grid, by a quadratic fitted to the tried rates around the best one.

    The best one itself where it has no finite neighbor on either side, or where the quadratic is not convex.
    """
    best = _best(losses)
    if not all(math.isfinite(losses.get(k, math.inf)) for k in (best - 1, best, best + 1)):
        return float(best)
    near = [k for k in losses if abs(k - best) <= _AROUND and math.isfinite(losses[k])]
    curve, slope, _ = np.polyfit([k - best for k in near], [losses[k] for k in near], 2)
    if curve <= 0:
        return float(best)
    return best + round(float(np.clip(-slope / (2 * curve), -_CLIP, _CLIP)), 3)


def _tuned(design: Design, arm: Arm, replicate: int, source: str, losses: Losses) -> dict[int, float]:
    """Grid point -> loss, for every tuning run of an arm in a replicate that is there.

    Of pooled rates the mean over the replicates that tune, whatever the replicate, where all of them are there.
    """
    pool = range(1, design.grid.pooled + 1) or (replicate,)
    found = {}
    for k in range(-design.grid.reach, design.grid.reach + 1):
        tried = [losses(design.trial(arm, r, k, source=source, report=False).key) for r in pool]
        if None not in tried:
            found[k] = sum(loss for loss in tried if loss is not None) / len(tried)
    return found


def choice(design: Design, arm: Arm, replicate: int, source: str, losses: Losses) -> Choice | None:
    """The learning rate of an arm in a replicate; None while it is still looked for."""
    if arm.tune == "none":
        return Choice(k=0, rate=arm.lr, interior=True)
    if arm.tune != "own":
        return choice(design, design.arm(arm.tune), replicate, source, losses)
    tried = _tuned(design, arm, replicate, source, losses)
    if next_point(tried, design.grid) is not None:
        return None
    best = _best(tried)
    worse = [tried[k] > tried[best] for k in (best - 1, best + 1) if k in tried]
    k = vertex(tried) if design.grid.fitted else float(best)
    return Choice(k=k, rate=design.grid.rate(arm.lr, k), interior=len(worse) == 2 and all(worse))


def known_keys(design: Design, source: str, losses: Losses) -> frozenset[str]:
    """The key of every training among those of `losses` that the design asks for: all it tunes by, and its reports."""
    found = set()
    for arm in design.arms:
        for replicate in range(1, design.replicates + 1):
            for k in range(-design.grid.reach, design.grid.reach + 1):
                found.add(design.trial(arm, replicate, k, source=source, report=False).key)
            found.add(report_key(design, arm, replicate, source, losses) or "")
    return frozenset(key for key in found if key and losses(key) is not None)


def report_key(design: Design, arm: Arm, replicate: int, source: str, losses: Losses) -> str | None:
    """The key of the run that is reported; None while its learning rate is not settled."""
    chosen = choice(design, arm, replicate, source, losses)
    return None if chosen is None else _report(design, arm, replicate, chosen.k, source).key


def _report(design: Design, arm: Arm, replicate: int, k: float, source: str) -> Trial:
    """Where a rate is taken over, the point counts from the centre of the arm it comes from."""
    if arm.tune not in ("own", "none"):
        centre = design.arm(arm.tune).lr
        trial = design.trial(arm, replicate, 0, source=source, report=True)
        return Trial(**{**vars(trial), "lr": design.grid.rate(centre, k)})
    return design.trial(arm, replicate, k, source=source, report=True)


def pending(design: Design, source: str, losses: Losses, *, only: int | None = None) -> Iterator[Job]:
    """Every training that can be made now, the most useful first.

    Arms of the primary contrast, and those whose rates they take, come before all others, replicate by replicate; then
    models at their start, which take next to no time; then each arm for itself, in the design's order, through all its
    replicates. So what is not reached in the time is what matters least, and what is reached can be judged: a row of
    one replicate says nothing. `only` looks at one replicate alone.
    """
    first = [arm for arm in design.arms if arm.name in design.main_arms]
    untrained = [arm for arm in design.arms if arm not in first and arm.trainer == "none"]
    rest = [[arm] for arm in design.arms if arm not in (*first, *untrained)]
    for tier in (first, untrained, *rest):
        for replicate in range(1, design.replicates + 1) if only is None else (only,):
            for arm in tier:
                yield from _due(design, arm, replicate, source, losses)


def _due(design: Design, arm: Arm, replicate: int, source: str, losses: Losses) -> Iterator[Job]:
    """What an arm can do now in a replicate: the rest of its start grid, one step past an edge, or its report."""
    if arm.tune == "own":
        tried, half = _tuned(design, arm, replicate, source, losses), design.grid.points // 2
        missing = [k for k in sorted(range(-half, half + 1), key=abs) if k not in tried]
        further = next_point(tried, design.grid) if not missing else None
        for k in missing or ([] if further is None else [further]):
            for r in range(1, design.grid.pooled + 1) or (replicate,):
                trial = design.trial(arm, r, k, source=source, report=False)
                if losses(trial.key) is None:
                    yield Job(trial=trial, replicate=r, role="tune", k=k)
    chosen = choice(design, arm, replicate, source, losses)
    if chosen is not None:
        trial = _report(design, arm, replicate, chosen.k, source)
        if losses(trial.key) is None:
            yield Job(trial=trial, replicate=replicate, role="report", k=chosen.k)


def expected_runs(design: Design, arm: Arm) -> float:
    """Trainings of an arm in one replicate: of a tuned one the points of the grid and, by the kept runs, one more."""
    if arm.tune != "own":
        return 1
    share = min(1.0, design.grid.pooled / design.replicates) if design.grid.pooled else 1.0
    return 1 + share * (design.grid.points + 1)

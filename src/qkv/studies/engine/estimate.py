"""What a study will take, measured before it starts: a few steps of every kind of training in it.

An estimate decides whether a budget is enough and nothing else; no number of a study depends on the clock.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from qkv.errors import ConfigError
from qkv.studies.engine.design import Design, Trial
from qkv.studies.engine.training import run_trial
from qkv.studies.engine.tuning import expected_runs
from qkv.studies.probes.registry import OF_A_TEXT
from qkv.words import many

_SHORT, _LONG = 3, 9
"""Steps of the two trainings whose difference is timed."""
_TIMES = 3
"""How often each is timed, or ..."""
_FEWEST, _ENOUGH = 2, 5.0
"""... as often as that, where so many seconds were spent on it."""
_AROUND = 1.1
"""For probes, building models and waiting for the last training of a batch."""
_WORKER_SECONDS = 5.0
"""For a process to start and to read its text."""
_SPARE = 1.2
"""How much more than the estimate a budget that is advised has."""
_NAMED = 4
"""Effects that are named of those that a budget does not reach."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds by arm and replicate, and how many trainings run at a time."""

    seconds_per_replicate: Mapping[str, float]
    """Arm -> all its trainings of one replicate, one after another."""
    primary: tuple[str, ...]
    """The arms of the main question, which are trained before all others."""
    workers: int
    slowest: float
    """Seconds of the longest single training."""
    slowest_step: float
    """Seconds of the slowest single step."""
    steps: int
    """Of the design that was timed."""
    seconds_per_step: Mapping[str, float]
    """Arm -> what one more step of the design adds to its trainings of one replicate."""

    def minutes(self, replicates: int, arms: Collection[str] | None = None) -> float:
        """Wall time of that many replicates, of some arms or of all."""
        chosen = self.seconds_per_replicate if arms is None else arms
        total = sum(self.seconds_per_replicate[arm] for arm in chosen) * replicates * _AROUND / self.workers
        return (total + (_WORKER_SECONDS if self.workers > 1 else 0.0)) / 60

    def of_steps(self, steps: int) -> "Estimate":
        """Of the same design with another number of steps."""
        more = steps - self.steps
        seconds = {arm: was + more * self.seconds_per_step[arm] for arm, was in self.seconds_per_replicate.items()}
        slowest = self.slowest + more * self.slowest_step
        return dataclasses.replace(self, seconds_per_replicate=seconds, slowest=slowest, steps=steps)

    def fitting(self, minutes: float, most: int) -> int:
        """For how many replicates the arms of the main question fit into so many minutes, at most `most`."""
        return max((n for n in range(1, most + 1) if self.minutes(n, self.primary) <= minutes), default=0)

    def check(self, design: Design, minutes: float, spent: float = 0.0) -> None:
        """Make sure that a budget, of which some minutes are spent, is enough for the main question.

        Raises ConfigError that says what would fit.
        """
        needed, left = self.minutes(design.replicates, self.primary), minutes - spent
        if needed <= left:
            return
        fits = self.fitting(left, design.replicates)
        fewer = f"--seeds {fits} would fit" if fits >= 2 else "not even 2 replicates would fit"
        quick = "" if design.quick else ", or the quick study (--quick)"
        raise ConfigError(
            f"{minutes:g} minutes are too few for {design.replicates} replicates of {design.study}, whose main question"
            f" alone takes about {needed:.1f} on {many(self.workers, 'core')}; {fewer};"
            f" type --minutes {math.ceil(_SPARE * (needed + spent))} for all of them{quick}"
        )

    def reach(self, design: Design, minutes: float, spent: float = 0.0) -> str:
        """What so many minutes will answer, and what not, before anything is trained.

        The arms of the main question are trained first, then models at their start, then each arm in the design's
        order.
        """
        others = [arm for arm in design.arms if arm.name not in self.primary]
        others.sort(key=lambda arm: arm.trainer != "none")
        there = set(self.primary)
        for arm in others:
            if self.minutes(design.replicates, (*there, arm.name)) > minutes - spent:
                break
            there.add(arm.name)
        main, *asked = design.contrasts
        missed = [contrast.name for contrast in asked if not there.issuperset(contrast.arms)]
        words = (
            f"In {minutes:g} minutes it can answer its main question ({main.name}) and {len(asked) - len(missed)} of"
            f" {many(len(asked), 'other effect')}"
        )
        if not missed:
            return f"{words}."
        more = f" and {len(missed) - _NAMED} more" if len(missed) > _NAMED else ""
        whole = math.ceil(_SPARE * (self.minutes(design.replicates) + spent))
        return f"{words}; not {', '.join(missed[:_NAMED])}{more}, which take --minutes {whole}."


def estimate(
    design: Design, source: str, cache: Path | None, workers: int, enough: Callable[[Estimate], None] = lambda _: None
) -> Estimate:
    """Time a few steps of every different kind of training of a design on this machine; takes seconds.

    The arms of the main question come first, and `enough` is handed what they take as soon as that is known: it may
    raise where the budget cannot hold them.

    Raises UserError where an arm does not fit its text or model, or a text holds too little of what its probes ask for,
    before anything is made.
    """
    measured: dict[str, float] = {}
    found: dict[str, float] = {}
    steps: dict[str, float] = {}
    longer: dict[str, float] = {}
    probed: set[tuple[object, ...]] = set()

    def so_far() -> Estimate:
        return Estimate(
            seconds_per_replicate=dict(found),
            primary=design.main_arms,
            workers=workers,
            slowest=max(measured.values()),
            slowest_step=max(steps.values()),
            steps=design.scale.steps,
            seconds_per_step=dict(longer),
        )

    main = [design.arm(name) for name in design.main_arms]
    for arm in (*main, *(arm for arm in design.arms if arm not in main)):
        trial = design.trial(arm, 1, 0, source=source, report=True)
        kind = _kind(trial)
        asked = tuple(name for name in arm.probes if name in OF_A_TEXT)
        if asked and (trial.text, arm.task, trial.scale, asked) not in probed:
            probed.add((trial.text, arm.task, trial.scale, asked))
            still = dataclasses.replace(arm, trainer="none", before=(), probes=asked)
            run_trial(dataclasses.replace(trial, arm=still), cache)
        if kind not in measured:
            measured[kind], steps[kind] = _seconds(trial, cache)
        else:
            _try(trial, cache)
        longer[arm.name] = steps[kind] * expected_runs(design, arm) * trial.scale.steps / design.scale.steps
        found[arm.name] = measured[kind] * expected_runs(design, arm) + _first_seconds(trial, cache, measured, workers)
        if arm.name == main[-1].name:
            enough(so_far())
    return so_far()


def _kind(trial: Trial) -> str:
    """What the time of a training depends on."""
    arm = trial.arm
    own = arm.settings and (arm.settings, arm.layout)
    return repr((trial.text, trial.scale, arm.task, arm.optimizer, arm.trainer, arm.probes, own))


def _seconds(trial: Trial, cache: Path | None) -> tuple[float, float]:
    """Of one whole training, and of each of its steps."""
    if trial.arm.trainer == "none":
        return _clock(trial, cache, 1), 0.0
    _clock(trial, cache, 1)  # reads the text, warms everything up
    timed: list[tuple[float, float]] = []  # by turns, so that a while in which the machine is busy falls on both
    while len(timed) < (_TIMES if sum(map(sum, timed)) < _ENOUGH else _FEWEST):
        timed.append((_clock(trial, cache, _SHORT), _clock(trial, cache, _LONG)))
    short, long = (min(each) for each in zip(*timed, strict=True))  # what else the machine does only adds
    step = max(1e-5, (long - short) / (_LONG - _SHORT))
    scale = trial.scale
    tokens = scale.batch_size * scale.n_ctx
    scoring = step * scale.val_tokens / tokens / 3
    probing = 11 if "reset" in trial.arm.probes else 1  # resets score the validation part once a matrix
    return short + step * scale.steps + scoring * (scale.evaluations + 1) + probing * scoring, step


def _first_seconds(trial: Trial, cache: Path | None, measured: dict[str, float], workers: int) -> float:
    """Of what comes before a pretrained arm, once to tune on and once to report, in every worker; arms share it."""
    kind = f"before {trial.arm.before}"
    if not trial.arm.before or kind in measured:
        return 0.0
    short, long = (_clock(trial, cache, 1, before=steps) for steps in (_SHORT, _LONG))
    steps: int = dict(trial.arm.before).get("steps", trial.scale.steps)
    measured[kind] = max(1e-5, (long - short) / (_LONG - _SHORT)) * steps
    return 2 * workers * measured[kind]


def _clock(trial: Trial, cache: Path | None, steps: int, before: int = 1) -> float:
    """Seconds of a training of so many steps, and of so many before it, that is scored on little text."""
    began = time.perf_counter()
    _try(trial, cache, steps, before)
    return time.perf_counter() - began


def _try(trial: Trial, cache: Path | None, steps: int = 1, before: int = 1) -> None:
    """A training of so few steps that only its fit is seen; a change of its window is cut to them."""
    scale = dataclasses.replace(trial.scale, steps=steps, val_tokens=8 * trial.scale.n_ctx, evaluations=1)
    arm = dataclasses.replace(trial.arm, probes=(), changes=tuple(c.partition("@")[0] for c in trial.arm.changes))
    if arm.before:
        arm = dataclasses.replace(arm, before=tuple((dict(arm.before) | {"steps": before}).items()))
    run_trial(dataclasses.replace(trial, scale=scale, arm=arm), cache)

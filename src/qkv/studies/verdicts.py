"""From the rows of a design to what may be said: one comparison per contrast, the arms in figures, what is missing.

A pure function of the design and the rows; no clock comes in, so the verdict of a study is the same bytes however often
it was killed on the way.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qkv.studies.design import OF_TRAININGS, Arm, Contrast, Design
from qkv.studies.statistics import Comparison, compare, compare_rate, constant, holm, left_out
from qkv.studies.store import StudyFolder
from qkv.studies.tuning import choice, report_key

__all__ = ["ArmFigures", "Derive", "Effect", "Findings", "findings", "is_there", "judged"]


Derive = Callable[[Sequence[Mapping[str, float]]], Sequence[Mapping[str, float]]]
"""Measures of every reported run -> more measures of each, from all of them together."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effect:
    """One contrast and what the replicates say of it."""

    contrast: Contrast
    values: tuple[float, ...]
    """One per replicate in which all its arms were reported."""
    result: Comparison
    p_holm: float | None
    """p over all contrasts of the design that are tested (Holm); None where there is no p."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmFigures:
    """What became of one arm."""

    arm: Arm
    losses: tuple[float, ...]
    """At the last step, one per reported replicate."""
    rates: tuple[float, ...]
    """Learning rates that were chosen, one per reported replicate."""
    at_edge: int
    """Replicates whose best rate was still at the edge of the grid."""
    diverged: int
    """Of all its trainings, tuning included."""
    trainings: int
    frozen: tuple[str, ...]
    """Addresses that kept the bits of their start throughout; everything else was trained."""
    curve: tuple[tuple[int, float], ...]
    """Mean loss over replicates, by step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """Everything that a study found, for its sentence, its page and its file."""

    design: Design
    effects: tuple[Effect, ...]
    arms: tuple[ArmFigures, ...]
    not_reached: tuple[str, ...]
    """Cells of the design without a reported training."""
    trainings: int
    """Every training of every design of this protocol that was ever made."""
    earlier: tuple[int, ...]
    """Numbers of replicates of designs of this protocol that were written down before this one."""

    @property
    def primary(self) -> Effect:
        """The effect that the study's verdict is about."""
        return self.effects[0]

    def effect(self, name: str) -> Effect:
        """The effect of a contrast by its name."""
        return next(effect for effect in self.effects if effect.contrast.name == name)

    def figures(self, name: str) -> ArmFigures:
        """An arm's figures by its name."""
        return next(figures for figures in self.arms if figures.arm.name == name)


def findings(design: Design, folder: StudyFolder, source: str, derive: Derive | None = None) -> Findings:
    """Everything that the rows of a design say so far; `derive` adds measures that need all rows to be known."""
    reported = _reported(design, folder, source)
    if derive is not None:
        extra = derive([row["measures"] for row in reported.values()])
        reported = {
            key: {**row, "measures": {**row["measures"], **more}}
            for (key, row), more in zip(reported.items(), extra, strict=True)
        }
    effects = judged([(c, _values(c, design.replicates, reported)) for c in design.contrasts])
    missing = Counter(
        arm.name for arm in design.arms for r in range(1, design.replicates + 1) if (arm.name, r) not in reported
    )
    return Findings(
        design=design,
        effects=effects,
        arms=tuple(_figures(design, arm, folder, source, reported) for arm in design.arms),
        not_reached=tuple(f"{name}: {n} of {design.replicates} replicates" for name, n in missing.items()),
        trainings=len(folder.trainings),
        earlier=_earlier(design, folder),
    )


def judged(measured: Sequence[tuple[Contrast, Sequence[float]]]) -> tuple[Effect, ...]:
    """What the values of each contrast say, one per replicate.

    All that are tested are asked at once; constants are not, nor what needs a contrast that did not come out above 0.
    """
    results = [_compared(contrast, values) for contrast, values in measured]
    there = {contrast.name: is_there(result) for (contrast, _), result in zip(measured, results, strict=True)}
    results = [
        result if there.get(contrast.needs, True) else left_out(values)
        for (contrast, values), result in zip(measured, results, strict=True)
    ]
    adjusted = iter(holm([result.p for result in results if result.p is not None]))
    return tuple(
        Effect(
            contrast=contrast,
            values=tuple(values),
            result=result,
            p_holm=None if result.p is None else next(adjusted),
        )
        for (contrast, values), result in zip(measured, results, strict=True)
    )


def is_there(result: Comparison) -> bool:
    """Whether an effect is above 0, and not trivially."""
    return result.verdict == "differs" and (result.effect or 0.0) > 0


def _compared(contrast: Contrast, values: Sequence[float]) -> Comparison:
    if contrast.constant and (told := constant(values, contrast.margin)):
        return told
    nominal = 0.0 if contrast.unit == OF_TRAININGS else contrast.nominal
    if nominal is None:
        return compare(values, contrast.margin)
    return compare_rate(values, nominal, contrast.margin, contrast.tries)


def _earlier(design: Design, folder: StudyFolder) -> tuple[int, ...]:
    hashes = [row["design"] for row in folder.designs]
    before = folder.designs[: hashes.index(design.hash)] if design.hash in hashes else folder.designs
    return tuple(sorted({row["replicates"] for row in before}))


Reported = Mapping[tuple[str, int], dict[str, Any]]
"""(arm, replicate) -> row of its reported run."""


def _reported(design: Design, folder: StudyFolder, source: str) -> Reported:
    found = {}
    for replicate in range(1, design.replicates + 1):
        for arm in design.arms:
            key = report_key(design, arm, replicate, source, folder.loss)
            if key in folder.rows:
                found[arm.name, replicate] = folder.rows[key]
    return found


def _quantity(row: Mapping[str, Any], name: str) -> float | None:
    return row["loss"] if name == "loss" else row["measures"].get(name)


def _values(contrast: Contrast, replicates: int, reported: Reported) -> list[float]:
    """Its value in every replicate that has all it reads; a diverged training has what its loss tells."""
    values = []
    for replicate in range(1, replicates + 1):
        rows = [(weight, reported.get((arm, replicate)), quantity) for weight, arm, quantity in contrast.terms]
        read = [None if row is None else _quantity(row, quantity) for _, row, quantity in rows]
        if None not in read:
            values.append(sum(weight * x for (weight, _, _), x in zip(rows, read, strict=True) if x is not None))
    return values


def _figures(design: Design, arm: Arm, folder: StudyFolder, source: str, reported: Reported) -> ArmFigures:
    replicates = [r for r in range(1, design.replicates + 1) if (arm.name, r) in reported]
    rows = [reported[arm.name, r] for r in replicates]
    choices = [choice(design, arm, r, source, folder.loss) for r in replicates]
    made = [row for row in folder.trainings if row["arm"] == arm.name]
    return ArmFigures(
        arm=arm,
        losses=tuple(row["loss"] for row in rows),
        rates=tuple(row["lr"] for row in rows) if arm.trainer != "none" else (),
        at_edge=sum(c is not None and not c.interior for c in choices),
        diverged=sum(row["diverged"] for row in made),
        trainings=len(made),
        frozen=tuple(rows[0]["frozen"]) if rows else (),
        curve=_mean_curve([row["curve"] for row in rows if row["curve"]]),
    )


def _mean_curve(curves: Sequence[Sequence[Sequence[float]]]) -> tuple[tuple[int, float], ...]:
    if not curves:
        return ()
    steps = [int(point[0]) for point in curves[0]]
    losses = np.mean([[point[1] for point in curve] for curve in curves], axis=0)
    return tuple((step, float(loss)) for step, loss in zip(steps, losses, strict=True))

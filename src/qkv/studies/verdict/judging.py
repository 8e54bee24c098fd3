"""From the rows of a design to what may be said: one comparison per contrast, the arms in figures, what is missing.

A pure function of the design and the rows; no clock comes in, so the verdict of a study is the same bytes however often
it was killed on the way.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from qkv.jsontypes import JsonMapping, JsonObject
from qkv.studies.engine.design import OF_TRAININGS, Arm, Contrast, Design
from qkv.studies.engine.store import StudyFolder
from qkv.studies.engine.tuning import choice, report_key
from qkv.studies.verdict.comparison import Comparison, compare, compare_rate, constant
from qkv.studies.verdict.corrections import corrected
from qkv.studies.verdict.statistics import are_rates, beyond_rounding, bounds_of_rate, interval

ALPHA = 0.05

ON_THE_WAY = {"loss at a quarter": 0.25, "loss at half": 0.5, "loss at three quarters": 0.75}
"""Quantity of a training's curve -> after which share of its steps; of what was evaluated, the nearest."""

Derive = Callable[[Sequence[Mapping[str, float]]], Sequence[Mapping[str, float]]]
"""Measures of every reported run -> more measures of each, from all of them together."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effect:
    """One contrast and what the replicates say of it."""

    contrast: Contrast
    values: tuple[float, ...]
    """One per replicate in which all its arms were reported."""
    replicates: tuple[int, ...] = ()
    """Which those are."""
    diverged: int = 0
    """Replicates without a value, since a training that diverged has no such measure."""
    result: Comparison
    """Of this effect alone."""
    outcome: str = ""
    """What became of what was expected: met, failed or open; empty where nothing was."""
    p_corrected: float | None
    """p of the first effect, which was chosen beforehand, and of all others p corrected for their being asked at once;
    None where there is no p."""

    @property
    def only_alone(self) -> bool:
        """Whether it differs one at a time, and not where all others are asked too."""
        return self.result.verdict.startswith("differs") and (self.p_corrected or 0.0) >= ALPHA

    @property
    def verdict(self) -> str:
        """The verdict of this effect alone, and whether it stands where all others are asked too, for a table."""
        return self.result.verdict + " (not after correction)" * self.only_alone

    @property
    def told(self) -> Comparison:
        """What a sentence may say of it beside others: what differs only where nothing else is asked is not settled.

        An interval inside the margin still shows that it does not matter.
        """
        if not self.only_alone:
            return self.result
        instead = "unresolved" if self.result.verdict == "differs" else "equivalent"
        return dataclasses.replace(self.result, verdict=instead)


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
    margins: tuple[float, ...] = ()
    """Other margins by which the same trainings were judged before."""
    taken_over: tuple[str, ...] = ()
    """Folders of other designs of the same question and text that some of the trainings were made for."""

    @property
    def primary(self) -> Effect:
        """The effect that the study's verdict is about."""
        return self.effects[0]


def findings(design: Design, folder: StudyFolder, source: str, derive: Derive | None = None) -> Findings:
    """Everything that the rows of a design say so far; `derive` adds measures that need all rows to be known."""
    reported = _reported(design, folder, source)
    if derive is not None:
        extra = derive([row["measures"] for row in reported.values()])
        reported = {
            key: {**row, "measures": {**row["measures"], **more}}
            for (key, row), more in zip(reported.items(), extra, strict=True)
        }
    effects = tuple(
        dataclasses.replace(effect, diverged=_lost(effect, design, reported))
        for effect in judged([(c, contrast_values(c, design, reported)) for c in design.contrasts])
    )
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
        margins=tuple(margin for margin in folder.margins if margin != design.primary.margin),
        taken_over=folder.taken_over,
    )


Values = Mapping[int, float]
"""Replicate -> value of a contrast."""


def numbered(values: Sequence[float]) -> Values:
    """Values of the first replicates, in their order."""
    return dict(enumerate(values, start=1))


def judged(measured: Sequence[tuple[Contrast, Values]]) -> tuple[Effect, ...]:
    """What the values of each contrast say.

    The first is asked alone and all others that are tested at once; constants are not tested, nor what needs a contrast
    that did not come out above 0.
    """
    results = [_compared(contrast, tuple(values.values())) for contrast, values in measured]
    there = {
        contrast.name: result.verdict == "differs" and (result.effect or 0.0) > 0
        for (contrast, _), result in zip(measured, results, strict=True)
    }
    results = [
        result
        if all(there.get(gate, True) for gate in contrast.gates)
        else Comparison(n=len(values), effect=None, verdict="left out")  # its values stay in the file
        for (contrast, values), result in zip(measured, results, strict=True)
    ]
    p = {i: result.p for i, result in enumerate(results) if result.p is not None}
    others = [i for i in p if i > 0]
    p |= zip(others, corrected([p[i] for i in others], [_flippable(*measured[i]) for i in others]), strict=True)
    known = {contrast.name: values for contrast, values in measured}
    return tuple(
        Effect(
            contrast=contrast,
            values=tuple(values.values()),
            replicates=tuple(values),
            result=result,
            outcome=_outcome(contrast, values, result, known),
            p_corrected=p.get(i),
        )
        for i, ((contrast, values), result) in enumerate(zip(measured, results, strict=True))
    )


def _outcome(contrast: Contrast, values: Values, result: Comparison, known: Mapping[str, Values]) -> str:
    """Of what was expected; open for an effect that is left out or has fewer than two values."""
    expected, nominal = contrast.expected, _nominal(contrast)
    if expected is None:
        return ""
    if expected.other:
        nominal = None  # differences of two rates are none
        other = known.get(expected.other, {})
        values = {replicate: value - other[replicate] for replicate, value in values.items() if replicate in other}
    if len(values) < 2 or result.verdict == "left out":
        return "open"
    return expected.outcome(partial(_bounds, contrast, tuple(values.values()), result, nominal), contrast.margin)


def _bounds(
    contrast: Contrast, values: Sequence[float], result: Comparison, nominal: float | None, x: float, confidence: float
) -> tuple[float, float]:
    """The interval of the values minus x, of the kind that the verdict rests on; nominal: the promised rate, if any."""
    if result.verdict == "constant":
        return min(values) - x, max(values) - x
    if nominal is None or not are_rates(values):
        away = [value - (nominal or 0.0) - x for value in values]
        return interval(beyond_rounding(away, contrast.margin), confidence)
    low, high = bounds_of_rate(round(contrast.tries * sum(values)), contrast.tries * len(values), confidence)
    return low - nominal - x, high - nominal - x


def _flippable(contrast: Contrast, values: Values) -> Values | None:
    """Values as they are tested; None of a rate, which has no signs to flip."""
    if _nominal(contrast) is not None:
        return None
    return dict(zip(values, beyond_rounding(tuple(values.values()), contrast.margin), strict=True))


def _compared(contrast: Contrast, values: Sequence[float]) -> Comparison:
    if contrast.constant and (told := constant(values, contrast.margin)):
        return told
    nominal = _nominal(contrast)
    if nominal is None:
        return compare(values, contrast.margin)
    return compare_rate(values, nominal, contrast.margin, contrast.tries)


def _nominal(contrast: Contrast) -> float | None:
    """The rate that was promised, of an effect that is a rate; a share of trainings is one that nothing promised."""
    return 0.0 if contrast.unit == OF_TRAININGS else contrast.nominal


def _earlier(design: Design, folder: StudyFolder) -> tuple[int, ...]:
    hashes = [row["design"] for row in folder.designs]
    before = folder.designs[: hashes.index(design.hash)] if design.hash in hashes else folder.designs
    return tuple(sorted({row["replicates"] for row in before}))


Reported = Mapping[tuple[str, int], JsonObject]
"""(arm, replicate) -> row of its reported run."""


def _reported(design: Design, folder: StudyFolder, source: str) -> Reported:
    found = {}
    for replicate in range(1, design.replicates + 1):
        for arm in design.arms:
            key = report_key(design, arm, replicate, source, folder.loss)
            if key in folder.rows:
                found[arm.name, replicate] = folder.rows[key]
    return found


def _quantity(row: JsonMapping, name: str, steps: int) -> float | None:
    """What a training measured; of one that diverged what blind guessing would, where that says what it is."""
    if name == "loss":
        return row["loss"]
    if name in ON_THE_WAY and row["curve"]:
        return min(row["curve"], key=lambda point: abs(point[0] - ON_THE_WAY[name] * steps))[1]
    return row["measures"].get(name, blind(name, row["loss"], steps) if row["diverged"] else None)


def blind(name: str, loss: float, steps: int) -> float | None:
    """A measure of who guesses blindly, at that loss in nats, and gets nowhere in so many steps; None of any other.

    A training that diverged counts as that, in measures as in its loss.
    """
    if name.startswith("loss "):  # on some of the tokens or places
        return loss
    if name.startswith("step of "):
        return float(steps)
    if name.startswith("reached "):
        return 0.0
    return 100 * math.exp(-loss) if name in ("accuracy", "answers", "by heart") else None


def contrast_values(contrast: Contrast, design: Design, reported: Reported) -> Values:
    """Its value in every replicate that has all it reads; a diverged training has what blind guessing would."""
    values = {}
    for replicate in range(1, design.replicates + 1):
        read = _read(contrast, design, replicate, reported)
        if None not in read:
            value = sum(weight * x for (weight, _, _), x in zip(contrast.terms, read, strict=True) if x is not None)
            values[replicate] = min(1.0, value) if contrast.unit == OF_TRAININGS else value
    return values


def _read(contrast: Contrast, design: Design, replicate: int, reported: Reported) -> list[float | None]:
    """What each term reads in a replicate; None where it is not there."""
    found = []
    for _, arm, quantity in contrast.terms:
        row = reported.get((arm, replicate))
        steps: int = dict(design.arm(arm).sizes).get("steps", design.scale.steps)
        found.append(None if row is None else _quantity(row, quantity, steps))
    return found


def _lost(effect: Effect, design: Design, reported: Reported) -> int:
    """Replicates all of whose arms were reported, and one of them diverged and has no such measure."""
    lost = 0
    for replicate in set(range(1, design.replicates + 1)) - set(effect.replicates):
        rows = [reported.get((arm, replicate)) for arm in effect.contrast.arms]
        lost += None not in rows and any(row["diverged"] for row in rows if row)
    return lost


def _figures(design: Design, arm: Arm, folder: StudyFolder, source: str, reported: Reported) -> ArmFigures:
    replicates = [r for r in range(1, design.replicates + 1) if (arm.name, r) in reported]
    rows = [reported[arm.name, r] for r in replicates]
    choices = [choice(design, arm, r, source, folder.loss) for r in replicates]
    told = {row["key"] for row in rows}  # arms that come to the same rate share a training, whoever asked first
    made = [row for row in folder.trainings if row["arm"] == arm.name or row["key"] in told]
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

"""The size of a quick study, from the time that it has: as many replicates and steps as fit, at known learning rates.

One rule for every question; the known rates and spreads of each are in `question.known`.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

from qkv.errors import SourceError
from qkv.studies.engine.design import OF_TRAININGS, Design
from qkv.studies.engine.estimate import Estimate
from qkv.studies.engine.store import folder_of, read_rows
from qkv.studies.question import Ask, Question, known
from qkv.studies.verdict.power import detectable
from qkv.words import amount, many, plural

_LEAST, _MOST = 6, 12
"""Replicates of a quick study."""
_TIMES = (4, 3, 2, 1)
"""How many times as many steps as the question's own quick study."""
_MAIN = 0.5
"""Share of the time that is left which the main question may take; the rest is for other arms, and for what was not
foreseen."""

Make = Callable[[Ask], Design]


def as_begun(make: Make, ask: Ask, within: Path) -> Ask | None:
    """The same quick study as it was begun before; None where it was not."""
    for times in _TIMES:
        again = dataclasses.replace(ask, times=times)
        with contextlib.suppress(SourceError):
            designs = [row for row in read_rows(folder_of(make(again), within)) if "design" in row]
            if designs:
                return dataclasses.replace(again, seeds=ask.seeds or designs[-1]["replicates"])
    return None


def sized(make: Make, ask: Ask, design: Design, main: Estimate, minutes: float) -> Ask:
    """As many replicates and steps as the arms of the main question have time for; no fewer than the question's own.

    Each replicate keeps a slice of its own, where the text has that many. More steps are taken where the effect is of
    losses: other measures are of a stage of training. main: seconds at the design's own steps; minutes: what is left.
    """
    most = _MOST if design.slices == 1 else max(_LEAST, min(_MOST, design.slices))
    n = ask.seeds or max(_LEAST, main.fitting(_MAIN * minutes, most))
    for times in _TIMES:
        more = dataclasses.replace(ask, seeds=n, times=times)
        if times == 1 or (_may_grow(design) and times * main.minutes(n, main.primary) <= _MAIN * minutes):
            with contextlib.suppress(SourceError):
                made = make(more)
                if times == 1 or design.slices == 1 or made.slices >= n:
                    return more
    return dataclasses.replace(ask, seeds=n)


def _may_grow(design: Design) -> bool:
    arms = [design.arm(name) for name in design.main_arms]
    timed = any("@" in change for arm in arms for change in arm.changes) or any(arm.before for arm in arms)
    return not timed and all(quantity == "loss" for _, _, quantity in design.primary.terms)


def first_words(question: Question, ask: Ask, minutes: float) -> str:
    """What will be answered, and about how precisely, before the text is read; the steps are not timed yet."""
    words, found = f"{question.name}: {question.asks}", known(question.name)
    sizes = (ask.seeds,) if ask.seeds else (_LEAST, _MOST)
    if not (ask.quick and found) or sizes[0] < 2:
        return words
    seen = " to ".join(amount(detectable(found["sd"], n), False, found["unit"]) for n in sizes)
    count = " to ".join(map(str, sizes))
    return (
        f"{words} In {minutes:g} {plural(minutes, 'minute')} I can train {count} replicates and see an effect above"
        f" {seen} {found['unit']} ({found['effect']}), by the scatter of the kept quick run."
    )


def power_words(design: Design, minutes: float) -> str:
    """How small an effect the main question can see, in its unit where a kept run says how replicates scatter."""
    n, primary = design.replicates, design.primary
    if primary.tries > 1 or primary.unit == OF_TRAININGS:
        return ""
    sd = known(design.study).get("sd") if design.quick else None
    if sd is None:
        return (
            f"With {many(n, 'replicate')} it finds a main effect four times in five if that is {detectable(1.0, n):.1f}"
            " times the standard deviation between replicates."
        )
    seen, margin, spread = (amount(value, False, primary.unit) for value in (detectable(sd, n), primary.margin, sd))
    return (
        f"In {minutes:g} {plural(minutes, 'minute')} I can see an effect above {seen} {primary.unit} ({primary.name};"
        f" margin {margin}), four times in five, if {n} replicates scatter as in the kept quick run (sd {spread})."
    )

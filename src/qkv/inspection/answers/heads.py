"""What do the heads do? Where each looks at the end, beside where it looked before the first update.

At the end of a run this is the mean over many windows of the validation data, with its interval over windows. Before
that only the few windows are there that the recorder looks at again and again, and the answer says so.
"""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from qkv.config import from_dict
from qkv.inspection.answers.answer import Answer, Evidence
from qkv.inspection.events import RISES, ROLES, SATURATED
from qkv.inspection.stored_run import recorded
from qkv.instruments.probe import unmeasured
from qkv.jsontypes import JsonObject
from qkv.models.layout import Layout
from qkv.tasks.evaluation import ratio_interval
from qkv.telemetry import Telemetry
from qkv.words import listed, many, number, percent

_PLACES = {
    "induction": "after an earlier copy",
    "previous_mass": "previous token",
    "own_mass": "itself",
    "first_mass": "first token",
}
_THRESHOLDS = (
    "A head is called specialized if its attention to one kind of position rose by "
    + listed([f"{least:g} ({_PLACES[name]})" for name, least in RISES.items()], "or")
    + "."
)


QUESTION = "What do the heads do?"


class Looked(NamedTuple):
    """A measure of one head's pattern."""

    first: float
    """At the first recorded step."""
    now: float
    interval: tuple[float, float] | None = None
    """95%, of `now`, over windows; None where windows were not kept apart."""
    windows: int = 0
    """How many it is over; 0 where they were not kept apart."""


Series = dict[str, Looked]
"""head -> a measure of its pattern"""


def heads(evidence: Evidence) -> Answer | None:
    """How many heads specialized, in what, and how widely the others look.

    A head has a habit where `RISES` more of its attention goes to one place than at the first recorded step.
    """
    found = {name: _series(evidence.telemetry, name) for name in (*RISES, "entropy", "dominant_rows")}
    entropy, dominant = found.pop("entropy"), found.pop("dominant_rows")
    named = sorted({head for series in found.values() for head in series})
    if not named:
        return _not_measured(evidence.run.settings)
    habits: dict[str, list[tuple[Looked, str]]] = defaultdict(list)
    for head in named:
        gains = {m: series[head].now - series[head].first for m, series in found.items() if head in series}
        best = max(gains, key=lambda m: gains[m] / RISES[m])
        if gains[best] >= RISES[best]:
            habits[best].append((found[best][head], head))
    for rows in habits.values():
        rows.sort(key=lambda row: (row[0].now, row[1]), reverse=True)
    n = sum(map(len, habits.values()))
    saturated = sum(looked.now >= SATURATED for looked in dominant.values())
    told = [_habit(name, habits[name]) for name in RISES if name in habits]
    told_first = f"{n} of {many(len(named), 'head')} specialized" if n else _none(len(named), saturated)
    spread = _spread(entropy)
    windows = min(looked.windows for series in found.values() for looked in series.values())
    return Answer(
        key="heads",
        question=QUESTION,
        sentence=f"{told_first}{': ' + '; '.join(told) if told else ''}.",
        brief=f"{told_first}{': ' + told[0] if told else ''}.",
        more=(*((spread,) if spread else ()), _basis(windows, evidence.run.task.examples), _THRESHOLDS),
        numbers=_shares(habits) | _entropies(entropy) | {"windows": windows or None},
        address=f"{max(rows[0] for rows in habits.values())[1]}.pattern" if n else f"{named[0]}.pattern",
        measure="entropy",
        null=_before(entropy),
        weight=0.6 if n else 0.2,
    )


def _not_measured(settings: JsonObject) -> Answer | None:
    """Why there is nothing to say of heads that were to be measured."""
    if settings.get("watch", "off") == "off" or not settings.get("watching", {}).get("attention"):
        return None
    why = unmeasured(from_dict(Layout, settings["model"]["layout"]))
    return Answer(key="heads", question=QUESTION, sentence=why, weight=0.2) if why else None


def _basis(windows: int, examples: str) -> str:
    """How many windows, or other examples, the numbers are means over."""
    if windows:
        of = {"windows": "windows of the validation text", "buckets": "validation pairs"}
        what = of.get(examples, f"validation {examples}")
        return f"Means over {windows} {what}, with 95% intervals over them."
    return (
        "These numbers come from the few windows measured during training, so they have no interval. A finished run is "
        "measured on 16 or more."
    )


def _shares(habits: dict[str, list[tuple[Looked, str]]]) -> dict[str, float | None]:
    """The three heads that have each habit most, with their intervals."""
    numbers: dict[str, float | None] = {}
    for measure, rows in habits.items():
        for looked, head in rows[:3]:
            label = f"{head}: {measure.replace('_', ' ')}"
            numbers[label] = looked.now
            if looked.interval:
                numbers |= {f"{label}, low": looked.interval[0], f"{label}, high": looked.interval[1]}
    return numbers


def _habit(measure: str, rows: list[tuple[Looked, str]]) -> str:
    """One habit and who has it most."""
    looked, head = rows[0]
    within = f"; 95% interval {percent(looked.interval[0])} to {percent(looked.interval[1])}" if looked.interval else ""
    others = f", as do {len(rows) - 1} more" if len(rows) > 2 else f", as does {rows[1][1]}" if rows[1:] else ""
    return f"{head} {ROLES[measure]} ({percent(looked.now)} of its attention{within}){others}"


def _none(n: int, saturated: int) -> str:
    if saturated:
        return f"{saturated} of {many(n, 'head')} give nearly all attention to a single key: their softmax is saturated"
    return f"No head specialized: none of {n} attends to one kind of position much more than at initialization"


def _before(entropy: Series) -> str:
    """What the heads did at the first look, which habits are counted from."""
    if not entropy:
        return "The comparison is with the first measurement."
    first = number(_entropies(entropy)["median entropy at the start (nats)"])
    whose = "its" if len(entropy) == 1 else "the median head's"
    return f"The comparison is with the first measurement, where {whose} entropy was {first} nats."


def _entropies(entropy: Series) -> dict[str, float | None]:
    if not entropy:
        return {}
    pairs = [(looked.first, looked.now) for looked in entropy.values()]
    first, last = (float(median) for median in np.median(pairs, axis=0))
    sharpest = min(looked.now for looked in entropy.values())
    now = {"median entropy now (nats)": last, "lowest entropy now (nats)": sharpest}
    return {"median entropy at the start (nats)": first, **now}


def _spread(entropy: Series) -> str:
    """How widely heads look, and what that is in tokens."""
    if not entropy:
        return ""
    first, last, _ = _entropies(entropy).values()
    assert first is not None and last is not None
    as_many = f"over about {many(round(np.exp(last)), 'token')} ({np.exp(first):.0f} at initialization)"
    if len(entropy) == 1:
        return f"It spreads its attention {as_many}: entropy {number(last)} nats."
    sharpest = min(entropy, key=lambda head: entropy[head].now)
    return (
        f"The median head spreads its attention {as_many}: entropy {number(last)} nats. The sharpest is {sharpest}, "
        f"with {number(entropy[sharpest].now)}."
    )


def _series(telemetry: Telemetry, measure: str) -> Series:
    """A measure of every head's pattern at the first step and now; empty where it was not recorded."""
    grid = recorded(telemetry, measure, "**.H*.pattern")
    if grid is None:
        return {}
    out, windows = {}, telemetry.all_vectors(measure)
    for address, values in zip(grid.addresses, grid.value, strict=True):
        head, kept = address.removesuffix(".pattern"), windows.get(address, {})
        if len(kept) > 1 and max(kept) >= grid.step[-1]:
            looked = _over_windows(kept[min(kept)], kept[max(kept)])
            out |= {head: looked} if looked else {}
            continue
        defined = values[np.isfinite(values)]
        if len(defined) > 1:
            out[head] = Looked(float(defined[0]), float(defined[-1]))
    return out


def _over_windows(first: np.ndarray, now: np.ndarray) -> Looked | None:
    """The means of what is defined in the same windows [n] at two steps; None where nothing is."""
    kept = np.isfinite(first) & np.isfinite(now)
    if not kept.any():
        return None
    before, values = (each[kept].astype(np.float64) for each in (first, now))
    mean, interval = ratio_interval(values, np.ones(len(values)))
    if interval is not None:  # no measure here is below 0
        interval = max(0.0, interval[0]), interval[1]
    return Looked(float(before.mean()), mean, interval, len(values))

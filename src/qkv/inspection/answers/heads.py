"""What do the heads do? Where each looks at the end, beside where it looked before the first update."""

from collections import defaultdict

import numpy as np

from qkv.errors import AddressError
from qkv.inspection.answers.answer import Answer, Evidence
from qkv.inspection.events import RISES, ROLES, SATURATED
from qkv.telemetry import Telemetry
from qkv.words import listed, many, number

__all__ = ["heads"]

_PLACES = {
    "induction": "what followed a repeated token",
    "previous_mass": "the token before",
    "own_mass": "the own token",
    "first_mass": "the first",
}
_THRESHOLDS = (
    "A habit is counted from "
    + listed([f"{least:g} more of the attention on {_PLACES[name]}" for name, least in RISES.items()], "or")
    + "."
)

Series = dict[str, tuple[float, float]]
"""head -> (first value, last value) of a measure of its pattern"""


def heads(evidence: Evidence) -> Answer | None:
    """How many heads came to look at one place, which, and how widely the others look.

    A head has a habit where `RISES` more of its attention goes to one place than at the first recorded step.
    """
    found = {name: _series(evidence.telemetry, name) for name in (*RISES, "entropy", "dominant_rows")}
    entropy, dominant = found.pop("entropy"), found.pop("dominant_rows")
    named = sorted({head for series in found.values() for head in series})
    if not named:
        return None
    habits: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for head in named:
        gains = {m: now - first for m, series in found.items() if head in series for first, now in [series[head]]}
        best = max(gains, key=lambda m: gains[m] / RISES[m])
        if gains[best] >= RISES[best]:
            habits[best].append((found[best][head][1], head))
    n = sum(map(len, habits.values()))
    saturated = sum(now >= SATURATED for _, now in dominant.values())
    told = [_habit(name, sorted(habits[name], reverse=True)) for name in RISES if name in habits]
    told_first = f"{n} of {many(len(named), 'head')} came to look at one place" if n else _none(len(named), saturated)
    spread = _spread(entropy)
    numbers = {
        f"{h}: {m.replace('_', ' ')}": share for m, rows in habits.items() for share, h in sorted(rows)[::-1][:3]
    }
    return Answer(
        key="heads",
        question="What do the heads do?",
        sentence=f"{told_first}{': ' + '; '.join(told) if told else ''}.",
        brief=f"{told_first}{': ' + told[0] if told else ''}.",
        more=(*((spread,) if spread else ()), _THRESHOLDS),
        numbers=numbers | _entropies(entropy),
        address=f"{max(max(rows) for rows in habits.values())[1]}.pattern" if n else f"{named[0]}.pattern",
        measure="entropy",
        null=_before(entropy),
        weight=0.6 if n else 0.2,
    )


def _habit(measure: str, rows: list[tuple[float, str]]) -> str:
    """One habit and who has it most."""
    share, head = rows[0]
    others = f", and so do {len(rows) - 1} more" if len(rows) > 2 else f", and so does {rows[1][1]}" if rows[1:] else ""
    return f"{head} {ROLES[measure]} ({number(share)} of its attention{others})"


def _none(n: int, saturated: int) -> str:
    if saturated:
        return f"{saturated} of {many(n, 'head')} look at one key alone in nearly every row: their softmax is saturated"
    which = f"none of {n} heads looks" if n > 1 else "the one head does not look"
    return f"Nothing that stands out: {which} at one place much more than at the start"


def _before(entropy: Series) -> str:
    """What the heads did at the first look, which habits are counted from."""
    if not entropy:
        return "Habits are counted from the first look."
    first = number(_entropies(entropy)["median entropy at the start (nats)"])
    whose = "its" if len(entropy) == 1 else "the middle head's"
    return f"Habits are counted from the first look, where {whose} entropy was {first} nats."


def _entropies(entropy: Series) -> dict[str, float | None]:
    if not entropy:
        return {}
    first, last = (float(np.median([pair[i] for pair in entropy.values()])) for i in (0, 1))
    return {"median entropy at the start (nats)": first, "median entropy now (nats)": last}


def _spread(entropy: Series) -> str:
    """How widely heads look, and what that is in tokens."""
    if not entropy:
        return ""
    first, last = _entropies(entropy).values()
    assert first is not None and last is not None
    as_many = f"as widely as {many(round(np.exp(last)), 'token')} in equal parts (at the start {np.exp(first):.0f})"
    if len(entropy) == 1:
        return f"It looks {as_many}: entropy {number(last)} nats."
    sharpest = min(entropy, key=lambda head: entropy[head][1])
    return (
        f"The middle head looks {as_many}: entropy {number(last)} nats; the sharpest, {sharpest}, has "
        f"{number(entropy[sharpest][1])}."
    )


def _series(telemetry: Telemetry, measure: str) -> Series:
    """First and last defined value of every head's pattern; empty where it was not recorded."""
    try:
        grid = telemetry.grid(measure, "**.H*.pattern")
    except AddressError:
        return {}
    out = {}
    for address, values in zip(grid.addresses, grid.value, strict=True):
        defined = values[np.isfinite(values)]
        if len(defined) > 1:
            out[address.removesuffix(".pattern")] = float(defined[0]), float(defined[-1])
    return out

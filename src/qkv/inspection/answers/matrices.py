"""Which matrices moved, in which order, and which did not, each beside its drift in the random-label control."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from qkv.errors import AddressError
from qkv.inspection.answers.answer import Answer, Evidence, apart
from qkv.inspection.control import CONTROL, described, learned, when
from qkv.telemetry import Compared, Grid, Telemetry
from qkv.words import listed, many, number

__all__ = ["frozen", "matrices", "order"]

FEWEST_LOOKS = 8
"""Recorded steps from which on it is told what moved first; with fewer, what the first gradient did not reach stands
with what did not move."""


def matrices(evidence: Evidence) -> Answer | None:
    """Which matrices moved most, beside their drift in the random-label control."""
    grid = _grid(evidence.telemetry, "drift")
    if grid is None:
        return None
    last = {a: float(v) for a, v in _last(grid).items() if a.rpartition(".")[2].startswith("W_")}
    moving = sorted(((v, a) for a, v in last.items() if v > 0), reverse=True)
    if not moving:
        return None
    most, least = moving[0], moving[-1]
    then = " and ".join(f"{a} ({number(v)})" for v, a in moving[1:3])
    size = _size(evidence.telemetry, most[1])
    sentence = f"{most[1]} moved most: by {number(most[0])} of {size}"
    few = " of those that moved" if len(moving) < len(last) else ""
    sentence += f", then {then}; {least[1]} least{few} ({number(least[0])})." if len(moving) > 3 else "."
    kinds = _median_by_kind(last)
    by_kind = ", ".join(f"{kind} {number(v)}" for kind, v in sorted(kinds.items(), key=lambda item: -item[1]))
    pairs = _pairs(evidence.telemetry, set(last))
    figures: dict[str, float | None] = {f"drift of {a}": v for v, a in moving[:3]}
    figures |= {f"median drift of {kind}": v for kind, v in kinds.items()}
    if pairs:
        figures |= {f"{p.address} at step {p.step}, relative to the {CONTROL}": p.ratio for p in (pairs[0], pairs[-1])}
    return Answer(
        key="matrices",
        question="Which matrices moved?",
        sentence=sentence,
        brief=_furthest(moving, size),
        more=tuple(line for line in (f"Median drift by kind: {by_kind}.", _units(evidence.telemetry)) if line),
        numbers=figures,
        address=most[1],
        measure="drift",
        null=_control_sentence(evidence, pairs),
        weight=0.4 + 0.3 * max((apart(p.value, p.null) for p in pairs), default=0.0),
    )


def _size(telemetry: Telemetry, address: str) -> str:
    """What a matrix's drift is a share of."""
    row = next((row for row in telemetry.latest(address, at=0)), None)
    return "a usual start's size" if row is not None and row.values.get("norm") == 0 else "its starting size"


def _furthest(moving: Sequence[tuple[float, str]], size: str) -> str:
    """The two ends of a list of (drift, address), falling; empty for one matrix."""
    (most, first), (least, last) = moving[0], moving[-1]
    if first == last:
        return ""
    return f"{first} furthest, by {number(most)} of {size}; {last} least, by {number(least)}."


def _from_zero(telemetry: Telemetry) -> list[str]:
    """Matrices that start at zero, as `_together` names them."""
    return _together({row.about.address: row.values.get("norm") == 0 for row in telemetry.latest(at=0)})


def _together(so: Mapping[str, bool]) -> list[str]:
    """Names of the matrices that are so: a kind if all of it is, `enc.**.W_O` if all of a stack's is, else each."""
    names: list[str] = []
    for address, is_so in so.items():
        stack, _, kind = address.rpartition(".")
        stack = stack.partition(".")[0]
        if not is_so or not kind.startswith("W_"):
            continue
        if all(other for a, other in so.items() if a.rpartition(".")[2] == kind):
            names.append(kind)
        elif stack in ("enc", "dec") and all(
            other for a, other in so.items() if a.startswith(f"{stack}.") and a.rpartition(".")[2] == kind
        ):
            names.append(f"{stack}.**.{kind}")
        else:
            names.append(address)
    return list(dict.fromkeys(names))


def _units(telemetry: Telemetry) -> str:
    names = _from_zero(telemetry)
    return f"{listed(names)} started at zero; the size of a usual start stands in for theirs." if names else ""


def _pairs(telemetry: Telemetry, among: set[str]) -> list[Compared]:
    """Drift in the run and in the random-label control at an equal step, falling by their ratio."""
    try:
        pairs = telemetry.against_null("drift")
    except AddressError:
        return []
    pairs = [p for p in pairs if p.address in among and p.null > 0 and p.step > 0]
    return sorted(pairs, key=lambda p: -p.value / p.null)


def _control_sentence(evidence: Evidence, pairs: Sequence[Compared]) -> str:
    """The largest and the smallest ratio of drifts, at which step, and what the control is."""
    if not pairs:
        return ""
    most, least = pairs[0], pairs[-1]
    ends = [f"{p.value / p.null:.2f} times" for p in (most, least)]
    which, others = most.address, ""
    if ends[0] == ends[1] and len(pairs) > 1:
        which = "each matrix"
    elif len(pairs) > 1:
        middle = float(np.median([p.value / p.null for p in pairs]))
        others = f", {least.address} {ends[1]} (median over matrices {middle:.2f})"
    words = (
        f"At {when(most.step, evidence.telemetry)} the run had moved {which} {ends[0]} as far as "
        f"{described(evidence.telemetry)}{others}."
    )
    return f"{words} {learned(evidence)}".strip()


def order(evidence: Evidence) -> Answer | None:
    """Which kinds of matrices went half of their way first."""
    grid = _grid(evidence.telemetry, "drift")
    if grid is None or len(grid.step) < FEWEST_LOOKS:
        return None
    halfway: dict[str, list[int]] = defaultdict(list)
    for i, address in enumerate(grid.addresses):
        kind, values = address.rpartition(".")[2], np.nan_to_num(grid.value[i])
        if kind.startswith("W_") and values[-1] > 0:
            halfway[kind].append(int(grid.step[np.argmax(values >= values[-1] / 2)]))
    steps = {kind: math.ceil(np.median(found)) for kind, found in halfway.items()}
    if len(steps) < 2:
        return None
    ranked = sorted(steps.items(), key=lambda item: item[1])
    together: dict[str, list[str]] = defaultdict(list)
    for kind, step in ranked:
        together[f"{step:,}"].append(kind)
    words = "; ".join(f"{listed(kinds)} by step {step}" for step, kinds in together.items())
    silent = _silent_at_first(evidence.telemetry)
    return Answer(
        key="order",
        question="What moved first?",
        sentence=f"Half of its way from start to end was done by {words} (median over layers).",
        brief=f"{ranked[0][0]}, which had gone half of its way by step {ranked[0][1]:,}; last {ranked[-1][0]}, "
        f"by step {ranked[-1][1]:,}.",
        more=(silent,) if silent else (),
        numbers={f"half-way step of {kind}": float(step) for kind, step in ranked},
        measure="drift",
    )


def _silent_at_first(telemetry: Telemetry) -> str:
    """Matrices that the first update's gradient did not reach at all."""
    grid = _grid(telemetry, "grad_norm")
    if grid is None or not len(grid.step) or grid.step[0] != 1:
        return ""
    silent = _together({a: v == 0 for a, v in zip(grid.addresses, grid.value[:, 0].tolist(), strict=True)})
    if not silent:
        return ""
    zero = _from_zero(telemetry)
    reason = (
        f": no gradient comes back through {listed(zero)}, which started at zero, until they have moved" if zero else ""
    )
    return f"The gradient of the first update was exactly 0 in {listed(silent)}{reason}."


def frozen(evidence: Evidence) -> Answer | None:
    """Which matrices did not move at all."""
    grid = _grid(evidence.telemetry, "drift")
    if grid is None or not len(grid.step) or grid.step[-1] == 0:
        return None
    still = [a for a, v in _last(grid).items() if v == 0]
    if not still:
        return None
    moved = f"{many(len(grid.addresses) - len(still), 'other matrix', 'other matrices')} moved."
    silent = "" if len(grid.step) >= FEWEST_LOOKS else _silent_at_first(evidence.telemetry)
    shown = ", ".join(still[:6]) + (f" and {len(still) - 6} more" if len(still) > 6 else "")
    return Answer(
        key="frozen",
        question="What stayed as it was?",
        sentence=f"{shown} did not move: drift exactly 0 at step {int(grid.step[-1]):,}.",
        more=(moved, silent) if silent else (moved,),
        numbers={"matrices that did not move": float(len(still))},
        address=still[0],
        measure="drift",
        weight=0.4,
    )


def _grid(telemetry: Telemetry, measure: str) -> Grid | None:
    """A measure of all whole matrices; None where it was not taken."""
    try:
        return telemetry.grid(measure)
    except AddressError:
        return None


def _last(grid: Grid) -> dict[str, float]:
    """The last defined value of each address that has one."""
    out = {}
    for address, values in zip(grid.addresses, grid.value, strict=True):
        defined = values[~np.isnan(values)]
        if len(defined):
            out[address] = float(defined[-1])
    return out


def _median_by_kind(last: dict[str, float]) -> dict[str, float]:
    kinds: dict[str, list[float]] = defaultdict(list)
    for address, value in last.items():
        kinds[address.rpartition(".")[2]].append(value)
    return {kind: float(np.median(values)) for kind, values in kinds.items()}

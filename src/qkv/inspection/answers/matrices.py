"""Which matrices moved, in which order, and which did not, each beside its drift in the random-label control."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from qkv.errors import AddressError
from qkv.inspection.answers.answer import Answer, Evidence, apart
from qkv.inspection.control import CONTROL, described, learned, when
from qkv.inspection.stored_run import recorded
from qkv.telemetry import Compared, Grid, Telemetry
from qkv.words import listed, many, number, percent, plural, relative

FEWEST_LOOKS = 8
"""Recorded steps from which on it is said what moved first; with fewer, what the first gradient did not reach is said
with what did not move."""


def matrices(evidence: Evidence) -> Answer | None:
    """Which matrices moved most, beside their drift in the random-label control."""
    grid = recorded(evidence.telemetry, "drift")
    if grid is None:
        return None
    last = {a: float(v) for a, v in _last(grid).items() if a.rpartition(".")[2].startswith("W_")}
    moving = sorted(((v, a) for a, v in last.items() if v > 0), reverse=True)
    if not moving:
        return None
    write = percent if moving[0][0] < 1 else number  # one unit in the whole sentence
    sentence = f"{moving[0][1]} moved most, by {relative(moving[0][0], _size(evidence.telemetry, moving[0][1]))}"
    if len(moving) > 1:
        few = " of those that moved" if len(moving) < len(last) else ""
        sentence += f"; {moving[-1][1]} moved least{few} ({write(moving[-1][0])})"
    kinds = _median_by_kind(last)
    by_kind = ", ".join(f"{kind} {write(v)}" for kind, v in sorted(kinds.items(), key=lambda item: -item[1]))
    pairs = _pairs(evidence.telemetry, set(last))
    figures: dict[str, float | None] = {f"drift of {a}": v for v, a in (*moving[:3], moving[-1])}
    figures |= {f"median drift of {kind}": v for kind, v in kinds.items()}
    if pairs:
        figures |= {f"{p.address} at step {p.step}, relative to the {CONTROL}": p.ratio for p in (pairs[0], pairs[-1])}
    return Answer(
        key="matrices",
        question="Which matrices moved?",
        sentence=f"{sentence}.",
        more=tuple(line for line in (f"Median by kind of matrix: {by_kind}.", _units(evidence.telemetry)) if line),
        numbers=figures,
        address=moving[0][1],
        measure="drift",
        null=f"{against_control(evidence.telemetry, pairs)} {learned(evidence)}".strip() if pairs else "",
        weight=0.4 + 0.3 * max((apart(p.value, p.null) for p in pairs), default=0.0),
    )


def _size(telemetry: Telemetry, address: str) -> str:
    """What a matrix's drift is a share of."""
    row = next((row for row in telemetry.latest(address, at=0)), None)
    return (
        "the norm of a usual initialization" if row is not None and row.values.get("norm") == 0 else "its initial norm"
    )


def _from_zero(telemetry: Telemetry) -> list[str]:
    """Matrices that start at zero, as `_together` names them."""
    return _together({row.about.address: row.values.get("norm") == 0 for row in telemetry.latest(at=0)})


def _together(so: Mapping[str, bool]) -> list[str]:
    """Names of the matrices that are so: a kind if all of it is, the kind of a stack if all of that is, else each."""
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
            names.append(f"{kind} of the {'encoder' if stack == 'enc' else 'decoder'}")
        else:
            names.append(address)
    return list(dict.fromkeys(names))


def _units(telemetry: Telemetry) -> str:
    names = _from_zero(telemetry)
    if not names:
        return ""
    verb = "starts" if len(names) == 1 else "start"
    return f"{listed(names)} {verb} at zero, so movement is measured against the norm of a usual initialization there."


def _pairs(telemetry: Telemetry, among: set[str]) -> list[Compared]:
    """Drift in the run and in the random-label control at an equal step, falling by their ratio."""
    try:
        pairs = telemetry.against_null("drift")
    except AddressError:
        return []
    pairs = [p for p in pairs if p.address in among and p.null > 0 and p.step > 0]
    return sorted(pairs, key=lambda p: -p.value / p.null)


def against_control(telemetry: Telemetry, pairs: Sequence[Compared]) -> str:
    """The largest and the smallest ratio of drifts to those of the random-label control, and at which step."""
    most, least = pairs[0], pairs[-1]
    control, at = f"in {described(telemetry)}", when(most.step, telemetry)
    middle = float(np.median([p.value / p.null for p in pairs]))
    ends = [f"{relative(ratio)} as far" for ratio in (most.value / most.null, middle, least.value / least.null)]
    ends = ["as far" if end.startswith("1.0 times") else end for end in ends]
    if ends[0] == ends[-1]:
        return f"At {at}, {'each matrix' if pairs[1:] else most.address} had moved {ends[0]} as {control}."
    return (
        f"At {at}, {most.address} had moved {ends[0]} as {control}. The median matrix had moved {ends[1]},"
        f" and {least.address} {ends[2]}."
    )


def order(evidence: Evidence) -> Answer | None:
    """Which kinds of matrices went half of their way first."""
    grid = recorded(evidence.telemetry, "drift")
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
    together: dict[int, list[str]] = defaultdict(list)
    for kind, step in sorted(steps.items(), key=lambda item: item[1]):
        together[step].append(kind)
    (first, kinds), *others = together.items()
    sentence = f"All kinds of matrices made half of their final movement by step {first:,}."
    if others:
        last, latest = others[-1]
        was, were = plural(len(kinds), "was", "were"), plural(len(latest), "was", "were")
        sentence = f"{listed(kinds)} {was} first to make half of the final movement, by step {first:,}."
        sentence = f"{sentence[:-1]}; {listed(latest)} {were} last, by step {last:,}."
    between = ", ".join(f"{listed(kinds)} by step {step:,}" for step, kinds in others[:-1])
    middle = f"In between: {between}. Steps are medians over layers." if between else ""
    return Answer(
        key="order",
        question="What moved first?",
        sentence=sentence,
        more=tuple(line for line in (middle, _silent_at_first(evidence.telemetry)) if line),
        numbers={f"half-way step of {kind}": float(step) for step, kinds in together.items() for kind in kinds},
        measure="drift",
    )


def _silent_at_first(telemetry: Telemetry) -> str:
    """Matrices that the first update's gradient did not reach at all."""
    grid = recorded(telemetry, "grad_norm")
    if grid is None or not len(grid.step) or grid.step[0] != 1:
        return ""
    silent = _together({a: v == 0 for a, v in zip(grid.addresses, grid.value[:, 0].tolist(), strict=True)})
    if not silent:
        return ""
    zero = _from_zero(telemetry)
    words = f"The gradient of the first update was exactly 0 in {listed(silent)}."
    if zero:
        words += f" Matrices that start at zero ({listed(zero)}) pass no gradient back until they have moved."
    return words


def frozen(evidence: Evidence) -> Answer | None:
    """Which matrices did not move at all."""
    grid = recorded(evidence.telemetry, "drift")
    if grid is None or not len(grid.step) or grid.step[-1] == 0:
        return None
    still = [a for a, v in _last(grid).items() if v == 0]
    if not still:
        return None
    moved = f"{many(len(grid.addresses) - len(still), 'other matrix', 'other matrices')} moved."
    silent = "" if len(grid.step) >= FEWEST_LOOKS else _silent_at_first(evidence.telemetry)
    shown = listed([*still[:6], *([f"{len(still) - 6} more"] if len(still) > 6 else [])])
    return Answer(
        key="frozen",
        question="What did not move?",
        sentence=f"{shown} did not move at all: drift is exactly 0 at step {int(grid.step[-1]):,}.",
        more=(moved, silent) if silent else (moved,),
        numbers={"matrices that did not move": float(len(still))},
        address=still[0],
        measure="drift",
        weight=0.4,
    )


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

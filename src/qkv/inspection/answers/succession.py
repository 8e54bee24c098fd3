"""Do the steps of an imported history follow one another? Found from the sketches of their weights alone.

    equal      the same weights at two steps, whole or in single matrices that differ at a step between
    order      steps that shorten the path of the weights by much where two are swapped, or one is moved elsewhere
    jump       weights that go far faster between two steps than before and after: another training begins there
    missing    a step that a regular spacing has and the series has not

What this cannot see: a series in reverse; steps swapped that are close to each other compared with their neighbors, or
at the beginning and the end unless the weights move there in one direction; a whole series of another model; gaps in an
irregular spacing. A training that returns to earlier weights (a cyclic rate) is reported though nothing is wrong.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from qkv.errors import AddressError
from qkv.inspection.answers.answer import Answer, Evidence
from qkv.instruments.sketch import SKETCH, WIDTH
from qkv.telemetry import Telemetry
from qkv.words import listed, many

SHORTER = 0.08
"""Share of the path around two steps that has to be saved before they count as swapped. A random walk saves 0.22."""
SHORTER_AT_END = 0.25, 0.4
"""The same where the first or the last step is swapped, or moved elsewhere: noise that a falling rate averages out
saves 0.17 and 0.29 there."""
STRANGE = 1.5
"""How many times as far as the steps around it are apart a step has to be from every other to be another model's."""
FASTER = 30
"""How many times as fast as before and after weights move in a jump, per step; and ..."""
FARTHER = 3
"""... how many times as far."""
SHOWN = 6
"""Steps and matrices that a sentence names; the others are counted."""


@dataclass(frozen=True)
class Oddity:
    """Something about the steps that a training does not do."""

    step: int
    """The first step that it is about."""
    sentence: str
    is_hint: bool = False
    """It may be so on purpose."""


def oddities(telemetry: Telemetry) -> tuple[int, list[Oddity]]:
    """(how many steps were compared, what is odd about them)."""
    try:
        kept = {row.address: telemetry.vectors(row.address, SKETCH) for row in telemetry.addresses()}
    except AddressError:
        return 0, []
    kept = {address: by_step for address, by_step in kept.items() if by_step}
    steps = sorted(set.intersection(*(set(by_step) for by_step in kept.values()))) if kept else []
    if len(steps) < 2:
        return len(steps), []
    return len(steps), found_in(steps, {a: np.stack([of[step] for step in steps]) for a, of in kept.items()})


def found_in(steps: Sequence[int], sketches: Mapping[str, np.ndarray]) -> list[Oddity]:
    """What is odd about steps, in order; `sketches` are float64 [step, width] by address."""
    whole = np.concatenate(list(sketches.values()), axis=1)
    far = np.stack([np.linalg.norm(whole - one, axis=1) for one in whole])
    groups = _groups(whole)
    single = [group[0] for group in groups if len(group) == 1]
    found, path = [], list(single)
    for group in (group for group in groups if len(group) > 1):
        owner = _owner(group, single, far)
        path.append(group[0] if owner is None else owner)
        found.append(_equal([steps[i] for i in group], None if owner is None else steps[owner]))
    found += _partly_equal(steps, sketches, groups)
    path.sort()
    strange = _strangers(path, far)
    words = "the weights of step {} are far from those of every other step, as another model's are"
    found += [Oddity(steps[i], words.format(steps[i])) for i in strange]
    path = [i for i in path if i not in strange]
    moved, path = _moves(path, far)
    found += [_out_of_order(move, path, steps) for move in moved]
    found += _jumps(path, steps, far) if not moved else []
    return sorted(found, key=lambda one: one.step) + _missing(steps)


# equal weights


def _groups(rows: np.ndarray) -> list[list[int]]:
    """Indices of equal rows, in order of their first."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        groups[row.tobytes()].append(i)
    return list(groups.values())


def _owner(group: Sequence[int], others: Sequence[int], far: np.ndarray) -> int | None:
    """Which step of a group of equal weights they fit in with; None where two fit about as well."""
    detour: dict[tuple[int, int], tuple[float, int]] = {}
    for i in group:
        before, after = (max((j for j in others if j < i), default=-1), min((j for j in others if j > i), default=-1))
        if before < 0 and after < 0:
            return None
        ends = [j for j in (before, after) if j >= 0]
        way = sum(far[i, j] for j in ends) - (far[before, after] if len(ends) == 2 else 0.0)
        if (before, after) in detour:
            detour[before, after] = (detour[before, after][0], -1)  # two of the group have the same place
        else:
            detour[before, after] = (way, i)
    best, *rest = sorted(detour.values())
    return best[1] if best[1] >= 0 and all(best[0] < way / 2 for way, _ in rest) else None


def _equal(steps: Sequence[int], owner: int | None) -> Oddity:
    if owner is None:
        return Oddity(steps[0], f"steps {_few(steps)} hold the same weights")
    others = [step for step in steps if step != owner]
    return Oddity(others[0], f"{_named(others)} the weights of step {owner}: they are equal, and fit in there")


def _partly_equal(
    steps: Sequence[int], sketches: Mapping[str, np.ndarray], whole: Sequence[Sequence[int]]
) -> list[Oddity]:
    """Matrices that come back unchanged after they were others, at steps that are not equal as a whole."""
    same = {pair for group in whole for pair in combinations(group, 2)}
    by_steps: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for address, rows in sketches.items():
        for group in _groups(rows) if rows.shape[1] == WIDTH else []:
            returns = any(b - a > 1 and (a, b) not in same for a, b in zip(group, group[1:], strict=False))
            if returns and len(group) < len(steps):
                by_steps[tuple(steps[i] for i in group)].append(address)
    return [
        Oddity(at[0], f"{_few(names)} {'is' if len(names) == 1 else 'are'} the same at steps {_few(at)}, not between")
        for at, names in by_steps.items()
    ]


# their order


def _strangers(path: Sequence[int], far: np.ndarray) -> list[int]:
    """Those of a path that are far from all others, compared with how far the steps around them, and around the nearest
    one, are apart; the first and the last cannot be judged."""
    found = []
    for place, one in list(enumerate(path))[1:-1]:
        rest = path[:place] + path[place + 1 :]
        nearest = int(np.argmin(far[one, rest]))
        near = [rest[max(0, at - 2) : at + 2] for at in (place, nearest)]
        around = [float(far[a, b]) for steps in near for a, b in zip(steps, steps[1:], strict=False)]
        if far[one, rest[nearest]] > STRANGE * max(around):
            found.append(one)
    return found


@dataclass(frozen=True)
class _Move:
    """Indices of two steps to swap, or (`other` is -1) of one to move elsewhere."""

    index: int
    other: int
    share: float
    """How much of the path around them that saves."""
    length: float
    """The same as a distance; 0 where the share is not telling."""


def _moves(path: list[int], far: np.ndarray) -> tuple[list[_Move], list[int]]:
    """What makes the path of the weights shorter, the most telling first, and the path after that."""
    moves: list[_Move] = []
    while len(path) > 3 and len(moves) < len(far):
        candidates = [_swapped(path, a, b, far) for a, b in combinations(range(len(path)), 2)]
        candidates += [_relocated(path, a, far) for a in range(len(path))]
        move, new = max(candidates, key=lambda one: one[0].length)
        if move.length <= 0 or any({move.index, move.other} == {m.index, m.other} for m in moves):
            break
        moves, path = [*moves, move], new
    return moves, path


def _swapped(path: list[int], a: int, b: int, far: np.ndarray) -> tuple[_Move, list[int]]:
    """Two places of the path swapped."""
    new = list(path)
    new[a], new[b] = new[b], new[a]
    legs = sorted({leg for place in (a, b) for leg in (place - 1, place) if 0 <= leg < len(path) - 1})
    before, after = (sum(float(far[way[leg], way[leg + 1]]) for leg in legs) for way in (path, new))
    enough = SHORTER_AT_END[0] if a == 0 or b == len(path) - 1 else SHORTER
    return _move(path[a], path[b], before, after, enough), new


def _relocated(path: list[int], a: int, far: np.ndarray) -> tuple[_Move, list[int]]:
    """One place of the path moved to where it costs least."""
    one, rest = path[a], path[:a] + path[a + 1 :]
    legs = far[rest[:-1], rest[1:]]
    costs = np.concatenate([far[one, rest[:1]], far[one, rest[:-1]] + far[one, rest[1:]] - legs, far[one, rest[-1:]]])
    costs[max(a - 1, 0) : a + 2] = np.inf  # where it is; one place from there it is swapped
    place = int(np.argmin(costs))
    ends = [path[i] for i in (a - 1, a + 1) if 0 <= i < len(path)]
    before = sum(float(far[one, end]) for end in ends)
    after = float(costs[place]) + (float(far[ends[0], ends[1]]) if len(ends) == 2 else 0.0)
    enough = SHORTER_AT_END[1] if a in (0, len(path) - 1) or place in (0, len(rest)) else SHORTER
    return _move(one, -1, before, after, enough), rest[:place] + [one] + rest[place:]


def _move(index: int, other: int, before: float, after: float, enough: float) -> _Move:
    """A move that makes a way of length `before` one of length `after`."""
    share = 1 - after / before if before else 0.0
    return _Move(index, other, share, before - after if share > enough else 0.0)


def _out_of_order(move: _Move, path: Sequence[int], steps: Sequence[int]) -> Oddity:
    """What a move says. `path` is the path after all of them."""
    if move.other >= 0:
        a, b = sorted((steps[move.index], steps[move.other]))
        words = (
            f"steps {a} and {b} look swapped: the other way round, the weights move {move.share:.0%} less around them"
        )
        return Oddity(a, words)
    step, rest = steps[move.index], [i for i in path if i != move.index]
    place = path.index(move.index)
    near = sorted(steps[i] for i in rest[max(0, place - 1) : place + 1])
    fits = f"between steps {near[0]} and {near[1]}" if len(near) == 2 else f"next to step {near[0]}"
    return Oddity(step, f"the weights of step {step} belong {fits}, judged by their distances")


def _jumps(path: Sequence[int], steps: Sequence[int], far: np.ndarray) -> list[Oddity]:
    """Where weights go much farther, and much faster, than before and after."""
    at = np.array([steps[i] for i in path])
    legs = far[list(path[:-1]), list(path[1:])]
    rates, found = legs / np.diff(at), []
    for i in range(len(legs)):
        near = [j for j in (i - 1, i + 1) if 0 <= j < len(legs)]
        if len(legs) > 2 and rates[i] > FASTER * rates[near].max() and legs[i] > FARTHER * legs[near].max():
            words = f"the weights jump between steps {at[i]} and {at[i + 1]}, as if another training began there"
            found.append(Oddity(int(at[i + 1]), words))
    return found


def _missing(steps: Sequence[int]) -> list[Oddity]:
    """Steps that the commonest spacing of the series has, where it is kept to before and after."""
    gaps = np.diff(steps).tolist()
    spacing, times = Counter(gaps).most_common(1)[0]
    regular = [i for i, gap in enumerate(gaps) if gap == spacing]
    if times < 3:
        return []
    inside = range(regular[0], regular[-1] + 1)
    gone = [s for i in inside if gaps[i] % spacing == 0 for s in range(steps[i] + spacing, steps[i + 1], spacing)]
    if not gone:
        return []
    words = f"{'step' if len(gone) == 1 else 'steps'} {_few(gone)} would follow from a spacing of {spacing}, and"
    return [Oddity(gone[0], f"{words} {'is' if len(gone) == 1 else 'are'} missing", is_hint=True)]


# words


def _few(items: Sequence[int] | Sequence[str]) -> str:
    """The first items, and how many more there are."""
    more = [f"{len(items) - SHOWN} more"] if len(items) > SHOWN else []
    return listed([*map(str, items[:SHOWN]), *more])


def _named(steps: Sequence[int]) -> str:
    return f"step {steps[0]} holds" if len(steps) == 1 else f"steps {_few(steps)} hold"


def succession(evidence: Evidence) -> Answer | None:
    """Whether the steps of an imported history follow one another."""
    n, found = oddities(evidence.telemetry)
    if not n:
        return None
    wrong = [one.sentence for one in found if not one.is_hint]
    hints = [f"{one.sentence[:1].upper()}{one.sentence[1:]}." for one in found if one.is_hint]
    first = f"{wrong[0][:1].upper()}{wrong[0][1:]}." if wrong else f"Yes: nothing is odd about the {many(n, 'step')}."
    return Answer(
        key="succession",
        question="Do the steps follow one another?",
        sentence=first,
        more=(*(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in wrong[1:]), *hints),
        numbers={"steps compared": float(n), "oddities": float(len(wrong))},
        weight=1.0 if wrong else 0.2,
    )

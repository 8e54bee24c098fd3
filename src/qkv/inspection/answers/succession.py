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

import numpy as np

from qkv.inspection.answers.answer import Answer, Evidence
from qkv.instruments.sketch import SKETCH, WIDTH
from qkv.telemetry import Telemetry
from qkv.words import listed, many, plural

SHORTER = 0.08
"""Share of the path around a step that moving it has to save. Two neighbors of a random walk, swapped, save 0.22."""
SHORTER_AT_END = 0.25, 0.4
"""The same of the first or last step, by one place or to elsewhere: noise that a falling rate averages out saves 0.17
and 0.29 there."""
STRANGE = 1.5
"""How many times as far as the steps around it are apart a step has to be from every other to be another model's."""
FASTER, FARTHER = 30, 3
"""How many times as fast (per step) and as far as before and after weights move in a jump."""
SHOWN = 6
"""Steps and matrices that a sentence names, and sentences at a first glance; the others are counted."""


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
    has_any = any(row.name == SKETCH for row in telemetry.measures())
    kept = {row.address: telemetry.vectors(row.address, SKETCH) for row in telemetry.addresses() if has_any}
    kept = {address: by_step for address, by_step in kept.items() if by_step}
    steps = sorted(set.intersection(*map(set, kept.values()))) if kept else []
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
        other = steps[group[0] if owner is None else owner]
        for step in (steps[i] for i in group if steps[i] != other):
            words = f"steps {other} and {step} hold the same weights"
            fit = f"step {step} holds the weights of step {other}: they are equal, and fit in there"
            found.append(Oddity(step, words if owner is None else fit))
    path.sort()
    strange = _strangers(path, far)
    words = "the weights of step {} are far from those of every other step, as another model's are"
    found += [Oddity(steps[i], words.format(steps[i])) for i in strange]
    path = [i for i in path if i not in strange]
    disorder = _disorder(path, steps, far)
    found += _partly_equal(steps, sketches, groups) + (disorder or _jumps(path, steps, far))
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
    detours = []
    for i in group:
        ends = [j for j in others if j < i][-1:] + [j for j in others if j > i][:1]
        detour = float(far[i, ends].sum()) - (float(far[ends[0], ends[1]]) if len(ends) == 2 else 0.0)
        detours.append((detour, i))
    (best, owner), (second, _), *_ = sorted(detours)
    return owner if best < second / 2 else None


def _partly_equal(
    steps: Sequence[int], sketches: Mapping[str, np.ndarray], whole: Sequence[Sequence[int]]
) -> list[Oddity]:
    """Matrices that come back unchanged after they were others, at steps that are not equal as a whole."""
    group_of = {i: number for number, group in enumerate(whole) for i in group}
    by_steps: dict[str, list[str]] = defaultdict(list)
    first: dict[str, int] = {}
    for address, rows in sketches.items():
        for group in _groups(rows) if rows.shape[1] == WIDTH else []:
            pairs = zip(group, group[1:], strict=False)
            if any(b - a > 1 and group_of[a] != group_of[b] for a, b in pairs):
                at = _few([steps[i] for i in group])
                first[at] = steps[group[0]]
                by_steps[at].append(address)
    return [
        Oddity(first[at], f"{_few(names)} {plural(len(names), 'is', 'are')} the same at steps {at}, not between")
        for at, names in by_steps.items()
    ]


# their order


def _strangers(path: Sequence[int], far: np.ndarray) -> list[int]:
    """Those of a path that are far from all others, compared with how far the steps around them, and around the nearest
    one, are apart; the first and the last cannot be judged."""
    found = []
    for place, one in list(enumerate(path))[1:-1]:
        rest = [*path[:place], *path[place + 1 :]]
        nearest = int(np.argmin(far[one, rest]))
        near = [rest[max(0, at - 2) : at + 2] for at in (place, nearest)]
        around = max(float(far[some[:-1], some[1:]].max()) for some in near)
        if far[one, rest[nearest]] > STRANGE * around:
            found.append(one)
    return found


def _disorder(path: list[int], steps: Sequence[int], far: np.ndarray) -> list[Oddity]:
    """Steps that were swapped or moved: those that make the path of the weights shorter elsewhere, one by one."""
    moved: list[int] = []
    was = path
    while len(path) > 3 and len(moved) < len(far):
        shorter, one, path_then = max(_relocated(path, a, far) for a in range(len(path)))
        if shorter <= 0:
            break
        moved, path = [*moved, one], path_then
    now = dict(zip(was, path, strict=True))  # step by its name -> step whose place its weights are in
    swapped = [a for a, b in now.items() if a < b and now[b] == a]
    words = "steps {} and {} look swapped: the other way round, the weights move less"
    found = [Oddity(steps[a], words.format(steps[a], steps[now[a]])) for a in swapped]
    for one in dict.fromkeys(moved):
        if now[one] == one or one in swapped or now[one] in swapped:
            continue
        place = path.index(one)
        near = [steps[path[i]] for i in (place - 1, place + 1) if 0 <= i < len(path)]
        fits = f"{'between steps' if len(near) == 2 else 'next to step'} {_few(sorted(near))}"
        found.append(Oddity(steps[one], f"the weights of step {steps[one]} belong {fits}, judged by their distances"))
    return found


def _relocated(path: list[int], a: int, far: np.ndarray) -> tuple[float, int, list[int]]:
    """(how much shorter the path is with a step moved to where it costs least, the step, the path then); 0 where
    that is too little to tell.
    """
    one, rest = path[a], path[:a] + path[a + 1 :]
    legs = np.concatenate([[0.0], far[rest[:-1], rest[1:]], [0.0]])
    there = np.concatenate([[0.0], far[one, rest]]) + np.concatenate([far[one, rest], [0.0]])
    here = float(there[a] - legs[a])
    costs = there - legs
    costs[a] = np.inf
    place = int(np.argmin(costs))
    before, is_end = float(there[a] + legs[place]), {a, place} & {0, len(rest)}
    enough = (SHORTER_AT_END[abs(place - a) > 1]) if is_end else SHORTER
    saved = here - float(costs[place])
    return saved if saved > enough * before else 0.0, one, rest[:place] + [one] + rest[place:]


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
    first, last = gaps.index(spacing), len(gaps) - gaps[::-1].index(spacing)
    inside = [i for i in range(first, last) if times > 2 and gaps[i] % spacing == 0]
    gone = [step for i in inside for step in range(steps[i] + spacing, steps[i + 1], spacing)]
    if not gone:
        return []
    which = f"{plural(len(gone), 'step')} {_few(gone)} {plural(len(gone), 'is', 'are')}"
    return [Oddity(gone[0], f"steps come every {spacing:,}, but {which} missing", is_hint=True)]


def _few(items: Sequence[int] | Sequence[str]) -> str:
    """The first items, and how many more there are."""
    more = [f"{len(items) - SHOWN} more"] if len(items) > SHOWN else []
    return listed([*map(str, items[:SHOWN]), *more])


def in_short(found: Sequence[Oddity]) -> list[str]:
    """The first sentences, and how many more there are."""
    more = [f"{many(len(found) - SHOWN, 'more finding')}: qkv verify RUN lists them"] if len(found) > SHOWN else []
    return [*(one.sentence for one in found[:SHOWN]), *more]


def succession(evidence: Evidence) -> Answer | None:
    """Whether the steps of an imported history follow one another."""
    n, found = oddities(evidence.telemetry)
    wrong = sum(not one.is_hint for one in found)
    said = [f"{sentence[:1].upper()}{sentence[1:]}." for sentence in in_short(found)]
    yes = [] if wrong else [f"Yes: nothing is wrong with the order of the {many(n, 'step')}."]
    sentence, *more = yes + said
    return Answer(
        key="succession",
        question="Do the steps follow one another?",
        sentence=sentence,
        more=tuple(more),
        numbers={"steps compared": float(n), "oddities": float(wrong)},
        weight=1.0 if wrong else 0.2,
    )

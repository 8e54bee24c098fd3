"""What happened in the run and when, in order of weight, beside what the same search finds in the random-label
control."""

from collections import Counter

from qkv.inspection.answers.answer import Answer, Evidence
from qkv.inspection.control import described
from qkv.inspection.events import CALLED, Happening, happenings
from qkv.telemetry import NULL_ARM
from qkv.words import listed, many, plural

MOST = 6
"""Sentences; of one kind at most `MOST_OF_A_KIND`."""
MOST_OF_A_KIND = 2


def events(evidence: Evidence) -> Answer | None:
    """The weightiest of what was found and dated; None where nothing was."""
    found = happenings(evidence.telemetry)
    if not found:
        return None
    told, as_well = _told(found), {item.kind for item in happenings(evidence.telemetry, NULL_ARM)}
    first, others = told[0], told[1:]
    return Answer(
        key="events",
        question="What happened, and when?",
        sentence=f"{first.sentence}.",
        more=(*(f"{item.sentence}." for item in others), *_rest(found, told)),
        numbers={
            f"{item.address or item.kind}: {name}": value for item in told for name, value in item.evidence.items()
        },
        address=first.address,
        measure=first.measure,
        null=_control(evidence),
        weight=0.9 * max(item.weight * (0.5 if item.kind in as_well else 1.0) for item in found),
    )


def _told(found: list[Happening]) -> list[Happening]:
    seen: Counter[tuple[str, str]] = Counter()
    told = []
    for item in found:
        seen[item.kind, item.measure] += 1
        if seen[item.kind, item.measure] <= MOST_OF_A_KIND and len(told) < MOST:
            told.append(item)
    return told


def _rest(found: list[Happening], told: list[Happening]) -> tuple[str, ...]:
    left = Counter(item.kind for item in found if item not in told)
    if not left:
        return ()
    others = listed([many(n, *CALLED[kind]) for kind, n in left.items()])
    return (f"There {plural(sum(left.values()), 'is', 'are')} also {others}.",)


def _control(evidence: Evidence) -> str:
    """What the same search finds in the random-label control."""
    steps = evidence.telemetry.last_step(NULL_ARM)
    if not steps:
        return ""
    kinds = Counter(item.kind for item in happenings(evidence.telemetry, NULL_ARM))
    what = listed([many(n, *CALLED[kind]) for kind, n in kinds.items()]) if kinds else "nothing"
    return f"In the {many(steps, 'update')} of {described(evidence.telemetry)}, the same search finds {what}."

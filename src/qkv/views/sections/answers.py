"""The answers at the top of a page: what inspection reads out of the run, as payload, in its order of weight."""

import dataclasses

from qkv.inspection.answers.reading import Answer, read
from qkv.inspection.stored_run import StoredRun
from qkv.telemetry import Telemetry
from qkv.views.report.packed import payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """A named number behind an answer."""

    label: str
    """With its unit."""
    value: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerNote:
    """A question, its answer from this run, and what the answer rests on."""

    key: str
    question: str
    sentence: str
    brief: str = ""
    """The same in a line; empty where `sentence` is one."""
    more: tuple[str, ...] = ()
    null: str = ""
    """What to compare it with, in a sentence."""
    evidence: tuple[Evidence, ...] = ()
    address: str = ""
    """The matrix it is about, if one."""


def answers_of(run: StoredRun, telemetry: Telemetry | None) -> tuple[AnswerNote, ...]:
    """Every question that the run answers; none without telemetry, which all of them rest on."""
    return tuple(note(answer) for answer in read(run, telemetry)) if telemetry else ()


def note(answer: Answer) -> AnswerNote:
    """An answer as payload."""
    numbers = answer.numbers.items()
    return payload(AnswerNote, answer, evidence=tuple(Evidence(label=label, value=value) for label, value in numbers))

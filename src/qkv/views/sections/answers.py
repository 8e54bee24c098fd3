"""The answers at the top of a page, as payload."""

import dataclasses

from qkv.inspection.answers.answer import Answer
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


def note(answer: Answer) -> AnswerNote:
    """An answer as payload."""
    numbers = answer.numbers.items()
    return payload(AnswerNote, answer, evidence=tuple(Evidence(label=label, value=value) for label, value in numbers))

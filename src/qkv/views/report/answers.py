"""The answers at the top of a page: what inspection reads out of the run, as payload, in its order of weight."""

from qkv.inspection.answers.reading import Answer, read
from qkv.inspection.stored_run import StoredRun
from qkv.telemetry import Telemetry
from qkv.views.payloads import AnswerNote, Evidence

__all__ = ["answers_of"]


def answers_of(run: StoredRun, telemetry: Telemetry | None) -> tuple[AnswerNote, ...]:
    """Every question that the run answers; none without telemetry, which all of them rest on."""
    return tuple(_note(answer) for answer in read(run, telemetry)) if telemetry else ()


def _note(answer: Answer) -> AnswerNote:
    return AnswerNote(
        key=answer.key,
        question=answer.question,
        sentence=answer.sentence,
        brief=answer.brief,
        more=answer.more,
        null=answer.null,
        evidence=tuple(Evidence(label=label, value=value) for label, value in answer.numbers.items()),
        address=answer.address,
        measure=answer.measure,
    )

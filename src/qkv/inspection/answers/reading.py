"""The reading of a run: its questions answered from its own numbers, the most telling answer first.

Works from the run folder alone, also while it trains: telemetry, weights, tokenizer and configuration are read, no
model is built. Each sentence holds this run's own numbers and, where a measure moves on any labels, what to compare
it with: the random-label control at an equal step. A question that the folder cannot answer is left out. Each
answer says how much it weighs: trouble most; then what is far from that, or from what one hopes; least what is as
expected.
"""

from collections.abc import Callable
from pathlib import Path

from qkv.inspection.answers.agreement import agreement
from qkv.inspection.answers.answer import Answer, Evidence
from qkv.inspection.answers.events import events
from qkv.inspection.answers.heads import heads
from qkv.inspection.answers.imported import imported
from qkv.inspection.answers.ladders import ladders
from qkv.inspection.answers.ledger import ledger
from qkv.inspection.answers.loss import loss, over_fitting, samples, trouble, watch
from qkv.inspection.answers.matrices import frozen, matrices, order
from qkv.inspection.answers.rows import embeddings
from qkv.inspection.answers.succession import succession
from qkv.inspection.stored_run import StoredRun
from qkv.telemetry import Telemetry

__all__ = ["QUESTIONS", "Answer", "read"]

QUESTIONS: tuple[Callable[[Evidence], Answer | None], ...] = (
    trouble,
    embeddings,
    matrices,
    ledger,
    heads,
    events,
    samples,
    loss,
    over_fitting,
    order,
    frozen,
    agreement,
    ladders,
    watch,
)
"""Of equal weight, in this order. A new question is one function and one place here."""

WITHOUT_TRAINING: tuple[Callable[[Evidence], Answer | None], ...] = (imported,)
"""What is asked of a model that was imported and has no history."""

OF_A_HISTORY = (succession, embeddings, matrices, heads, order, frozen, imported)
"""Answers for an imported training history: those that need no losses, gradients or training text."""


def read(run: str | Path | StoredRun, telemetry: Telemetry | None = None) -> list[Answer]:
    """Every answer that the run folder has, most important first; its reader and `telemetry` if they are there already.

    Raises RunFolderError where there is no telemetry or it cannot be read.
    """
    if telemetry is not None:
        return _answers(Evidence(run, telemetry))
    run = StoredRun.of(run)
    with Telemetry(run.folder.telemetry) as opened:
        return _answers(Evidence(run, opened))


def _answers(evidence: Evidence) -> list[Answer]:
    questions = WITHOUT_TRAINING if evidence.run.settings.get("imported") else QUESTIONS
    questions = OF_A_HISTORY if evidence.run.settings.get("history") else questions
    answers = [answer for ask in questions if (answer := ask(evidence)) is not None]
    return sorted(answers, key=lambda answer: -answer.weight)

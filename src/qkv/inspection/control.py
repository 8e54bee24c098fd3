"""The random-label control of a run, in words: what it is, at which step it is compared, and what it learned itself.

It trains the same model from the same start on the same inputs, for the first few percent of the steps. Labels are
drawn at random and keep their frequencies, so inputs say nothing about labels, but those frequencies can be learned:
what the control moves is not what a model moves that learns nothing.
"""

import math

from qkv.inspection.answers.answer import Evidence
from qkv.tasks import Task
from qkv.telemetry import NULL_ARM, Telemetry
from qkv.words import number, percent

__all__ = ["CONTROL", "described", "learned", "when"]

CONTROL = "random-label control"
"""What it is called wherever a person reads of it."""


def described(task: Task) -> str:
    """Its name with what its labels are, for the first mention."""
    return f"the {CONTROL} ({task.control})"


def when(step: int, telemetry: Telemetry) -> str:
    """`step 32 of 727 (4.4 %)`: a step of the control, and how early in the run that is."""
    last = telemetry.last_step()
    return f"step {step:,} of {last:,} ({percent(step / last)})" if step < last else f"step {step:,}"


def learned(evidence: Evidence) -> str:
    """How far the control's own training loss fell, beside what frequencies alone give; empty where it did not."""
    losses = evidence.telemetry.steps(NULL_ARM).loss
    if len(losses) < 2 or not losses[-1] < losses[0]:
        return ""
    unigram = (evidence.telemetry.fact("baselines") or {}).get("unigram")
    known = isinstance(unigram, int | float) and math.isfinite(unigram)
    beside = f" (unigram {number(unigram)})" if known else ""
    label = "token" if evidence.task.target == "token" else "class"
    return (
        f"The control's own loss fell from {number(losses[0])} to {number(losses[-1])} nats{beside}: it learns how "
        f"frequent each {label} is."
    )

"""The random-label control of a run, in words: what it is, at which step it is compared, and what it can learn.

It trains the same model from the same start on the same inputs, for a share of the steps. Its labels are uniform draws,
afresh at every step, so all that it can learn is to guess evenly. Runs of earlier versions drew labels from places of
the training text: their controls learned how frequent each label is, and are described as that.
"""

import math

from qkv.inspection.answers.answer import Evidence
from qkv.telemetry import NULL_ARM, Telemetry
from qkv.words import number, percent

CONTROL = "random-label control"
"""What it is called wherever a person reads of it."""
UNIFORM = "labels drawn uniformly at every step"
"""What its labels are."""


def labels(telemetry: Telemetry | None) -> str:
    """What its labels are, in words, for the control that a run was recorded with."""
    made = telemetry.fact("null", {}) if telemetry is not None else {}
    return UNIFORM if made.get("labels") == "uniform" else "labels shuffled, frequencies kept"


def described(telemetry: Telemetry) -> str:
    """Its name with what its labels are, for the first mention."""
    return f"the {CONTROL} ({labels(telemetry)})"


def when(step: int, telemetry: Telemetry) -> str:
    """`step 32 of 727 (4.4%)`: a step of the control, and how early in the run that is."""
    last = telemetry.last_step()
    return f"step {step:,} of {last:,} ({percent(step / last)})" if step < last else f"step {step:,}"


def learned(evidence: Evidence) -> str:
    """What the control can learn; of an earlier version's, how far its loss fell, next to what frequencies give."""
    if labels(evidence.telemetry) == UNIFORM:
        even = f" ({number(math.log(evidence.n_answers), 3)} nats)" if evidence.n_answers else ""
        return (
            f"The control can only learn to guess evenly{even}. All other movement in it is due to the optimizer,"
            " weight decay and noise."
        )
    losses = evidence.telemetry.steps(NULL_ARM).loss
    if len(losses) < 2 or not losses[-1] < losses[0]:
        return ""
    unigram = (evidence.telemetry.fact("baselines") or {}).get("unigram")
    known = isinstance(unigram, int | float) and math.isfinite(unigram)
    beside = f" (unigram {number(unigram, 3)})" if known else ""
    label = "token" if evidence.run.task.target == "token" else "class"
    return (
        f"The control's own loss fell from {number(losses[0], 3)} to {number(losses[-1], 3)} nats{beside}: it "
        f"learns how frequent each {label} is."
    )

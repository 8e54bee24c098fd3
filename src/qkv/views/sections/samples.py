"""What the model wrote, step by step of its training."""

import dataclasses

from qkv.inspection.answers.loss import NOTHING, followed
from qkv.telemetry import RUN_ARM, Telemetry

LONGEST_SAMPLE = 600


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleNote:
    """What the model wrote at a step."""

    step: int
    prompt: str
    text: str
    continues: bool = True
    """Whether `text` goes on after `prompt`; else it stands by itself: the prompt with its gaps filled, a label."""
    given: str = ""
    """What a prompt that is not continued is called."""


def samples(
    telemetry: Telemetry, *, continues: bool, given: str = "the text", whole: bool = False
) -> tuple[SampleNote, ...]:
    """What the model wrote, in order of step, for the prompt that was used most; unless `whole`, as a page shows it."""
    shown = str if whole else _cut
    return tuple(
        SampleNote(step=s.step, prompt=s.prompt, text=shown(s.text), continues=continues, given=given)
        for s in followed(telemetry.samples(RUN_ARM))
    )


def _cut(text: str) -> str:
    """A long one cut with an ellipsis, an empty one called so."""
    if not text.strip():
        return f"({NOTHING})"
    return text if len(text) <= LONGEST_SAMPLE else text[:LONGEST_SAMPLE] + " …"

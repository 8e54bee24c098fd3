"""The answers at the top of a page: what inspection reads out of the run, as payload."""

from collections.abc import Sequence
from pathlib import Path

from qkv.telemetry import Telemetry
from qkv.views.payloads import AnswerNote, SampleNote

__all__ = ["answers_of"]


def answers_of(folder: Path, telemetry: Telemetry | None, samples: Sequence[SampleNote]) -> tuple[AnswerNote, ...]:
    return ()

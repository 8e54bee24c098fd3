"""Progress on stderr: a line that moves on a terminal, a plain line every few seconds anywhere else.

It is drawn from inside the callback, never from a thread of its own, a few times a second at most: a training on every
core should not pay for being looked at.
"""

import contextlib
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from qkv.commands.printing.screen import shown, terminal
from qkv.words import clock, short

if TYPE_CHECKING:
    from qkv.training.record import StepRecord

TERMINAL_SECONDS = 0.25
PLAIN_SECONDS = 10.0
BAR = 24


class Display:
    """Draws what a training tells: call it with each `StepRecord`, `EvaluationRecord` and `Event`, or `say` a sentence.

    A context manager: leaving it ends the line.
    """

    def __init__(self, stream: TextIO, *, live: bool) -> None:
        self._stream = stream
        self._live = live
        self._every = TERMINAL_SECONDS if live else PLAIN_SECONDS
        self._drawn = float("-inf")
        self._began: tuple[float, int, int] | None = None  # clock, step and tokens at the first record seen
        self._line = ""
        self._step_seen = 0
        self._n_losses = 0
        self._loss = 0.0
        self._val: float | None = None
        self._last: tuple[StepRecord, float] | None = None
        """The last step and its clock, until its own validation is told."""

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *_: object) -> None:
        self._draw_last()
        self._line = ""
        self._write("\r\x1b[K" if self._live else "")

    def say(self, sentence: str) -> None:
        """One sentence on a line of its own, above the moving one."""
        self._draw_last()
        sentence = shown(sentence)
        self._write(f"\r\x1b[K{sentence}\n{self._line}" if self._live else f"{sentence}\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more: the training goes on all the same
            self._stream.write(text)
            self._stream.flush()

    def __call__(self, told: Any) -> None:
        """Take what a training tells; what is neither a step nor an evaluation is said if it holds a sentence."""
        if isinstance(told, str):
            self.say(told)
        elif hasattr(told, "sentence"):
            self.say(f"step {told.step:,}: {told.sentence}")
        elif hasattr(told, "is_best"):
            self._val = told.loss
            self._draw_last()
        elif hasattr(told, "lr"):
            self._step(told)

    def _step(self, record: "StepRecord") -> None:
        now = time.monotonic()
        if record.step < self._step_seen:  # another training has begun
            self._draw_last()
            self._began = self._val = None
            self._n_losses = 0
        if self._began is None:
            self._began = (now, record.step, record.tokens)
        self._step_seen = record.step
        self._n_losses += 1
        self._loss += max(0.05, 1 / self._n_losses) * (record.loss - self._loss)  # the plain mean of the first 20
        if record.step == record.steps:
            self._last = record, now
            if not self._live:
                return
        elif now - self._drawn < self._every:
            return
        self._draw(record, now)

    def _draw_last(self) -> None:
        """The line of the last step again, or late: what was validated after it stands there then."""
        if self._last is not None:
            last, self._last = self._last, None
            self._draw(*last)

    def _draw(self, record: "StepRecord", now: float) -> None:
        self._drawn = now
        if not self._live:
            self.say(self._words(record, now))
            return
        done = record.step / record.steps if record.steps else 0.0
        full = round(BAR * done)
        line = f"{'━' * full}{'╌' * (BAR - full)} {self._words(record, now)}"
        self._line = line[: shutil.get_terminal_size().columns - 1]
        self._write(f"\r\x1b[K{self._line}")

    def _words(self, record: "StepRecord", now: float) -> str:
        """E.g. `step 300/1,200  loss 2.013  validation 1.98  41k tokens/s  23 s left`."""
        assert self._began is not None
        began, first, tokens = self._began
        of = f"/{record.steps:,}" if record.steps else ""
        parts = [f"step {record.step:,}{of}", f"loss {self._loss:.3f}"]
        if self._val is not None:
            parts.append(f"validation {self._val:.3f}")
        if now > began and record.step > first:
            parts.append(f"{short((record.tokens - tokens) / (now - began))} tokens/s")
            if record.steps:
                left = (record.steps - record.step) * (now - began) / (record.step - first)
                if record.seconds_left is not None:  # the mean pace may promise more steps than the clock allows
                    left = min(left, record.seconds_left)
                parts.append(f"{clock(left)} left")
        return "  ".join(parts)


def display() -> Display:
    """A display on stderr."""
    return Display(terminal(sys.stderr), live=sys.stderr.isatty())

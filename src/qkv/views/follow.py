"""Following a run that trains, by reading its folder: no message passes between a page and a trainer.

A pulse is the little that tells whether there is more to see; it costs some milliseconds. Rooms are read again no more
often than their cost allows, so that a page that watches takes no more than two hundredths of a core from the training.
"""

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from anyio import to_thread

from qkv.errors import QkvError
from qkv.folder import RunFolder
from qkv.recipe import snapshot_steps
from qkv.telemetry import Telemetry

__all__ = ["LOOK_EVERY", "Follower", "Patient", "Pulse", "pulse_of"]

LOOK_EVERY = 0.5
"""Seconds between two looks at the folder."""
QUIET = 15.0
"""Seconds after which a silent connection is told that it still stands."""

P = TypeVar("P")

SHARE = 0.02
"""Of one core, that reading a room again may take while a run trains."""


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """How far a run is."""

    step: int
    """Updates made and written down."""
    loss: float | None
    """Of that update's batch, nats per token."""
    recorded: int
    """The last step at which matrices were measured; -1 before the first."""
    evaluations: int
    """How many validation losses there are."""
    snapshot: int
    """The last step whose weights were kept; -1 before the first."""
    finished: bool


def pulse_of(folder: Path) -> Pulse:
    """The pulse of a run folder, whatever of it is there yet."""
    step, loss, recorded, evaluations = 0, None, -1, 0
    try:
        with Telemetry(folder / "telemetry.sqlite") as telemetry:
            step, loss = telemetry.last_loss()
            evaluations = telemetry.n_evaluations()
            recorded = telemetry.last_recorded()
    except QkvError:  # not written yet, or being sealed at this moment
        pass
    return Pulse(
        step=step,
        loss=loss,
        recorded=recorded,
        evaluations=evaluations,
        snapshot=max(snapshot_steps(folder), default=-1),
        finished=RunFolder(folder).is_finished,
    )


class Patient:
    """The last answer of a costly question, asked anew only when `SHARE` of the time that passed pays for it.

    `cost` is what the asking takes from a training: processor seconds of this process, not the seconds that it waits
    for a core that the training has.
    """

    def __init__(
        self,
        ask: Callable[[], Any],
        clock: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.process_time,
    ) -> None:
        self._ask, self._clock, self._cost = ask, clock, cost
        self.is_fresh = False
        """Whether the last call asked anew."""
        self._answer: Any = None
        self._not_before = float("-inf")

    def __call__(self, *, at_once: bool = False) -> Any:
        """The answer, at most as old as its cost asks; `at_once` where the run is finished and nobody is disturbed."""
        self.is_fresh = at_once or self._clock() >= self._not_before
        if self.is_fresh:
            spent = self._cost()
            self._answer = self._ask()
            self._not_before = self._clock() + (self._cost() - spent) / SHARE
        return self._answer


class Follower(Generic[P]):
    """Looks at a folder again and again, and tells whoever listens when what it saw has changed.

    `look(folder)` gives what is told, a dataclass of plain values.
    """

    def __init__(self, folder: Path, look: Callable[[Path], P]) -> None:
        self.folder, self._look = folder, look
        self.pulse: P = look(folder)
        self.closing = False

    async def watch(self) -> None:
        """Look at the folder for as long as the server runs."""
        while not self.closing:
            self.pulse = await to_thread.run_sync(self._look, self.folder)
            await asyncio.sleep(LOOK_EVERY)

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events: the pulse now, and each time it has changed."""
        told, silent = None, 0.0
        while not self.closing:
            if self.pulse != told:
                told, silent = self.pulse, 0.0
                yield f"event: pulse\ndata: {json.dumps(dataclasses.asdict(told))}\n\n"  # type: ignore[call-overload]
            elif silent >= QUIET:
                silent = 0.0
                yield ": still here\n\n"
            await asyncio.sleep(LOOK_EVERY / 2)
            silent += LOOK_EVERY / 2

"""Following a run that trains, by reading its folder: no message passes between a page and a trainer.

A pulse is the little that tells whether there is more to see; it costs a millisecond. Sections are read again no more
often than their cost allows, so that a page that watches takes less than a hundredth of a core from the
training, the browser's part by the same rule included (`static/live.js`). A training whose threads wait for each other
loses a third more than what is taken from one.
"""

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from anyio import to_thread

from qkv.errors import QkvError, UserError
from qkv.folder.run_folder import RunFolder
from qkv.jsontypes import JsonObject
from qkv.telemetry import Telemetry
from qkv.views.sections.training_in_page import PlaySection
from qkv.views.sharing import Shared

LOOK_EVERY = 1.5
"""Seconds between two looks at the folder."""
EACH = 0.03
"""Seconds between two looks for each who listens: a crowd is told less often, at the same cost to a training."""
QUIET = 15.0
"""Seconds after which a silent connection is told that it still stands."""

P = TypeVar("P")
R = TypeVar("R")

SHARE = 0.002
"""Of one core, that reading sections again may take while a run trains."""
CREDIT = 0.1
"""Processor seconds that may be taken ahead: a page that was just opened follows at once."""


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """How far a run is."""

    edition: str
    """Of the run in the folder, by what it is opened with (`edition_of`); another one where it was trained anew."""
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


def edition_of(folder: Path) -> str:
    """By what a run is told from another that was put into its folder: when its configuration and its tokenizer were
    written; empty where there is none.
    """
    times = []
    for name in ("config.toml", "tokenizer.json", "tokenizer.source.json"):
        with contextlib.suppress(OSError):  # not there, or not yet
            times.append(f"{name} {(folder / name).stat().st_mtime_ns}")
    return ", ".join(times) if times and times[0].startswith("config.toml") else ""


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
        edition=edition_of(folder),
        step=step,
        loss=loss,
        recorded=recorded,
        evaluations=evaluations,
        snapshot=max(RunFolder(folder).weights(), default=-1),
        finished=RunFolder(folder).is_finished,
    )


class Purse:
    """What reading again may cost a training: `SHARE` of the time, and `CREDIT` ahead of it.

    `cost` is what is taken from a training: processor seconds of the thread that reads, not those that it waits for a
    core that the training has, nor those of whatever else this process does.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cost: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._cost = clock, cost
        self._debt, self._since = 0.0, clock()

    @property
    def _owed(self) -> float:
        return max(0.0, self._debt - SHARE * (self._clock() - self._since))

    @property
    def wait(self) -> float:
        """Seconds until it is open; 0 where it is."""
        return max(0.0, (self._owed - CREDIT) / SHARE)

    def pay(self, read: Callable[[], R]) -> R:
        """What `read()` gives, its cost owed from now on."""
        spent = self._cost()
        try:
            return read()
        finally:
            self._debt, self._since = self._owed + self._cost() - spent, self._clock()


class Answering(Protocol):
    """Who answers what a page asks."""

    def answer(self, name: str, given: object) -> object: ...


class Follower(Generic[P]):
    """What a server shows of a folder, and what can be asked of it. It looks at the folder again and again, and tells
    all listeners when something has changed.

    `look(folder)` gives what they are told, a dataclass of plain values.
    """

    entry = "live.js"
    """The module in `static/` that the page begins with."""

    def __init__(self, folder: Path, look: Callable[[Path], P]) -> None:
        self.folder, self._look = folder, look
        self.pulse: P = look(folder)
        self.closing = False
        self.answers = Shared()
        """Who computes what is asked."""
        self._news = asyncio.Event()
        self._n_listening = 0
        self._said: tuple[P | None, str] = None, ""

    @property
    def desk(self) -> Answering | None:
        """Who answers what the page asks; None where there is nothing to ask."""
        return None

    def as_of(self, path: str) -> Hashable:
        """By what an answer to `path` is told from a later one."""
        return self.pulse  # type: ignore[return-value]

    def spare(self) -> None:
        """Let this thread compute on less than all cores while something trains."""

    def first(self) -> JsonObject:
        """What the page can be opened with before its payload; nothing where that comes at once."""
        return {}

    def payload(self) -> object:
        """All that the page shows, as it is now."""
        raise NotImplementedError

    def sections(self, names: Iterable[str]) -> JsonObject:
        """Some parts of the payload. Raises UserError where it comes whole."""
        raise UserError("this page has no sections to ask for: it comes whole, as its payload")

    def play(self) -> PlaySection | None:
        """What the playground can go on from; None where there is no one run."""
        return None

    async def watch(self) -> None:
        """Look at the folder for as long as the server runs."""
        while not self.closing:
            seen = await to_thread.run_sync(self._look, self.folder)
            if seen != self.pulse:
                self.pulse = seen
                self._tell()
            await asyncio.sleep(max(LOOK_EVERY, EACH * self._n_listening))

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events: the pulse now, and each time it has changed."""
        told = None
        self._n_listening += 1
        try:
            while not self.closing:
                news, pulse = self._news, self.pulse
                if pulse != told:
                    if pulse is not self._said[0]:
                        self._said = pulse, json.dumps(dataclasses.asdict(pulse))  # type: ignore[call-overload]
                    told = pulse
                    yield f"event: pulse\ndata: {self._said[1]}\n\n"
                    continue
                try:
                    await asyncio.wait_for(news.wait(), QUIET)
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self._n_listening -= 1

    def end(self) -> None:
        """Let those who listen go; in the server's own loop."""
        self.closing = True
        self.answers.end()
        self._tell()

    def _tell(self) -> None:
        """Wake everybody who waits for news."""
        news, self._news = self._news, asyncio.Event()
        news.set()

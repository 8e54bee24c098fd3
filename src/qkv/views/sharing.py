"""Answers that take a while: computed once for all who ask the same at the same time or soon after, a few at a time,
each asker's address in turn.

What nobody waits for any more is not begun, or ends at its next `still_wanted`. The threads are daemons: a server that
ends does not wait for them.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

THREADS = 3
"""Answers that are computed at the same time: one of them may be long, and a short one need not wait for it."""
MOST_WAITING = 32
"""Different answers that one address may wait for."""
KEPT_SECONDS = 10.0
"""For which the last answer of a kind is given again to who asks the same."""

T = TypeVar("T")


class Busy(Exception):
    """Too much is being waited for, or the server ends."""


class _Unwanted(BaseException):
    """Ends a computation that nobody waits for; no handler of errors takes it for one."""


@dataclass(eq=False)
class _Job(Generic[T]):
    key: Hashable
    work: Callable[[], T]
    done: "asyncio.Future[T]"
    n_waiting: int = 0
    is_dropped: bool = False


_here = threading.local()


def still_wanted() -> None:
    """To be called now and then by what computes an answer: ends it where nobody waits for it any more."""
    job: _Job[object] | None = getattr(_here, "job", None)
    if job is not None and job.is_dropped:
        raise _Unwanted


class Shared:
    """Computes answers; to be used from one event loop."""

    def __init__(self) -> None:
        self._jobs: dict[Hashable, _Job] = {}
        self._waiting: dict[str, deque[_Job]] = {}
        self._begun: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._n_threads = self._n_busy = 0
        self._has_ended = False
        self._kept: dict[Hashable, tuple[_Job, float]] = {}

    async def get(
        self, key: Hashable, who: str, work: Callable[[], T], left: "asyncio.Future[None]", kind: Hashable = None
    ) -> T:
        """What `work()` gives, in a thread; that of an earlier asker of the same `key` who still waits, and of a `kind`
        the last answer for as long as it is kept.

        `who` is the asker's address; `left` is done when the asker has left. Raises Busy, and what `work` raises.
        """
        last, until = self._kept.get(kind, (None, 0.0))
        if last and last.key == key and time.monotonic() < until and not self._has_ended:
            return last.done.result()
        job = self._jobs.get(key) or self._enter(key, who, work)
        job.n_waiting += 1
        try:
            await asyncio.wait({job.done, left}, return_when=asyncio.FIRST_COMPLETED)
            if not job.done.done():
                raise Busy
            answer = await job.done
            if kind is not None:
                self._kept[kind] = job, time.monotonic() + KEPT_SECONDS
            return answer
        finally:
            job.n_waiting -= 1
            if not job.n_waiting and not job.done.done():
                self._drop(job)

    def end(self) -> None:
        """Let everybody go who waits."""
        self._has_ended = True
        for job in list(self._jobs.values()):
            self._drop(job)

    def _enter(self, key: Hashable, who: str, work: Callable[[], T]) -> _Job[T]:
        line = self._waiting.setdefault(who, deque())
        if self._has_ended or len(line) >= MOST_WAITING:
            raise Busy
        job = _Job(key, work, asyncio.get_running_loop().create_future())
        self._jobs[key] = job
        line.append(job)
        self._begin()
        return job

    def _drop(self, job: _Job) -> None:
        job.is_dropped = True
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]
        for line in self._waiting.values():
            if job in line:
                line.remove(job)
        if not job.done.done():
            job.done.set_exception(Busy())
            job.done.exception()  # it may be that nobody asks

    def _begin(self) -> None:
        """Give the threads what waits, the addresses in turn."""
        while self._waiting and self._n_busy < THREADS:
            who, line = next(iter(self._waiting.items()))
            del self._waiting[who]
            job = line.popleft() if line else None
            if line:
                self._waiting[who] = line  # behind all others
            if job is None or job.is_dropped:
                continue
            self._n_busy += 1
            if self._n_threads < self._n_busy:
                self._n_threads += 1
                threading.Thread(target=self._serve, name="answers", daemon=True).start()
            self._begun.put(job)

    def _serve(self) -> None:
        while True:
            job = _here.job = self._begun.get()
            answer, error = None, None
            try:
                answer = job.work()
            except BaseException as raised:  # noqa: BLE001 - given to who asked
                error = raised
            with contextlib.suppress(RuntimeError):  # the server has ended
                job.done.get_loop().call_soon_threadsafe(self._finish, job, answer, error)

    def _finish(self, job: _Job[T], answer: T, error: BaseException | None) -> None:
        self._n_busy -= 1
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]
        if not job.done.done():
            job.done.set_result(answer) if error is None else job.done.set_exception(error)
        self._begin()

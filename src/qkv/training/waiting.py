"""How the threads of an operation wait for each other: spinning while each has a core, asleep while cores are shared.

A thread that spins (checks again and again whether the others are done) continues at once, which makes small operations
several times faster on a quiet machine. On a busy machine it uses up the time that the thread it waits for needs. So
while a training runs, `watching_cores` measures how long this process's threads wait for a core, and switches between
the two. No computed number depends on the choice.

GNU's OpenMP, which torch uses on Linux, reads its waiting policy only once, when it is loaded. But while a process has
more OpenMP threads than there are cores, it lets each thread sleep after a hundred checks. `_Sleepers` adds such
threads; they do no work. Nothing is done with a different OpenMP, with a single thread, or if OMP_WAIT_POLICY is set.
"""

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkv import native

SHARED = 0.25
"""Threads wait asleep from this value on: the seconds per second that all threads together wait for a core. Next to
busy programs it is 0.5 or more, on a quiet machine below 0.1."""
FREE = 0.1
"""Threads spin again at or below this value."""
FIRST, EVERY = 0.1, 0.5
"""Seconds between two measurements: during the first second, and later."""
SOONEST, LATEST = 2.0, 60.0
"""Seconds before spinning is tried again: the first time, and at most (each failed attempt doubles the wait)."""
MOST_SLEEPERS = 64
"""The most threads that are added; nothing is done where more would be needed."""


@contextlib.contextmanager
def watching_cores(threads: int) -> Iterator[None]:
    """Inside, let the threads of an operation spin or sleep according to how busy the machine is.

    threads: how many threads an operation uses.
    """
    watch = _Watch.of(threads)
    if watch is None:
        yield
        return
    watch.start()
    try:
        yield
    finally:
        watch.end()


class _Watch:
    """A thread that measures how long the threads of its process wait for a core."""

    def __init__(self, sleepers: "_Sleepers", delays: "_Delays") -> None:
        self._sleepers, self._delays = sleepers, delays
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cores", daemon=True)

    @classmethod
    def of(cls, threads: int) -> "_Watch | None":
        """None if the policy cannot be changed or the user has chosen it."""
        if threads < 2 or "OMP_WAIT_POLICY" in os.environ or not hasattr(os, "sched_getaffinity"):
            return None
        count = len(os.sched_getaffinity(0)) - threads + 2
        library, delays = native.openmp(), _Delays()
        if library is None or not delays.known or count > MOST_SLEEPERS:
            return None
        return cls(_Sleepers(library, max(2, count)), delays)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._end.set()
        self._thread.join()
        self._sleepers.leave()

    def _run(self) -> None:
        policy, began = _Policy(), time.monotonic()
        self._delays.share()
        while not self._end.wait(FIRST if time.monotonic() - began < 10 * FIRST else EVERY):
            asleep = policy.after(self._delays.share(), time.monotonic())
            if asleep != self._sleepers.there:
                self._sleepers.come() if asleep else self._sleepers.leave()


class _Policy:
    """Whether threads wait asleep, decided after each measurement."""

    def __init__(self) -> None:
        self.asleep = False
        self._patience = SOONEST
        self._since = -LATEST
        """When it last changed."""

    def after(self, share: float, now: float) -> bool:
        """share: seconds per second that threads waited for a core since the last measurement; now: in seconds."""
        if not self.asleep and share >= SHARED:
            soon = now - self._since < LATEST / 2
            self._patience = min(2 * self._patience, LATEST) if soon else SOONEST
            self.asleep, self._since = True, now
        elif self.asleep and share <= FREE and now - self._since >= self._patience:
            self.asleep, self._since = False, now
        return self.asleep


class _Delays:
    """How long threads of this process were ready to run and had no core, as counted by Linux."""

    def __init__(self) -> None:
        self._before, self._at = self._read(), time.monotonic()

    @property
    def known(self) -> bool:
        """Whether this system counts it."""
        return bool(self._before)

    def share(self) -> float:
        """Seconds per second, all threads together, since the last call."""
        delays, now = self._read(), time.monotonic()
        waited = sum(max(0, ns - self._before[thread]) for thread, ns in delays.items() if thread in self._before)
        seconds, self._before, self._at = now - self._at, delays, now
        return waited / 1e9 / max(seconds, 1e-3)

    @staticmethod
    def _read() -> dict[str, int]:
        """Nanoseconds for each thread."""
        found = {}
        with contextlib.suppress(OSError):
            for thread in os.listdir("/proc/self/task"):
                with contextlib.suppress(OSError, ValueError):  # it has just ended, or nothing is counted
                    found[thread] = int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1])
        return found


def slowdown() -> float:
    """How many times as long the work of this thread has taken as it would alone on the machine: its time running and
    waiting for a core, over its time running; 1 where the system does not count them.
    """
    with contextlib.suppress(OSError, ValueError):
        ran, waited = map(int, Path("/proc/thread-self/schedstat").read_text().split()[:2])
        return 1 + waited / max(1, ran)
    return 1.0


class _Sleepers:
    """More OpenMP threads than cores; they do no work."""

    def __init__(self, library: Path, count: int) -> None:
        self._parallel: Any = ctypes.CDLL(str(library)).GOMP_parallel
        self._nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # free(NULL) does nothing
        self._count = count
        self._thread: threading.Thread | None = None
        self._leave = threading.Event()

    @property
    def there(self) -> bool:
        """Whether they exist now."""
        return self._thread is not None

    def come(self) -> None:
        """Start them: they belong to a thread that keeps them waiting for work."""
        came, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._stay, args=(came, self._leave), name="sleepers", daemon=True)
        self._thread.start()
        came.wait()

    def leave(self) -> None:
        """End that thread, and them with it."""
        if self._thread is not None:
            self._leave.set()
            self._thread.join()
            self._thread = None

    def _stay(self, came: threading.Event, leave: threading.Event) -> None:
        self._parallel(self._nothing, None, ctypes.c_uint(self._count), ctypes.c_uint(0))
        came.set()
        leave.wait()

"""How the threads of an operation wait for one another: awake while there is a core for each of them, asleep otherwise.

A thread that looks again and again whether the others are done ("spins") goes on the moment they are, which makes small
operations several times as fast on a quiet machine. Where other programs want the same cores, its looking takes the
time that the thread it waits for would need. So `watching_cores` measures, while a training runs, how long this
process's threads are kept from a core, and changes between the two. Nothing that is computed depends on it.

GNU's OpenMP, which torch uses on Linux, reads its own policy once, when it is loaded. But it lets every thread sleep
after a hundred looks as long as a process has more of its threads than there are cores. `_Sleepers` are such threads:
they do nothing but be there. With another OpenMP, or one thread, or where OMP_WAIT_POLICY says what to do, nothing here
does anything.
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

__all__ = ["watching_cores"]

SHARED = 0.25
"""Seconds that threads are kept from a core, all of them together, in a second: from here on they wait asleep. Beside
busy programs it is 0.5 and more, on a quiet machine below 0.1."""
FREE = 0.1
"""Up to here they wait awake again."""
FIRST, EVERY = 0.1, 0.5
"""Seconds between two measurements: at first, and later."""
SOONEST, LATEST = 2.0, 60.0
"""Seconds after which waiting awake is tried again: at first, and where that was soon given up each time."""
MOST_SLEEPERS = 64
"""On a machine with more cores than this to spare nothing is done."""


@contextlib.contextmanager
def watching_cores(threads: int) -> Iterator[None]:
    """Let operations of so many threads wait inside as the machine's other work advises."""
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
    """A thread that measures how long the others of its process are kept from a core."""

    def __init__(self, sleepers: "_Sleepers", delays: "_Delays") -> None:
        self._sleepers, self._delays = sleepers, delays
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cores", daemon=True)

    @classmethod
    def of(cls, threads: int) -> "_Watch | None":
        """None where waiting cannot be changed, or is somebody else's choice."""
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
    """Whether to wait asleep, from one measurement to the next."""

    def __init__(self) -> None:
        self.asleep = False
        self._patience = SOONEST
        self._since = -LATEST
        """When it last changed."""

    def after(self, share: float, now: float) -> bool:
        """`share` is of the time since the measurement before, `now` in seconds."""
        if not self.asleep and share >= SHARED:
            soon = now - self._since < LATEST / 2
            self._patience = min(2 * self._patience, LATEST) if soon else SOONEST
            self.asleep, self._since = True, now
        elif self.asleep and share <= FREE and now - self._since >= self._patience:
            self.asleep, self._since = False, now
        return self.asleep


class _Delays:
    """How long threads of this process could have run and had no core, as the system counts it."""

    def __init__(self) -> None:
        self._before, self._at = self._read(), time.monotonic()

    @property
    def known(self) -> bool:
        """Whether the system counts it."""
        return bool(self._before)

    def share(self) -> float:
        """Seconds in a second, of all threads together, since it was last asked."""
        delays, now = self._read(), time.monotonic()
        waited = sum(max(0, ns - self._before[thread]) for thread, ns in delays.items() if thread in self._before)
        seconds, self._before, self._at = now - self._at, delays, now
        return waited / 1e9 / max(seconds, 1e-3)

    @staticmethod
    def _read() -> dict[str, int]:
        """Nanoseconds by thread."""
        found = {}
        with contextlib.suppress(OSError):
            for thread in os.listdir("/proc/self/task"):
                with contextlib.suppress(OSError, ValueError):  # it has just ended, or nothing is counted
                    found[thread] = int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1])
        return found


class _Sleepers:
    """Threads of OpenMP beyond the number of cores, which do nothing."""

    def __init__(self, library: Path, count: int) -> None:
        self._parallel: Any = ctypes.CDLL(str(library)).GOMP_parallel
        self._nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # free(NULL) does nothing
        self._count = count
        self._thread: threading.Thread | None = None
        self._leave = threading.Event()

    @property
    def there(self) -> bool:
        """Whether they are counted now."""
        return self._thread is not None

    def come(self) -> None:
        """They are those of a thread that has started them, and wait for it to ask for something else."""
        came, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._stay, args=(came, self._leave), name="sleepers", daemon=True)
        self._thread.start()
        came.wait()

    def leave(self) -> None:
        """They end with that thread."""
        if self._thread is not None:
            self._leave.set()
            self._thread.join()
            self._thread = None

    def _stay(self, came: threading.Event, leave: threading.Event) -> None:
        self._parallel(self._nothing, None, ctypes.c_uint(self._count), ctypes.c_uint(0))
        came.set()
        leave.wait()

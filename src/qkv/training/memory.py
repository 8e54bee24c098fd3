"""Keep memory that was freed, for the next step to use: half of a small step's time otherwise goes to the system.

The allocator of the C library hands large blocks back at once and takes them again zeroed, page by page: 15,000 page
faults a step for a model of 5 M parameters, a seventh of its time. A training step allocates the same blocks again and
again, so nothing is lost by keeping them; memory is handed back when the process ends.

Where weights are shared out to save memory, it is the other way round: blocks of weights are gathered and released
between activations of other sizes, and what is kept is then more than was ever in use (docs/decisions,
2026-11-21-keep-freed-memory).
"""

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3)."""
_LARGEST, _EVERYTHING = 2**30, 2**31 - 1
_SMALL = 2**20


def keep_freed_memory() -> bool:
    """Ask glibc's allocator to keep what is freed. False where the C library is another one."""
    return _told((_TRIM_THRESHOLD, _EVERYTHING), (_MMAP_THRESHOLD, _LARGEST))


def hand_back_freed_memory() -> bool:
    """Ask it to hand blocks of a megabyte and more back at once. False where the C library is another one."""
    return _told((_TRIM_THRESHOLD, _SMALL), (_MMAP_THRESHOLD, _SMALL))


def hand_back_all() -> None:
    """Hand back what is free now, where the C library is glibc; what is freed from here on is kept as before."""
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


def share_freed_memory() -> bool:
    """Ask it to take memory for every new thread from the same place. False where the C library is another one.

    Each thread has one of its own otherwise, and keeps there what it freed: a server whose answers are computed by
    whatever thread is idle grows until each of them has computed the largest one.
    """
    return _told((_ARENA_MAX, 1))


def _told(*parameters: tuple[int, int]) -> bool:
    """Whether mallopt(3), where there is one, has taken each parameter's value."""
    libc = _libc()
    return libc is not None and all(libc.mallopt(*parameter) for parameter in parameters)


@cache
def _libc() -> ctypes.CDLL | None:
    """The C library, where it is glibc."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL(None)
        return libc if libc.mallopt and libc.malloc_trim else None
    except (OSError, AttributeError):
        return None

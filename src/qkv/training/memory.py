"""Keep memory that was freed, for the next step to use: half of a small step's time otherwise goes to the system.

The allocator of the C library hands large blocks back at once and takes them again zeroed, page by page: 15,000 page
faults a step for a model of 5 M parameters, a seventh of its time. A training step allocates the same blocks again and
again, so nothing is lost by keeping them; memory is handed back when the process ends.
"""

import ctypes
import sys
from functools import cache

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""
_LARGEST, _EVERYTHING = 2**30, 2**31 - 1


@cache
def keep_freed_memory() -> bool:
    """Ask glibc's allocator to keep what is freed; once a process. False where the C library is another one."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _EVERYTHING) and mallopt(_MMAP_THRESHOLD, _LARGEST))

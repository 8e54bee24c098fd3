"""Files kept between runs under a cache folder: written whole or not at all, and never needed.

A cache that cannot be read or written is as good as none: the result is computed again. Names hold a hash of all that
the content depends on, so nothing in a cache is ever out of date.
"""

import contextlib
import os
import tempfile
from pathlib import Path

__all__ = ["read_cached", "write_cached"]


def read_cached(cache: Path | None, name: str) -> bytes | None:
    """The bytes kept under that name, or None."""
    if cache is None:
        return None
    try:
        return (cache / name).read_bytes()
    except OSError:
        return None


def write_cached(cache: Path | None, name: str, data: bytes) -> None:
    """Keep the bytes under that name, by a temporary name and a rename; a full or read-only cache is left alone."""
    if cache is None:
        return
    path = cache / name
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)

"""Files kept between runs under a cache folder: written whole or not at all, and never needed.

A cache that cannot be read or written is as good as none: the result is computed again. A file begins with the hash of
what follows, so one that was cut off or altered is none either. Names hold a hash of all that the content depends on,
the code of this room and the library that cuts text included, so nothing in a cache is ever out of date.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from functools import cache as once
from pathlib import Path

import tokenizers


def cache_key(*parts: object) -> str:
    """What a file of the cache is named by: 40 hex digits of the hash of `parts` and of the code that makes it."""
    return hashlib.sha256(json.dumps([_code(), *map(str, parts)]).encode()).hexdigest()[:40]


@once
def _code() -> str:
    """Hash of the modules of data and tokenizers, any of which may decide what is kept, and the library's version."""
    digest = hashlib.sha256(tokenizers.__version__.encode())
    rooms = (Path(__file__).parent, Path(__file__).parents[1] / "tokenizers")
    for path in sorted(path for room in rooms for path in room.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def read_cached(cache: Path | None, name: str) -> bytes | None:
    """The bytes kept under that name, or None where there are none, or not those that were written."""
    if cache is None:
        return None
    try:
        told, data = (cache / name).read_bytes().split(b"\n", 1)
    except (OSError, ValueError):
        return None
    return data if told.decode("latin-1") == hashlib.sha256(data).hexdigest() else None


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
            file.write(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)

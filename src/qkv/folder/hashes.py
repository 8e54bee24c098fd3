"""Hashes of files, remembered between commands, so that a large run is not read from end to end at each of them.

What was found of a file is kept under what the system itself counts: device, inode, size, and the times at which the
content (mtime) and anything of the file (ctime) last changed. Whoever writes into a file and puts its mtime back still
moves its ctime. A file that changed a moment ago is not remembered: it may change again within one tick of the clock.
What a failing disk alters under an unchanged file is not seen here; `qkv verify` reads every byte.

The cache is one file of lines outside every run. It may be torn, be somebody else's or be gone: a line with a wrong
checksum is passed over, a file that others could have written is not read, and what cannot be kept is found again.
"""

import contextlib
import functools
import os
import stat
import time
import zlib
from pathlib import Path
from typing import NamedTuple

from qkv.errors import QkvError
from qkv.folder.run_folder import sha256_of, write_atomically

QUIET_SECONDS = 2.0
"""A file that changed less than this before it was read is not remembered; clocks of file systems tick up to 2 s."""
MOST_BYTES = 1 << 18
"""The cache is cut to its newest half when it is larger."""

_COUNTS_CHANGES = os.name != "nt"
"""Whether ctime is the time of the last change; on Windows it is that of creation, so nothing is remembered there."""


class Stamp(NamedTuple):
    """By what a file is known again: as long as these are the same, nobody has written to it."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class Known(NamedTuple):
    """What was found of a file when it was read."""

    sha256: str
    """In hex."""
    is_sound: bool
    """Whether its numbers were looked through too, and every one is a finite floating-point number."""


def cache_folder() -> Path:
    """Where qkv keeps what it can make again: in $XDG_CACHE_HOME (absolute, else it is ignored) or ~/.cache."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".cache") / "qkv"


def stamp_of(path: Path) -> Stamp:
    """The stamp of a file. Raises OSError where there is none."""
    found = os.stat(path)
    return Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def sha256_remembered(path: Path) -> str:
    """The sha256 of a file in hex, without reading it where it has not changed since it was. Raises OSError."""
    before = stamp_of(path)
    if (found := known(before)) is not None:
        return found.sha256
    began = time.time_ns()
    digest = sha256_of(path)
    if stamp_of(path) == before:
        remember(before, Known(digest, False), began)
    return digest


def known(stamp: Stamp) -> Known | None:
    """What was found of the file with this stamp; None where it has not been read, or is not remembered."""
    return _cache(cache_folder()).get(stamp) if _COUNTS_CHANGES else None


def remember(stamp: Stamp, found: Known, began: int) -> None:
    """Keep what was found of a file that had this stamp before and after; `began` is `time.time_ns()` before."""
    quiet = began - max(stamp.mtime_ns, stamp.ctime_ns) > QUIET_SECONDS * 1e9
    if _COUNTS_CHANGES and quiet:
        _cache(cache_folder()).put(stamp, found)


class _Cache:
    """The lines of the cache, read once; what is new is appended, each line in one write."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "hashes-1.txt"
        self._known: dict[Stamp, Known] = {}
        with contextlib.suppress(OSError):
            lines = self._read().split(b"\n")
            self._known = dict(pair for line in lines if (pair := _parsed(line)) is not None)
            if sum(map(len, lines)) > MOST_BYTES:
                self._halve()

    def get(self, stamp: Stamp) -> Known | None:
        return self._known.get(stamp)

    def put(self, stamp: Stamp, found: Known) -> None:
        if self._known.get(stamp) == found:
            return
        self._known[stamp] = found
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(self._open(os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab", buffering=0) as file:
                file.write(b"\n" + _line(stamp, found))  # a line that was torn before it ends here

    def _read(self) -> bytes:
        with os.fdopen(self._open(os.O_RDONLY), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * MOST_BYTES))
            return file.read(2 * MOST_BYTES)

    def _open(self, flags: int) -> int:
        """A descriptor of the cache. Raises OSError where it is missing, no file, or could be written by others."""
        safely = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(self._path, flags | safely, 0o600)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            os.close(descriptor)
            raise PermissionError(f"{self._path} could be written by somebody else")
        return descriptor

    def _halve(self) -> None:
        """Keep the newest half. What another process appends at this moment is found again by whoever asks."""
        newest = list(self._known.items())[len(self._known) // 2 :]
        with contextlib.suppress(OSError, QkvError):
            write_atomically(self._path, b"\n".join(_line(*pair) for pair in newest), follow=False)
            os.chmod(self._path, 0o600)


@functools.cache
def _cache(folder: Path) -> _Cache:
    return _Cache(folder)


def _line(stamp: Stamp, found: Known) -> bytes:
    text = " ".join(map(str, (*stamp, found.sha256, int(found.is_sound)))).encode()
    return text + b" %08x" % zlib.crc32(text)


def _parsed(line: bytes) -> tuple[Stamp, Known] | None:
    """The stamp and what was found; None for a line that is none of ours, or not whole."""
    text, _, check = line.rpartition(b" ")
    if not text or check != b"%08x" % zlib.crc32(text):
        return None
    try:
        *numbers, digest, sound = text.decode("ascii").split(" ")
        return Stamp(*map(int, numbers)), Known(digest, sound == "1")
    except (ValueError, TypeError):
        return None

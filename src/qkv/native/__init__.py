"""C++ of ours: compiled in the wheel, or on the machine it runs on, once, where a C++ compiler is.

A wheel for Linux on x86-64 holds the libraries for several instruction sets (`levels`); the widest that the processor
has is loaded, so nothing is compiled and the bits belong to the wheel. In a source tree, or where a wheel has none for
the processor, a source is compiled for this processor into the cache folder, under a name made of the source, the
processor, the compiler and torch's build, so that none of them can change unnoticed. It uses the threads of torch (the
OpenMP library that torch itself loads). A damaged file is deleted and compiled again. Where there is no compiler, or
what it makes does not load, `load` says so and torch's operators do the work, more slowly: nothing needs this room.

Measurements of compiled code are stored next to it (`remembered`).
"""

import contextlib
import ctypes
import errno
import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from qkv.jsontypes import JsonObject
from qkv.native.levels import FLAGS, LEVELS, WIDE, options

__all__ = ["OFF", "build", "compiler", "folder", "load", "openmp", "remembered", "why_not"]

OFF = "QKV_NATIVE"
"""An environment variable: 0 means that nothing is compiled or loaded."""

_SHIPPED = Path(__file__).with_name("libraries")
"""Where a wheel has its libraries, a folder for each instruction set; a source tree has none."""

_PATIENCE = 300
"""Seconds after which a compiler counts as none."""

_UNTRIED = 3600
"""Seconds after a failed compilation during which no process tries the same source again."""

_SEAL = hashlib.sha256().digest_size
"""Bytes appended to a library: a hash of its name and content. The loader ignores them."""


def load(name: str) -> ctypes.CDLL | None:
    """The compiled `name`.cpp of this folder; None where that cannot be had, for the reason of `why_not`."""
    return _loaded(name)[0]


def why_not(name: str) -> str:
    """Why `load` gives none, as the end of a sentence; "" where it gives one."""
    return _loaded(name)[1]


def compiler() -> str | None:
    """The path of a C++ compiler: $CXX, g++, clang++ or c++."""
    for word in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        if word and (found := shutil.which(word)):
            return found
    return None


@functools.cache
def build() -> JsonObject | None:
    """The compiler that native passes are made by, as it names itself, and its options; None where there is none."""
    program = compiler()
    if os.environ.get(OFF, "") == "0":
        return None
    if (shipped := _shipped("passes")) is not None:
        return {"compiler": _made_by()["compiler"], "options": options(shipped.parent.name)}
    if program is None:
        return None
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"compiler": next(iter(said.stdout.splitlines()), "")[:200], "options": [*FLAGS, *_wide()]}


def folder() -> Path:
    """Where compiled sources are kept: `native` of qkv's own cache folder."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = named if named.is_absolute() else Path("~/.cache").expanduser()
    return base / "qkv" / "native"


def openmp() -> Path | None:
    """GNU's OpenMP library as torch loads it, so that there is only one pool of threads; None if torch uses another."""
    import torch

    there = sorted(Path(torch.__file__).with_name("lib").glob("libgomp*.so*"))
    return there[0] if there else None


def remembered(name: str, of: Sequence[str], measure: Callable[[], JsonObject]) -> JsonObject | None:
    """A measurement of compiled sources, made once on this machine; every later process gets the same result.

    name: of the measurement; of: the sources. A different processor, compiler, torch or source has its own result. The
    first process that asks runs `measure` while others wait. None if the result cannot be stored, because processes
    would then disagree.
    """
    try:
        keys = [_identity(place) for place in map(_place, of)]
        path = folder() / f"{name}-{hashlib.sha256(' '.join(keys).encode()).hexdigest()[:16]}.json"
        if (found := _read(path)) is None:
            with _alone(path):
                if (found := _read(path)) is None:
                    _write(path, json.dumps(found := measure()).encode())
        return found
    except OSError:
        return None


@functools.cache
def _loaded(name: str) -> tuple[ctypes.CDLL | None, str]:
    path = _place(name)
    if isinstance(path, str):
        return None, path
    if path.is_relative_to(_SHIPPED):
        return _opened(path)
    try:
        if (library := _whole(path)) is None:
            with _alone(path):
                if (library := _whole(path)) is None:  # another process may have made it meanwhile
                    library = _made(path, name)
        return library, ""
    except _NotCompiled as error:
        return None, str(error)
    except OSError as error:
        return (
            None,
            f"its cache folder {folder()} cannot be used ({error.strerror}); set XDG_CACHE_HOME to one that can",
        )


def _place(name: str) -> Path | str:
    """The path of the compiled `name`.cpp, or why there is none."""
    if os.environ.get(OFF, "") == "0":
        return f"{OFF} is 0"
    if not sys.platform.startswith("linux"):
        return f"it is made for Linux, and this is {sys.platform}"
    program, threads, shipped = compiler(), openmp(), _shipped(name)
    if shipped is None and program is None:
        return "there is no C++ compiler here (g++, clang++)"
    if threads is None:
        return "torch's OpenMP library was not found"
    if shipped is not None:
        return shipped
    assert program is not None
    try:
        return folder() / f"{name}-{_key(_source(name), program, threads)}.so"
    except RuntimeError:
        return "there is no home folder to keep it in; set XDG_CACHE_HOME to a folder"


def _shipped(name: str) -> Path | None:
    """The wheel's library for the widest instruction set that this processor has; None where there is none."""
    units = set(_processor().split())
    paths = (_SHIPPED / level / f"{name}.so" for level, (_, needs) in LEVELS.items() if set(needs.split()) <= units)
    return next((path for path in paths if path.is_file()), None)


def _opened(path: Path) -> tuple[ctypes.CDLL | None, str]:
    """A library of the wheel, or why it does not load. It calls the OpenMP library that torch has loaded."""
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != _made_by()["sha256"][path.relative_to(_SHIPPED).as_posix()]:
            return None, f"{path} is damaged; install qkv again"
        ctypes.CDLL(str(openmp()), mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(path)), ""
    except OSError as error:
        return None, f"{path} cannot be loaded ({error}); install qkv again"


def _made_by() -> JsonObject:
    """What the build of the wheel says of its libraries: `compiler`, and the `sha256` of each file."""
    return json.loads((_SHIPPED / "build.json").read_text(encoding="utf-8"))


def _identity(place: Path | str) -> str:
    """What tells one compiled source from another, on this processor and with this torch."""
    if isinstance(place, str) or not place.is_relative_to(_SHIPPED):
        return place if isinstance(place, str) else place.name
    import torch

    return " ".join((hashlib.sha256(place.read_bytes()).hexdigest(), torch.__version__, _processor()))


def _source(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.cpp")


class _NotCompiled(Exception):
    """Why a source could not be compiled: the end of a sentence."""


def _made(path: Path, name: str) -> ctypes.CDLL:
    """Compile the library. Raises _NotCompiled (at once if it failed within the last hour) and OSError."""
    note = path.with_suffix(".failed")
    path.unlink(missing_ok=True)
    if (said := _said(note)) is None:
        try:
            _compile(name, path)
            note.unlink(missing_ok=True)
            return ctypes.CDLL(str(path))
        except (RuntimeError, subprocess.SubprocessError) as error:
            said = " ".join(str(error).split())[:200]
            _write(note, said.encode())
    raise _NotCompiled(
        f"it could not be compiled ({said}); it is tried again in an hour, or as soon as {note} is deleted"
    )


def _said(note: Path) -> str | None:
    """The error of a compilation that failed within the last hour; None if there was none."""
    try:
        is_fresh = 0 <= time.time() - note.stat().st_mtime < _UNTRIED
        return note.read_text(encoding="utf-8", errors="replace") if is_fresh else None
    except FileNotFoundError:
        return None


def _whole(path: Path) -> ctypes.CDLL | None:
    """The stored library, if it is unchanged and no other user could have written it; None otherwise.

    The hash is checked before the file is loaded, because loading a truncated library can kill the process.
    """
    if not _only_ours(path):
        return None
    try:
        content = path.read_bytes()
        return ctypes.CDLL(str(path)) if content[-_SEAL:] == _seal(path, content[:-_SEAL]) else None
    except OSError:
        return None


def _seal(path: Path, library: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + library).digest()


def _only_ours(path: Path) -> bool:
    """Whether the file exists and no other user could have written it, or put another into its folder."""
    try:
        return _ours(path.stat()) and _ours(path.parent.stat())
    except FileNotFoundError:
        return False


def _ours(there: os.stat_result) -> bool:
    return there.st_uid in (os.getuid(), 0) and not there.st_mode & 0o022


def _read(path: Path) -> JsonObject | None:
    """A stored measurement; None if there is none or it is damaged."""
    try:
        found = json.loads(path.read_bytes()) if _only_ours(path) else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Inside, no other process makes this file. A second one waits, at most twice as long as a compiler may take."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _ours(path.parent.stat()):
        raise PermissionError(errno.EPERM, "it could be written by somebody else")
    lock, end = path.with_suffix(".lock"), time.monotonic() + 2 * _PATIENCE
    while (handle := _locked(lock)) is None and time.monotonic() < end:
        time.sleep(0.05)
    try:
        yield
    finally:
        if handle is not None:
            lock.unlink(missing_ok=True)
            os.close(handle)


def _locked(lock: Path) -> int | None:
    """A file handle that holds the lock; None if another process holds it."""
    import fcntl

    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), lock.stat()):  # the previous holder deletes the file
            return handle
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):  # this file system has no locks
            return handle
    os.close(handle)
    return None


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    handle, written = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(written, path)
    finally:
        Path(written).unlink(missing_ok=True)


def _compile(name: str, path: Path) -> None:
    """Write the library whole or not at all. Raises RuntimeError with what was said, SubprocessError, OSError."""
    program, threads = compiler(), openmp()
    assert program is not None and threads is not None
    handle, written = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    try:
        command = [program, *FLAGS, *_wide(), str(_source(name)), "-o", written, str(threads), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(next(iter(done.stderr.splitlines()), f"{program} ended with {done.returncode}"))
        try:
            ctypes.CDLL(written)  # what cannot be loaded is not kept
        except OSError as error:
            raise RuntimeError(str(error)) from None
        with open(written, "r+b") as file:
            seal = _seal(path, file.read())
            file.write(seal)
        os.chmod(written, 0o700)
        os.replace(written, path)
    finally:
        Path(written).unlink(missing_ok=True)


def _wide() -> tuple[str, ...]:
    return WIDE if "avx512f" in _processor() else ()


def _key(source: Path, program: str, threads: Path) -> str:
    """A short hash of all that decides what is compiled."""
    import torch

    made = os.stat(program)
    texts = [path.read_text(encoding="utf-8") for path in (source, *sorted(source.parent.glob("*.h")))]
    facts = [*texts, *FLAGS, *_wide(), program, made.st_size, made.st_mtime_ns]
    facts += [str(threads), torch.__version__, platform.machine(), _processor()]
    return hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()[:16]


@functools.cache
def _processor() -> str:
    """What the system says of the first core's name and units."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return ""
    return "\n".join(line for line in lines if line.startswith(("model", "flags", "Features", "CPU part", "vendor")))

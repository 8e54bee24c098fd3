"""C++ of ours, compiled on the machine it runs on, once, and kept: where a C++ compiler is, and nothing is asked of it.

A source is compiled for this processor into the cache folder, under a name made of the source, the processor, the
compiler and torch's build, so that none of them can change unnoticed. It uses the threads of torch (the OpenMP library
that torch itself loads). Where there is no compiler, or what it makes does not load, `load` says so and torch's
operators do the work, more slowly: nothing needs this room.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["OFF", "compiler", "folder", "load", "why_not"]

OFF = "QKV_NATIVE"
"""An environment variable: 0 means that nothing is compiled or loaded."""

FLAGS = (
    *("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
    *("-fopenmp", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti", "-Wno-psabi"),
)
"""No flag that lets a compiler assume away NaN, reorder a sum unasked, or set the processor's mode."""

_WIDE = ("-mprefer-vector-width=512",)
"""Where the processor has vectors of 512 bits."""

_PATIENCE = 120
"""Seconds after which a compiler counts as none."""


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


def folder() -> Path:
    """Where compiled sources are kept: `native` of qkv's own cache folder."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = named if named.is_absolute() else Path("~/.cache").expanduser()
    return base / "qkv" / "native"


@functools.cache
def _loaded(name: str) -> tuple[ctypes.CDLL | None, str]:
    if os.environ.get(OFF, "") == "0":
        return None, f"{OFF} is 0"
    if not sys.platform.startswith("linux"):
        return None, f"it is made for Linux, and this is {sys.platform}"
    program = compiler()
    if program is None:
        return None, "there is no C++ compiler here (g++, clang++)"
    threads = _threads_of_torch()
    if threads is None:
        return None, "torch's OpenMP library was not found"
    source = Path(__file__).with_name(f"{name}.cpp")
    wide = _WIDE if "avx512f" in _processor() else ()
    try:
        path = folder() / f"{name}-{_key(source, program, threads, wide)}.so"
        if not _only_ours(path):
            _compile(source, program, threads, wide, path)
        return ctypes.CDLL(str(path)), ""
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return None, f"it could not be compiled ({' '.join(str(error).split())[:200]})"


def _only_ours(path: Path) -> bool:
    """Whether a library is there that nobody else could have written: it is run."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return there.st_uid in (os.getuid(), 0) and not there.st_mode & 0o022


def _compile(source: Path, program: str, threads: Path, wide: tuple[str, ...], path: Path) -> None:
    """Write the library whole or not at all, whoever else does the same. Raises RuntimeError with what was said."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, written = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    try:
        command = [program, *FLAGS, *wide, str(source), "-o", written, str(threads), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(next(iter(done.stderr.splitlines()), f"{program} ended with {done.returncode}"))
        os.chmod(written, 0o700)
        ctypes.CDLL(written)  # what cannot be loaded is not kept
        os.replace(written, path)
    finally:
        Path(written).unlink(missing_ok=True)


def _key(source: Path, program: str, threads: Path, wide: tuple[str, ...]) -> str:
    """A short hash of all that decides what is compiled."""
    import torch

    made = os.stat(program)
    texts = [path.read_text(encoding="utf-8") for path in (source, *sorted(source.parent.glob("*.h")))]
    facts = [*texts, *FLAGS, *wide, program, made.st_size, made.st_mtime_ns]
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


def _threads_of_torch() -> Path | None:
    """The OpenMP library that torch has loaded, so that there are not two sets of threads."""
    import torch

    there = sorted(Path(torch.__file__).with_name("lib").glob("libgomp*.so*"))
    return there[0] if there else None

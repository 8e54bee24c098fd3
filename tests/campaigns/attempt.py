"""One command line in a forked process with limits of time and memory, and what may not happen in it.

Everything is imported once, so that an attempt costs some milliseconds.
"""

import contextlib
import importlib
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SECONDS", "Outcome", "attempt", "in_child", "warm"]

SECONDS = 10.0
"""After which an attempt counts as a hang."""
MEMORY = 6 << 30
"""Bytes of data that an attempt may hold."""
BUG = re.compile(r"Traceback|inside qkv|AssertionError|panicked|Segmentation")
RAW = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x9b]")
MODULES = (
    *("api", "cli", "interop", "studies.engine.runner", "views.report.page_sections", "recipe.audit.verification"),
    *("inspection.answers", "recipe.training", "views.viewer", "commands.printing.screen"),
)


@dataclass(frozen=True)
class Outcome:
    """How a process ended."""

    status: int
    """Its exit status; minus the signal that ended it; `HANG` where it took too long."""
    said: str
    """Stdout and stderr."""
    seconds: float

    @property
    def is_refused(self) -> bool:
        """One sentence, and the exit status of the user's mistake."""
        return self.status == 2 and not self.fault

    @property
    def fault(self) -> str:
        """What must never be, "" where nothing of it was: a hang, a crash, a bug of ours, raw control characters."""
        if self.status == HANG:
            return f"a hang of {self.seconds:.0f} s"
        if self.status < 0:
            return f"it was ended by {signal.Signals(-self.status).name}"
        if found := BUG.search(self.said):
            return f"it said {found[0]!r}: {self.said[-300:]!r}"
        if raw := RAW.search(self.said):
            return f"it printed a raw {raw[0]!r}: {self.said[max(0, raw.start() - 60) : raw.end() + 40]!r}"
        return ""


HANG = -1000


def warm() -> None:
    """Import what commands use, load the kernels, and measure which are faster, once for all that are forked.

    Each has a cache of its own and would compile and measure again, now and then with another result, which runs and
    reports hold.
    """
    import torch

    torch.set_num_threads(1)
    for module in MODULES:
        importlib.import_module(f"qkv.{module}")
    for name in ("passes", "vectors", "tiles", "decoding"):
        importlib.import_module("qkv.native").load(name)
    importlib.import_module("qkv.training.calibration").choice(torch.float32)


def attempt(words: Sequence[str | Path], *, seconds: float = SECONDS, cwd: Path | None = None) -> Outcome:
    """A command line of qkv, without the program's name."""
    from qkv.cli import main

    def do() -> int:
        if cwd is not None:
            os.chdir(cwd)
        return main(list(map(str, words)))

    return in_child(do, seconds)


def in_child(do: Callable[[], int], seconds: float = SECONDS) -> Outcome:
    """What `do` does in a forked process; it is ended, with what it started, after so many seconds."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as sink:
        child = os.fork()
        if not child:
            _serve(do, sink.fileno())
        status = _waited(child, began + seconds)
        sink.seek(0)
        said = sink.read(1 << 20).decode("utf-8", "replace")
    return Outcome(status, said, time.monotonic() - began)


def _serve(do: Callable[[], int], sink: int) -> None:
    status = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for stream in (1, 2):
            os.dup2(sink, stream)
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        status = do()
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(2, f"Traceback: {type(error).__name__}: {error}".encode("utf-8", "replace"))
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _waited(child: int, until: float) -> int:
    pause = 0.002
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(0.05, 1.3 * pause)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return HANG

"""Two trainings in turn: one runs for a moment while the other is held still, then the other, ABBA, until both end.

A shared machine's speed drifts by a third within the hour, and pairs of whole trainings one after the other differ by
eight per cent or more. In short turns it is as fast for one as for the other, and what is left is what is measured. A
command's time is the wall time of its own turns. Needs Linux (pidfd, /proc).
"""

import contextlib
import math
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Command", "Company", "family", "in_turns", "interval", "worked"]

STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""97.5 % quantiles of Student's t for 1, 2, 3 ... degrees of freedom."""


GROUPS = Path("/sys/fs/cgroup")


class Company:
    """Processes that run only while a command does: a control group that is frozen meanwhile. Needs root.

    Every process in it stands still at once, whatever it started and whoever adopted that; signals cannot do that to a
    browser.
    """

    def __init__(self) -> None:
        old = (GROUPS / "freezer").is_dir()
        self._group = GROUPS / ("freezer" if old else "") / f"qkv-turns-{os.getpid()}"
        self._state, self._held, self._free = (
            ("freezer.state", "FROZEN", "THAWED") if old else ("cgroup.freeze", "1", "0")
        )
        try:
            self._group.mkdir(exist_ok=True)
        except OSError as error:
            sys.exit(f"taking turns with a browser needs root and control groups: {error}")

    def join(self) -> None:
        """Put this process, and all that it will start, into it."""
        (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def members(self) -> list[int]:
        """Processes in it."""
        return [int(line) for line in (self._group / "cgroup.procs").read_text().split()]

    def hold(self) -> None:
        """Freeze it; it is frozen when this returns."""
        (self._group / self._state).write_text(self._held)
        told, is_held = (self._state, self._held) if self._held == "FROZEN" else ("cgroup.events", "frozen 1")
        while is_held not in (self._group / told).read_text():
            time.sleep(0.0005)

    def go(self) -> None:
        """Let it run."""
        (self._group / self._state).write_text(self._free)

    def end(self) -> None:
        """Kill everything in it, and remove it."""
        self.go()
        while left := self.members():
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)
        self._group.rmdir()


class Command:
    """A command that runs only while it has its turn.

    `begins` is a file whose appearance starts the count of seconds (by itself, the start of the process does).
    """

    company: Company | None = None
    """Runs while it does, and is held while it is."""

    def __init__(self, words: Sequence[str], folder: Path, begins: Path | None = None) -> None:
        self.seconds, self.folder = 0.0, folder
        self._words, self._begins = list(words), begins
        self._out, self._errors = ((folder / name).open("w+") for name in ("said", "errors"))
        self._process: subprocess.Popen[bytes] | None = None
        self._ends: int | None = None

    def turn(self, seconds: float | None) -> bool:
        """Run for so long, or to the end; whether it has ended. SystemExit where it failed."""
        began = time.perf_counter()
        if self._process is None:
            self._process = subprocess.Popen(self._words, stdout=self._out, stderr=self._errors)
            self._ends = os.pidfd_open(self._process.pid)
        else:
            if self.company is not None:
                self.company.go()
            self._process.send_signal(signal.SIGCONT)
        ended = bool(select.select([self._ends], [], [], seconds)[0])
        if not ended:
            self._process.send_signal(signal.SIGSTOP)
        if self.company is not None:
            self.company.hold()
        self.seconds += time.perf_counter() - began
        if self._begins is not None and not ended:
            if not self._begins.exists():
                self.seconds = 0.0
            else:
                self._begins = None
        if ended and self._process.wait():
            self._errors.seek(0)
            sys.exit(f"{' '.join(self._words[:6])} ... failed: {self._errors.read()[-300:]}")
        return ended

    def said(self) -> str:
        """What it printed."""
        self._out.seek(0)
        return self._out.read()


def in_turns(commands: Sequence[Command], seconds: float) -> None:
    """Run two commands to their ends in turns of `seconds`, ABBA; one after the other where that is 0."""
    running, at = list(commands), 0
    while running:
        now = running[(0, 1, 1, 0)[at % 4] % len(running)]
        if now.turn(seconds or None):
            running.remove(now)
        at += 1


def family(root: int) -> list[int]:
    """A process and all that it started, children first known first."""
    parents = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(place.parent.name)] = int(fields[1])
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def worked(process: int) -> float:
    """Processor seconds of a process so far; 0 for one that has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, lower, upper) with Student's 95 % interval; at least two values."""
    t = STUDENT[min(len(values) - 1, len(STUDENT)) - 1]
    mean, reach = statistics.mean(values), t * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - reach, mean + reach

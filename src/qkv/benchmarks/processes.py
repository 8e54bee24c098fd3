"""Commands as a person runs them, and sides of a benchmark: whole processes, and what machine they ran on."""

import contextlib
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from qkv.errors import RunError
from qkv.jsontypes import JsonObject
from qkv.words import many

Turn = Callable[[], float]
"""Measures a side once."""
Side = Callable[[], Turn]
"""Makes what is measured and returns its turn: a function of a module, or a `functools.partial` of one."""


class Apart:
    """A side of a benchmark in a process of its own, which it keeps from turn to turn.

    It is made there. What a side asks of the C library, of torch or
    of the processor is then its own: in one process theirs would work in memory that ours keeps.
    """

    def __init__(self, side: Side) -> None:
        new = multiprocessing.get_context("spawn")
        self._there, there = new.Pipe()
        self._process = new.Process(target=_serve, args=(there, side), daemon=True)
        self._process.start()
        there.close()

    def __call__(self) -> float:
        """One turn. Raises RunError with the process's last words where it fails."""
        try:
            self._there.send(None)
            found = self._there.recv()
        except (EOFError, OSError):
            self._process.join()
            raise RunError(f"the process of a side ended with {self._process.exitcode}") from None
        if isinstance(found, str):
            raise RunError(f"the process of a side failed: {found}")
        return float(found)

    def close(self) -> None:
        """Let it end."""
        self._there.close()
        self._process.terminate()
        self._process.join()


def _serve(there: Connection, side: Side) -> None:
    """Inside: a turn for each message, until there is nobody to ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks is interrupted, and closes
    with contextlib.suppress(EOFError, OSError):
        turn = None
        while True:
            there.recv()
            try:
                turn = turn or side()
                there.send(turn())
            except Exception as error:
                there.send(f"{type(error).__name__}: {error}")


def python(*words: str, cwd: Path | None = None) -> tuple[float, str]:
    """Run this Python with `words`: (wall seconds of the whole process, what it printed on stdout).

    Raises RunError with its last words where it fails.
    """
    command = [sys.executable, *words]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    seconds = time.perf_counter() - began
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise RunError(f"{' '.join(command[:12])} ended with {done.returncode}: {last}")
    return seconds, done.stdout


def qkv(*words: str) -> tuple[float, JsonObject]:
    """Run `qkv WORDS --json`: (wall seconds of the whole process, the object it printed).

    Raises RunError with the command's own message where it fails.
    """
    seconds, printed = python("-m", "qkv", *words, "--json")
    return seconds, json.loads(printed)


def fresh() -> Path:
    """A new folder for run folders, removed with the machine's temporary files."""
    return Path(tempfile.mkdtemp(prefix="qkv-benchmark-"))


def machine() -> str:
    """The processor and the versions that figures depend on."""
    import torch

    from qkv.recipe.manifest import processor

    return (
        f"{os.cpu_count()} x {processor()}, {many(torch.get_num_threads(), 'thread')}, torch {torch.__version__},"
        f" Python {platform.python_version()}"
    )

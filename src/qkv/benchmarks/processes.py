"""Commands as a person runs them: whole processes, timed, and what machine they ran on."""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from qkv.errors import RunError

__all__ = ["fresh", "machine", "python", "qkv", "spread"]


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


def qkv(*words: str) -> tuple[float, dict[str, Any]]:
    """Run `qkv WORDS --json`: (wall seconds of the whole process, the object it printed).

    Raises RunError with the command's own message where it fails.
    """
    seconds, printed = python("-m", "qkv", *words, "--json")
    return seconds, json.loads(printed)


def fresh() -> Path:
    """A new folder for run folders, removed with the machine's temporary files."""
    return Path(tempfile.mkdtemp(prefix="qkv-benchmark-"))


def spread(values: list[float]) -> str:
    """`median (lowest to highest of n)`."""
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g} of {len(values)})"


def machine() -> str:
    """The processor and the versions that figures depend on."""
    import torch

    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = names[0].partition(":")[2].strip() if names else name
    threads = torch.get_num_threads()
    return (
        f"{os.cpu_count()} x {name}, {threads} {'thread' if threads == 1 else 'threads'}, torch {torch.__version__},"
        f" Python {platform.python_version()}"
    )

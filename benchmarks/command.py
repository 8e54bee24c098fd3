"""What the benchmarks share: run `qkv` as a person would, and time the whole process."""

import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def qkv(*words: str) -> tuple[float, dict[str, Any]]:
    """Run `qkv WORDS --json`: (wall seconds of the whole process, the object it printed).

    Ends the benchmark with the command's own message where it fails.
    """
    command = [sys.executable, "-m", "qkv", *words, "--json"]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1]}")
    return seconds, json.loads(done.stdout)


def fresh() -> Path:
    """A new folder for run folders, removed with the machine's temporary files."""
    return Path(tempfile.mkdtemp(prefix="qkv-benchmark-"))


def spread(values: list[float]) -> str:
    """`median (lowest to highest of n)`."""
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g} of {len(values)})"


def machine() -> str:
    """The processor and the versions that figures depend on."""
    import os

    import torch

    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = names[0].partition(":")[2].strip() if names else name
    return f"{os.cpu_count()} x {name}, torch {torch.__version__}, Python {platform.python_version()}"

"""What installing and importing qkv costs: megabytes on disk of every core dependency, and milliseconds to import it.

    python tests/campaigns/footprint.py [--turns 7]

A package's megabytes are those of its own files and of the packages that come with it and with nothing
listed before it, torch and NumPy first. Milliseconds are the median of fresh processes in which torch and
NumPy are loaded already: what is added to them, in processor time, which other work on the machine disturbs little.
Expected: below 60 MB beside torch and NumPy, below 300 ms for qkv; exit status 1 where it is not so.
"""

import argparse
import importlib.metadata
import statistics
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

import qkv

IMPORTED = {"torch": "torch", "numpy": "numpy"} | {
    name: name for name in ("tokenizers", "safetensors", "rich", "starlette", "uvicorn")
}
FACES = {"import qkv": "qkv", "qkv.train, first used": "qkv.api", "qkv.models alone": "qkv.models"}


def brought_by(name: str) -> set[str]:
    """A distribution and all that it needs here, by normalised name."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in found:
            found.add(name)
            needs = map(Requirement, importlib.metadata.requires(name) or [])
            waiting += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def core() -> list[str]:
    """The direct dependencies of the core install, torch and NumPy first."""
    needs = map(Requirement, importlib.metadata.requires("qkv") or [])
    names = [need.name for need in needs if need.marker is None]
    return sorted(names, key=lambda name: name not in ("torch", "numpy"))


def megabytes(name: str) -> float:
    """Of the files of one distribution, caches of bytecode left out."""
    files = importlib.metadata.files(name) or []
    paths = [file.locate() for file in files if "__pycache__" not in file.parts]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6  # type: ignore[attr-defined]


def own() -> float:
    """Megabytes of qkv's own files."""
    place = Path(qkv.__file__).parent
    files = (path for path in place.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sum(path.stat().st_size for path in files) / 1e6


def milliseconds(module: str, turns: int) -> float:
    """To import a module where torch and NumPy are loaded; of these two, alone."""
    before = "" if module in ("torch", "numpy") else "import torch, numpy; "
    code = f"import time; {before}began = time.process_time(); import {module}; print(time.process_time() - began)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(turns)]
    return 1000 * statistics.median(float(run.stdout) for run in runs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    turns = parser.parse_args().turns
    counted: set[str] = set()
    beside = 0.0
    print("| package | MB | ms | brings |\n|---|---|---|---|")
    for name in core():
        new = brought_by(name) - counted
        counted |= new
        size = sum(map(megabytes, new))
        beside += size if name not in ("torch", "numpy") else 0
        others = ", ".join(sorted(new - {name})) or "nothing"
        print(f"| `{name}` | {size:.1f} | {milliseconds(IMPORTED[name], turns):.0f} | {others} |")
    beside += own()
    print(f"\nbeside torch and NumPy: {beside:.1f} MB, qkv itself ({own():.1f} MB) included")
    faces = {face: milliseconds(module, turns) for face, module in FACES.items()}
    for face, spent in faces.items():
        print(f"{face}: {spent:.0f} ms on top of torch and NumPy")
    sys.exit(beside >= 60 or faces["import qkv"] >= 300)


if __name__ == "__main__":
    main()

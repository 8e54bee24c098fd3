"""A person's own numbers of a run, which are shown beside ours: `own.jsonl` in its folder, one line for each `log`.

The file is no part of what a finished run is sealed with, so numbers can be added at any time and by any process. A
step that is written twice has the later value.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from qkv.errors import DamagedFileError, UserError
from qkv.folder.run_folder import RunFolder, storage_errors
from qkv.jsontypes import MOST, is_like

FILE = "own.jsonl"
_LARGEST = 64 << 20
_LONGEST_NAME = 80
_LINE = {"step": int, "values": {str: (float, type(None))}}


def write_own(run: Path, step: int, values: Mapping[str, object]) -> None:
    """Add numbers of one step; one that is not finite is kept as undefined.

    Raises UserError for what is no table of numbers, StorageError where it cannot be written.
    """
    if not isinstance(values, Mapping) or not values:
        raise UserError(f'log takes your numbers by name, such as {{"accuracy": 0.71}}; given: {values!r:.60}')
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < MOST:
        raise UserError(f"step is {step!r:.40}; expected a whole number from 0 up")
    line = json.dumps({"step": step, "values": dict(map(_named, values, values.values()))}) + "\n"
    path = _place(run)
    with storage_errors(path), open(path, "ab", buffering=0) as file:
        file.write(line.encode())  # one call: lines of several processes do not mix


def read_own(run: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Name -> (step int64 [n], value float64 [n]), steps rising, NaN where undefined; lines that are not ours are left
    out. Raises DamagedFileError for a file that is too large, or a link out of the run.
    """
    path = _place(run)
    if not path.is_file():
        return {}
    if path.stat().st_size > _LARGEST:
        raise DamagedFileError(f"{path} has more than {_LARGEST:,} bytes; move it away")
    found: dict[str, dict[int, float]] = {}
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if is_like(line, _LINE) and line["step"] >= 0:
            for name, value in line["values"].items():
                found.setdefault(name[:_LONGEST_NAME], {})[line["step"]] = math.nan if value is None else float(value)
    return {name: _columns(points) for name, points in sorted(found.items())}


def _columns(points: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    steps = sorted(points)
    return np.array(steps, dtype=np.int64), np.array([points[step] for step in steps])


def _named(name: object, value: object) -> tuple[str, float | None]:
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise UserError(f"{name!r:.60} is no name of a number; expected a text of 1 to {_LONGEST_NAME} characters")
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]  # a Tensor or NumPy scalar is one too
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise UserError(f"{name} is {value!r:.60}; expected a number") from None
    return name, number if math.isfinite(number) else None


def _place(run: Path) -> Path:
    """The file, which may be no link out of the run."""
    path = run / FILE
    if why := RunFolder(run).why_foreign(path):
        raise DamagedFileError(f"{path} {why}; move it away")
    return path

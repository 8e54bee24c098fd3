"""The weights that a run folder holds, one matrix at a time, at the steps that were kept.

Snapshots are the checkpoints of the run; the final weights are `model.safetensors`, or in a run that is not finished
its newest checkpoint. Nothing is interpolated: a step without a snapshot is an error that names the nearest ones.
"""

import re
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from qkv.errors import AddressError, RunFolderError, unknown
from qkv.folder import RunFolder

__all__ = ["snapshot_steps", "stored"]

_STEP = re.compile(r"step-(\d+)$")


def snapshot_steps(folder: str | Path) -> list[int]:
    """The steps whose weights are there, in order; step 0 is the start."""
    return sorted(_paths(Path(folder)))


def stored(folder: str | Path, address: str, step: int | None = None) -> np.ndarray:
    """A matrix as stored ([in, out]; W_E [d_vocab, d_model]) at a step, or the last one.

    Raises AddressError for a matrix that is not there, RunFolderError for a step that was not kept or a damaged file.
    """
    path = _path(Path(folder), step)
    try:
        with safe_open(path, framework="numpy") as file:
            if address not in file.keys():  # noqa: SIM118 - not a dictionary
                raise AddressError(unknown("matrix", address, file.keys()))
            return file.get_tensor(address)
    except (SafetensorError, OSError) as error:
        raise RunFolderError(f"{path} is damaged ({error}); choose another step") from None


def _paths(folder: Path) -> dict[int, Path]:
    found = {}
    for path in RunFolder(folder).checkpoints.glob("step-*/model.safetensors"):
        if match := _STEP.search(path.parent.name):
            found[int(match[1])] = path
    return found


def _path(folder: Path, step: int | None) -> Path:
    paths = _paths(folder)
    if step is None:
        final = RunFolder(folder).model
        if final.is_file():
            return final
        if not paths:
            raise RunFolderError(f"{folder} holds no weights yet; wait for its first checkpoint")
        return paths[max(paths)]
    if step not in paths:
        near = ", ".join(map(str, sorted(sorted(paths, key=lambda s: abs(s - step))[:4]))) or "none"
        raise RunFolderError(f"{folder} has no snapshot of step {step}; nearest: {near}")
    return paths[step]

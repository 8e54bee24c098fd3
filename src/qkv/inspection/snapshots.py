"""The weights that a run folder holds, one matrix at a time, at the steps that were kept.

Snapshots are the checkpoints of the run and its final weights, `model.safetensors`; of a run that is not finished the
newest checkpoint is the last. Nothing is interpolated: a step without a snapshot is an error that names the nearest
ones.
"""

from pathlib import Path

import numpy as np

from qkv.errors import AddressError, RunFolderError, unknown
from qkv.folder.run_folder import RunFolder
from qkv.training.tensorfile import open_weights

__all__ = ["stored"]


def stored(folder: str | Path, address: str, step: int | None = None) -> np.ndarray:
    """A matrix as stored ([in, out]; W_E [d_vocab, d_model]) at a step, or the last one.

    Raises AddressError for a matrix that is not there, RunFolderError for a step that was not kept or a damaged file.
    """
    path = _path(Path(folder), step)
    with open_weights(path) as file:
        if address not in file.keys():  # noqa: SIM118 - not a dictionary
            raise AddressError(unknown("matrix", address, file.keys()))
        return file.get_tensor(address)


def _path(folder: Path, step: int | None) -> Path:
    paths = RunFolder(folder).weights()
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

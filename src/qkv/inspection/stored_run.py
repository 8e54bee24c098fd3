"""The one reader of a run folder for everything that shows a run: each file is checked, and read once.

`StoredRun` holds the run's configuration, manifest and tokenizer; what is missing is left empty. Answers, reports and
pages share one, so that no file is read twice. Keep one only as long as the folder does not change: for a run that is
still training, make a new one later. Callers open the telemetry themselves, because they have to close it.

`stored` reads the weights, one matrix at a time, at the steps that were kept. Snapshots are the checkpoints of the run
and its final weights, `model.safetensors`; of a run that is not finished the newest checkpoint is the last. Nothing is
interpolated: a step without a snapshot is an error that names the nearest ones.
"""

from functools import cached_property
from pathlib import Path

import numpy as np

from qkv.config import load_toml
from qkv.errors import AddressError, QkvError, RunFolderError, unknown
from qkv.folder.run_folder import RunFolder
from qkv.folder.verified import check_file
from qkv.jsontypes import JsonObject
from qkv.tasks import Task, find_task
from qkv.telemetry import RUN_ARM, Grid, Telemetry
from qkv.tokenizers.tokenizer import Tokenizer, load_tokenizer
from qkv.training.tensorfile import open_weights


class StoredRun:
    """What a run folder says of its run; every part is None, or empty, where it is missing."""

    def __init__(self, path: str | Path) -> None:
        self.folder = RunFolder(Path(path))

    @classmethod
    def of(cls, run: "str | Path | StoredRun") -> "StoredRun":
        """The reader of a folder: the one that is given, or a new one."""
        return run if isinstance(run, StoredRun) else cls(run)

    @property
    def path(self) -> Path:
        """The folder."""
        return self.folder.path

    @cached_property
    def settings(self) -> JsonObject:
        """The tables of config.toml; empty where there is none. Raises DamagedFileError where it was altered."""
        if not self.folder.config.is_file():
            return {}
        check_file(self.folder.config)
        return load_toml(self.folder.config)

    @cached_property
    def manifest(self) -> JsonObject:
        """manifest.json; empty where there is none that can be trusted."""
        try:
            return self.folder.read_manifest()
        except RunFolderError:
            return {}

    @property
    def summary(self) -> JsonObject:
        """What a finished run says of itself in its manifest; empty before."""
        return dict(self.manifest.get("summary") or {})

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The run's tokenizer as its file has it, for names of tokens; None where it cannot be read, or has more tokens
        than the model.
        """
        try:
            found = load_tokenizer(self.folder.tokenizer) if self.folder.tokenizer.is_file() else None
            rows = self.settings.get("model", {}).get("sizes", {}).get("d_vocab", 0)
            return None if found is not None and 0 < rows < found.d_vocab else found
        except QkvError:
            return None

    @property
    def task(self) -> Task:
        """What it was trained to do."""
        classes = self.settings.get("model", {}).get("classes", ())
        return find_task(self.settings.get("task", "causal")).of_classes(classes)


def recorded(telemetry: Telemetry, measure: str, selector: str = "**", arm: int = RUN_ARM) -> Grid | None:
    """A measure of what a selector names, by step; None where it was not recorded."""
    try:
        return telemetry.grid(measure, selector, arm)
    except AddressError:
        return None


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

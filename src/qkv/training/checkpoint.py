"""Checkpoints: weights, optimizer state and a small state, whole or not there, each file hashed.

    checkpoints/step-00000120/model.safetensors, optimizer.safetensors, state.json

A checkpoint is copied out of the model between two updates and written by a thread of its own. It appears under its
name only when all of it is on the disk. `model.safetensors` and `best.safetensors` of the run are hard links to the
newest checkpoint and to that of the best validation, so both are always as whole as a checkpoint. When to write is a
function of step and horizon alone, and nothing that is written ever flows back: cadence cannot change weights.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args, get_type_hints

from torch import Tensor

from qkv.errors import DamagedFileError, RunFolderError
from qkv.folder.run_folder import CHECKPOINT_FILES as FILES
from qkv.folder.run_folder import RunFolder, link, sha256_of, storage_errors, sync_folder, write_atomically
from qkv.folder.verified import read_state, state_digest
from qkv.jsontypes import JsonObject
from qkv.training.spikes import ONSET, Rollback
from qkv.training.tensorfile import TensorFile, load_tensors, streamed

if TYPE_CHECKING:
    from qkv.models.matrices import Catalogue
    from qkv.training.optimizers import Optimizer

FINISHED = ("steps", "minutes", "loss", "budget", "diverged")
"""Reasons to stop after which there is nothing to resume."""

KEEP_BYTES = 1 << 30
"""What the weights of all snapshots may take."""

_FIRST_SNAPSHOT = 8
_TOKENS_BETWEEN = {"cpu": 1 << 16}
"""Least tokens between two checkpoints, by device. Writing one costs about 4e-8 s a parameter, a token of training
about 6e-11 s a parameter on a CPU: 65,536 tokens make that 1 %, whatever the size of the model."""
_TOKENS_BETWEEN_ELSEWHERE = 1 << 24


@dataclass(kw_only=True)
class TrainingState:
    """All that a training is at a step, beside weights and optimizer state. Its JSON form gives back the same bits."""

    step: int = 0
    """Updates done."""
    tokens: int = 0
    """Real positions seen."""
    horizon: int = 0
    """Updates the schedule is made for; 0 while it is being measured."""
    decays_from: int = 0
    """The step whose update is the first of the decay, where the clock settled it; 0 where the horizon alone does."""
    best_loss: float | None = None
    """Lowest full-validation loss so far."""
    best_step: int = -1
    """Its step."""
    last_loss: float | None = None
    """The latest full-validation loss."""
    evaluated_step: int = -1
    """The step of the latest full validation."""
    stale: int = 0
    """Validations since the best one."""
    train_loss: float | None = None
    """Moving average of the training loss, which tells when a target loss may be near."""
    probe_step: int = 0
    """No look for a target loss before this step."""
    probe_last: tuple[int, float, float] | None = None
    """Step and estimated loss of the latest look."""
    probe_losses: tuple[float, ...] = ()
    """Losses of the first batches of the pass that later looks are compared with; ..."""
    probe_mean: float | None = None
    """... the loss of the whole split that it told, ..."""
    probe_error: float = 0.0
    """... and the standard error of that."""
    first_loss: float | None = None
    """Of the run's first update; what has been learned is measured from it."""
    recent_losses: tuple[float, ...] = ()
    """Of the latest updates, oldest first: what a spike is seen against."""
    gradient_logs: tuple[float | None, ...] = ()
    """Mean logarithm of the norm of each matrix's gradient, in the catalogue's order."""
    rollbacks: tuple[Rollback, ...] = ()
    """What was done about spikes so far."""
    stopped_because: str = ""
    """Why the run ended, or was left; empty while it runs."""
    train_seconds: float = 0.0
    """Wall time so far, all sessions: the one field that differs between runs."""

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing to resume."""
        return self.stopped_because in FINISHED


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One checkpoint on disk, its hashes verified."""

    path: Path
    state: TrainingState

    def weights(self) -> dict[str, Tensor]:
        """Every parameter by address."""
        return load_tensors(self.path / "model.safetensors")

    def optimizer_state(self) -> dict[str, Tensor]:
        """What `Optimizer.load_state` takes."""
        return load_tensors(self.path / "optimizer.safetensors")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A checkpoint as it stands on the disk, whole or not."""

    step: int
    """By the name of its folder."""
    path: Path
    state: TrainingState | None
    """The training at its step; None where state.json cannot be read."""
    files: Mapping[str, str]
    """Name -> sha256, as its state says."""
    trouble: str
    """Empty where it is whole, `thinned` where only weights were kept, else what is wrong with it."""

    @property
    def is_whole(self) -> bool:
        """Whether a training can go on from it."""
        return self.state is not None and not self.trouble

    @property
    def has_weights(self) -> bool:
        """Whether its weights are those that it was written with."""
        return self.trouble in ("", "thinned")


def standing(folder: RunFolder) -> list[Standing]:
    """Every checkpoint of a run, oldest first, its hashes compared; nothing is changed."""
    return [_standing(step, path) for step, path in folder.checkpoint_folders().items()]


def _standing(step: int, path: Path) -> Standing:
    try:
        state, files = _read_state(path)
    except RunFolderError:
        return Standing(step=step, path=path, state=None, files={}, trouble="state.json is unreadable")
    return Standing(step=step, path=path, state=state, files=files, trouble=_trouble(path, files))


def most_snapshots(n_bytes: int, keep_bytes: int = KEEP_BYTES) -> int:
    """How many snapshots of `n_bytes` of weights are kept."""
    return max(4, keep_bytes // max(1, n_bytes))


def is_snapshot(step: int, horizon: int, most: int) -> bool:
    """Whether the weights of a step are kept for good: step 0, the horizon, and between them 8, 16, 32, ...

    Where these would be more than `most`, only every second (third, ...) power of two is kept.
    """
    if step in (0, horizon):
        return True
    if step < _FIRST_SNAPSHOT or step & (step - 1):
        return False
    power, powers = (step // _FIRST_SNAPSHOT).bit_length() - 1, max(0, (horizon // _FIRST_SNAPSHOT).bit_length())
    stride = max(1, -(-powers // max(1, most - 2)))
    return power % stride == 0


def is_due(step: int, horizon: int, tokens_per_step: int, device: str = "cpu") -> bool:
    """Whether a checkpoint is written at a step: snapshots, and one every 65,536 tokens (16 M away from the CPU)."""
    between = _TOKENS_BETWEEN.get(device, _TOKENS_BETWEEN_ELSEWHERE)
    return step % max(1, -(-between // tokens_per_step)) == 0 or is_snapshot(step, horizon, 64)


def latest_valid(folder: RunFolder, *, before: int | None = None) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint (of a step up to `before`) that is whole, and a sentence for each newer one that is not."""
    words: list[str] = []
    for step, path in reversed(folder.checkpoint_folders().items()):
        if before is not None and step > before:
            continue
        found = _standing(step, path)
        if found.state is not None and found.is_whole:
            return Checkpoint(path=path, state=found.state), words
        if not found.has_weights:
            words.append(f"the checkpoint of step {step} is damaged ({found.trouble}) and is passed over")
    return None, words


def mark_stopped(folder: RunFolder, reason: str) -> int:
    """Write into the newest whole checkpoint why the run ended there; returns its step, -1 where there is none."""
    checkpoint, _ = latest_valid(folder)
    if checkpoint is None:
        return -1
    state, files = _read_state(checkpoint.path)
    state.stopped_because = reason
    write_atomically(checkpoint.path / "state.json", _state_json(state, files))
    return state.step


def keep_snapshot(folder: RunFolder, step: int, weights: Mapping[str, Tensor]) -> None:
    """Keep weights that were trained elsewhere as those of a step, with their hash; in the place of what was there.

    Raises StorageError.
    """
    unfinished, final = unfinished_path(folder, step), _path(folder, step)
    with storage_errors(final):
        _remove(unfinished)
        unfinished.mkdir(parents=True)
        files = {FILES[0]: write_atomically(unfinished / FILES[0], streamed(weights))}
        write_atomically(unfinished / "state.json", _state_json(TrainingState(step=step), files))
        _remove(final)
        unfinished.rename(final)
    sync_folder(final.parent)


def go_back(
    folder: RunFolder, checkpoint: Checkpoint, *, rollbacks: tuple[Rollback, ...], train_seconds: float
) -> Checkpoint:
    """Make a checkpoint the newest one, with these two fields of its state changed.

    Later ones go first: a process that dies between the two finds the checkpoint as it was, and comes here again.
    """
    for step, path in reversed(folder.checkpoint_folders().items()):
        if step > checkpoint.state.step:
            _remove(path)
    state = dataclasses.replace(checkpoint.state, rollbacks=rollbacks, train_seconds=train_seconds)
    write_atomically(checkpoint.path / "state.json", _state_json(state, _read_state(checkpoint.path)[1]))
    return Checkpoint(path=checkpoint.path, state=state)


def reopen(checkpoint: Checkpoint) -> None:
    """Let a training that ended at a checkpoint go on from there by another schedule."""
    state, files = _read_state(checkpoint.path)
    state = dataclasses.replace(state, stopped_because="", horizon=0, decays_from=0, stale=0, recent_losses=())
    write_atomically(checkpoint.path / "state.json", _state_json(state, files), follow=False)


class Checkpoints:
    """Writes one training's checkpoints. `save` returns once the tensors are copied, `close` when all is on disk.

    What is later than the checkpoint resumed from is removed first. `keep_bytes` bounds what snapshots take in all.
    """

    def __init__(
        self,
        folder: RunFolder,
        catalogue: "Catalogue",
        optimizer: "Optimizer",
        *,
        resume: Checkpoint | None = None,
        keep_bytes: int = KEEP_BYTES,
        shared: bool = False,
    ) -> None:
        """`shared`: several processes write the files, between `begin` and `finish`, and `save` is not called."""
        self._folder, self._catalogue, self._optimizer = folder, catalogue, optimizer
        self._buffers = () if shared else (TensorFile(catalogue.state()), TensorFile(optimizer.state()))
        n_bytes = sum(entry.parameter.numel() * entry.parameter.element_size() for entry in catalogue)
        self._most = most_snapshots(n_bytes, keep_bytes)
        self._best_of: dict[int, int] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint", initializer=_step_aside)
        self._writing: Future[None] | None = None
        after = -1 if resume is None else resume.state.step
        for step, path in folder.checkpoint_folders().items():
            if step > after:
                _remove(path)
            elif resume is not None:
                with contextlib.suppress(RunFolderError):
                    self._best_of[step] = _read_state(path)[0].best_step
        if resume is not None:  # whoever died between a checkpoint and its link left the weights of the one before
            link(resume.path / "model.safetensors", folder.model)

    def save(self, state: TrainingState) -> None:
        """Copy weights, optimizer state and `state`, and write them in the background.

        Raises StorageError where the write before this one failed.
        """
        self.wait()
        for buffer, of in zip(self._buffers, (self._catalogue, self._optimizer), strict=True):
            buffer.fill(of.state())
        self.finish(state)

    def begin(self, step: int) -> Path:
        """Make the folder in which several processes write the files of a checkpoint; nobody takes it for one yet.

        Raises StorageError where that fails, or the write before this one failed.
        """
        self.wait()
        unfinished = unfinished_path(self._folder, step)
        with storage_errors(unfinished):
            _remove(unfinished)
            unfinished.mkdir(parents=True)
        return unfinished

    def finish(self, state: TrainingState) -> None:
        """Let the checkpoint appear under its name, in the background, with what `save` or others gave."""
        self._writing = self._thread.submit(self._finish, dataclasses.replace(state))

    def wait(self) -> None:
        """Until what was saved is on the disk. Raises StorageError where that failed."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def close(self) -> None:
        """`wait`, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def restore_best(self, state: TrainingState) -> bool:
        """Make `best.safetensors` the weights that `state` calls best; False where they are gone."""
        if state.best_step < 0:
            self._folder.best.unlink(missing_ok=True)
            return True
        path = _path(self._folder, state.best_step)
        try:
            expected = _read_state(path)[1]["model.safetensors"]
            if sha256_of(path / "model.safetensors") != expected:
                return False
        except (OSError, KeyError, RunFolderError):
            return False
        link(path / "model.safetensors", self._folder.best)
        return True

    def _finish(self, state: TrainingState) -> None:
        """Write what is buffered, or hash what others wrote; leave nothing of a checkpoint that cannot be finished."""
        unfinished, final = unfinished_path(self._folder, state.step), _path(self._folder, state.step)
        with storage_errors(unfinished):
            try:
                if self._buffers:
                    _remove(unfinished)
                    unfinished.mkdir(parents=True)
                    parts = zip(FILES, self._buffers, strict=True)
                    files = {name: write_atomically(unfinished / name, buffer.chunks()) for name, buffer in parts}
                else:
                    files = {name: sha256_of(unfinished / name) for name in FILES}
                write_atomically(unfinished / "state.json", _state_json(state, files))
                _remove(final)
                unfinished.rename(final)
            except BaseException:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
        self._make_known(state)

    def _make_known(self, state: TrainingState) -> None:
        """Let the run's own files be those of the checkpoint, and take away what it makes needless."""
        final = _path(self._folder, state.step)
        sync_folder(final.parent)
        link(final / "model.safetensors", self._folder.model)
        if state.best_step == state.step:
            link(final / "model.safetensors", self._folder.best)
        self._best_of[state.step] = state.best_step
        self._thin(state.horizon)

    def _thin(self, horizon: int) -> None:
        """Keep the newest two whole, and more where one from before a spike that begins now would not be among them; of
        the others the weights of snapshots and of the best; nothing else.
        """
        folders = self._folder.checkpoint_folders()
        steps = list(folders)
        back = max((step for step in steps if step <= steps[-1] - ONSET), default=steps[0])
        newest = [step for step in steps if step >= min(back, *steps[-2:])]
        needed = {self._best_of.get(step, -1) for step in newest}
        for step in steps[: -len(newest)]:
            if is_snapshot(step, horizon, self._most) or step in needed:
                (folders[step] / "optimizer.safetensors").unlink(missing_ok=True)
            else:
                _remove(folders[step])


def _step_aside() -> None:
    """Let this thread run where the training leaves a processor idle; only Linux has priorities of threads."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def _path(folder: RunFolder, step: int) -> Path:
    return folder.checkpoints / f"step-{step:08d}"


def unfinished_path(folder: RunFolder, step: int) -> Path:
    """Where a checkpoint stands until all of it is there."""
    final = _path(folder, step)
    return final.with_name(f".part-{final.name}")


def _remove(path: Path) -> None:
    """Remove a checkpoint; its name goes first, so that half a checkpoint never stands under it."""
    if path.exists():
        doomed = path.with_name(f".part-doomed-{path.name}")
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _state_json(state: TrainingState, files: Mapping[str, str]) -> bytes:
    content: JsonObject = {"format_version": 1, "training": dataclasses.asdict(state), "files": dict(files)}
    content["sha256"] = state_digest(content)
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def _read_state(path: Path) -> tuple[TrainingState, dict[str, str]]:
    """The state and the hashes of a checkpoint's files. Raises RunFolderError where it is damaged."""
    values, files = read_state(path)
    try:
        for name in ("probe_last", "probe_losses", "recent_losses", "gradient_logs"):
            values[name] = tuple(values[name]) if values.get(name) is not None else None
        values["rollbacks"] = tuple(Rollback(**one) for one in values.get("rollbacks", ()))
        for name in ("recent_losses", "gradient_logs"):  # a state of before these were kept
            values[name] = values[name] or ()
        state = TrainingState(**values)
        if wrong := _wrong_field(state) or next(filter(None, map(_wrong_field, state.rollbacks)), ""):
            raise ValueError(f"its {wrong} is of another type")
        return state, files
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{path / 'state.json'} is damaged: {error}") from None


def _wrong_field(of: TrainingState | Rollback) -> str:
    """The first field whose value, read from JSON, is not of its type; "" where all are."""
    hints = get_type_hints(type(of))
    return next((name for name, hint in hints.items() if not _fits(getattr(of, name), hint)), "")


def _fits(value: object, hint: object) -> bool:
    options = get_args(hint) or (hint,)
    if isinstance(value, tuple):
        return all(isinstance(item, Rollback) or _fits(item, float | None) for item in value)
    if isinstance(value, bool):
        return bool in options
    return any(isinstance(value, int | float if kind is float else kind) for kind in options if isinstance(kind, type))


def _trouble(path: Path, files: Mapping[str, str]) -> str:
    """What keeps a checkpoint from being resumed: empty when nothing does, "thinned" where only weights were kept."""
    run = RunFolder(path.parent.parent)
    for name, expected in files.items():
        if why := run.why_foreign(path / name):
            return f"{name} {why}"
        try:
            actual = sha256_of(path / name)
        except FileNotFoundError:
            return "thinned" if name == "optimizer.safetensors" else f"{name} is missing"
        except OSError as error:
            return f"{name}: {error.strerror}"
        if actual != expected:
            return f"{name} does not match its hash"
    return ""

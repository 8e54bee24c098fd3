"""The one way to the files of a run: what is opened was checked first.

    check_file(path)      its bytes have the hash that the run says they have, and it lies in the run
    check_weights(path)   that, and its tensors are floating-point numbers, every one finite
    damage(folder)        each final file of a run that fails these checks, for whoever shows the rest
    checkpoint_files      the hashes that a checkpoint's state.json holds

What vouches for a file is `manifest.json` for the final files of a finished run, `state.json` for a checkpoint, and for
the weights of a run that still trains, which are links to a checkpoint's, any of these. Nothing vouches for telemetry
that is being written, for what `qkv.watch` has not sealed yet, or for a file that lies in no run; of weights the
numbers are checked all the same. Every opener of such a file (tensors, tokenizers, telemetry, configurations) calls
this, so a command need not. Hashes are remembered outside the run (`hashes`); `qkv verify` and `--resume` read every
byte instead.
"""

import functools
import hashlib
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

from qkv.errors import DamagedFileError, RunFolderError, typed
from qkv.folder.hashes import Known, Stamp, known, remember, sha256_remembered, stamp_of
from qkv.folder.run_folder import CHECKPOINT_FILES, FINAL_FILES, RunFolder, read_json
from qkv.jsontypes import JsonMapping, JsonObject

_WEIGHTS = ("model.safetensors", "best.safetensors", "teachers.safetensors")
_OPTIONAL = ("tokenizer.json", "tokenizer.source.json", "source.json")
"""Of these a manifest may have no hash: a person may put a tokenizer into a run that came without, and earlier versions
did not hash source.json."""
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Types of weights, and how NumPy reads them; it has no bfloat16, whose bits are looked at as they are."""
_LARGEST_HEADER = 100_000_000
_BLOCK = 1 << 22
"""Numbers that are looked through at a time."""
_TRIES = 3
_ALTERED = "its bytes are not those that were written (sha256)"
_TORN = "it is no whole safetensors file"


@dataclass(frozen=True)
class Damage:
    """A file of a run that is not what was written."""

    file: str
    """Its name in the run."""
    sentence: str
    """What is wrong with it, and what can be typed."""


def check_file(path: Path) -> None:
    """Make sure that a file is what its run says it is. A file that is in no run, or not there, is not looked at.

    Raises DamagedFileError that says what is wrong, and what can be done.
    """
    run = _run_of(path)
    if run is not None and (why := _trouble(run, path)):
        raise DamagedFileError(_sentence(run, path, why))


def check_weights(path: Path) -> None:
    """Make sure that a file of weights may be used: `check_file`, and every tensor in it is of finite floating-point
    numbers. Raises DamagedFileError, RunFolderError where it is not there.
    """
    run = _run_of(path)
    why = (_trouble(run, path) if run is not None else "") or _numbers_trouble(path)
    if why:
        raise DamagedFileError(f"{path} is damaged: {why}" if run is None else _sentence(run, path, why))


def is_whole(path: Path) -> bool:
    """Whether a file of weights is there and may be used, by `check_weights`."""
    try:
        check_weights(path)
    except RunFolderError:
        return False
    return True


def damage(folder: RunFolder) -> tuple[Damage, ...]:
    """What is not whole of a run, as far as it is shown: its final files and manifest (of one that is not finished, its
    weights), and the weights that were kept: of one that is not finished those of its start, which changes are measured
    from; its other checkpoints come and go, and are checked when they are read.
    """
    names: list[str] = list(_WEIGHTS[:2])
    if folder.is_finished:
        try:
            names = list(_of_manifest(folder))
        except RunFolderError as error:
            return (Damage("manifest.json", str(error)),)
    paths = [folder.path / name for name in names if name in FINAL_FILES]
    places = list(folder.checkpoint_folders().values())
    paths += [place / "model.safetensors" for place in (places if folder.is_finished else places[:1])]
    foreign = "{} is damaged: it names {!r:.60}, which is no file of a run"
    found = [Damage("manifest.json", foreign.format(folder.manifest, n)) for n in names if n not in FINAL_FILES]
    for path in paths:
        try:
            if why := _wrong(folder, path):
                found.append(Damage(str(path.relative_to(folder.path)), _sentence(folder, path, why)))
        except RunFolderError as error:  # what vouches for it is damaged
            state = path if path.parent == folder.path else path.with_name("state.json")
            found.append(Damage(str(state.relative_to(folder.path)), str(error)))
    return tuple(found)


def _wrong(run: RunFolder, path: Path) -> str:
    """What is wrong with a final file, its numbers included where it holds weights; a missing one is."""
    if not os.path.lexists(path):
        return "it is missing" if run.is_finished and path.parent == run.path else ""
    is_weights = path.name in CHECKPOINT_FILES[:1] or path.name in _WEIGHTS
    return _trouble(run, path) or (_numbers_trouble(path) if is_weights else "")


# what vouches for a file


def _run_of(path: Path) -> RunFolder | None:
    """The run that a file lies in, as one of its final files or of its checkpoints; None for any other file."""
    if not os.path.lexists(path):
        return None
    above = path.parent
    if above.parent.name == "checkpoints" and path.name in CHECKPOINT_FILES:
        above = above.parent.parent
    elif path.name not in FINAL_FILES:
        return None
    return RunFolder(above) if (above / "config.toml").is_file() else None


def _trouble(run: RunFolder, path: Path) -> str:
    """What keeps a file that is there from being what the run says it is; "" where nothing does.

    Raises DamagedFileError where that which vouches for it is damaged.
    """
    why = ""
    for _ in range(_TRIES):
        if why := run.why_foreign(path):
            return f"it {why}"
        try:
            before = stamp_of(path)
            expected = _expected(run, path)
            if expected is None or sha256_remembered(path) in expected:
                return ""
            if stamp_of(path) == before:
                return _ALTERED if expected else "manifest.json has no hash of it"
        except OSError as error:  # taken away, as checkpoints are while a run trains
            why = f"it cannot be read ({error.strerror})"
    return why or _ALTERED


def _expected(run: RunFolder, path: Path) -> frozenset[str] | None:
    """The hashes one of which a file must have; None where nothing vouches for it."""
    if path.parent != run.path:
        state = path.with_name("state.json")
        return frozenset({checkpoint_files(path.parent).get(path.name, "")}) if os.path.lexists(state) else None
    if run.is_finished:
        found = _of_manifest(run).get(path.name, "")
        if not found:
            return None if path.name in _OPTIONAL else frozenset()
        return frozenset({found})
    if path.name not in _WEIGHTS[:2]:
        return None
    return _of_checkpoints(run) or None


def _of_manifest(run: RunFolder) -> dict[str, str]:
    """Name -> sha256 of the final files of a finished run. Raises DamagedFileError where its manifest is damaged."""
    files = run.read_manifest().get("files", {})
    if not isinstance(files, dict):
        raise DamagedFileError(f"{run.manifest} is damaged: it names no files")
    return {str(name): str(digest) for name, digest in files.items()}


def _of_checkpoints(run: RunFolder) -> frozenset[str]:
    """The hashes of the weights of every checkpoint whose state can be read."""
    found = set()
    for place in run.checkpoint_folders().values():
        try:
            found.add(checkpoint_files(place).get("model.safetensors", ""))
        except DamagedFileError:
            continue
    return frozenset(found)


def checkpoint_files(place: Path) -> dict[str, str]:
    """Name -> sha256 of the files of a checkpoint, by its state.json. Raises DamagedFileError."""
    try:
        return _files_of(place, stamp_of(place / "state.json"))
    except OSError:
        return read_state(place)[1]


@functools.lru_cache(maxsize=1024)
def _files_of(place: Path, stamp: Stamp) -> dict[str, str]:
    """The same; `stamp` is that of the state.json, which a page asks for once for every matrix."""
    return read_state(place)[1]


def read_state(place: Path) -> tuple[JsonObject, dict[str, str]]:
    """The training at a checkpoint as plain values, and the hashes of its files, by its state.json.

    Only names that a checkpoint has are taken from it. Raises DamagedFileError where it is missing or altered.
    """
    path = place / "state.json"
    try:
        if why := RunFolder(place.parent.parent).why_foreign(path):
            raise ValueError(f"it {why}")
        content = read_json(path)
        if content.pop("sha256") != state_digest(content):
            raise ValueError("its hash does not match")
        training, files = dict(content["training"]), dict(content["files"])
        for name, digest in files.items():
            if name not in CHECKPOINT_FILES or not isinstance(digest, str):
                raise ValueError(f"it names {name!r}, which is no file of a checkpoint")
        return training, files
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from None


def state_digest(content: JsonMapping) -> str:
    """The sha256 of a state.json, its own left out."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


# the numbers in a file of weights


def _numbers_trouble(path: Path) -> str:
    """What is wrong with the tensors of a file, "" where all are finite floating-point numbers; remembered.

    Raises RunFolderError where there is no such file.
    """
    try:
        before = stamp_of(path)
        found = known(before)
        if found is not None and found.is_sound:
            return ""
        began = time.time_ns()
        if why := _scan(path):
            return why
        digest = found.sha256 if found is not None else ""
        if digest and stamp_of(path) == before:
            remember(before, Known(digest, True), began)
        return ""
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from None


def _scan(path: Path) -> str:
    """What is wrong with the first tensor that is not of finite floating-point numbers. Raises OSError."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 1 < length <= min(size - 8, _LARGEST_HEADER):
            return _TORN
        try:
            header = json.loads(file.read(length))
            tensors = {name: _extent(about) for name, about in header.items() if name != "__metadata__"}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return _TORN
    for name, (kind, first, last) in tensors.items():
        if kind not in _FLOATS:
            return f"{name} is stored as {kind}; weights are {', '.join(_FLOATS)}"
        if last > size - 8 - length:
            return _TORN
        if not _finite(path, 8 + length + first, last - first, kind):
            return f"{name} holds numbers that are not finite (NaN or infinity)"
    return ""


def _extent(about: JsonMapping) -> tuple[str, int, int]:
    """Type, first byte and end of a tensor by its entry in a header. Raises ValueError where they do not agree."""
    (first, last), kind = about["data_offsets"], str(about["dtype"])
    width = int(_FLOATS[kind][-1]) if kind in _FLOATS else 0
    if not 0 <= int(first) <= int(last) or (width and int(last) - int(first) != width * math.prod(about["shape"])):
        raise ValueError("the bytes of a tensor are not as many as its numbers")
    return kind, int(first), int(last)


def _finite(path: Path, start: int, n_bytes: int, kind: str) -> bool:
    """Whether every number in a part of a file is finite."""
    import numpy as np

    dtype = np.dtype(_FLOATS[kind])
    values = np.memmap(path, dtype, "r", start, (n_bytes // dtype.itemsize,)) if n_bytes else np.zeros(0, dtype)
    for at in range(0, len(values), _BLOCK):
        block = values[at : at + _BLOCK]
        exponents_full = (block & 0x7F80) == 0x7F80 if kind == "BF16" else ~np.isfinite(block)
        if exponents_full.any():
            return False
    return True


# what to say


def _sentence(run: RunFolder, path: Path, why: str) -> str:
    """What is wrong with a file of a run, and what can be typed."""
    return f"{path} is damaged: {why}; {_remedy(run, path)}"


def _remedy(run: RunFolder, path: Path) -> str:
    """What brings a damaged file back: another that holds the same, a resume, or a copy of the run."""
    folder = typed(run.path)
    listed = f"qkv verify {folder} lists all that is wrong"
    if (twin := _twin(run, path)) is not None:
        return f"the same is whole in a checkpoint: cp {typed(twin)} {typed(path)} ({listed})"
    if run.is_import:
        return f"import the model again ({listed})"
    if path.parent != run.path:
        others = [str(step) for step, file in run.weights().items() if file.parent != path.parent]
        there = f"there are weights of step {', '.join(others)} too" if others else "it has no other"
        return f"take another step: {there} ({listed})"
    if not run.is_finished:
        return f"qkv train --out {folder} --resume goes on from the newest whole checkpoint ({listed})"
    return f"put the file back from a copy of the run, or train it again ({listed})"


def _twin(run: RunFolder, path: Path) -> Path | None:
    """Another file of the run that holds the same weights and is whole; None where there is none."""
    try:
        wanted = _expected(run, path)
        if not wanted or not run.is_finished or path.name not in _WEIGHTS[:2] or path.parent != run.path:
            return None
        for place in run.checkpoint_folders().values():
            other = place / "model.safetensors"
            is_same = os.path.lexists(place / "state.json") and checkpoint_files(place).get(other.name) in wanted
            is_whole = is_same and os.path.lexists(other) and not _wrong(run, other)
            if is_whole and not (path.exists() and os.path.samefile(other, path)):
                return other
    except RunFolderError:
        return None
    return None

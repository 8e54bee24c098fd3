"""The run folder: where its files are, who may write to it, and how: atomically, hashed, held by a lock of the OS.

Every file is written under a temporary name in the same folder, flushed to the disk, and renamed: a reader sees the old
file or the new one, whatever happens in between. The lock dies with its process, so a crash never leaves a folder
locked. This module knows file names, not what is in the files; that they are what was written is checked in `verified`.

A folder may come from somebody else, so only names that are listed here are looked for in it, and a link that leads out
of it is never followed.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Self, TypeVar

from qkv.config import load_toml
from qkv.errors import DamagedFileError, RunFolderError, StorageError, UserError, nearest, too_long, typed
from qkv.jsontypes import JsonMapping, JsonObject, WhereThere, is_like

FORMAT_VERSION = 1
FINAL_FILES = (
    "config.toml",
    "tokenizer.json",
    "tokenizer.source.json",
    "model.safetensors",
    "best.safetensors",
    "teachers.safetensors",
    "linear.safetensors",
    "telemetry.sqlite",
    "report.html",
    "source.json",
)
"""What a finished run consists of, beside `manifest.json`, which holds their hashes, and `checkpoints/`."""

CHECKPOINT_FILES = ("model.safetensors", "optimizer.safetensors")
"""What a checkpoint may hold beside `state.json`, which holds their hashes."""

_LOCK = ".lock"
_TEMPORARY = ".part-"
_LARGEST_JSON = 32 << 20
_SWEEPS = os.name != "nt"
"""Whether what killed processes left half-written is told from what is being written, by its lock."""
_STEP = re.compile(r"step-([0-9]{8,15})")
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TRIES = 3
"""How often a reading begins again that lost a checkpoint."""

_NUMBER, _FIGURES = (float, type(None)), ({str: (float, type(None))}, type(None))
_FORMS: dict[str, object] = {
    **dict.fromkeys(("steps", "horizon", "tokens", "parameters"), int),
    **dict.fromkeys(("best_step", "resumed_from_step"), (int, type(None))),  # watched without a validation; not resumed
    **dict.fromkeys(("val_loss", "last_val_loss", "bits_per_byte", "train_seconds", "total_seconds"), _NUMBER),
    **{"tokens_per_second": _NUMBER, "stopped_because": str},
    **dict.fromkeys(("baselines", "baselines_nats"), _FIGURES),
}
_RECEIPT = {
    "files": {str: WhereThere(dict.fromkeys(("train", "validation", "test", "left_out"), int), why=str)},
    "rows": WhereThere(dict.fromkeys(("read", "set_aside", "left_out"), int), why=str),
    "columns": {str: str},
    "classes": {str: int},
}
_MANIFEST = WhereThere(
    **dict.fromkeys(("cpu", "platform", "parent"), str),
    versions={str: str},
    threads=int,
    data=({str: object}, type(None)),
    imported=WhereThere(family=str, marks={str: object}),
    summary=WhereThere(_FORMS),
    receipt=(_RECEIPT, type(None)),
)
"""What readers of a manifest count on, where it is there."""

R = TypeVar("R")


def runs_in(*places: Path) -> list[Path]:
    """The run folders that lie in these folders, the newest first."""
    found = {}
    for config in (config for place in places for config in place.glob("*/config.toml")):
        with contextlib.suppress(OSError):  # gone meanwhile
            found[config.parent] = config.stat().st_mtime_ns
    return sorted(found, key=lambda run: -found[run])


def _instead(path: Path) -> str:
    """What to type where `path` is no run: one in it, one of such a name beside it or in `runs`, or the newest."""
    inside, near = runs_in(path), runs_in(path.parent, Path("runs"))
    by_name = {run.name: run for run in reversed(near)}
    alike = [by_name[name] for name in nearest(path.name, by_name, 2, alike=0.6)]
    if inside:
        return f"the newest run in it is {typed(inside[0])}"
    if alike:
        return f"did you mean {' or '.join(map(typed, alike))}?"
    return f"the newest run here is {typed(near[0])}" if near else "give the folder of a run (train one with qkv train)"


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a StorageError (a UserError for a name) that says what happened to `path` and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            message = f"the disk is full: {path} could not be written. What was saved before is kept; free some space,"
            raise StorageError(f"{message} then type the same again (a training goes on with --resume)") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StorageError(f"no permission to write {path}; what was saved before is kept") from error
        if error.errno == errno.ENAMETOOLONG:
            raise too_long(path.name) from error
        raise StorageError(f"{path} could not be written: {error.strerror or error}") from error


def check_place(path: str | Path, *, folder: bool = False) -> None:
    """Make sure that a file can be written at `path`, before the work that leads up to it: the folder that it goes into
    is there. A `folder` is made with those above it, so what must be there is the first of them.

    Raises UserError that says what stands in the way, and what to do.
    """
    path = Path(path)
    above = path.absolute().parents
    there = next(parent for parent in above if os.path.lexists(parent))
    if not folder and os.path.isdir(path):
        raise UserError(f"{path} is a folder; expected the name of a file, such as {path / 'my-file'}")
    if not there.is_dir():
        what = "a file" if there.exists() else "a link to nothing"
        raise UserError(f"{path} cannot be written: {there} is {what} and no folder; choose another place")
    if not folder and there != above[0]:
        raise UserError(
            f"{path} cannot be written: there is no folder {path.parent}; type mkdir -p"
            f" {typed(path.parent)}, or choose another place"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{path} cannot be written: no permission to write in {there}; choose another place")
    try:  # root may do everything, and yet there are folders in which nothing can be made
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        if error.errno not in _FULL:
            why = f"nothing can be made in {there} ({error.strerror})"
            raise UserError(f"{path} cannot be written: {why}; choose another place") from None


def write_atomically(path: Path, chunks: bytes | Iterable[bytes | memoryview], *, follow: bool = True) -> str:
    """Write a file so that it is there whole or not at all; returns its sha256 in hex.

    What is no file (/dev/null, /dev/stdout, a pipe) is written to and never replaced, and a link stays a link; without
    `follow` whatever stands under the name is replaced. Raises StorageError; then an older file of that name is
    untouched and nothing of the new one is left.
    """
    pieces = [chunks] if isinstance(chunks, bytes) else chunks
    with storage_errors(path):
        if follow and os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb", buffering=0) as file:
                return _poured(file.fileno(), pieces)
        path = Path(os.path.realpath(path)) if follow else path
        temporary, file = _opened(path)
        try:
            with file:
                digest = _poured(file.fileno(), pieces)
                os.fsync(file.fileno())
                if not _SWEEPS:
                    file.close()  # Windows renames no open file
                os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    return digest


def _opened(path: Path) -> tuple[Path, BinaryIO]:
    """A new file beside `path`, locked for as long as it is open, so that nobody sweeps it."""
    while True:
        temporary = _temporary(path)
        file = open(temporary, "xb", buffering=0)  # noqa: SIM115
        if not _SWEEPS or (_held(file.fileno()) and os.path.lexists(temporary)):
            return temporary, file  # type: ignore[return-value]
        file.close()  # swept before it was locked


def _temporary(path: Path) -> Path:
    """A name beside `path` that nobody can foresee; what killed processes left under such names is swept."""
    begin = f"{_TEMPORARY}{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:12]}-"
    for leftover in path.parent.glob(f"{begin}*") if _SWEEPS else ():
        with contextlib.suppress(OSError):  # gone, a link, or a file that is being written
            descriptor = os.open(leftover, os.O_RDONLY | _NO_LINK)
            try:
                if lock_file(descriptor):
                    leftover.unlink()
            finally:
                os.close(descriptor)
    return path.with_name(begin + secrets.token_hex(8))


def _poured(descriptor: int, pieces: Iterable[bytes | memoryview]) -> str:
    """Write all the pieces; returns their sha256 in hex."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        _write(descriptor, memoryview(piece).cast("B"))
    return digest.hexdigest()


def _write(descriptor: int, data: memoryview) -> None:
    """All of `data`: one system call may take less than it was given."""
    while data:
        data = data[os.write(descriptor, data) :]


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut, where the system can."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link(source: Path, target: Path) -> None:
    """Make `target` the same file as `source`, atomically: a hard link, or a copy where there are no links.

    Raises StorageError.
    """
    with storage_errors(target):
        temporary = _temporary(target)
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
        os.replace(temporary, target)
        temporary.unlink(missing_ok=True)  # rename leaves both names where they were links to one file


def read_json(path: Path) -> JsonObject:
    """What a JSON file of a run holds. Raises OSError, ValueError (it is too large, too), RecursionError."""
    if path.stat().st_size > _LARGEST_JSON:
        raise ValueError(f"it has more than {_LARGEST_JSON:,} bytes")
    return json.loads(path.read_text(encoding="utf-8"))


def sha256_of(path: Path) -> str:
    """The sha256 of a file in hex, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class RunFolder:
    """One run's folder. `create` and `open(writing=True)` hold its lock; use them as context managers, or `close`.

    Leaving a folder that was created just now on a UserError, before anything was trained, removes it again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._locks: list[int] = []
        self._created = False
        self._parents_made: list[Path] = []

    @classmethod
    def create(cls, path: str | Path) -> "RunFolder":
        """Make a new run folder (and those above it) and lock it.

        Raises RunFolderError where the place is taken, in use, or may not be written to; StorageError on a full disk.
        """
        folder = cls(Path(path))
        folder.check_vacant()
        folder._parents_made = [parent for parent in folder.path.parents if not parent.exists()]
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            folder._acquire()
            folder._created = True
        except OSError as error:
            folder._undo()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageError(f"the disk is full: {folder.path} could not be made") from error
            raise RunFolderError(f"{folder.path} could not be made ({error.strerror}); choose another --out") from None
        return folder

    def check_vacant(self) -> None:
        """Make sure that a new run may be put here, before the work that leads up to it.

        Raises RunFolderError where the place is taken, UserError where no folder can be made there.
        """
        if not os.path.exists(self.path):
            check_place(self.path, folder=True)
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{self.path} is a file; choose another --out")
        if self.path.exists() and not self._is_vacant():
            is_training = self.config.is_file() and not self.is_import
            how = " (a training goes on with qkv train --resume --out)" if is_training else ""
            raise RunFolderError(f"{self.path} already exists; choose another --out{how}")
        if self.path.exists() and not os.access(self.path, os.W_OK | os.X_OK):
            raise UserError(f"no permission to write in {self.path}; choose another --out")

    def make_room(self) -> None:
        """Take away what a process left here that died before it began, so that another folder can take this name.

        Raises RunFolderError where that is not all there is, or somebody holds it.
        """
        self.check_vacant()
        if self.in_use():
            raise RunFolderError(f"{self.path} is in use by another qkv; wait for it, or choose another --out")
        if self.path.is_dir():
            for leftover in self.path.iterdir():
                is_folder = leftover.is_dir() and not leftover.is_symlink()
                shutil.rmtree(leftover) if is_folder else leftover.unlink()

    @property
    def is_import(self) -> bool:
        """Whether it holds a model that was trained elsewhere; False where its configuration cannot be read."""
        try:
            return bool(load_toml(self.config).get("imported"))
        except (OSError, UserError):
            return False

    @classmethod
    def open(cls, path: str | Path, *, writing: bool = False) -> "RunFolder":
        """An existing run's folder; with `writing`, locked, and swept of what a killed process left half-written.

        Raises RunFolderError where it is missing, is not a run, or (writing) is in use by another process or has a
        link in the place of what is written.
        """
        folder = cls(Path(path))
        if not folder.path.is_dir():
            what = "a file" if folder.path.exists() else "not there"
            raise RunFolderError(f"{folder.path} is {what}; {_instead(folder.path)}")
        if not folder.config.is_file():
            raise RunFolderError(f"{folder.path} is not a run: it has no config.toml; {_instead(folder.path)}")
        if writing:
            for place in (folder.path / _LOCK, folder.telemetry, folder.checkpoints):
                if why := folder.why_foreign(place):
                    raise DamagedFileError(f"{place} {why}; nothing is written there: give a run of your own")
            try:
                folder._acquire()
            except OSError as error:
                raise RunFolderError(f"{folder.path} cannot be written to ({error.strerror})") from None
            folder._sweep()
        return folder

    # places

    config = property(lambda self: self.path / "config.toml")
    manifest = property(lambda self: self.path / "manifest.json")
    tokenizer = property(lambda self: self.path / "tokenizer.json")
    model = property(lambda self: self.path / "model.safetensors")
    best = property(lambda self: self.path / "best.safetensors")
    teachers = property(lambda self: self.path / "teachers.safetensors")
    telemetry = property(lambda self: self.path / "telemetry.sqlite")
    report = property(lambda self: self.path / "report.html")
    checkpoints = property(lambda self: self.path / "checkpoints")

    @property
    def is_finished(self) -> bool:
        """Whether the run was sealed: `manifest.json` is the last file that is written."""
        return self.manifest.is_file()

    # writing

    def write(self, name: str, data: bytes | str) -> str:
        """Write one file of the folder atomically, in the place of whatever has its name; returns its sha256.

        Raises StorageError.
        """
        return write_atomically(self.path / name, data.encode() if isinstance(data, str) else data, follow=False)

    def seal(self, facts: JsonMapping) -> JsonObject:
        """Write `manifest.json`: these facts, the format version, and the sha256 of every final file that is there."""
        files = {name: sha256_of(self.path / name) for name in FINAL_FILES if (self.path / name).is_file()}
        return self.write_manifest({"format_version": FORMAT_VERSION, **facts, "files": files})

    def note_hash(self, name: str, digest: str) -> None:
        """Tell the manifest the hash of a final file that was written anew; one whose values are not those that it was
        written with stays as it is, for `damaged_files` to find. Raises RunFolderError where it cannot be read.
        """
        manifest = self.read_manifest(altered=True)
        if manifest.get("sha256") == _hash_of(manifest) and isinstance(manifest.get("files"), dict):
            self.write_manifest(manifest | {"files": manifest["files"] | {name: digest}})

    def write_manifest(self, manifest: JsonMapping) -> JsonObject:
        """Write `manifest.json`, with the sha256 of its own values; returns what was written."""
        written = {**manifest, "sha256": _hash_of(manifest)}
        self.write("manifest.json", json.dumps(written, indent=2, sort_keys=True, allow_nan=False) + "\n")
        return written

    # reading

    def why_foreign(self, path: Path) -> str:
        """Why a path below this folder is not to be followed, as the end of a sentence: it leads out of the folder, or
        is neither file nor folder; "" where it may be, and where nothing is there.
        """
        if not os.path.lexists(path):
            return ""
        target = Path(os.path.realpath(path))
        if Path(os.path.realpath(self.path)) not in target.parents:
            return f"is a link that leads out of the run, to {target}"
        try:
            kind = target.stat().st_mode
        except OSError:
            return "is a link to nothing"
        return "" if stat.S_ISREG(kind) or stat.S_ISDIR(kind) else "is no file, but a device or a pipe"

    def read_manifest(self, *, altered: bool = False) -> JsonObject:
        """The facts of a finished run; with `altered` also where they are not those that were written.

        Raises RunFolderError where it is missing, damaged or of a newer version.
        """
        if why := self.why_foreign(self.manifest):
            raise DamagedFileError(f"{self.manifest} {why}; copy the file itself there")
        try:
            manifest = read_json(self.manifest)
        except FileNotFoundError:
            how = "import it again" if self.is_import else "finish it with qkv train --resume --out"
            raise RunFolderError(f"{self.path} has no manifest.json: it is not finished; {how}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise DamagedFileError(f"{self.manifest} cannot be read: {error}") from None
        version = manifest.get("format_version") if isinstance(manifest, dict) else None
        if not isinstance(version, int) or not 0 < version <= FORMAT_VERSION:
            raise RunFolderError(f"{self.path} has format version {version}; this qkv reads up to {FORMAT_VERSION}")
        if not is_like(manifest, _MANIFEST):
            raise DamagedFileError(f"{self.manifest} is damaged: a value in it is of another type than qkv writes")
        if not altered and manifest.get("sha256", "") not in ("", _hash_of(manifest)):
            raise DamagedFileError(
                f"{self.manifest} is damaged: its values are not those that it was written with; put it back from a"
                f" copy of the run (qkv verify {typed(self.path)} lists all that is wrong)"
            )
        return manifest

    def checkpoint_folders(self) -> dict[int, Path]:
        """Step -> folder of every checkpoint that is there, oldest first, whole or not."""
        found = {}
        for path in self.checkpoints.glob("step-*"):
            named = _STEP.fullmatch(path.name)
            if named and path.name == f"step-{int(named[1]):08d}" and path.is_dir() and not path.is_symlink():
                found[int(named[1])] = path
        return dict(sorted(found.items()))

    def weights(self, last_step: int | None = None) -> dict[int, Path]:
        """Step -> file of weights, oldest first: of every checkpoint that is there, and of a finished run its model.

        That is of the last step by its manifest; of `last_step` where it says none; an imported model, which has not
        been trained, is of none.
        """
        files = {step: path / "model.safetensors" for step, path in self.checkpoint_folders().items()}
        found = {step: path for step, path in files.items() if os.path.lexists(path)}
        if self.is_finished and self.model.is_file():
            try:
                summary = self.read_manifest().get("summary")
            except RunFolderError:  # whoever asks for more will say so
                summary = None
            last = summary.get("steps", last_step) if isinstance(summary, dict) else last_step
            if isinstance(last, int) and last > 0:
                found.setdefault(last, self.model)
        return dict(sorted(found.items()))

    def steadily(self, read: Callable[[], R]) -> R:
        """What `read()` gives; asked again where it failed while a training took a checkpoint away that it read."""
        for _ in range(_TRIES):
            kept = self.weights().keys()
            try:
                return read()
            except Exception:  # whatever a reader makes of a file that vanishes
                if kept <= self.weights().keys():
                    raise
        return read()

    def damaged_files(self) -> dict[str, str]:
        """Name -> "missing" or "altered" for each final file that is not as the manifest says, and for the manifest
        where its values are not those that it was written with; empty if all is well. Every byte is read.
        """
        found: dict[str, str] = {}
        manifest = self.read_manifest(altered=True)
        files = manifest.get("files", {})
        if not isinstance(files, dict):
            raise RunFolderError(f"{self.manifest} names no files: expected a table of names and hashes")
        for name, expected in files.items():
            path = self.path / name
            if name not in FINAL_FILES or not path.is_file():  # a name from a file is never followed elsewhere
                found[name] = "missing"
            elif self.why_foreign(path) or sha256_of(path) != expected:
                found[name] = "altered"
        if manifest.get("sha256", "") not in ("", _hash_of(manifest)):
            found["manifest.json"] = "altered"
        return found

    # holding it

    def in_use(self) -> bool:
        """Whether somebody writes to it now; nothing is changed by asking."""
        for place in (self.path / _LOCK, *([self.checkpoints] if _SWEEPS else [])):
            try:
                descriptor = os.open(place, os.O_RDONLY | _NO_LINK)
            except OSError:
                continue
            try:
                if not _held(descriptor):
                    return True
            finally:
                os.close(descriptor)
        return False

    def close(self) -> None:
        """Let go of the lock; once more does nothing."""
        while self._locks:
            os.close(self._locks.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        started = self.teachers.exists() or any(self.checkpoints.glob("step-*"))
        if isinstance(error, UserError | KeyboardInterrupt) and not started:
            self._undo()
        self.close()

    def _acquire(self) -> None:
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o644)
        if not lock_file(descriptor):
            holder = os.read(descriptor, 32).decode(errors="replace").strip() if os.name != "nt" else ""
            os.close(descriptor)
            who = f" (process {holder})" if holder else ""
            raise RunFolderError(f"{self.path} is in use by another qkv{who}; wait for it, or choose another --out")
        self._locks.append(descriptor)
        self.checkpoints.mkdir(exist_ok=True)
        if _SWEEPS:  # and the checkpoints' folder: deleting the lock file lets no second trainer in
            inside = os.open(self.checkpoints, os.O_RDONLY | _NO_LINK)
            self._locks.append(inside)
            if not _held(inside):
                self.close()
                raise RunFolderError(f"{self.path} is in use by another qkv; wait for it, or choose another --out")
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())

    def _is_vacant(self) -> bool:
        """Nothing in it but what a process that died before it began may have left."""
        leftovers = {_LOCK, self.checkpoints.name}
        names = {p.name for p in self.path.iterdir() if not p.name.startswith(_TEMPORARY)}
        return names <= leftovers and not (self.checkpoints.is_dir() and any(self.checkpoints.iterdir()))

    def _sweep(self) -> None:
        for place in (self.path, self.checkpoints):
            for leftover in place.glob(f"{_TEMPORARY}*"):
                shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink(missing_ok=True)

    def _undo(self) -> None:
        """Take back what `create` made, and nothing that another process made beside it."""
        self.close()
        if self._created:
            shutil.rmtree(self.path, ignore_errors=True)
            self._created = False
        with contextlib.suppress(OSError):
            for parent in self._parents_made:  # nearest first; the first that is not empty ends it
                parent.rmdir()


def _hash_of(manifest: JsonMapping) -> str:
    """The sha256 of the values of a manifest, its own hash left out."""
    values = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _held(descriptor: int) -> bool:
    """`lock_file`, where the file system has locks; True where it has none."""
    try:
        return lock_file(descriptor)
    except OSError:
        return True


def lock_file(descriptor: int) -> bool:
    """Take an exclusive lock that ends with this process; False where another has it."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        raise
    return True

"""A new folder that takes its name when it is whole: made beside its place, flushed, renamed.

Whatever ends the process in between, nothing stands under the name. What a killed process left beside it is swept by
the next that makes the same folder; what a running one is making is held by a lock on the folder itself, which dies
with its process, and is left alone.
"""

import contextlib
import errno
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from qkv.errors import RunFolderError
from qkv.folder.run_folder import lock_file, storage_errors, sync_folder

_LOCKS_FOLDERS = os.name != "nt"
"""Whether a folder can be opened and locked; where not, what was left behind is not swept, for it may be in use."""


@contextlib.contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A new folder to write into, which becomes `out` at the end, and is gone, with the folders made above it, where
    that is not reached. `out` may be there and empty, but not be where this process is (`check_elsewhere`).

    Raises RunFolderError where `out` is taken meanwhile, StorageError where nothing can be written.
    """
    out = Path(os.path.realpath(out))
    above = [parent for parent in out.parents if not parent.exists()]
    held = None
    try:
        with storage_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            _sweep(out)
            place, held = _new(out)
        try:
            yield place
            with storage_errors(out):
                sync_folder(place)
                take_name(place, out)
                sync_folder(out.parent)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
    except BaseException:
        with contextlib.suppress(OSError):
            for parent in above:  # nearest first; the first that is not empty ends it
                parent.rmdir()
        raise
    finally:
        if held is not None:
            os.close(held)


def check_elsewhere(out: Path) -> None:
    """Make sure that `out` is not the folder that this process is in, which cannot be replaced under it.

    Raises RunFolderError.
    """
    if out.resolve() == Path.cwd():
        raise RunFolderError(f"{out} is the folder that you are in; choose another --out")


def _new(out: Path) -> tuple[Path, int | None]:
    """A folder beside `out` that nobody else has, and the lock that says so; None where folders cannot be locked.

    Raises OSError.
    """
    while True:
        place = out.with_name(f".part-{out.name}-{secrets.token_hex(4)}")
        place.mkdir()
        try:
            return place, _lock(place)
        except FileNotFoundError:  # swept before it was locked
            continue
        except OSError:
            return place, None


def _lock(place: Path) -> int:
    """A lock on a folder, which ends with this process.

    Raises FileNotFoundError where somebody else has it, or has just taken the folder away, another OSError where this
    system cannot lock it.
    """
    if not _LOCKS_FOLDERS:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if lock_file(descriptor) and os.path.samestat(os.fstat(descriptor), os.stat(place)):
            return descriptor
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))
    except BaseException:
        os.close(descriptor)
        raise


def _sweep(out: Path) -> None:
    """Remove what killed processes left that made the same folder."""
    for leftover in out.parent.glob(f".part-{glob.escape(out.name)}-*"):
        with contextlib.suppress(OSError):  # no folder, or not ours to lock: not ours to remove
            held = _lock(leftover)
            shutil.rmtree(leftover, ignore_errors=True)
            os.close(held)


def take_name(place: Path, out: Path) -> None:
    """Give the folder its name, where nothing or an empty folder has it. Raises RunFolderError where that is taken."""
    try:
        if out.is_dir() and not out.is_symlink():
            out.rmdir()
        os.rename(place, out)
    except OSError as error:
        if os.path.lexists(out):
            raise RunFolderError(f"{out} was made by another program meanwhile; choose another --out") from error
        raise

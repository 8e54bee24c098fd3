"""Every error that qkv raises on purpose, as one tree.

    QkvError                    exit status 1
    ├── UserError               exit status 2: what was given, what was expected, what to type next
    │   ├── ConfigError         a setting, key or value
    │   ├── AddressError        an address or selector that names nothing
    │   ├── ChangeError         a change that cannot be made
    │   ├── SourceError         a text, table or folder that cannot be read as asked
    │   ├── RunFolderError      a run folder that is missing, taken, locked or not a run
    │   │   └── DamagedFileError    a file of a run that is not what was written
    │   └── MissingExtra        an optional dependency that is not installed
    ├── RunError                exit status 1: the run could not go on
    │   ├── NonFiniteError      NaN or infinity in loss or gradients
    │   ├── SpikeError          the training loss jumped up and stayed there
    │   ├── RankLostError       another process of a training on several ended
    │   └── StorageError        disk full, no permission while writing
    └── Interrupted             exit status 130 (Ctrl-C) or 143 (SIGTERM)

A broken internal invariant is an `assert`, never one of these. This module imports nothing of ours.
"""

import os
import shlex
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from qkv.words import some


class QkvError(Exception):
    """Root of the tree; `exit_status` is what the command line ends with."""

    exit_status = 1


class UserError(QkvError):
    """A mistake of the user's, explained in one sentence."""

    exit_status = 2


class ConfigError(UserError):
    """An unknown key, or a value out of range."""


class AddressError(UserError):
    """An address or selector that does not parse or matches nothing."""


class ChangeError(UserError):
    """A change that does not parse, has no effect, or cannot be made on that matrix."""


class SourceError(UserError):
    """Data that cannot be read as asked: missing, empty, binary, too small."""


class RunFolderError(UserError):
    """A run folder that is missing, not a run, already there, or in use."""


class DamagedFileError(RunFolderError):
    """A file of a run that is not what was written: other bytes, other numbers, a foreign schema, a link elsewhere."""


class MissingExtra(UserError):
    """An optional dependency is not installed; the message holds the command of `qkv.installing.install`."""


class RunError(QkvError):
    """The run could not go on; what was saved is kept."""


class NonFiniteError(RunError):
    """A loss or gradient became NaN or infinite."""


class SpikeError(RunError):
    """The training loss jumped up and stayed there."""


class RankLostError(RunError):
    """Another process of a training on several has ended."""


class StorageError(RunError):
    """A file could not be written: disk full or no permission."""


class Interrupted(QkvError):
    """The run was asked to stop; it saved and says how to resume."""

    def __init__(self, message: str, *, exit_status: int = 130) -> None:
        super().__init__(message)
        self.exit_status = exit_status


def is_out_of_memory(error: Exception) -> bool:
    """Whether it says that memory was lacking: Python's own, or torch's, which on a CPU is any RuntimeError."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    said = str(error).lower()
    told = ("can't allocate memory", "not enough memory", "out of memory")  # Linux, Windows, MPS
    return isinstance(error, RuntimeError) and any(words in said for words in told)


def first_line(error: Exception) -> str:
    """The beginning of what another library says, or the kind of its error where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def nearest(given: str, options: Iterable[str], n: int = 3, *, alike: float = 0.4) -> list[str]:
    """The up to `n` options that look most like `given`, best first; as `alike` as 1 is only itself."""
    return get_close_matches(given, list(options), n=n, cutoff=alike)


def unknown(what: str, given: str, options: Iterable[str], n: int = 3) -> str:
    """One sentence for a name that is not among `options`: the nearest ones, or all of a short list."""
    options = list(options)
    close = nearest(given, options, n)
    if close:
        return f"unknown {what} {given!r}; did you mean {' or '.join(repr(c) for c in close)}?"
    return f"unknown {what} {given!r}; expected one of: {some(options)}"


def typed(path: object) -> str:
    """A path as it is typed in a shell, where a command may be told: quoted, and never like an option."""
    text = str(path)
    text = f"./{text}" if text.startswith("-") else text
    if text.isprintable():
        return shlex.quote(text)
    plain = (chr(b) if 31 < b < 127 and b not in b"\\'" else f"\\x{b:02x}" for b in os.fsencode(text))
    return f"$'{''.join(plain)}'"


def which(index: int, n: int) -> str:
    """` (text 2 of 7)`, to be put behind a text that is the second of seven; nothing where it is the only one."""
    return f" (text {index + 1:,} of {n:,})" if n > 1 else ""


def too_long(name: str) -> UserError:
    """For a name of a file or folder that the file system does not take (ENAMETOOLONG)."""
    return UserError(f"{name[:40]}... is too long for the name of a file or folder here; give a shorter one")


def several(what: str, given: "Iterable[str | os.PathLike[str]]") -> list[str]:
    """`given` as a list of strings, paths among them as such.

    Raises UserError for one string alone, which Python would take letter by letter, and for what is neither.
    """
    if isinstance(given, str):
        raise UserError(f"{what} is the string {given[:40]!r}; expected a list of them: [{given[:40]!r}]")
    found = [str(item) if isinstance(item, os.PathLike) else item for item in given]
    for item in found:
        if not isinstance(item, str):
            raise UserError(f"{what} holds {item!r:.40}; expected strings")
    return found


_SOURCES = "a text file, a folder of texts, or a .jsonl, .csv or .tsv table"


def missing_file(path: str | Path, what: str = "file or folder", give: str = _SOURCES) -> SourceError:
    """The error for a path that is no file: the nearest names that are there, or else what to `give`."""
    path = Path(path)
    folder = path.parent
    if path.is_dir():
        return SourceError(f"{str(path)!r} is a folder; give {give}")
    if not folder.is_dir():
        return SourceError(f"no {what} {str(path)!r}: there is no folder {str(folder)!r} either")
    try:
        close = nearest(path.name, sorted(entry.name for entry in islice(os.scandir(folder), 10_000)))
    except OSError:
        close = []
    if close:
        names = " or ".join(repr(str(folder / name) if str(folder) != "." else name) for name in close)
        return SourceError(f"no {what} {str(path)!r}; did you mean {names}?")
    return SourceError(f"no {what} {str(path)!r}; give {give}")

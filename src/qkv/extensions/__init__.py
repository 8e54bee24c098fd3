"""Code of your own: a class or function named `module:name`, and what other packages add by entry points.

A module is found as `python -m` would find it: in the current folder, in the folder of the study that names it, or
installed. Entry points are read only where a name is not built in, or where all names are asked for. Code is never read
from a run folder.
"""

import contextlib
import hashlib
import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeVar

from qkv.errors import ConfigError, QkvError, RunFolderError, unknown

T = TypeVar("T")

GROUPS = ("measures", "tasks", "families", "studies", "optimizers", "sections")
"""What another package can add, each in an entry point group `qkv.GROUP`."""

_imported: dict[str, tuple[object, str]] = {}
"""`module:name` -> what it was imported as, and the sha256 of its file then: that is the code that runs."""


def look_in(folder: Path) -> None:
    """Find modules in a folder too, here and in the worker processes that are started from here."""
    place = str(folder.absolute())
    if place not in sys.path:
        sys.path.insert(0, place)
        importlib.invalidate_caches()


def load(spec: str, setting: str) -> object:
    """What `module:name` names; `setting` begins the sentence of a mistake.

    Raises ConfigError where there is no such module, it cannot be imported, or it has no such name.
    """
    module, _, name = spec.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ConfigError(f"{setting} is {spec!r}; expected module:name, such as lion:Lion for the Lion in lion.py")
    look_in(Path.cwd())
    try:
        found: object = importlib.import_module(module)
    except Exception as error:
        lacks = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        why = f"there is no {module.replace('.', '/')}.py in this folder, and {module} is not installed"
        if not lacks:
            why = f"{module} cannot be imported: {type(error).__name__}: {_first_line(error)}"
        raise ConfigError(f"{setting} is {spec!r}, but {why}") from None
    for part in name.split("."):
        if not hasattr(found, part):
            names = [each for each in vars(found) if not each.startswith("_")]
            raise ConfigError(f"{setting} is {spec!r}, but {unknown(f'name in {module}', name, names)}")
        found = getattr(found, part)
    if spec not in _imported or _imported[spec][0] is not found:
        _imported[spec] = found, _sha256(found)
    return found


def spec_of(thing: Callable[..., object], setting: str) -> str:
    """`module:name` of a class or function, by which every process finds it. Raises ConfigError where none would."""
    module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    if not name or "<" in name or module in ("", "__main__"):
        raise ConfigError(
            f"{setting} is {name or repr(thing)}, which other processes could not find; define it at the top of a file"
            " of its own, such as lion.py, and import it from there"
        )
    return f"{module}:{name}"


def hashes(specs: Mapping[str, object]) -> dict[str, str]:
    """`module:name` -> sha256 of the file that it is in, of each that has one."""
    found = {spec: _sha256(thing) for spec, thing in specs.items()}
    for spec, thing in specs.items():
        _imported.setdefault(spec, (thing, found[spec]))
    return {spec: sha256 for spec, sha256 in found.items() if sha256}


def _sha256(thing: object) -> str:
    """Of the file that it is in, as that is now; empty where it has none."""
    with contextlib.suppress(OSError, TypeError):
        return hashlib.sha256(Path(inspect.getfile(thing)).read_bytes()).hexdigest()  # type: ignore[arg-type]
    return ""


def check_same(of: str, made: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Make sure that code is the one that something was trained with, and the one that was imported here.

    Raises RunFolderError, and ConfigError where a file was changed after its code was imported, which still runs.
    """
    for spec, sha256 in made.items():
        if now.get(spec, sha256) != sha256:
            raise RunFolderError(
                f"{of} was trained with {spec} as of sha256 {sha256[:16]}..., and its file is now"
                f" {now[spec][:16]}...; bring the old file back, or train again"
            )
    for spec, sha256 in now.items():
        if spec in _imported and _imported[spec][1] != sha256:
            raise ConfigError(f"the file of {spec} was changed after this Python imported it; start Python again")


@cache
def _points(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"qkv.{group}")}


def added(group: str) -> list[str]:
    """The names of what other packages add to a group; none of it is imported."""
    return list(_points(group))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


class Registry(Mapping[str, T]):
    """What is built in, and then what other packages add in the entry point group `qkv.GROUP`.

    `take(name, object)` checks what an entry point names, and raises ConfigError. Asked for by name, what is broken
    raises ConfigError with its package; where all are listed it is left out, with the same sentence as a warning.
    """

    def __init__(self, group: str, built_in: Mapping[str, T], take: Callable[[str, object], T]) -> None:
        self.group, self.built_in, self._take = group, built_in, take
        self._added: dict[str, T] = {}
        self._warned: set[str] = set()

    def __getitem__(self, name: str) -> T:
        if name in self.built_in:
            return self.built_in[name]
        if name not in self._added:
            point = _points(self.group)[name]
            try:
                self._added[name] = self._take(name, point.load())
            except Exception as error:
                raise self.failed(name, error) from None
        return self._added[name]

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in _points(self.group)

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from self.added()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def failed(self, name: str, error: Exception) -> ConfigError:
        """What to say where something of another package fails: its package, and why."""
        dist = _points(self.group)[name].dist
        package = f"the package {dist.name} {dist.version}" if dist else "another package"
        why = _first_line(error) if isinstance(error, QkvError) else f"{type(error).__name__}: {_first_line(error)}"
        return ConfigError(f"{name!r} ({self.group}) of {package} cannot be used: {why}; repair or uninstall it")

    def added(self) -> dict[str, T]:
        """What other packages add, by name; what is broken among it is left out, with a warning."""
        found = {}
        for name in _points(self.group):
            if name in self.built_in:
                continue
            try:
                found[name] = self[name]
            except ConfigError as error:
                if name not in self._warned:
                    self._warned.add(name)
                    logging.getLogger("qkv").warning(str(error))
        return found


def instance_of(kind: type[T]) -> Callable[[str, object], T]:
    """A `take` for objects of a class, or classes of them that need no argument."""

    def take(name: str, thing: object) -> T:
        made = thing() if isinstance(thing, type) and issubclass(thing, kind) else thing
        if not isinstance(made, kind):
            raise ConfigError(f"it is {made!r:.60}; expected a {kind.__module__}.{kind.__name__}")
        return made

    return take

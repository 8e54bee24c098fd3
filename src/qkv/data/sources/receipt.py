"""The data receipt: what became of every file, row, column and class of a source, in bytes of decompressed text.

Each part of a source is counted while it is read; nothing here is estimated. For every file, what is trained on, what
is validated on, what is set aside for the test and what is left out add up to its size, and whatever is left out has
its reason. Of image files and folders that are passed over, bytes are those on disk.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from qkv.data.sources.reading import size_of
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.words import many, some

_MOST_FILES = 1000
"""Beyond so many files, those of a folder share an entry."""
_MOST_SHOWN = 8
_PARTS = ("train", "validation", "test", "left_out")


class Passed(NamedTuple):
    """A file that is not read, or a folder that is passed over as a whole."""

    path: Path
    why: str
    is_test: bool = False


class ReadFile(NamedTuple):
    """A file that is read."""

    path: Path | str
    """A word for what is no file."""
    losses: Mapping[str, int]
    """Why some of it is no text that is used -> how many bytes."""


@dataclass(frozen=True, kw_only=True)
class FileShare:
    """What the bytes of one file are used for."""

    train: int = 0
    validation: int = 0
    test: int = 0
    left_out: int = 0
    why: str = ""
    """Why bytes are left out, or set aside for the test."""

    def __add__(self, other: "FileShare") -> "FileShare":
        sums = {name: getattr(self, name) + getattr(other, name) for name in _PARTS}
        return FileShare(**sums, why="; ".join(dict.fromkeys(filter(None, (self.why, other.why)))))


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of tables, labelled lines, pairs of lines or images; text that has none counts none."""

    read: int = 0
    set_aside: int = 0
    """Of the part for the test."""
    left_out: int = 0
    why: str = ""


Counts = TypeVar("Counts", FileShare, Rows)


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What was read, set aside and left out, and why."""

    files: Mapping[str, FileShare] = field(default_factory=dict)
    """By path, relative to the working folder for files below it."""
    rows: Rows = field(default_factory=Rows)
    columns: Mapping[str, str] = field(default_factory=dict)
    """Name of a table's column -> text, label or unused."""
    classes: Mapping[str, int] = field(default_factory=dict)
    """Name of a class -> how many rows of it were read."""

    @classmethod
    def of(cls, found: JsonMapping) -> "Receipt":
        """The receipt that `as_json` wrote."""
        files = {name: _known(FileShare, share) for name, share in found["files"].items()}
        return cls(files=files, rows=_known(Rows, found["rows"]), columns=found["columns"], classes=found["classes"])

    def as_json(self) -> JsonObject:
        """As `train --json`, `plan --receipt --json` and the manifest hold it."""
        return asdict(self)

    def told(self) -> str:
        """A short table and a few sentences, for a terminal."""
        used = [name for name in _PARTS if any(getattr(share, name) for share in self.files.values())]
        order = sorted(self.files, key=lambda name: self.files[name].left_out + self.files[name].test == 0)
        table = [["bytes of", *(name.replace("_", " ") for name in used), ""]]
        for name in order[:_MOST_SHOWN]:
            share = self.files[name]
            table.append([name, *(f"{getattr(share, part):,}" for part in used), share.why])
        if len(order) > _MOST_SHOWN:
            rest = [self.files[name] for name in order[_MOST_SHOWN:]]
            sums = (f"{sum(getattr(share, part) for share in rest):,}" for part in used)
            table.append([many(len(rest), "other file"), *sums, ""])
        widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
        lines = []
        for row in table if self.files else []:
            numbers = (cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True))
            lines.append("  ".join((row[0].ljust(widths[0]), *numbers, row[-1])).rstrip())
        return "\n".join([*lines, *self.sentences()])

    def summed(self) -> str:
        """All of it in one paragraph, its files summed up."""
        sums = {part: sum(getattr(share, part) for share in self.files.values()) for part in _PARTS}
        sizes = ", ".join(f"{n:,} bytes {part.replace('_', ' ')}" for part, n in sums.items() if n)
        why = some(list(dict.fromkeys(share.why for share in self.files.values() if share.why)), 6)
        files = f"{many(len(self.files), 'file')}: {sizes}{f' ({why})' if why else ''}." if self.files else ""
        return " ".join(filter(None, (files, *self.sentences())))

    def sentences(self) -> list[str]:
        """What the table of files does not say."""
        found = []
        if self.rows != Rows():
            aside = f", {self.rows.set_aside:,} set aside" if self.rows.set_aside else ""
            left = f", {self.rows.left_out:,} left out ({self.rows.why})" if self.rows.left_out else ""
            found.append(f"{many(self.rows.read, 'row')} read{aside}{left}.")
        if self.columns:
            named = [
                f"{role}: {some(names, 6)}" for role in ("text", "label", "unused") if (names := self._named(role))
            ]
            found.append(f"Columns: {'; '.join(named)}.")
        if self.classes:
            counts = [f"{name} {n:,}" for name, n in self.classes.items()]
            found.append(f"{many(len(counts), 'class', 'classes')}: {some(counts, 8)}.")
        return found

    def _named(self, role: str) -> list[str]:
        return [name for name, what in self.columns.items() if what == role]


def make_receipt(
    read: Iterable[tuple[ReadFile, int, int]],
    passed: Iterable[Passed] = (),
    *,
    rows: Rows | None = None,
    columns: Mapping[str, str] | None = None,
    classes: Mapping[str, int] | None = None,
) -> Receipt:
    """Put counts together; `read` gives each file with its bytes for training and for validation."""
    files: dict[str, FileShare] = {}
    for file, train, validation in read:
        losses = {why: n for why, n in file.losses.items() if n}
        why = next(iter(losses), "") if len(losses) < 2 else "; ".join(f"{n:,}: {why}" for why, n in losses.items())
        share = FileShare(train=train, validation=validation, left_out=sum(losses.values()), why=why)
        name = _shown(file.path) if isinstance(file.path, Path) else file.path
        files[name] = files.get(name, FileShare()) + share
    for path, why, is_test in passed:
        size = size_of(path)
        files[_shown(path)] = FileShare(test=size, why=why) if is_test else FileShare(left_out=size, why=why)
    return Receipt(files=_merged(files), rows=rows or Rows(), columns=columns or {}, classes=classes or {})


def _shown(path: Path) -> str:
    """A path as a receipt holds it; what cannot be printed is spelled out."""
    here, whole = Path.cwd(), Path(os.path.abspath(path))
    name = str(whole.relative_to(here) if whole.is_relative_to(here) and whole != here else whole)
    return name if name.isprintable() else repr(name)[1:-1]


def _merged(files: dict[str, FileShare]) -> dict[str, FileShare]:
    """The same with an entry for each folder where there are too many files."""
    while len(files) > _MOST_FILES:
        found: dict[str, FileShare] = {}
        deepest = max(name.rstrip("/").count("/") for name in files)
        for name, share in files.items():
            is_deep = name.rstrip("/").count("/") == deepest
            key = f"{name.rstrip('/').rpartition('/')[0]}/" if is_deep else name
            found[key] = found[key] + share if key in found else share
        if len(found) == len(files):
            break
        files = found
    return {name: replace(share, why=_bounded(share.why)) for name, share in files.items()}


def _bounded(why: str) -> str:
    return why if len(why) <= 200 else why[:197] + "..."


def _known(kind: type[Counts], found: JsonMapping) -> Counts:
    """One of `kind` by those of its fields that are there: another version of qkv may write others."""
    return kind(**{field.name: found[field.name] for field in fields(kind) if field.name in found})

"""Published splits: which files of a folder are for training, for validation and for the test, as their names say.

A name says so where `train`, `valid` (or `val`, `validation`, `dev`) or `test` is a word of it, as in `train.txt`,
`wiki.valid.tokens`, `train-00000-of-00001.jsonl`, `data_test.csv` or a folder `dev`; the words are those that the
library `datasets` goes by. They count only together: where there is a part for training and another one. Then nothing
but these parts is read, and what is for the test is left alone. Texts, labelled texts and images ask here.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from qkv.data.sources.receipt import Passed
from qkv.errors import SourceError

_PARTS = ("train", "validation", "test", "others")
_MOST_OTHERS = 10
"""More files than this for each one of the parts are no README and licence any more."""

Role = Literal["train", "validation", "test", ""]
"""What a file or folder is for; empty where its name does not say."""

_MARKS = re.compile(
    r"(?<![a-z])(?:(?P<train>train|training)|(?P<validation>valid|validation|val|dev)"
    r"|(?P<test>test|testing|eval|evaluation|t10k))(?:set|data)?(?![a-z])"
)
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NO_DATA = frozenset(
    ".c .cc .cfg .cpp .cu .go .h .hpp .ini .ipynb .java .jl .js .lua .m .pl .py .pyi .r .rb .rs .scala .sh .sql .toml"
    " .ts .yaml .yml".split()
)
"""How names of programs and settings end: a `train.py` beside a `test.py` is no part of a data set."""


def role_of(name: str) -> Role:
    """What a file or folder of that name is for; one that says two things at once (`train-dev.txt`) says none."""
    if Path(name).suffix.lower() in _NO_DATA:
        return ""
    found = {match.lastgroup for match in _MARKS.finditer(_HUMP.sub("-", name).lower())}
    return found.pop() if len(found) == 1 else ""  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class Published:
    """The parts of a folder, each as files in the order in which they were given."""

    folder: Path
    train: tuple[Path, ...]
    validation: tuple[Path, ...]
    """May be empty, where `test` is not."""
    test: tuple[Path, ...]
    others: tuple[Path, ...] = ()
    """What has no part, and is left out."""

    @property
    def measured(self) -> tuple[Path, ...]:
        """What somebody measures on who names the folder for that: its validation part, or else that for the test."""
        return self.validation or self.test

    @property
    def train_name(self) -> str:
        """The part for training in words."""
        return named(self.train, self.folder)

    @property
    def measured_name(self) -> str:
        """The part of `measured` in words."""
        return named(self.measured, self.folder)

    def passed(self, *, read_validation: bool) -> list[Passed]:
        """What of it is not read; its validation part neither, where another source is given for that."""
        unread = () if read_validation else self.validation
        return [
            *(Passed(path, "left alone for the test", is_test=True) for path in self.test),
            *(Passed(path, "the validation part, in place of which --val is used") for path in unread),
            *(Passed(path, "no part of the published split") for path in self.others),
        ]

    def without(self, files: Collection[Path]) -> "Published":
        """The same parts without these files, which are used otherwise."""
        kept = {role: tuple(path for path in getattr(self, role) if path not in files) for role in _PARTS}
        return replace(self, **kept)

    def said(self, *, validation: str = "", minus: str = "") -> str:
        """What is used for what, in one sentence.

        `validation` says what is measured on instead of its own part, `minus` what of the training part is.
        """
        used, alone = [f"{self.train_name} for training"], self.test
        if validation or minus:
            used.append(f"{validation} for validation" if validation else f"minus {minus}")
            alone = (*self.validation, *self.test)
        elif self.validation:
            used.append(f"{named(self.validation, self.folder)} for validation")
        rest = ((alone, "left alone"), (self.others, "left out"))
        unread = [f"{named(paths, self.folder)} {what}" for paths, what in rest if paths]
        return "; ".join((f"published split: {', '.join(used)}", *unread))


def named(paths: Sequence[Path], folder: Path) -> str:
    """Files of a part in words: one or two by name, all of a folder that is that part by its name, else how many."""
    names = [path.relative_to(folder).as_posix() for path in paths]
    if len(names) <= 2:
        return " and ".join(names)
    first = {name.partition("/")[0] if "/" in name else "" for name in names}
    if len(first) == 1 and role_of(inside := first.pop()):
        return f"{inside}/ ({len(names):,} files)"
    return f"{names[0]} and {len(names) - 1:,} more"


def published(folder: Path, files: Sequence[Path]) -> Published | None:
    """The parts that files below a folder are published in, or None where their names make no split.

    The outermost folder in which two parts lie side by side decides; a file that is in none goes by the innermost name
    that says something (`text/train.txt` and `eval/test.txt`).

    Raises SourceError where such names are lost among so many others that they may be titles of texts as well.
    """
    names = {path.relative_to(folder).parts: path for path in files}
    roles: dict[tuple[str, ...], Role] = {name: _innermost(name) for name in names}
    roles |= _side_by_side(list(names))
    if not _is_split(roles.values()):
        return None
    train, validation, test, others = (
        tuple(path for name, path in names.items() if roles[name] == role)
        for role in ("train", "validation", "test", "")
    )
    parts = (*train, *validation, *test)
    if len(others) > _MOST_OTHERS * len(parts) and _size(others) > _size(parts):
        raise SourceError(
            f"{str(folder)!r} holds {named(parts, folder)}, named like parts of a published split, among"
            f" {len(others):,} other texts; rename them, or give a folder with nothing but the parts"
        )
    return Published(folder=folder, train=train, validation=validation, test=test, others=others)


def given_inside(folder: Path, val: str, files: Sequence[Path], parts: Published | None) -> set[Path]:
    """Which files of a folder are given for validation (`val`: a path, or empty), so that they are not trained on.

    Of a folder that is given as a whole for both these are what is measured on of its parts, where it has any.
    """
    home = Path(val).resolve()
    if not val or not home.exists():
        return set()
    if home == folder.resolve():
        return set(parts.measured) if parts else set()
    return {path for path in files if path.resolve() == home or home in path.resolve().parents}


def _size(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _innermost(name: tuple[str, ...]) -> Role:
    """What the last of some folders and a file that says anything says."""
    found: Role = ""
    return next(filter(None, map(role_of, reversed(name))), found)


def _is_split(roles: Collection[Role]) -> bool:
    return "train" in roles and ("validation" in roles or "test" in roles)


def _side_by_side(names: list[tuple[str, ...]]) -> Mapping[tuple[str, ...], Role]:
    """The role of each file that lies in one of two parts side by side, or below it."""
    groups: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for name in names:
        groups[name[0]].append(name)
    roles: dict[str, Role] = {first: role_of(first) for first in groups}
    if _is_split(list(roles.values())):
        return {name: roles[name[0]] for name in names}
    found: dict[tuple[str, ...], Role] = {}
    for first, group in groups.items():
        inner = _side_by_side([name[1:] for name in group if len(name) > 1])
        found |= {(first, *rest): role for rest, role in inner.items()}
    return found

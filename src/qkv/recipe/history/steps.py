"""The steps of a training that was saved elsewhere: one Hugging Face folder for each, in a folder or on the hub.

A folder's steps are checked by their headers before anything is written: one model, one tokenizer, every file whole.
Steps of the hub are fetched and checked one at a time, when they are read.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qkv.config import dump_toml, to_dict
from qkv.errors import SourceError, typed
from qkv.folder.run_folder import sha256_of
from qkv.interop import hub
from qkv.interop.folders import INDEX, SINGLE, Weights
from qkv.interop.importing import read_model_config
from qkv.interop.tokenizer_files import WHOLE, read_tokenizer

_END = r"(?![0-9A-Za-z])"
"""A number that goes on with a letter (300B, 10k) counts something else, or in other units."""
_NAMED = re.compile(rf"(?:steps?|checkpoint|ckpt|iter(?:ation)?)[-_=.]?([0-9]{{1,15}}){_END}", re.IGNORECASE)
_ANY = re.compile(rf"(?<![0-9A-Za-z])([0-9]{{1,15}}){_END}")
_MODEL = ("config.json", SINGLE, INDEX)
_EXAMPLE = "such as step1000, checkpoint-500 or 2000"


def step_of(name: str) -> int | None:
    """The step that a name tells: `step1000`, `checkpoint-500`, `global_step20`, `step1000-tokens2B`, `00300`.

    None where it has no number, or several of which none is called a step.
    """
    found = _NAMED.findall(name) or _ANY.findall(name)
    return int(found[0]) if len(found) == 1 else None


@dataclass(frozen=True)
class _Facts:
    """What has to be the same at every step."""

    model: list[str]
    """Its family, and its settings as lines."""
    shapes: dict[str, tuple[int, ...]]
    files: dict[str, str]
    """File of a tokenizer -> its hash."""


class Series:
    """The steps of one training. `source` is a folder of step folders, or `hf:ORG/NAME@PATTERN` (`step*`).

    Raises SourceError where there are fewer than two, a name tells no step or one that is taken, or, of a local
    folder, a step is not whole or is not the model of the first.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.is_remote = source.startswith("hf:")
        names = _on_the_hub(source[3:]) if self.is_remote else _in_folder(Path(source))
        self._names: dict[int, str] = {}
        """Step -> folder, or revision of the hub."""
        for name in names:
            step = step_of(name.rpartition("/")[2])
            if step is None:
                raise SourceError(
                    f"{self._place(name)} holds a model, but its name does not tell its step; rename it ({_EXAMPLE}),"
                    + (" or give a narrower pattern" if self.is_remote else f" or move it out of {source}")
                )
            if step in self._names:
                both = f"{self._place(self._names[step])} and {self._place(name)}"
                raise SourceError(f"{both} are both step {step}; leave one of them there")
            self._names[step] = name
        self.steps = sorted(self._names)
        self._first: tuple[Path, _Facts] | None = None
        if len(self.steps) < 2:
            one = f"; to import that step alone, leave out --history and give {typed(self.place(self.steps[0]))}"
            raise SourceError(f"{source} holds {'one step' if self.steps else 'no steps'}{one if self.steps else ''}")
        for step in [] if self.is_remote else self.steps:
            self.folder(step)

    def place(self, step: int) -> str:
        """Where the step is, as it can be typed."""
        return self._place(self._names[step])

    def _place(self, name: str) -> str:
        return f"{self.source.partition('@')[0]}@{name}" if self.is_remote else str(Path(self.source) / name)

    def folder(self, step: int) -> Path:
        """The folder of a step, fetched where it is on the hub, and checked.

        Raises SourceError where it is not whole, or is another model than the first step.
        """
        place = self.place(step)
        folder = hub.fetch(place[3:]) if self.is_remote else Path(place)
        try:
            facts = _facts(folder)
        except SourceError as error:
            raise SourceError(f"step {step} is not complete, or is no model that qkv reads: {error}") from None
        self._first = self._first or (folder, facts)
        if why := _differing(*self._first, folder, facts):
            raise SourceError(f"{place} is not a step of the training of {self.place(self.steps[0])}: {why}")
        return folder


def _differing(first: Path, facts: _Facts, folder: Path, now: _Facts) -> str:
    """What of a step is not as at the first one; "" where all is."""
    for line, was in zip(now.model, facts.model, strict=False):
        if line != was:
            return f"{line} there, and {was} at the first step"
    for name, shape in now.shapes.items():
        if shape != (was := facts.shapes.get(name, shape)):
            return f"{name} is {list(shape)} there, and {list(was)} at the first step"
    if now.files != facts.files and _tokens(folder) != _tokens(first):
        return "its tokenizer is another one, so the same text would be other tokens"
    return ""


def _in_folder(folder: Path) -> list[str]:
    """The names of the step folders. Raises SourceError."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "is not there"
        raise SourceError(f"{folder} {what}; give a folder that holds one folder for each step ({_EXAMPLE})")
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    found = [
        path.name
        for path in inside
        if _NAMED.search(path.name) or path.name.isdigit() or any((path / name).exists() for name in _MODEL)
    ]
    if not found:
        one = "; it is a single model: leave out --history" if (folder / "config.json").is_file() else ""
        raise SourceError(f"{folder} holds no folders of steps ({_EXAMPLE}){one}")
    return found


def _on_the_hub(name: str) -> list[str]:
    """The revisions that a pattern names. Raises SourceError."""
    repository, at, pattern = name.partition("@")
    if not at or not set("*?[") & set(pattern):
        raise SourceError(f"hf:{name} names no pattern of steps; give one, such as hf:{repository}@step*")
    found = hub.revisions(repository, pattern)
    if not found:
        raise SourceError(f"hf:{repository} has no revision that matches {pattern}; open its page to see which it has")
    return found


def _facts(folder: Path) -> _Facts:
    """Raises SourceError for a step that is not whole."""
    family, config, _ = read_model_config(folder)
    files = [folder / name for names in WHOLE for name in names if (folder / name).is_file()]
    return _Facts(
        [f"the family is {family.name}", *dump_toml(to_dict(config)).splitlines()],
        {name: stored.shape for name, stored in Weights(folder).tensors.items()},
        {path.name: sha256_of(path) for path in files},
    )


def _tokens(folder: Path) -> Mapping[str, str | bytes]:
    """The tokenizer of a step as a run keeps it."""
    family, config, _ = read_model_config(folder)
    tokenizer = read_tokenizer(folder, family, config, [])
    return {} if tokenizer is None else tokenizer.files()

"""The questions, one file each: `NAME.toml` is a study, and nothing else knows its name.

A module beside a file holds the functions that it names, where it needs code (`studies.fixed`).
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from qkv.errors import ConfigError, unknown
from qkv.studies.fixed import read_fixed
from qkv.studies.question import Question

_ORDER: list[str] = json.loads((Path(__file__).parent / "order.json").read_text(encoding="utf-8"))
"""Names in order of priority; any others follow by name. `qkv study` lists them from there, without torch."""


@lru_cache(maxsize=1)
def questions() -> Mapping[str, Question]:
    """Name -> question, in order of priority."""
    found = {path.stem: read_fixed(path) for path in sorted(Path(__file__).parent.glob("*.toml"))}
    return {name: found[name] for name in [*_ORDER, *(name for name in found if name not in _ORDER)]}


def find(name: str) -> Question:
    """The question of that name.

    Raises ConfigError for an unknown one, with the nearest names.
    """
    if name not in questions():
        raise ConfigError(f"{unknown('study', name, questions())} Type 'qkv study' for the list of questions")
    return questions()[name]

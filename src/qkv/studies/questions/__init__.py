"""The questions, one module each: a module with a `QUESTION` is a study, and nothing else knows its name."""

import importlib
import json
import pkgutil
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from qkv.errors import ConfigError, unknown
from qkv.studies.question import Question

__all__ = ["find", "questions"]

_ORDER: list[str] = json.loads((Path(__file__).parent / "order.json").read_text(encoding="utf-8"))
"""Names in order of priority; any others follow by name. `qkv study` lists them from there, without torch."""


@lru_cache(maxsize=1)
def questions() -> Mapping[str, Question]:
    """Name -> question, in order of priority."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = {q.name: q for q in (importlib.import_module(f"{__name__}.{name}").QUESTION for name in modules)}
    return {name: found[name] for name in [*_ORDER, *(name for name in found if name not in _ORDER)]}


def find(name: str) -> Question:
    """The question of that name.

    Raises ConfigError for an unknown one, with the nearest names.
    """
    if name not in questions():
        raise ConfigError(f"{unknown('study', name, questions())} Type 'qkv study' for the list of questions")
    return questions()[name]

"""The questions, one module each: a module with a `QUESTION` is a study, and nothing else knows its name."""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import lru_cache

from qkv.errors import ConfigError, unknown
from qkv.studies.question import Question

__all__ = ["find", "questions"]

_ORDER = (
    "what_is_trained",
    "frozen_embeddings",
    "which_matrix",
    "collocation",
    "what_moved_q",
    "gradient_path",
    "only_embeddings",
    "static_or_contextual",
    "token_identity",
    "end_task",
    "three_roles",
    "heads_and_scale",
    "positions",
    "tokenizers",
    "attention_or_lstm",
    "words_or_pixels",
    "dynamics",
    "known_results",
    "techniques",
)
"""Modules in order of priority; any others follow by name."""


@lru_cache(maxsize=1)
def questions() -> Mapping[str, Question]:
    """Name -> question, in order of priority."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules.sort(key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    found = [importlib.import_module(f"{__name__}.{name}").QUESTION for name in modules]
    return {question.name: question for question in found}


def find(name: str) -> Question:
    """The question of that name.

    Raises ConfigError for an unknown one, with the nearest names.
    """
    if name not in questions():
        raise ConfigError(f"{unknown('study', name, questions())} Type 'qkv study' for the list of questions")
    return questions()[name]

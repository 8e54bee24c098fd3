"""The composition root: a configuration becomes a run folder. `train` and studies share it.

A part is imported when it is first asked for: who loads a run for a prediction does not wait for audits and histories.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.recipe.audit.verdict import Verdict
    from qkv.recipe.audit.verification import verify
    from qkv.recipe.build import Parts, assemble, take_body
    from qkv.recipe.config import RunConfig
    from qkv.recipe.history.importing import import_history
    from qkv.recipe.imported import import_run, origin_of, tokenizer_of
    from qkv.recipe.interrupted import no_weights
    from qkv.recipe.load_model import load_weights, opened_model, run_matrix
    from qkv.recipe.optimizer_step import own_step
    from qkv.recipe.reload_data import data_of
    from qkv.recipe.request import Request, resolve, setting_named
    from qkv.recipe.training import Listening, extend, next_folder, resume, train
    from qkv.recipe.watching import Watcher

_PARTS = {
    "audit.verdict": ("Verdict",),
    "audit.verification": ("verify",),
    "build": ("Parts", "assemble", "take_body"),
    "config": ("RunConfig",),
    "history.importing": ("import_history",),
    "imported": ("import_run", "origin_of", "tokenizer_of"),
    "interrupted": ("no_weights",),
    "load_model": ("load_weights", "opened_model", "run_matrix"),
    "optimizer_step": ("own_step",),
    "reload_data": ("data_of",),
    "request": ("Request", "resolve", "setting_named"),
    "training": ("Listening", "extend", "next_folder", "resume", "train"),
    "watching": ("Watcher",),
}
_PART_OF = {name: part for part, names in _PARTS.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _PART_OF:
        raise AttributeError(f"module 'qkv.recipe' has no attribute {name!r}")
    return getattr(import_module(f"qkv.recipe.{_PART_OF[name]}"), name)

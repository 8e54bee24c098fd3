"""The composition root: a configuration becomes a run folder. `train` and studies share it."""

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
from qkv.recipe.unused_settings import unused_settings
from qkv.recipe.watching import Watcher

__all__ = [
    "Listening",
    "Parts",
    "Request",
    "RunConfig",
    "Verdict",
    "Watcher",
    "assemble",
    "data_of",
    "extend",
    "unused_settings",
    "import_history",
    "import_run",
    "load_weights",
    "next_folder",
    "no_weights",
    "opened_model",
    "origin_of",
    "own_step",
    "resolve",
    "resume",
    "run_matrix",
    "setting_named",
    "take_body",
    "tokenizer_of",
    "train",
    "verify",
]

"""The composition root: a configuration becomes a run folder. `train` and studies share it."""

from qkv.recipe.again import data_of
from qkv.recipe.assemble import Parts, assemble, take_body
from qkv.recipe.idle import idle_settings
from qkv.recipe.imported import import_run, origin_of, tokenizer_of
from qkv.recipe.opened import load_weights, opened_model, run_matrix
from qkv.recipe.ownstep import own_step
from qkv.recipe.request import Request, RunConfig, resolve, setting_named
from qkv.recipe.training import Listening, next_folder, resume, train
from qkv.recipe.unclosed import no_weights
from qkv.recipe.verdict import Verdict
from qkv.recipe.verification import verify
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
    "idle_settings",
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

"""The model inside the page: its weights at a few steps of its training, its vocabulary and its text.

One comes with qkv, in `model.npz`, which `python docs/learn_model.py` writes; another can be read from a run folder.
"""

import dataclasses
import json
import math
from importlib.resources import files
from pathlib import Path

import numpy as np

from qkv.jsontypes import JsonObject
from qkv.views.report.packed import Packed, pack

MOST_STEPS = 8
MOST_NUMBERS = 300_000
"""Weights of all steps together that travel with the page, though at least those of the last step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnedModel:
    """A model as the page takes it."""

    name: str
    kind: str
    """Of its tokens: word, char or another."""
    steps: tuple[int, ...]
    settings: JsonObject
    """As `qkv.views.sections.training_in_page.settings_of` gives them."""
    tokens: tuple[str, ...]
    parameters: int
    val_loss: float | None
    """Nats per token on the validation part; None where it was not measured."""
    ngram: float | None
    """The same of the best n-gram."""
    text: str
    """What it was trained on; empty where that does not travel."""
    weights: dict[str, Packed] | None
    """Address -> [step, rows, columns]; None where there are too many."""


def shipped() -> LearnedModel:
    """The model that comes with qkv."""
    with files("qkv.views.learn").joinpath("model.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        facts = json.loads(str(arrays["facts"]))
        weights = {address: pack(arrays[address]) for address in arrays.files if address != "facts"}
    facts["steps"], facts["tokens"] = tuple(facts["steps"]), tuple(facts["tokens"])
    return LearnedModel(**facts, weights=weights)


def of_run(folder: Path, text: str = "") -> tuple[LearnedModel, dict[str, np.ndarray]]:
    """The model of a run folder, and its weights by address, [step, rows, columns], none where there are too many.

    Raises RunFolderError where the folder is no run, has no weights yet, or no tokenizer for its text.
    """
    from qkv.errors import RunFolderError  # here: the page of the model that comes with qkv needs no torch
    from qkv.folder.run_folder import RunFolder
    from qkv.views.report.page_sections import Sections
    from qkv.views.sections.training_in_page import LARGEST, settings_of

    with Sections(RunFolder.open(folder).path) as run:
        kept, tokenizer, summary = run.snapshots, run.stored.tokenizer, run.stored.summary
        if not kept.steps:
            raise RunFolderError(f"{folder} has no weights yet; train it first, or choose another run")
        if tokenizer is None:
            raise RunFolderError(f"{folder} is not a model of one text; choose a run of the task causal")
        parameters = sum(math.prod(shape) for shape in kept.shapes.values())
        few = parameters <= LARGEST and tokenizer.kind in ("char", "word")
        n_steps = min(MOST_STEPS, MOST_NUMBERS // parameters)
        steps = kept.spread(n_steps) if n_steps > 1 else kept.steps[-1:]
        weights = {a: np.stack([kept.read(a, step) for step in steps]) for a in kept.shapes} if few else {}
        learned = LearnedModel(
            name=run.folder.resolve().name,
            kind=tokenizer.kind,
            steps=tuple(steps),
            settings=settings_of(run.stored.settings),
            tokens=tuple(tokenizer.token(i) for i in range(tokenizer.d_vocab)) if few else (),
            parameters=parameters,
            val_loss=summary.get("val_loss"),
            ngram=summary.get("baselines_nats", {}).get("ngram"),
            text=text,
            weights={address: pack(values) for address, values in weights.items()} if few else None,
        )
    return learned, weights

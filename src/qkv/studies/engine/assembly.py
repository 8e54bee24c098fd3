"""From a trial to its model, plan and optimizer, by the composition root of `qkv train`. Nothing is trained here."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from qkv.config import override
from qkv.data.config import DataConfig
from qkv.data.corpus import Corpus
from qkv.jsontypes import JsonObject
from qkv.models.layout import Layout, ModelConfig, Sizes
from qkv.presets import Preset, find
from qkv.recipe import Parts, RunConfig, assemble
from qkv.studies.engine.design import Arm, Trial
from qkv.studies.engine.initial_tables import TABLES
from qkv.studies.synthetic.tasks import Modular, Recall, Repeat
from qkv.tasks import find_task
from qkv.training.config import TrainingConfig
from qkv.training.precision import Machine

PRESET = "textbook"
"""The preset of an arm that names none: attention and an MLP in each layer, no biases, rotary positions or QK-norm."""
MADE_TASKS: Mapping[str, type[Recall | Modular | Repeat]] = {"recall": Recall, "modular": Modular, "repeat": Repeat}
"""Causal tasks whose batches are made by a rule, by name; the settings of the arm's text are their fields."""
MACHINE = Machine(device="cpu", precision="fp32", threads=1)
_MUON_RATIO = 2.0
"""Muon's rate for hidden matrices as a multiple of the rate of the rest, as in the presets trained by it."""


def software() -> str:
    """The versions that bits depend on."""
    return f"torch {torch.__version__}"


def parts_of(trial: Trial, corpus: Any) -> Parts:
    """Model, plan and optimizer of a trial, its weights those of step 0."""
    parts = assemble(config_of(trial, corpus), corpus)
    if trial.arm.task in MADE_TASKS:
        settings: JsonObject = dict(trial.text.settings)
        settings |= {} if trial.slice is None else {"tunes": trial.slice.tunes}
        parts = dataclasses.replace(parts, task=MADE_TASKS[trial.arm.task](**settings))
    for address, table in trial.arm.tables:
        values = TABLES[table](corpus, parts.catalogue.view(address))
        with torch.no_grad():
            parts.catalogue.write(address, values)
        parts.start[address] = parts.catalogue.state()[address].clone()
    return parts


def preset_of(arm: Arm) -> Preset:
    """The preset that an arm's layout and optimizer start from."""
    return find(dict(arm.settings).get("preset", PRESET), "causal" if arm.task in MADE_TASKS else arm.task)


def layout_of(arm: Arm) -> Layout:
    """The layout of an arm."""
    prefix = "model.layout."
    own = {name.removeprefix(prefix): value for name, value in arm.settings if name.startswith(prefix)}
    return dataclasses.replace(preset_of(arm).layout, **dict(arm.layout), **own)


def config_of(trial: Trial, corpus: Corpus) -> RunConfig:
    """The configuration of a trial, as `qkv train` would write it into a run folder."""
    arm, scale = trial.arm, trial.scale
    task = find_task("causal" if arm.task in MADE_TASKS else arm.task)
    preset, patches = preset_of(arm), task.patches(corpus)
    sizes = Sizes(
        **task.model_sizes(corpus),
        d_model=scale.d_model,
        n_layers=scale.n_layers,
        n_heads=scale.n_heads,
        n_ctx=scale.n_ctx if patches is None else 0,
        d_head=scale.d_head,
        d_mlp=scale.d_mlp,
    )
    layout = dataclasses.replace(preset.layout, **dict(arm.layout))
    model = ModelConfig(kind=task.model_kind, sizes=sizes, layout=layout, classes=task.classes(corpus), patches=patches)  # type: ignore[arg-type]
    optimizer = dataclasses.replace(
        preset.optimizer,
        kind=arm.optimizer,
        lr=trial.lr,
        muon_lr=_MUON_RATIO * trial.lr,
        momentum=0.0 if arm.optimizer == "sgd" else preset.optimizer.momentum,
    )
    training = TrainingConfig(
        batch_size=scale.batch_size,
        eval_every=max(1, scale.steps // scale.evaluations),
        on_spike="ignore",  # where a loss stands in the end is the outcome, however it came there
        optimizer=optimizer,
        schedule=preset.schedule(scale.steps),
    )
    config = RunConfig(
        task=task.name,
        preset=preset.name,
        seed=trial.seed,
        watch="off",
        changes=arm.changes,
        data=DataConfig(source=trial.source, tokenizer=trial.text.tokenizer, vocab=trial.text.vocab),
        model=model.resolved(),
        training=training,
        machine=MACHINE,
    )
    return _with_settings(config, arm, trial.lr) if arm.settings else config


def _with_settings(config: RunConfig, arm: Arm, lr: float) -> RunConfig:
    """The same with an arm's settings, at the learning rate `lr`; the rate of Muon keeps its ratio to the others'."""
    config = override(config, {name: value for name, value in arm.settings if name != "preset"})
    training, model = config.training, config.model.resolved()
    times = lr / training.optimizer.lr
    optimizer = dataclasses.replace(training.optimizer, lr=lr, muon_lr=times * training.optimizer.muon_lr)
    return dataclasses.replace(config, model=model, training=dataclasses.replace(training, optimizer=optimizer))

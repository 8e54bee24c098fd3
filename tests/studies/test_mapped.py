"""Rows that may only move together: W_E stays a map of its start, and goes where training the map itself goes."""

import dataclasses

import numpy as np
import pytest
import torch

from qkv.errors import ConfigError
from qkv.studies.engine import training
from qkv.studies.engine.design import Arm, Design, Grid, Scale, Text, cost
from qkv.studies.engine.reparametrized import MappedRows
from qkv.studies.question import Ask
from qkv.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from qkv.training.schedules import lr_scale

V, D = 40, 8


class Nobody:
    def __init__(self):
        self.told = []

    def before_step(self, step):
        self.told.append(("before", step))

    def after_step(self, step):
        self.told.append(("after", step))

    def acts_at(self, step):
        return step == 3


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def config(clip=0.0, **more):
    how = OptimizerConfig(kind="adamw", lr=0.05, weight_decay=0.0, clip=clip, **more)
    return TrainingConfig(
        batch_size=1, optimizer=how, schedule=ScheduleConfig(steps=20, warmup_steps=3, decay_share=0.5)
    )


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_the_table_goes_where_training_the_map_itself_goes(clip):
    start, goal = draw(V, D).double(), draw(V, D, seed=1).double()
    table, settings = torch.nn.Parameter(start.clone()), config(clip)
    held = MappedRows(Nobody(), table, settings)
    m = torch.eye(D, dtype=torch.float64, requires_grad=True)
    how = settings.optimizer
    adam = torch.optim.AdamW([m], lr=how.lr, betas=(how.beta1, how.beta2), eps=how.eps, weight_decay=0.0)
    for step in range(20):
        held.before_step(step)
        (table - goal).pow(4).sum().div(V).backward()
        assert table.grad is None  # no optimizer moves it
        held.after_step(step)
        adam.zero_grad()
        (start @ m - goal).pow(4).sum().div(V).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_([m], clip)
        adam.param_groups[0]["lr"] = how.lr * lr_scale(step, settings.schedule)
        adam.step()
        torch.testing.assert_close(table.detach(), (start @ m).detach(), rtol=0, atol=1e-5 if clip else 1e-9)
    assert (table - start).norm() > 1


def test_what_stood_there_still_holds():
    nobody = Nobody()
    held = MappedRows(nobody, torch.nn.Parameter(draw(V, D)), config())
    held.before_step(5)
    held.after_step(5)
    assert nobody.told == [("before", 5), ("after", 5)] and held.acts_at(3) and not held.acts_at(4)


def test_a_table_that_any_rows_are_a_map_of_is_refused_and_another_optimizer():
    with pytest.raises(ConfigError, match="expected more rows than columns"):
        MappedRows(Nobody(), torch.nn.Parameter(draw(D, D)), config())
    sgd = dataclasses.replace(config(), optimizer=dataclasses.replace(config().optimizer, kind="sgd"))
    with pytest.raises(ConfigError, match="trained by adamw; the optimizer is sgd"):
        MappedRows(Nobody(), torch.nn.Parameter(draw(V, D)), sgd)


def test_a_trained_table_is_a_map_of_its_start_and_not_the_start(small_text, monkeypatch):
    source, text = str(small_text), Text(tokenizer="bpe", vocab=300)
    arm = Arm(name="mapped", what="", changes=("W_E=random(1.0,train=true)",), trainer="mapped rows")
    made = []
    monkeypatch.setattr(
        training, "parts_of", lambda *given, real=training.parts_of: made.append(real(*given)) or made[-1]
    )
    design = Design(
        study="t", quick=True, source_name="s", source_sha256=Ask(source=source).corpus(text).sha256,
        texts=(("text", text),), grid=Grid(), arms=(arm,), contrasts=(cost("c", "", "mapped", "mapped", 0.1),),
        scale=Scale(d_model=16, n_layers=1, n_heads=2, n_ctx=16, batch_size=8, steps=40, val_tokens=1024),
        replicates=2, software="x",
    )  # fmt: skip
    row = training.run_trial(design.trial(arm, 1, 0, source=source, report=True), None)
    start, end = (v.numpy().astype(np.float64) for v in (made[0].start["W_E"], made[0].catalogue.view("W_E").detach()))
    m, *_ = np.linalg.lstsq(start, end, rcond=None)
    assert np.abs(start @ m - end).max() < 1e-5 * np.abs(end).max()
    assert np.abs(m - np.eye(16)).max() > 0.05 and row["frozen"] == [] and row["steps"] == 40

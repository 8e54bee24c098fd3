"""The step that a run's own optimizer would make is the step that the run makes."""

from pathlib import Path

import numpy as np
import pytest
import torch

import qkv
from qkv import recipe

SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 16, "batch_size": 4, "d_mlp": 32, "decay_share": 0}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.api.cache_folder", lambda: tmp_path / "cache")


def train(text: Path, out: Path, steps: int, **options):
    given = {"tokenizer": "char", "set": SMALL, "report": False, "watch": "off", "precision": "fp32", "threads": 1}
    qkv.train(text, out=out, steps=steps, **given, **options)
    return qkv.load(out, weights="last")


@pytest.mark.parametrize(("preset", "changes"), [("modern", []), ("llama", []), ("llama", ["L*.W_[QV]=lora(2)"])])
def test_it_is_the_update_that_the_training_makes_next(small_text: Path, tmp_path: Path, preset, changes) -> None:
    """Muon and AdamW with clipping: 6 updates, and a seventh by hand, against a run of 7 updates."""
    short, longer = (train(small_text, tmp_path / str(n), n, preset=preset, change=changes) for n in (6, 7))
    own = recipe.own_step(short.folder, short.config)
    assert own is not None
    batch = short.task.train_batch(short.corpus(), short.config.model.sizes, short.config.seed, 6, np.arange(24, 28))
    with short.config.machine.passing():
        nats, n = short.task.loss(short.model, batch)
    (nats / n).backward()
    catalogue = short.catalogue()
    before = {address: values.clone() for address, values in catalogue.state().items()}
    own(catalogue)
    there = longer.catalogue().state()
    for address, values in catalogue.state().items():
        assert not values.equal(before[address]), address
        torch.testing.assert_close(values, there[address], rtol=1e-6, atol=1e-7, msg=address)


def test_what_the_run_holds_frozen_does_not_move(small_text: Path, tmp_path: Path) -> None:
    run = train(small_text, tmp_path / "r", 6, freeze=["L1.W_K,L0.H0.W_Q"])
    step = run.step("the cat sees", on="L0.H*.W_Q,L1.W_[QK]")
    parts = {part.address: part for part in step.parts}
    assert parts["L1.W_K"].own is None and parts["L1.W_Q"].own.size > 0
    assert parts["L0.H0.W_Q"].own.size == 0 and parts["L0.H1.W_Q"].own.size > 0
    assert parts["L0.H0.W_Q"].own.cosine is None and parts["L0.H0.W_Q"].grad_norm > 0


def test_a_run_without_the_optimizer_s_state_has_gradient_descent_only(small_text: Path, tmp_path: Path) -> None:
    run = train(small_text, tmp_path / "r", 6)
    for path in run.path.glob("checkpoints/*/optimizer.safetensors"):
        path.unlink()
    assert run.step("the cat sees").own is None
    assert qkv.load(run.path, weights="best").step("the cat sees").own is None

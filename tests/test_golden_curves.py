"""Stored loss curves: a change that is meant to change no number must reproduce them (float64, one thread, rtol 1e-6).

`python tests/test_golden_curves.py` writes them again, for a change that is meant to change numbers; a page of
docs/decisions then says why.
"""

import json
from pathlib import Path

import pytest
import torch

from qkv.data.config import DataConfig
from qkv.data.corpus import load_corpus
from qkv.laws import Scale
from qkv.models.matrices import Catalogue
from qkv.models.zoo import build
from qkv.presets import PRESETS, Preset, model_config
from qkv.tasks import find_task
from qkv.training import loop
from qkv.training.config import TrainingConfig
from qkv.training.optimizers import make_optimizer
from qkv.training.precision import Machine
from qkv.training.record import Observer, StepRecord

HERE = Path(__file__).parent / "golden"
TEXT, CURVES = HERE / "text.txt", HERE / "curves.json"
STEPS = 24


class Losses(Observer):
    """Keeps the loss of every update."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def wants(self, step: int) -> bool:
        return True

    def after_update(self, record: StepRecord) -> None:
        self.losses.append(record.loss)


def curve(preset: Preset) -> list[float]:
    """The training losses of a small model of the preset."""
    task = find_task({"decoder": "causal", "encoder": "masked"}[preset.stacks[0]])
    corpus = load_corpus(
        DataConfig(source=str(TEXT), tokenizer="word", vocab=120), cache=None, task_specials=task.needs_specials
    )
    scale = Scale(d_model=16, n_layers=2, n_ctx=16, batch_tokens=64)
    model = build(model_config(preset, task.model_kind, corpus.tokenizer.d_vocab, scale, {}), seed=3).double()
    catalogue = Catalogue(model)
    watcher = Losses()
    loop.run(
        loop.TrainingSetup(
            model=model,
            catalogue=catalogue,
            task=task,
            corpus=corpus,
            config=TrainingConfig(batch_size=4, optimizer=preset.optimizer, schedule=preset.schedule(STEPS)),
            optimizer=make_optimizer(catalogue, preset.optimizer),
            machine=Machine(threads=1),
            seed=3,
            observers=[watcher],
        )
    )
    return watcher.losses


SINGLE = [name for name, preset in PRESETS.items() if preset.stacks[0] in ("decoder", "encoder")]


@pytest.mark.parametrize("name", SINGLE)
def test_the_loss_curve_is_the_stored_one(name: str) -> None:
    stored = torch.tensor(json.loads(CURVES.read_text())[name], dtype=torch.float64)
    found = torch.tensor(curve(PRESETS[name]), dtype=torch.float64)
    torch.testing.assert_close(found, stored, rtol=1e-6, atol=0)
    assert found[-4:].mean() < found[:4].mean(), "it learns nothing"


if __name__ == "__main__":
    CURVES.write_text(json.dumps({name: curve(PRESETS[name]) for name in SINGLE}, indent=1) + "\n")

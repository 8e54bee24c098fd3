"""The smallest real training: a model, a task, a corpus, and the loop, without a recipe."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qkv.folder.run_folder import RunFolder
from qkv.instruments import Recorder
from qkv.instruments.ledger import Ledger, LedgerConfig
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue
from qkv.randomness import generator
from qkv.tasks.causal import Causal
from qkv.telemetry import Store
from qkv.tokenizers.tokens import Tokens
from qkv.training.checkpoint import latest_valid
from qkv.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from qkv.training.loop import TrainingSetup, run
from qkv.training.optimizers import make_optimizer
from qkv.training.precision import Machine

D_VOCAB, N_SEEN = 14, 12


def tiny_model(seed: int = 0, **changes: Any) -> Any:
    """Two layers of width 16; `changes` go to the layout, or to the sizes where they name one."""
    sizes = dict(d_vocab=D_VOCAB, d_model=16, n_layers=2, n_heads=4, n_ctx=16)
    sizes |= {name: changes.pop(name) for name in [*sizes, "n_kv_heads", "d_head", "d_mlp"] if name in changes}
    layout = dict(positions="rotary", norm="rms", qk_norm=True, mlp="gelu", bias=True, tied=False) | changes
    return build(ModelConfig(kind="CausalLM", sizes=Sizes(**sizes), layout=Layout(**layout)).resolved(), seed)


def tiny_corpus() -> SimpleNamespace:
    """Token t + 1 is token t plus 0, 1 or 2; of 14 ids the last two are never seen."""
    moves = generator("tests", "instruments").choice(3, size=4000, p=[0.2, 0.7, 0.1])
    ids = (np.cumsum(moves) % N_SEEN).astype(np.uint8)
    train, val = (
        Tokens(ids=part, offsets=np.array([0, len(part)]), n_bytes=len(part)) for part in np.split(ids, [3600])
    )
    return SimpleNamespace(train=train, val=val, bits_per_byte=lambda nats: nats / np.log(2), tokenizer=None)


class Training:
    """Trains in a folder with a recorder, as a recipe would."""

    def __init__(self, path: Path, *, clip: float = 1.0, weight_decay: float = 0.0, **model: Any) -> None:
        self.path, self.clip, self.weight_decay, self.model = path, clip, weight_decay, model

    def __call__(
        self,
        steps: int = 40,
        *,
        level: str = "light",
        watching: Any = None,
        observers: tuple = (),
        arm: int = 0,
        resume: bool = False,
        ledger: LedgerConfig | None = None,
        **loop: Any,
    ) -> Any:
        model = tiny_model(**self.model)
        catalogue = Catalogue(model)
        optimizer = OptimizerConfig(kind="adamw", lr=3e-3, weight_decay=self.weight_decay, clip=self.clip)
        config = TrainingConfig(
            batch_size=4, optimizer=optimizer, schedule=ScheduleConfig(steps=steps, warmup_steps=2), eval_every=17
        )
        folder, moving = None, make_optimizer(catalogue, optimizer)
        self.optimizer_state = moving.state()
        if arm == 0:
            folder = RunFolder.open(self.path, writing=True) if self.path.exists() else RunFolder.create(self.path)
            if not resume:
                folder.write("config.toml", "")
        self.path.mkdir(exist_ok=True)
        self.corpus = tiny_corpus()
        with Store(self.path / "telemetry.sqlite") as store:
            self.recorder = Recorder(store, level, watching=watching, arm=arm)
            ledgers = [Ledger(store, ledger)] if ledger else []
            try:
                self.outcome = run(
                    TrainingSetup(
                        model=model,
                        catalogue=catalogue,
                        task=Causal(),
                        corpus=self.corpus,
                        config=config,
                        optimizer=moving,
                        machine=Machine(threads=1),
                        seed=0,
                        folder=folder,
                        observers=[*ledgers, self.recorder, *observers],
                        resume=latest_valid(folder)[0] if resume and folder else None,
                        random_labels=arm == 1,
                        **loop,
                    )
                )
            finally:
                if folder is not None:
                    folder.close()
        self.catalogue = catalogue
        return catalogue


@pytest.fixture
def training(tmp_path):
    """`training(**model)` makes a Training in a new folder."""
    made = []

    def make(**settings: Any) -> Training:
        made.append(Training(tmp_path / f"run-{len(made)}", **settings))
        return made[-1]

    return make


@pytest.fixture
def model():
    """`model(**changes)` builds the tiny model."""
    return tiny_model

"""A training of a second: the smallest real model, task and corpus. Run as a script, it trains in a process of its own.

python tiny.py OUT [--steps N] [--resume] [--kill-after SECONDS] [--accumulate N] [--campaign KILLS]
"""

import argparse
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from qkv.folder.run_folder import RunFolder
from qkv.models import build
from qkv.models.layout import Layout, ModelConfig, Sizes
from qkv.models.matrices import Catalogue
from qkv.randomness import generator
from qkv.tasks.causal import Causal
from qkv.telemetry import Store
from qkv.training.checkpoint import latest_valid
from qkv.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from qkv.training.loop import TrainingSetup, run
from qkv.training.optimizers import make_optimizer
from qkv.training.precision import Machine
from qkv.training.record import Observer

D_VOCAB, N_CTX = 12, 16


class Telemetry(Observer):
    """Every update and validation into a store, as the recorder does."""

    def __init__(self, path: Path) -> None:
        self.store = Store(path)

    def wants(self, step: int) -> bool:
        return True

    def on_start(self, context: Any) -> None:
        self.store.drop_after(context.start_step)

    def after_update(self, record: Any) -> None:
        self.store.add_step(
            record.step, tokens=record.tokens, loss=record.loss, lr=record.lr, grad_norm=record.grad_norm
        )

    def on_evaluation(self, evaluation: Any) -> None:
        self.store.add_evaluation(evaluation.step, evaluation.loss, is_best=evaluation.is_best)

    def on_checkpoint(self, step: int) -> None:
        self.store.sync()

    def on_end(self, outcome: Any) -> None:
        self.store.close()


def corpus(n_tokens: int = 6000) -> SimpleNamespace:
    """A text with something to learn: token t + 1 is token t plus 0, 1 or 2."""
    from qkv.tokenizers.tokens import Tokens

    moves = generator("tests", "tiny").choice(3, size=n_tokens, p=[0.2, 0.7, 0.1])
    ids = (np.cumsum(moves) % D_VOCAB).astype(np.uint8)
    cut = n_tokens * 9 // 10
    parts = (ids[:cut], ids[cut:])
    train, val = (Tokens(ids=part, offsets=np.array([0, len(part)]), n_bytes=len(part)) for part in parts)
    return SimpleNamespace(train=train, val=val)


def parts(
    *, steps: int = 60, seed: int = 0, kind: str = "muon", dropout: float = 0.1, lr: float = 3e-3, **training: Any
) -> dict[str, Any]:
    """What `loop.run` takes, without a folder."""
    layout = Layout(positions="rotary", norm="rms", qk_norm=True, mlp="gelu", bias=True, tied=False, dropout=dropout)
    sizes = Sizes(d_vocab=D_VOCAB, d_model=16, n_layers=2, n_heads=2, n_ctx=N_CTX).resolved()
    model = build(ModelConfig(kind="CausalLM", sizes=sizes, layout=layout), seed)
    catalogue = Catalogue(model)
    optimizer = OptimizerConfig(kind=kind, lr=lr, weight_decay=0.1)  # type: ignore[arg-type]
    training = {"batch_size": 8, **training}
    config = TrainingConfig(optimizer=optimizer, schedule=ScheduleConfig(steps=steps, warmup_steps=5), **training)
    return {
        "model": model,
        "catalogue": catalogue,
        "task": Causal(),
        "corpus": corpus(),
        "config": config,
        "optimizer": make_optimizer(catalogue, optimizer),
        "machine": Machine(threads=1),
        "seed": seed,
    }


def train(out: Path, *, resume: bool = False, **settings: Any) -> Any:
    """Train into a folder, with telemetry; the outcome."""
    made = parts(**settings)
    if resume:
        folder = RunFolder.open(out, writing=True)
    else:
        folder = RunFolder.create(out)
        folder.write("config.toml", "")
    with folder:
        checkpoint, words = latest_valid(folder)
        for sentence in words:
            print(sentence)
        start = -1 if checkpoint is None else checkpoint.state.step
        print(f"from {start}", flush=True)
        telemetry = Telemetry(folder.telemetry)
        if checkpoint is None:
            telemetry.store.drop_after(0)
        return run(TrainingSetup(**made, folder=folder, resume=checkpoint, observers=[telemetry]))


def in_child(**arguments: Any) -> int:
    """`train` in a forked process, killed after `kill_after` seconds; its status. Nothing here has used torch yet."""
    kill_after = arguments.pop("kill_after", 0.0)
    child = os.fork()
    if child == 0:
        if kill_after:
            threading.Timer(kill_after, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        try:
            train(**arguments)
            sys.stdout.flush()
            os._exit(0)
        except BaseException as error:
            print(f"error {type(error).__name__}: {error}", flush=True)
            os._exit(1)
    return os.waitpid(child, 0)[1]


def campaign(out: Path, kills: int, steps: int) -> None:
    """One undisturbed run in out/whole, then `kills` runs in out/kill-N, each killed once at random and resumed."""
    began = time.monotonic()
    assert in_child(out=out / "whole", steps=steps) == 0
    seconds = time.monotonic() - began
    moments = random.Random(0)
    for number in range(kills):
        where = out / f"kill-{number}"
        status = 0
        while status == 0:  # a kill that came too late hit nothing, and does not count
            shutil.rmtree(where, ignore_errors=True)
            status = in_child(out=where, steps=steps, kill_after=seconds * moments.random())
        print(f"killed {number}", flush=True)
        resume = (where / "config.toml").exists()
        assert in_child(out=where, steps=steps, resume=resume) == 0, f"kill {number} was not resumed"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--campaign", type=int, default=0)
    given = parser.parse_args()
    if given.campaign:
        campaign(given.out, given.campaign, given.steps)
    else:
        print(train(given.out, resume=given.resume, steps=given.steps))

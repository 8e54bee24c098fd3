"""Trainings of a second by one process and by several, for comparison; a script, so that processes are forked cheaply.

python ranked.py OUT TEXT LEFT RIGHT LABELLED [--worlds 2,4] [--shard]

Writes OUT/CASE-WORLD-RANK.npz: the weights, optimizer state and losses of each rank; and OUT/watched-WORLD.sqlite.
With --shard the processes share out weights and state as well.
"""

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qkv.config import override
from qkv.instruments.recorder import Recorder
from qkv.recipe.build import assemble
from qkv.recipe.request import Request, resolve
from qkv.tasks import find_task
from qkv.telemetry import Store
from qkv.training.distributed.ranks import Ranks, join
from qkv.training.distributed.started import FOLDER_VARIABLE
from qkv.training.loop import TrainingSetup, run
from qkv.training.optimizers import make_optimizer
from qkv.training.record import Observer

STEPS = 20
SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 32, "batch_size": 8, "dropout": 0.0, "eval_every": 7}


class Losses(Observer):
    """Of every update and validation."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.state: dict[str, np.ndarray] = {}

    def on_start(self, context: Any) -> None:
        self.context = context

    def on_end(self, outcome: Any) -> None:
        self.state = {name: t.detach().clone().numpy() for name, t in self.context.optimizer.state().items()}

    def wants(self, step: int) -> bool:
        return True

    def after_update(self, record: Any) -> None:
        self.losses += [record.loss, record.grad_norm, record.tokens]

    def on_evaluation(self, evaluation: Any) -> None:
        self.losses.append(evaluation.loss)


def cases(args: argparse.Namespace) -> dict[str, Request]:
    """What is trained: every kind of batch, optimizer and way of adding up."""
    text = {"source": str(args.text), "tokenizer": "word", "vocab": 120}
    made = {
        "muon": {"task": "causal", **text},
        "adamw": {"task": "causal", "preset": "gpt2", **text},
        "sgd": {"task": "causal", "set": {"optimizer.kind": "sgd", "accumulate": 2}, **text},
        "masked": {"task": "masked", "preset": "bert", "source": str(args.text), "tokenizer": "word", "vocab": 120},
        "frozen": {"task": "causal", "changes": ("L0.W_Q=freeze()@3..9", "W_E[7]=freeze()"), **text},
        "changed": {"task": "causal", "changes": ("L0.W_K=freeze()@3..9", "L1.W_in=zero(train=true)@5.."), **text},
        "stopped": {
            "task": "causal",
            "changes": ("L*.v,L1.H0.q=stop_gradient@2..9", "L1.resid_pre=stop_gradient@12.."),
            "preset": "gpt2",
            **text,
        },
        "shared": {
            "task": "causal",
            "changes": ("L1.W_[QK]=share(L0.W_Q)", "L0.b_*=freeze()"),
            "preset": "gpt2",
            **text,
        },
        "translate": {"task": "translate", "source": f"{args.left}:{args.right}"},
        "classify": {"task": "classify", "source": str(args.labelled), "tokenizer": "word", "vocab": 120},
    }
    return {
        name: Request(steps=STEPS, threads=1, precision="fp32", **{**what, "set": {**SMALL, **what.get("set", {})}})
        for name, what in made.items()
    }


def train(config: Any, corpus: Any, ranks: Ranks, out: Path | None = None, wide: bool = True) -> dict[str, np.ndarray]:
    """One training in float64 (float32 where not `wide`), recorded into `out` by the first rank."""
    parts = assemble(config, corpus)
    optimizer = parts.optimizer
    if wide:
        parts.model.double()
        optimizer = make_optimizer(parts.catalogue, config.training.optimizer)
    told = Losses()
    store = Store(out) if out is not None and ranks.is_first else None
    start = {a: t.clone() for a, t in parts.catalogue.state().items()}
    run(
        TrainingSetup(
            model=parts.model,
            catalogue=parts.catalogue,
            task=find_task(config.task),
            corpus=corpus,
            config=config.training,
            optimizer=optimizer,
            machine=config.machine,
            seed=config.seed,
            constraint=parts.plan,
            observers=[told, *([Recorder(store, "full", start=start)] if store else [])],
            ranks=ranks,
        )
    )
    if store is not None:
        store.close()
    parts.plan.at_end()
    found = {f"weights {a}": t.detach().numpy() for a, t in parts.catalogue.state().items()}
    return found | {f"optimizer {a}": t for a, t in told.state.items()} | {"losses": np.array(told.losses)}


def in_ranks(world: int, work: Callable[[Ranks], None]) -> list[int]:
    """`work` in `world` forked processes that have met; their statuses."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
                os.environ.update({name: str(number) for name, number in numbers.items()})
                os.environ[FOLDER_VARIABLE] = folder
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
                status = 1
                try:
                    with join() as ranks:
                        work(ranks)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            children.append(child)
        return [os.waitpid(child, 0)[1] for child in children]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("out", "text", "left", "right", "labelled"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--worlds", default="2,4")
    parser.add_argument("--cases", default="")
    parser.add_argument("--shard", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, request in cases(args).items():
        if (args.cases and name not in args.cases.split(",")) or (args.shard and name == "frozen"):
            continue  # a frozen row does not fit a sharded training
        config, corpus, _ = resolve(request, None)
        config = override(config, {"machine.shard": args.shard})
        kinds = {"": True} | ({"-fp32": False} if name in ("muon", "adamw") else {})
        for kind, wide in kinds.items():

            def work(ranks: Ranks, name: str = f"{name}{kind}", wide: bool = wide) -> None:
                out = args.out / f"watched-{ranks.world}.sqlite" if name == "muon" else None
                np.savez(args.out / f"{name}-{ranks.world}-{ranks.rank}.npz", **train(config, corpus, ranks, out, wide))  # noqa: B023

            for world in (1, *map(int, args.worlds.split(","))):
                if any(in_ranks(world, work)):
                    sys.exit(f"{name} on {world} processes failed")


if __name__ == "__main__":
    main()

"""One training step of ours and of Hugging Face's, made alike: forward, backward, clipping, AdamW, on a given batch.

Theirs is the model class with its own loss under `torch.optim.AdamW(fused=True)`, the default of its Trainer, and
autocast for bf16; ours is what the training loop does of an update.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qkv.models import Catalogue, ModelConfig, build
from qkv.tasks import Task
from qkv.tasks.task import Batch
from qkv.training.config import OptimizerConfig
from qkv.training.optimizers import clip_and_measure, make_optimizer
from qkv.training.precision import Machine, resolve

__all__ = ["ADAMW", "gflops", "our_step", "precisions", "seconds", "their_step"]

ADAMW = OptimizerConfig(kind="adamw", lr=1e-4, beta1=0.9, beta2=0.95, weight_decay=0.1, clip=1.0)
"""On both sides."""


def precisions() -> tuple[str, ...]:
    """fp32, and bf16 where this processor multiplies it faster."""
    return ("fp32", "bf16") if resolve().precision == "bf16" else ("fp32",)


def seconds(call: Callable[[], object], times: int) -> float:
    """Seconds of one call, from so many in a row."""
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times


def our_step(
    config: ModelConfig, task: Task, precision: str, optimizer: OptimizerConfig = ADAMW
) -> Callable[[Batch], float]:
    """A new model of ours: `step(batch)` is one update, and returns the loss."""
    model = build(config, 0)
    catalogue = Catalogue(model)
    machine = Machine(precision=precision, threads=torch.get_num_threads())  # type: ignore[arg-type]
    rule = make_optimizer(catalogue, optimizer, precision=precision)

    def step(batch: Batch) -> float:
        with machine.active():
            with machine.autocast():
                nats, n = task.loss(model, batch, None)
            loss = nats / n
            loss.backward()
            clip_and_measure(rule.parameters, optimizer.clip)
            rule.step(1.0)
            rule.zero_grad()
            return float(loss.detach())

    return step


def their_step(model: Any, precision: str) -> Callable[[dict[str, Tensor]], float]:
    """A model of transformers: `step(batch)` is one update on what its collator made, and returns the loss."""
    model.train()
    parameters = list(model.parameters())
    rule = torch.optim.AdamW(
        parameters, lr=ADAMW.lr, betas=(ADAMW.beta1, ADAMW.beta2), weight_decay=ADAMW.weight_decay, fused=True
    )
    fast = torch.autocast("cpu", dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()

    def step(batch: dict[str, Tensor]) -> float:
        with fast:
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, ADAMW.clip)
        rule.step()
        rule.zero_grad()
        return float(loss.detach())

    return step


def gflops(precision: str, size: int = 1024) -> float:
    """GFLOP/s of a square product, the best of five after one that does not count: the peak that a share is of."""
    matrix = torch.ones(size, size, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    best = min(seconds(lambda: torch.mm(matrix, matrix), 1) for _ in range(6))
    return 2 * size**3 / best / 1e9

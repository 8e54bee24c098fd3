"""One training step of ours and of Hugging Face's, made alike: forward, backward, clipping, AdamW, on a given batch.

Theirs is the model class with its own loss under `torch.optim.AdamW(fused=True)`, the default of its Trainer, and
autocast for bf16; ours is what the training loop does of an update.
"""

import contextlib
import itertools
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from qkv.models import Catalogue, ModelConfig, build
from qkv.tasks import Task
from qkv.tasks.batch import Batch
from qkv.training.config import OptimizerConfig
from qkv.training.distributed.ranks import ALONE
from qkv.training.distributed.whole import Weights
from qkv.training.dropout import make_drop
from qkv.training.graph_replay.update import captured
from qkv.training.optimizers import make_optimizer
from qkv.training.precision import resolve

ADAMW = OptimizerConfig(kind="adamw", lr=1e-4, beta1=0.9, beta2=0.95, weight_decay=0.1, clip=1.0)
"""On both sides."""


def precisions(device: str = "cpu") -> tuple[str, ...]:
    """fp32, and bf16 where this processor, or a device, multiplies it faster."""
    return ("fp32", "bf16") if resolve(device).precision == "bf16" else ("fp32",)


def seconds(call: Callable[[], object], times: int) -> float:
    """Seconds of one call, from so many in a row."""
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times


def our_step(
    config: ModelConfig,
    task: Task,
    precision: str,
    device: str = "cpu",
    compile: bool = False,
) -> Callable[[Batch], float]:
    """A new model of ours: `step(batch)` is one update, and returns the loss (so it has waited for a device).

    It drops what the layout drops, anew in each step.
    """
    model = build(config, 0).to(device)
    catalogue = Catalogue(model)
    threads = torch.get_num_threads()
    machine = resolve(device, precision, threads, compile)
    rule = make_optimizer(catalogue, ADAMW, precision=precision)
    kind = captured(machine) if machine.captures else Weights
    held = kind(model, catalogue, rule, machine.compiled(task.loss), ALONE, machine)

    steps = itertools.count()

    def step(batch: Batch) -> float:
        drop = make_drop(config.layout.dropout, 0, next(steps), np.arange(len(batch.inputs)))
        with machine.active():
            loss = float(held.learn(batch, drop, batch.n_targets))
            held.clip_and_measure(ADAMW.clip)
            held.update(1.0)
            held.zero_grad()
            return loss

    return step


def their_step(
    model: nn.Module, precision: str, device: str = "cpu", compile: bool = False
) -> Callable[[dict[str, Tensor]], float]:
    """A model of transformers: `step(batch)` is one update on what its collator made, and returns the loss."""
    model = model.to(device).train()
    parameters = list(model.parameters())
    rule = torch.optim.AdamW(
        parameters, lr=ADAMW.lr, betas=(ADAMW.beta1, ADAMW.beta2), weight_decay=ADAMW.weight_decay, fused=True
    )
    fast = torch.autocast(device, dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
    called = torch.compile(model) if compile else model

    def step(batch: dict[str, Tensor]) -> float:
        with fast:
            loss = called(**{name: tensor.to(device) for name, tensor in batch.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, ADAMW.clip)
        rule.step()
        rule.zero_grad()
        return float(loss.detach())

    return step


def gflops(precision: str, device: str = "cpu") -> float:
    """GFLOP/s of a square product, the best of five after one that does not count: the peak that a share is of."""
    size = 1024 if device == "cpu" else 8192
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    matrix = torch.randn(size, size, device=device).to(dtype)  # a GPU multiplies equal numbers faster than it can any
    best = min(seconds(lambda: float(torch.mm(matrix, matrix)[0, 0]), 1) for _ in range(6))  # reading waits for it
    return 2 * size**3 / best / 1e9

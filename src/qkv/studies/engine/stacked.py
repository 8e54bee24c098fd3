"""Many trainings of one shape side by side, for `calibrate`: the same arithmetic as the loop, a stack of models a step.

A model of a thousand weights spends its time between operators, not in them; 24 in a stack cost little more than one.
What is trained is the model's own forward pass by its formulas, `vmap`ped over stacked weights and traced once for each
size of stack; AdamW, its clipping and its schedule are written out here, and the loop is their oracle
(tests/studies/test_stacked.py: the same validation losses to rounding). Batches, starts and changes of the start come
from where the loop takes them.

Refuses everything that `calibrate` has no use for: other tasks and optimizers, decay, dropout, freezing, changes after
the start, probes.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parameters_to_vector

from qkv.data.packing import train_window, val_windows
from qkv.models import build
from qkv.models.layout import ModelConfig
from qkv.recipe import Parts
from qkv.studies.engine.assembly import MACHINE, parts_of
from qkv.studies.engine.design import Trial
from qkv.studies.synthetic import streams
from qkv.training.config import TrainingConfig
from qkv.training.schedules import lr_scale

_SIZES = (24, 72, 192)
"""Models in a stack: each is traced once a process, and a stack is filled up to the next of them."""
_VAL_WINDOWS = 16
"""Validation windows scored at a time."""


def losses_of(trials: Sequence[Trial]) -> list[float]:
    """The validation loss of each of these trainings at its last step, nats per token, as `run_trial` would give it.

    Trials may differ in text, seed, learning rate and changes of the start, and in nothing else. inf of one that
    diverged.
    """
    found: dict[int, float] = {}
    with MACHINE.active():
        for part in dict.fromkeys(trial.slice for trial in trials):  # those of a stack are scored on as many tokens
            alike = [i for i, trial in enumerate(trials) if trial.slice == part]
            for first in range(0, len(alike), _SIZES[-1]):
                chosen = alike[first : first + _SIZES[-1]]
                found |= zip(chosen, _one_stack([trials[i] for i in chosen]), strict=True)
    return [found[i] for i in range(len(trials))]


def _one_stack(trials: Sequence[Trial]) -> list[float]:
    size = next(size for size in _SIZES if size >= len(trials))
    filled = [*trials, *[trials[-1]] * (size - len(trials))]
    # those that differ in the rate alone share their parts, as nothing here is trained in place
    parts = [_built(dataclasses.replace(trial, lr=1.0)) for trial in filled]
    training, model = parts[0].config.training, parts[0].config.model
    weights = torch.stack([parameters_to_vector(part.model.parameters()).detach() for part in parts])
    rates = torch.tensor([trial.lr for trial in filled])[:, None]
    weights = _train(weights, rates, _windows(filled, parts), training, model)
    return [loss if math.isfinite(loss) else math.inf for loss in _scores(weights, parts, model)][: len(trials)]


@lru_cache(maxsize=1024)
def _built(trial: Trial) -> Parts:
    parts = parts_of(trial, streams.corpus(trial.text, trial.source, trial.scale.val_tokens, None, trial.slice))
    _check(trial, parts)
    return parts


def _check(trial: Trial, parts: Parts) -> None:
    """Nothing is asked for that a stack does not do."""
    arm, optimizer, last = trial.arm, parts.config.training.optimizer, trial.scale.steps
    assert arm.task == "causal" and arm.trainer == "loop" and arm.labels == "real" and not arm.probes
    assert optimizer.kind == "adamw" and not optimizer.weight_decay and not parts.config.model.layout.dropout
    assert not parts.plan.frozen(0) and not any(parts.plan.acts_at(step) for step in range(1, last))


def _windows(trials: Sequence[Trial], parts: Sequence[Parts]) -> Tensor:
    """int64 [models, steps, batch, n_ctx + 1], each model's own."""
    scale, found = trials[0].scale, {}
    examples = np.arange(scale.steps * scale.batch_size)
    for trial, part in zip(trials, parts, strict=True):
        corpus: Any = part.corpus
        if (trial.text, trial.seed) not in found:
            found[trial.text, trial.seed] = train_window(corpus.train, scale.n_ctx, trial.seed, examples)
    stacked = np.stack([found[trial.text, trial.seed] for trial in trials])
    return torch.from_numpy(stacked).unflatten(1, (scale.steps, scale.batch_size))


def _train(weights: Tensor, rates: Tensor, windows: Tensor, config: TrainingConfig, model: ModelConfig) -> Tensor:
    """weights [models, n], one row a model's after its last update. See `training.optimizers.AdamW`."""
    how = config.optimizer
    first, second = torch.zeros_like(weights), torch.zeros_like(weights)
    gradients = _traced(model, tuple(weights.shape), tuple(windows[:, 0].shape), True)
    for step in range(config.schedule.steps):
        gradient = gradients(weights, windows[:, step])
        if how.clip:
            norm = gradient.norm(dim=1, keepdim=True)
            gradient = torch.where(norm > how.clip, gradient * (how.clip / norm), gradient)
        first = how.beta1 * first + (1 - how.beta1) * gradient
        second = how.beta2 * second + (1 - how.beta2) * gradient.square()
        n, rate = step + 1, rates * lr_scale(step, config.schedule)
        root = second.sqrt() / math.sqrt(1 - how.beta2**n) + how.eps
        weights = weights - rate / (1 - how.beta1**n) * first / root
    return weights


def _scores(weights: Tensor, parts: Sequence[Parts], model: ModelConfig) -> list[float]:
    """Nats per target over each model's validation part; not finite where it diverged."""
    distinct: dict[int, Any] = {id(part.corpus): part.corpus for part in parts}
    tables = {name: list(val_windows(c.val, model.sizes.n_ctx, _VAL_WINDOWS)) for name, c in distinct.items()}
    rows = [tables[id(part.corpus)] for part in parts]
    total, count = np.zeros(len(parts)), np.zeros(len(parts))
    for batches in zip(*rows, strict=True):
        windows = torch.from_numpy(np.stack([windows for windows, _ in batches]))
        real = np.stack([real for _, real in batches])
        nats = _traced(model, tuple(weights.shape), tuple(windows.shape), False)(weights, windows)
        total += np.where(real, nats.double().numpy(), 0.0).sum(axis=(1, 2))
        count += real.sum(axis=(1, 2))
    return (total / count).tolist()


@lru_cache(maxsize=16)
def _traced(
    model: ModelConfig, weights: tuple[int, ...], windows: tuple[int, ...], gradients: bool
) -> Callable[[Tensor, Tensor], Tensor]:
    """(weights [models, n], windows [models, batch, n_ctx + 1]) -> gradients of the mean loss, or nats of each target.

    One flat list of operators for stacks of these shapes.
    """
    forward = _Forward(build(model, 0))
    shapes = {name: parameter.shape for name, parameter in forward.named_parameters()}

    def each(parameters: dict[str, Tensor], windows: Tensor) -> Tensor:
        """Nats of each target of one model, [batch, n_ctx]."""
        logits = functional_call(forward, parameters, (windows[:, :-1],))
        nats = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="none")
        return nats.unflatten(0, windows[:, 1:].shape)

    def call(weights: Tensor, windows: Tensor) -> Tensor:
        pieces = zip(shapes.items(), weights.split([shape.numel() for shape in shapes.values()], dim=1), strict=True)
        parameters = {name: piece.unflatten(1, shape) for (name, shape), piece in pieces}  # each [models, *shape]
        if not gradients:
            return vmap(each)(parameters, windows)
        found, _ = vmap(grad_and_value(lambda *one: each(*one).mean()))(parameters, windows)
        return torch.cat([found[name].flatten(1) for name in shapes], dim=1)

    return make_fx(call)(torch.zeros(weights), torch.zeros(windows, dtype=torch.int64))


class _Forward(nn.Module):
    """Logits by the formulas: asking to see activations switches to the path that is nothing but torch's operators."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model.answer(self.model.hidden(ids, hook=lambda name, tensor: tensor), None)

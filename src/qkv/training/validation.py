"""When and how the validation split is scored during training, and how a target loss is found at small cost.

A validation is always the whole split in the same windows. Its cost is bounded: a pass without gradients costs about a
third of training on as many tokens, so the number of validations follows from sizes alone, never from a clock.

To stop at a target loss the split is scored batch by batch, in an order that spreads over it, for as long as the target
is within one standard error of what the batches so far say. Far above the target that ends after a few batches; only a
pass that came to the end is a validation, and only a validation ends the run. Batches are compared with the same ones
of the pass before, since how hard each is hardly changes: then few of them tell much.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.tasks.batch import Batch, n_positions
from qkv.training.checkpoint import TrainingState
from qkv.training.config import TrainingConfig
from qkv.training.distributed.ranks import ALONE, Ranks
from qkv.training.precision import Machine
from qkv.training.schedules import decay_end

if TYPE_CHECKING:
    from qkv.tasks.data import DataT, ModelT
    from qkv.tasks.evaluation import Objective

_SHARE = 0.06
"""Share of the training's cost that validations may take by default, and ..."""
_SHARE_WITH_TARGET = 0.02
"""... where the target is looked for as well."""
_FORWARD = 1 / 3
"""Cost of a forward pass as a share of forward, backward and update."""
_MOST = 16
_ENOUGH = 4
"""Fewer validations than this may take twice their share."""
_BATCH_TOKENS = {"cpu": 2048}
"""Positions that are scored at a time, by device, and ..."""
_MOST_TOKENS = 16_384
"""... on any other, which ends so many no later."""
_GLANCE = 4
"""Batches after which the target may be given up."""
_REMEMBERED = 64
"""Batches of the latest pass that later ones are compared with."""
_NEAR = 0.25
"""Nats above the target, of the averaged training loss, from which on it is looked for, and ..."""
_AHEAD = 0.03
"""... of the loss expected from the training loss and the latest look: several times that expectation's noise."""


@lru_cache(maxsize=64)
def evaluation_steps(horizon: int, tokens_per_step: int, val_tokens: int, has_target: bool = False) -> tuple[int, ...]:
    """The steps that are validated by law: 1 to 16 of them, denser early, the horizon always.

    n is what fits into 6 % of the training's cost (12 % where that gives fewer than 4; 2 % with a target loss); the
    steps are horizon (i / n)^1.5.
    """
    affordable = horizon * tokens_per_step / (_FORWARD * max(1, val_tokens))
    n = int((_SHARE_WITH_TARGET if has_target else _SHARE) * affordable)
    if n < _ENOUGH and not has_target:
        n = min(_ENOUGH, 2 * n + 1)
    n = min(max(1, n), _MOST, horizon)
    return tuple(sorted({max(1, round(horizon * (i / n) ** 1.5)) for i in range(1, n + 1)}))


class Validation:
    """The fixed validation batches of one training and the decisions about them; what it learns is in the state."""

    def __init__(
        self,
        model: "ModelT",
        task: "Objective[DataT, ModelT]",
        corpus: "DataT",
        config: TrainingConfig,
        machine: Machine,
        *,
        stop: Callable[[], bool] = bool,
        ranks: Ranks = ALONE,
        loss: Callable[[Batch], tuple[Tensor, int]] | None = None,
        in_lockstep: bool = False,
    ) -> None:
        """`loss(batch)` is what the task's is of the model, where that is held in another way.

        `in_lockstep`: every rank scores whenever one does.
        """
        sizes = model.config.sizes
        self._config, self._machine, self._stop = config, machine, stop
        self._ranks, self._in_lockstep = ranks, in_lockstep
        self._loss = loss or (lambda batch: task.loss(model, batch))
        positions = task.positions(corpus, sizes)
        self._tokens_per_step = config.batch_size * positions
        at_once = _BATCH_TOKENS.get(machine.device, _MOST_TOKENS)
        batches = tuple(task.val_batches(corpus, sizes, max(1, at_once // positions)))
        self._batches = tuple(batches[i] for i in _spread(len(batches)))
        self.n_tokens = sum(n_positions(batch, sizes.n_ctx) for batch in batches)
        self.n_targets = sum(batch.targets.numel() for batch in batches)
        self.seconds = 0.0
        """How long the latest validation took, or, before it, is expected to take; kept by the loop."""

    @property
    def share(self) -> float:
        """What validations may be expected to cost, as a share of the updates."""
        return 0.0 if self._config.eval_every else _SHARE_WITH_TARGET if self._config.until_loss else _SHARE

    def measure(self, state: TrainingState, *, always: bool = False) -> float | None:
        """The mean loss over the whole split in nats per target, at the weights of `state.step`.

        None where no validation is due (nor `always` asked for), the target is not near, or a stop was asked for.
        """
        if state.evaluated_step == state.step:
            return None
        if always or self._is_due(state):
            return self._pass(state, may_give_up=False)
        if self._may_be_near_target(state):
            return self._pass(state, may_give_up=True)
        return None

    def expected_seconds(self) -> float:
        """How long a validation will take, by the time of a few batches of it; the first one is not counted."""
        scores = self._scores()
        next(scores, None)
        began = time.perf_counter()
        n = sum(1 for _ in itertools.islice(scores, _GLANCE))
        return (time.perf_counter() - began) * len(self._batches) / n if n else 0.0

    def _is_due(self, state: TrainingState) -> bool:
        """By law, by `eval_every`, or where the rate has fallen to its end."""
        if state.step == 0 or (state.horizon and state.step == decay_end(state.step - 1, state.horizon)):
            return state.step > 0
        if self._config.eval_every:
            return state.step % self._config.eval_every == 0
        args = (state.horizon, self._tokens_per_step, self.n_tokens, bool(self._config.until_loss))
        return state.horizon > 0 and state.step in evaluation_steps(*args)

    def _may_be_near_target(self, state: TrainingState) -> bool:
        target, seen = self._config.until_loss, state.train_loss
        if target <= 0 or state.step < state.probe_step or seen is None:
            return False
        if state.probe_last is None:
            return seen <= target + _NEAR
        _, estimate, seen_then = state.probe_last
        return estimate + (seen - seen_then) <= target + _AHEAD

    def _pass(self, state: TrainingState, *, may_give_up: bool) -> float | None:
        """Score batch by batch; the mean of all, or None where it was given up or stopped."""
        target, nats, n_targets, losses = self._config.until_loss, 0.0, 0, []
        for batch_nats, batch_targets in self._scores():
            if self._stop():
                return None
            nats, n_targets = nats + batch_nats, n_targets + batch_targets
            losses.append(batch_nats / max(1, batch_targets))
            if may_give_up and _GLANCE <= len(losses) < len(self._batches):
                estimate, error = self._estimate(state, losses)
                if estimate - error > target:
                    self._remember(state, losses, estimate, error)
                    return None
        loss = nats / n_targets if n_targets else math.nan
        if target:
            self._remember(state, losses, loss, 0.0)
        return loss

    def _scores(self) -> Iterator[tuple[float, int]]:
        """(nats, targets) of each batch, in the order that spreads over the split; each rank scores every world-th."""
        world = self._ranks.world
        for first in range(0, len(self._batches), world):
            batches = self._batches[first : first + world]
            mine = batches[self._ranks.rank : self._ranks.rank + 1]
            mine = mine or batches[: int(self._in_lockstep)]  # what a rank too many gives is left aside
            found = self._ranks.gather(*(self._score(mine[0]) if mine else (0.0, 0)))
            for nats, n_targets in found[: len(batches)]:
                yield nats, int(n_targets)

    def _score(self, batch: Batch) -> tuple[float, int]:
        """(nats, targets) of one batch."""
        if self._machine.device != "cpu":
            batch = batch.to(self._machine.device)
        with torch.no_grad(), self._machine.passing():
            nats, n_targets = self._loss(batch)
        return float(nats), int(n_targets)

    def _estimate(self, state: TrainingState, losses: list[float]) -> tuple[float, float]:
        """(the loss of the whole split, its standard error), from its first batches and those of the pass before."""
        plain = statistics.fmean(losses), _standard_error(losses, len(self._batches))
        known = state.probe_losses[: len(losses)]
        if len(known) < len(losses) or state.probe_mean is None:
            return plain
        moves = [now - then for now, then in zip(losses, known, strict=True)]
        compared = state.probe_mean + statistics.fmean(moves)
        return compared, math.hypot(_standard_error(moves, len(self._batches)), state.probe_error)

    def _remember(self, state: TrainingState, losses: list[float], mean: float, error: float) -> None:
        """Keep a pass to compare later ones with, if it tells more than the one kept, and say when to look again."""
        state.probe_step = state.step + self._gap(state, mean)
        state.probe_last = (state.step, mean, mean if state.train_loss is None else state.train_loss)
        if error == 0.0 or len(losses) >= min(_REMEMBERED, len(state.probe_losses)):
            state.probe_losses = tuple(losses[:_REMEMBERED])
            state.probe_mean, state.probe_error = mean, error

    def _gap(self, state: TrainingState, estimate: float) -> int:
        """Steps to the next look: most of the way to the target at the pace since the last, at bounded cost."""
        batch_in_steps = _FORWARD * self.n_tokens / max(1, len(self._batches)) / self._tokens_per_step
        least = max(1, math.ceil(2 * _GLANCE * batch_in_steps))
        most = max(least, state.horizon // 24)  # the loss falls faster than its pace so far once the rate decays
        if state.probe_last is None:
            return least
        step, before, _ = state.probe_last
        pace = (before - estimate) / max(1, state.step - step)
        distance = estimate - self._config.until_loss
        return most if pace <= 0 else min(most, max(least, int(0.8 * distance / pace)))


def _spread(n: int) -> list[int]:
    """The numbers below n in an order whose beginnings are spread over all of them: multiples of the golden section."""
    return sorted(range(n), key=lambda i: (i * 0.6180339887498949) % 1.0)


def _standard_error(values: list[float], n: int) -> float:
    """Of the mean of these as an estimate of the mean of all n they were taken from."""
    if len(values) < 2 or len(values) >= n:
        return 0.0
    return statistics.stdev(values) * math.sqrt((1 - len(values) / n) / len(values))

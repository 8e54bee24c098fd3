"""When and how the validation split is scored during training, and how a target loss is found at small cost.

A validation is always the whole split in the same windows. Its cost is bounded: a pass without gradients costs about a
third of training on as many tokens, so the number of validations follows from sizes alone, never from a clock.

To stop at a target loss, a *probe* (the same few windows every time, about a tenth) says when the whole split may be
there. Probe and whole differ by an offset that hardly moves, known after the first full pass; only a full pass ends the
run.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from qkv.training.checkpoint import TrainingState
from qkv.training.config import TrainingConfig
from qkv.training.precision import Machine

__all__ = ["Validation", "evaluation_steps"]

_SHARE = 0.06
"""Share of the training's cost that validations may take by default, and ..."""
_SHARE_WITH_TARGET = 0.02
"""... where probes look for a target as well."""
_FORWARD = 1 / 3
"""Cost of a forward pass as a share of forward, backward and update."""
_MOST = 16
_ENOUGH = 4
"""Fewer validations than this may take twice their share."""
_BATCH_TOKENS = 4096
_PROBE_SHARE, _PROBE_MOST = 0.1, 8
_NEAR = 0.25
"""Nats above the target, of the averaged training loss, from which on probes look for it."""


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
        model: Any,
        task: Any,
        corpus: Any,
        config: TrainingConfig,
        machine: Machine,
        *,
        stop: Callable[[], bool] = bool,
    ) -> None:
        sizes = model.config.sizes
        self._model, self._task, self._config, self._machine, self._stop = model, task, config, machine, stop
        self._tokens_per_step = config.batch_size * sizes.n_ctx
        self._batches = tuple(task.val_batches(corpus, sizes, max(1, _BATCH_TOKENS // sizes.n_ctx)))
        self.n_tokens = sum(batch.inputs.numel() for batch in self._batches)
        self.n_targets = sum(batch.targets.numel() for batch in self._batches)
        count = min(_PROBE_MOST, max(2, round(_PROBE_SHARE * len(self._batches))), len(self._batches))
        stride = len(self._batches) // max(1, count)
        self._probed = frozenset(stride // 2 + i * stride for i in range(count))
        probe_tokens = sum(self._batches[i].inputs.numel() for i in self._probed)
        self._probe_cost = _FORWARD * probe_tokens / self._tokens_per_step
        self.seconds = 0.0
        """How long the latest full pass took."""

    @property
    def share(self) -> float:
        """What validations may be expected to cost, as a share of the updates."""
        return 0.0 if self._config.eval_every else _SHARE_WITH_TARGET if self._config.until_loss else _SHARE

    def is_due(self, state: TrainingState) -> bool:
        """Whether the weights at this step are to be scored on the whole split; probes where a target may be near."""
        if state.evaluated_step == state.step or state.step == 0:
            return False
        if state.step == state.horizon:
            return True
        every = self._config.eval_every
        if every:
            by_law = state.step % every == 0
        else:
            args = (state.horizon, self._tokens_per_step, self.n_tokens, bool(self._config.until_loss))
            by_law = state.horizon > 0 and state.step in evaluation_steps(*args)
        return by_law or self._is_near_target(state)

    def losses(self, only: frozenset[int] | None = None) -> list[tuple[int, float, int]] | None:
        """(number, nats, targets) of every batch, or of those in `only`; None where a stop was asked for meanwhile."""
        results = []
        with torch.no_grad(), self._machine.autocast():
            for number, batch in enumerate(self._batches):
                if only is not None and number not in only:
                    continue
                if self._stop():
                    return None
                if self._machine.device != "cpu":
                    batch = batch.to(self._machine.device)
                nats, n_targets = self._task.loss(self._model, batch)
                results.append((number, float(nats), int(n_targets)))
        return results

    def full(self, state: TrainingState) -> float | None:
        """The mean loss over the whole split in nats per target; None where a stop was asked for meanwhile."""
        results = self.losses()
        if results is None:
            return None
        loss = _mean(results)
        if self._config.until_loss:
            state.probe_offset = loss - _mean([r for r in results if r[0] in self._probed])
            state.probe_step = state.step + self._least_gap()
        return loss

    def _is_near_target(self, state: TrainingState) -> bool:
        """Probe, where it is time to; whether the whole split may now be at the target. Notes when to look next."""
        target = self._config.until_loss
        if not target or state.step < state.probe_step or state.train_loss is None:
            return False
        if state.train_loss > target + _NEAR:
            return False
        results = self.losses(self._probed)
        if results is None:
            return False
        estimate = _mean(results) + (state.probe_offset or 0.0)
        margin = _standard_error(results) if state.probe_offset is None else 0.001 * target
        if estimate <= target - margin:  # the full pass says when to look again; an interrupted one is asked for again
            return True
        state.probe_step = state.step + self._gap(state, estimate, estimate - target + margin)
        state.probe_last = (state.step, estimate)
        return False

    def _least_gap(self) -> int:
        return max(1, math.ceil(2 * self._probe_cost))

    def _gap(self, state: TrainingState, estimate: float, distance: float) -> int:
        """Steps to the next probe: most of the way to the target at the pace since the last one, at bounded cost."""
        least = self._least_gap()
        most = max(least, math.ceil(10 * self._probe_cost), state.horizon // 25)
        if state.probe_last is None:
            return least
        step, before = state.probe_last
        pace = (before - estimate) / max(1, state.step - step)
        return most if pace <= 0 else min(most, max(least, int(0.8 * distance / pace)))


def _mean(results: list[tuple[int, float, int]]) -> float:
    """Nats per target over these batches; NaN of nothing."""
    n = sum(n_targets for _, _, n_targets in results)
    return sum(nats for _, nats, _ in results) / n if n else math.nan


def _standard_error(results: list[tuple[int, float, int]]) -> float:
    """Of the mean of these batches' losses."""
    losses = [nats / n for _, nats, n in results if n]
    if len(losses) < 2:
        return 0.0
    mean = sum(losses) / len(losses)
    return math.sqrt(sum((x - mean) ** 2 for x in losses) / (len(losses) - 1) / len(losses))

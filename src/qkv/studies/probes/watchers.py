"""What looks on while a model of a study is trained: the way that its weights take, and what their movement earns."""

from typing import Any

import torch
from torch import Tensor

from qkv.instruments.ledger import Account, LedgerConfig
from qkv.studies.probes.onsets import look_steps
from qkv.training.record import Observer, RunContext, StepRecord

PERIODS = {"first tenth": 0.1, "to the half": 0.5, "second half": 1.0}
"""Parts of a training, in order, and the share of the steps at which each ends."""


class Way(Observer):
    """The way of the weights: distances from the start at steps a constant factor apart, and where all stood between
    periods.

    Distance alone shows the optimizer as much as the learning; what is compared is when matrices of one training move,
    each against its own whole way.
    """

    def __init__(self) -> None:
        self.looks: list[tuple[int, dict[str, float]]] = []
        """(step, |W - S| by address)"""
        self.states: list[dict[str, Tensor]] = []
        """Weights by address at the start and at the end of each period."""

    def on_start(self, context: RunContext) -> None:
        self.states = [_copied(context.catalogue.state())]
        self.looks = [(0, dict.fromkeys(self.states[0], 0.0))]
        self._at = frozenset(look_steps(context.steps))
        self._ends = [max(1, round(share * context.steps)) for share in PERIODS.values()]

    def wants(self, step: int) -> bool:
        return step in self._at or step in self._ends

    def after_update(self, record: StepRecord) -> None:
        state, start = record.catalogue.state(), self.states[0]
        if record.step in self._at:
            moved = {address: float(torch.dist(state[address].double(), start[address].double())) for address in start}
            self.looks.append((record.step, moved))
        self.states += [_copied(state)] * self._ends.count(record.step)  # of very few steps one may end two periods


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {address: weights.detach().clone() for address, weights in state.items()}


_EVERY = 4
"""Updates between two entries; an entry costs two passes over the batch."""
_CLOSELY = LedgerConfig(every=_EVERY, panels=1, most_panels=1, windows=16)


class Ledger(Observer):
    """Nats that the movement of each address earned so far: above 0 where it lowered the loss, closed against it.

    The account itself is `qkv.instruments.ledger.Account` (loss change allocation, Lan et al. 2019, arXiv 1909.01440):
    on a fixed batch of validation windows the integral of gradient times movement between entries, by Simpson's rule,
    so that the parts add up to the fall of that batch's loss. Here nothing is stored but the sums.
    """

    def __init__(self) -> None:
        self.earned: dict[str, float] = {}
        self.fall = 0.0
        """By how much the loss of the batch fell from the start to the latest entry."""

    def on_start(self, context: RunContext) -> None:
        model: Any = context.model
        batch = next(iter(context.task.val_batches(context.corpus, model.config.sizes, _CLOSELY.windows)))
        self._account = Account(model, context.task.loss, batch, _CLOSELY)
        self._account.begin([context.catalogue.entry(e.address).parameter for e in self._account.entries])
        self._start, self._steps = self._account.loss, context.steps
        self.earned = {entry.address: 0.0 for entry in self._account.entries}

    def wants(self, step: int) -> bool:
        return step % _EVERY == 0 or step == self._steps

    def after_update(self, record: StepRecord) -> None:
        weights = [record.catalogue.entry(entry.address).parameter for entry in self._account.entries]
        if not all(bool(torch.isfinite(w).all()) for w in weights):
            return  # the loop is about to say so
        for entry, earned in zip(self._account.entries, self._account.move(weights), strict=True):
            self.earned[entry.address] -= float(earned.sum())
        self.fall = self._start - self._account.loss

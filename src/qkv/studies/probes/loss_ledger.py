"""The ledger of one training of a study: how many nats the movement of each matrix earned, closed against the loss.

The account itself is `qkv.instruments.ledger.Account` (loss change allocation, Lan et al. 2019, arXiv 1909.01440): on
a fixed batch of validation windows the integral of gradient times movement between entries, by Simpson's rule, so
that the parts add up to the fall of that batch's loss. Here nothing is stored but the sums.
"""

from typing import Any

import torch

from qkv.instruments.ledger import Account, LedgerConfig
from qkv.training.record import Observer, RunContext, StepRecord

__all__ = ["Ledger"]

_EVERY = 4
"""Updates between two entries; an entry costs two passes over the batch."""
_CLOSELY = LedgerConfig(every=_EVERY, panels=1, most_panels=1, windows=16)


class Ledger(Observer):
    """Nats earned by each address so far: above 0 where its movement lowered the loss."""

    def __init__(self) -> None:
        self.earned: dict[str, float] = {}
        self.fall = 0.0
        """By how much the loss of the batch fell from the start to the latest entry."""

    def on_start(self, context: RunContext) -> None:
        """Stand at the start."""
        model: Any = context.model
        batch = next(iter(context.task.val_batches(context.corpus, model.config.sizes, _CLOSELY.windows)))
        self._account = Account(model, context.task.loss, batch, _CLOSELY)
        self._account.begin([context.catalogue.entry(e.address).parameter for e in self._account.entries])
        self._start, self._steps = self._account.loss, context.steps
        self.earned = {entry.address: 0.0 for entry in self._account.entries}

    def wants(self, step: int) -> bool:
        return step % _EVERY == 0 or step == self._steps

    def after_update(self, record: StepRecord) -> None:
        """Make an entry."""
        weights = [record.catalogue.entry(entry.address).parameter for entry in self._account.entries]
        if not all(bool(torch.isfinite(w).all()) for w in weights):
            return  # the loop is about to say so
        for entry, earned in zip(self._account.entries, self._account.move(weights), strict=True):
            self.earned[entry.address] -= float(earned.sum())
        self.fall = self._start - self._account.loss

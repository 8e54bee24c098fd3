"""The way that the weights of a training take: how far each matrix has come, look by look, and where all stood between
periods.

Distance alone shows the optimizer as much as the learning; what is compared here is when matrices of one training move,
each against its own whole way.
"""

import torch
from torch import Tensor

from qkv.studies.probes.onsets import look_steps
from qkv.training.record import Observer, RunContext, StepRecord

__all__ = ["PERIODS", "Way"]

PERIODS = {"first tenth": 0.1, "to the half": 0.5, "second half": 1.0}
"""Parts of a training, in order, and the share of the steps at which each ends."""


class Way(Observer):
    """Distances from the start at steps a constant factor apart, and the weights at the end of every period."""

    def __init__(self) -> None:
        self.looks: list[tuple[int, dict[str, float]]] = []
        """(step, |W - S| by address)"""
        self.states: list[dict[str, Tensor]] = []
        """Weights by address at the start and at the end of each period."""

    def on_start(self, context: RunContext) -> None:
        """Stand at the start."""
        self.states = [_copied(context.catalogue.state())]
        self.looks = [(0, dict.fromkeys(self.states[0], 0.0))]
        self._at = frozenset(look_steps(context.steps))
        self._ends = [max(1, round(share * context.steps)) for share in PERIODS.values()]

    def wants(self, step: int) -> bool:
        return step in self._at or step in self._ends

    def after_update(self, record: StepRecord) -> None:
        """Look."""
        state, start = record.catalogue.state(), self.states[0]
        if record.step in self._at:
            moved = {address: float(torch.dist(state[address].double(), start[address].double())) for address in start}
            self.looks.append((record.step, moved))
        self.states += [_copied(state)] * self._ends.count(record.step)  # of very few steps one may end two periods


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {address: weights.detach().clone() for address, weights in state.items()}

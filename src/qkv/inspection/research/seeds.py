"""A measure of several runs side by side: its mean and 95% interval over runs, as for several seeds of one model."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from qkv.errors import UserError
from qkv.shapes import Float64, Int64
from qkv.tasks.evaluation import ratio_interval
from qkv.telemetry.schema import Series


class Spread(NamedTuple):
    """A measure over n runs, of the addresses that all have and at the steps at which all recorded it."""

    addresses: list[str]
    step: Int64[np.ndarray, "n_steps"]
    mean: Float64[np.ndarray, "n_addresses n_steps"]
    low: Float64[np.ndarray, "n_addresses n_steps"]
    high: Float64[np.ndarray, "n_addresses n_steps"]
    """By Student's t over runs; NaN where a run has no number."""
    n: int


def side_by_side(histories: Sequence[Mapping[str, Series]]) -> Spread:
    """The spread of two or more histories (`Run.history`).

    Raises UserError where there are fewer, or they have no address or no step in common.
    """
    if len(histories) < 2:
        raise UserError(f"an interval over runs needs at least two of them; given: {len(histories)}")
    addresses = [address for address in histories[0] if all(address in other for other in histories)]
    every = [history[address] for history in histories for address in addresses]
    steps = reduce(np.intersect1d, [series.step for series in every]) if every else np.zeros(0, dtype=np.int64)
    if not len(steps):
        what = "step at which all recorded this measure" if every else "matrix of these names"
        raise UserError(f"the runs have no {what} in common")
    mean, low, high = np.full((3, len(addresses), len(steps)), np.nan)
    for i, address in enumerate(addresses):
        values = np.stack([of[address].value[np.searchsorted(of[address].step, steps)] for of in histories])
        for j, column in enumerate(values.T):
            mean[i, j], interval = ratio_interval(column, np.ones(len(column)))
            low[i, j], high[i, j] = interval or (np.nan, np.nan)
    return Spread(addresses, steps, mean, low, high, len(histories))

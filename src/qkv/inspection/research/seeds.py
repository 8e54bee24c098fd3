"""A measure of several runs side by side: its mean and 95% interval over runs, as for several seeds of one model."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from qkv.errors import UserError
from qkv.tasks.evaluation import ratio_interval
from qkv.telemetry.history import History


class Spread(NamedTuple):
    """A measure over n runs, of the addresses that all have and at the steps at which all recorded it."""

    mean: History
    low: History
    high: History
    """By Student's t over runs; NaN where a run has no number."""
    n: int


def side_by_side(histories: Sequence[History]) -> Spread:
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
    parts = History(), History(), History()
    for address in addresses:
        values = np.stack([of[address].value[np.searchsorted(of[address].step, steps)] for of in histories])
        found = [ratio_interval(column, np.ones(len(column))) for column in values.T]
        rows = np.array([(mean, *(interval or (np.nan, np.nan))) for mean, interval in found])
        for part, column in zip(parts, rows.T, strict=True):
            part[address] = replace(histories[0][address], step=steps, value=column)
    return Spread(*parts, len(histories))

"""The line through the effects of a ladder: its slope, what it says of other sizes, and the verdict.

A cell is a size at a number of tokens per weight; its values are one effect per seed, and a seed has its own slice of
the text at every size. In the model

    effect[cell, seed] = level[tokens per weight] + slope * log10(weights) + u[cell] + v[seed] + e[cell, seed]

u, v and e are random: how far a size lies off the line, what a slice does at all sizes, and what chance is left. A line
is fitted in every seed by least squares, so that v, e of any size by cell, and all correlation between the cells of a
seed are in the spread between seeds (n - 1 degrees of freedom). The variance of u is estimated by moments (as in
DerSimonian and Laird 1986): what the mean effects lie off the line by, less what the seeds explain. A few cells cannot
show that it is 0, so it is averaged with that of sizes which lie `_OFF` margins off, which counts as one cell more.
Degrees of freedom of the sum are Satterthwaite's (1946). tests/studies/ladder/test_trend.py holds it to the closed form
of the balanced analysis of variance, and counts how often intervals and verdicts are right.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from qkv.studies.verdict.statistics import scipy

NO_TREND = "cannot tell"
VERDICTS = ("shrinks", "grows", "reverses", "does not depend on size", NO_TREND)
_OFF, _COUNTS_AS = 1 / 3, 1
_FARTHEST = 4.0
"""Decades beyond the sizes of a ladder in which the margin's crossing is looked for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """A number of the trend with its interval."""

    value: float
    low: float
    high: float


class Trend:
    """Parallel lines, one for each number of tokens per weight, fitted to the cells of a ladder.

    values: float64 [n_cells, n_seeds], the effect in each; weights: [n_cells], of the models; lines: [n_cells], which
    line a cell is of. `margin`, above 0, is the largest effect that would not matter. Needs two seeds, and two sizes on
    some line.
    """

    def __init__(self, values: np.ndarray, weights: Sequence[float], lines: Sequence[float], margin: float) -> None:
        self.margin, self._values, self._lines = margin, values, sorted(set(lines))
        x = np.log10(weights)
        self.ends = float(x.min()), float(x.max())
        self._middle = float(x.mean())
        design = np.column_stack([*(np.equal(lines, line) for line in self._lines), x - self._middle]).astype(float)
        self._solve = np.linalg.pinv(design)
        self._by_seed = self._solve @ values  # [n_lines + 1, n_seeds]: levels, then the slope
        self._off = values - design @ self._by_seed
        self._df = len(x) - design.shape[1]

    @property
    def lack_of_fit(self) -> float:
        """The variance of u by moments, at least 0; 0 where there are too few cells to show any."""
        if not self._df:
            return 0.0
        explained = float(self._off.var(axis=1, ddof=1).sum()) / self._values.shape[1]
        return max(0.0, (float((self._off.mean(axis=1) ** 2).sum()) - explained) / self._df)

    @property
    def by_chance(self) -> float:
        """The variance between seeds within a cell, mean over cells: v and e."""
        return float(self._values.var(axis=1, ddof=1).mean())

    def _figure(self, g: np.ndarray, confidence: float = 0.95, new: bool = False, measured: bool = False) -> Figure:
        n, df = self._values.shape[1], self._df + _COUNTS_AS
        off = (self._df * self.lack_of_fit + _COUNTS_AS * (_OFF * self.margin) ** 2) / df
        seeds = float((g @ self._by_seed).var(ddof=1)) / n + measured * self.by_chance / n
        sizes = off * (float(((g @ self._solve) ** 2).sum()) + new)
        freedom = (seeds + sizes) ** 2 / (seeds**2 / (n - 1) + sizes**2 / df)
        reach = float(scipy().t.ppf(0.5 + confidence / 2, freedom)) * math.sqrt(seeds + sizes)
        value = float((g @ self._by_seed).mean())
        return Figure(value=value, low=value - reach, high=value + reach)

    def _at(self, x: float, line: float | None) -> np.ndarray:
        shares = [1 / len(self._lines) if line is None else float(line == one) for one in self._lines]
        return np.array([*shares, x - self._middle])

    def slope(self, confidence: float = 0.95) -> Figure:
        """By how much the effect changes when a model has ten times as many weights."""
        return self._figure(np.array([0.0] * len(self._lines) + [1.0]), confidence)

    def at(self, weights: float, line: float | None = None) -> Figure:
        """The line at a size, with its 95% interval; without `line` the mean of all lines."""
        return self._figure(self._at(math.log10(weights), line))

    def predicted(self, weights: float, line: float | None = None, *, measured: bool = False) -> Figure:
        """The effect at a size that is not of the ladder, with its 95% interval.

        `measured`: what as many seeds of this spread will come to there, instead of the effect itself.
        """
        return self._figure(self._at(math.log10(weights), line), 0.95, True, measured)

    def crossing(self, line: float | None = None) -> Figure | None:
        """The weights at which the line crosses the margin, and between which its 95% interval holds the margin.

        None where it crosses nowhere between the smallest size and 4 decades beyond the largest; an end of the interval
        that lies farther out is inf.
        """
        sizes = 10 ** np.linspace(self.ends[0], self.ends[1] + _FARTHEST, 200)
        places = [self.at(float(size), line) for size in sizes]
        inside = [abs(one.value) < self.margin for one in places]
        change = next((i for i in range(1, len(sizes)) if inside[i] != inside[i - 1]), None)
        if change is None:
            return None
        edge = math.copysign(self.margin, places[change].value)
        holds = [float(size) for size, one in zip(sizes, places, strict=True) if one.low <= edge <= one.high]
        high = math.inf if holds[-1] == sizes[-1] else holds[-1]
        return Figure(value=float(sizes[change]), low=holds[0], high=high)

    def verdict(self) -> str:
        """One of `VERDICTS`.

        The change from the smallest to the largest size is judged as an effect is (`statistics.judge`). A 95% interval
        without 0 that does not lie inside the margin: *reverses* where both ends differ from 0 and have other signs,
        *shrinks* or *grows* where one of them differs from 0 and the larger one comes first or last. Inside the margin,
        or with 0 and a 90% interval inside it: *does not depend on size*. Else *cannot tell*.
        """
        span = self.ends[1] - self.ends[0]
        wide, narrow = self.slope(), self.slope(0.90)
        inside = max(-narrow.low, narrow.high) * span < self.margin
        if wide.low <= 0 <= wide.high:
            return "does not depend on size" if inside else NO_TREND
        if max(-wide.low, wide.high) * span < self.margin:
            return "does not depend on size"
        first, last = (self.at(10**end) for end in self.ends)
        differ = [one.low > 0 or one.high < 0 for one in (first, last)]
        if all(differ) and first.value * last.value < 0:
            return "reverses"
        if not any(differ):
            return NO_TREND
        return "shrinks" if abs(last.value) < abs(first.value) else "grows"

"""Token rows of W_E (columns of W_U): one row before and after, and which rows moved most, least, or not at all.

Static vectors only; what a token becomes in a context is `contextual.py`. Drift is that of the measure `row_drift`:
|after - before| / |before|; where before is 0, |after|.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class RowStory:
    """One token's row at the start and at the end."""

    id: int
    before: np.ndarray
    """float [d_model]"""
    after: np.ndarray
    """float [d_model]"""
    count: int | None
    """How often the token occurs in the training text; None where it was not counted."""

    @property
    def norm_before(self) -> float:
        return float(np.linalg.norm(self.before.astype(np.float64)))

    @property
    def norm_after(self) -> float:
        return float(np.linalg.norm(self.after.astype(np.float64)))

    @property
    def drift(self) -> float:
        """|after - before| / |before|, 0 and up."""
        moved = np.linalg.norm(self.after.astype(np.float64) - self.before)
        return float(moved / (self.norm_before or 1.0))

    @property
    def turn(self) -> float | None:
        """Degrees between the two, 0 to 180; None where one of them is 0."""
        before, after = self.before.astype(np.float64), self.after.astype(np.float64)
        if not (before.any() and after.any()):
            return None
        along = before / np.linalg.norm(before)
        moved = after - before
        sideways = moved - along * (moved @ along)
        return float(np.degrees(np.arctan2(np.linalg.norm(sideways), np.linalg.norm(before) + moved @ along)))

    @property
    def most_moved(self) -> np.ndarray:
        """Components in falling order of |after - before|, int64 [d_model]."""
        return np.argsort(-np.abs(self.after.astype(np.float64) - self.before), kind="stable")


@dataclass(frozen=True)
class RowMoment:
    """One token's row at one step, against its start."""

    step: int
    norm: float
    drift: float
    turn: float | None
    """Degrees, 0 to 180; None where the row is 0 at one of them."""


@dataclass(frozen=True)
class RowSummary:
    """All rows of a table together; special tokens are counted apart, since no text holds them."""

    n_rows: int
    n_seen: int | None
    """None where tokens were not counted."""
    n_moved: int
    """Of the rows seen (of all where not counted), those whose drift is not 0."""
    median: float
    """Of the drift of the same rows."""
    largest: float
    furthest: int
    """The row that moved most."""
    n_unseen: int | None
    n_unseen_moved: int | None
    """Of the rows never seen, those whose drift is not 0."""
    largest_unseen: float | None
    """Of the drift of rows never seen; None where there is none."""
    with_count: float | None
    """Rank correlation of drift and count over rows seen, -1 to 1; None for fewer than 5."""


def drifts(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Drift of every row of two tables [n_rows, d_model], float64 [n_rows]: the measure `row_drift`."""
    size = np.linalg.norm(before.astype(np.float64), axis=1)
    return np.linalg.norm(after.astype(np.float64) - before, axis=1) / np.where(size > 0, size, 1.0)


def row_story(before: np.ndarray, after: np.ndarray, row: int, counts: np.ndarray | None = None) -> RowStory:
    """Row `row` of both tables [n_rows, d_model]."""
    return RowStory(row, np.array(before[row]), np.array(after[row]), None if counts is None else int(counts[row]))


def turns(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Degrees between every row of two tables [n_rows, d_model], float64 [n_rows]; NaN where one of them is 0."""
    there, here = before.astype(np.float64), after.astype(np.float64)
    size = np.linalg.norm(there, axis=1)
    along = there / np.where(size > 0, size, 1.0)[:, None]
    step = here - there
    inner = (step * along).sum(axis=1)
    sideways = np.linalg.norm(step - along * inner[:, None], axis=1)
    degrees = np.degrees(np.arctan2(sideways, size + inner))
    return np.where((size > 0) & here.any(axis=1), degrees, np.nan)


def row_history(tables: Mapping[int, np.ndarray], row: int) -> list[RowMoment]:
    """One row at every step of `tables` (step -> [n_rows, d_model], the first is the start), in their order."""
    if not tables:
        return []
    start = next(iter(tables.values()))
    stories = {step: row_story(start, table, row) for step, table in tables.items()}
    return [RowMoment(step, story.norm_after, story.drift, story.turn) for step, story in stories.items()]


def moved(drift: np.ndarray, k: int = 10, *, least: bool = False, among: np.ndarray | None = None) -> list[int]:
    """The k rows of largest (or least) drift [n_rows], those of `among` (bool [n_rows]) only, ties by id."""
    ids = np.arange(len(drift)) if among is None else np.flatnonzero(among)
    values = drift[ids].astype(np.float64)
    return [int(i) for i in ids[np.argsort(values if least else -values, kind="stable")[:k]]]


def summary(drift: np.ndarray, counts: np.ndarray | None = None, specials: frozenset[int] = frozenset()) -> RowSummary:
    """What the drifts [n_rows] and the counts [n_rows] say together."""
    drift = drift.astype(np.float64)
    ordinary = np.array([i not in specials for i in range(len(drift))])
    seen = ordinary if counts is None else ordinary & (counts > 0)
    unseen = None if counts is None else ordinary & (counts == 0)
    among = seen if seen.any() else np.ones(len(drift), dtype=bool)
    return RowSummary(
        n_rows=len(drift),
        n_seen=None if counts is None else int(seen.sum()),
        n_moved=int(np.count_nonzero(drift[among])),
        median=float(np.median(drift[among])),
        largest=float(drift[among].max()),
        furthest=moved(drift, 1, among=among)[0],
        n_unseen=None if unseen is None else int(unseen.sum()),
        n_unseen_moved=None if unseen is None else int(np.count_nonzero(drift[unseen])),
        largest_unseen=None if unseen is None or not unseen.any() else float(drift[unseen].max()),
        with_count=None if counts is None or seen.sum() < 5 else rank_correlation(drift[seen], counts[seen]),
    )


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Spearman's rank correlation, -1 to 1, ties at their mean rank; None where one of them is constant."""
    a, b = ranks(x), ranks(y)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0 else None


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, equal values sharing the mean of theirs: float64 [n]."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + 1 + last) / 2)[inverse]

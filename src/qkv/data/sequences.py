"""Short sequences side by side in rows, so that nothing is computed for padding.

A batch of texts of unlike length is laid out in as few rows of one width as fit, longest first, each into the first row
that has room (first-fit decreasing: Johnson et al. 1974, SIAM J. Comput. 3). Who attends to whom is kept apart by the
owner of each position. Which texts share a row changes no result beyond rounding.
"""

from typing import NamedTuple

import numpy as np

__all__ = ["Rows", "pack_rows"]


class Rows(NamedTuple):
    """Sequences laid out in rows; all [n_rows, width] int64."""

    ids: np.ndarray
    """Tokens, 0 where nothing lies."""
    owners: np.ndarray
    """The number of the sequence that a position belongs to; the number of sequences where nothing lies."""
    places: np.ndarray
    """Which position of its sequence it is, from 0."""


def pack_rows(ids: np.ndarray, lengths: np.ndarray, width: int) -> Rows:
    """Lay out sequences that lie one behind another in `ids`: int64 [n_tokens], lengths int64 [n], each 1 to width."""
    row, start, n_rows = _layout(lengths, width)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    places = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    at = row[owners] * width + start[owners] + places
    rows = [np.zeros(n_rows * width, dtype=np.int64) for _ in range(3)]
    rows[1][:] = len(lengths)
    for target, values in zip(rows, (ids, owners, places), strict=True):
        target[at] = values
    return Rows(*(target.reshape(n_rows, width) for target in rows))


def _layout(lengths: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, int]:
    """(row [n], first position in it [n], number of rows)."""
    row, start = np.zeros_like(lengths), np.zeros_like(lengths)
    room: list[int] = []
    full = 0  # rows before this one have no room for anything
    for i in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[i])
        assert 1 <= length <= width
        place = next((r for r in range(full, len(room)) if room[r] >= length), len(room))
        if place == len(room):
            room.append(width)
        row[i], start[i] = place, width - room[place]
        room[place] -= length
        while full < len(room) and room[full] == 0:
            full += 1
    return row, start, len(room)

"""How tokens lie in batches: windows of one long text, or short sequences side by side in rows.

Training window e is found from (seed, e) alone: e // n_windows is its epoch, each epoch shifts all windows by an offset
of its own and visits every one of them once, in an order of its own. So a resumed run needs no stored position, and two
ranks that take every second example see together what one rank sees.

Texts of unlike length are laid out in as few rows of one width as fit, longest first, each into the first row that has
room (first-fit decreasing: Johnson et al. 1974, SIAM J. Comput. 3), so that nothing is computed for padding. Who
attends to whom is kept apart by the owner of each position. Which texts share a row changes no result beyond rounding.

Nothing here knows about tasks or models.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from qkv.errors import SourceError
from qkv.randomness import Permutation, generator
from qkv.tokenizers.tokens import Tokens

_BLOCK = 4096
"""Most starts that are computed at a time: one permutation call serves many steps."""


def check_window(tokens: Tokens, n_ctx: int, what: str = "the training text") -> None:
    """Make sure that at least one window of n_ctx inputs and n_ctx targets fits.

    Raises SourceError with both lengths where it does not.
    """
    if len(tokens) < n_ctx + 1:
        raise SourceError(
            f"{what} has {len(tokens)} tokens, fewer than one window of {n_ctx + 1};"
            f" give a longer text or a shorter window (--set n_ctx={max(1, len(tokens) - 1)})"
        )


def n_windows(tokens: Tokens, n_ctx: int) -> int:
    """Training windows in an epoch: len // n_ctx - 1, so that any shift below n_ctx fits; at least 1.

    Raises SourceError where not even one window fits.
    """
    check_window(tokens, n_ctx)
    return max(1, len(tokens) // n_ctx - 1)


def train_starts(tokens: Tokens, n_ctx: int, seed: int, example_index: np.ndarray) -> np.ndarray:
    """Where each training window begins: int64 [n], positions in `tokens.ids`.

    example_index: int64 [n], global example numbers >= 0. The window of a start s is ids[s : s + n_ctx + 1].
    """
    n = n_windows(tokens, n_ctx)
    index = np.asarray(example_index, dtype=np.int64)
    size = min(_BLOCK, max(64, 4 * n))  # a block never spans more than 64 epochs, each of which costs a permutation
    if not len(index):
        return index
    blocks = index // size
    if blocks[0] == blocks[-1] and (blocks == blocks[0]).all():  # nearly every batch
        return _block_of_starts(len(tokens), n, n_ctx, seed, size, int(blocks[0]))[index % size]
    starts = np.empty(index.shape, dtype=np.int64)
    for block in np.unique(blocks):
        inside = blocks == block
        starts[inside] = _block_of_starts(len(tokens), n, n_ctx, seed, size, int(block))[index[inside] % size]
    return starts


def once_an_epoch(n: int, seed: int, what: str, example_index: np.ndarray) -> np.ndarray:
    """Which of n things each global example is, all int64: each once an epoch, in an order of its own."""
    epochs, places = np.divmod(np.asarray(example_index, dtype=np.int64), n)
    found = np.empty_like(places)
    for epoch in np.unique(epochs):
        inside = epochs == epoch
        found[inside] = _order(n, seed, what, int(epoch))(places[inside])
    return found


_order = lru_cache(maxsize=4)(Permutation)


@lru_cache(maxsize=16)
def _block_of_starts(n_tokens: int, n: int, n_ctx: int, seed: int, size: int, block: int) -> np.ndarray:
    """Starts of examples block * size onwards, int64 [size]."""
    index = np.arange(block * size, (block + 1) * size, dtype=np.int64)
    epochs, within = index // n, index % n
    starts = np.empty(size, dtype=np.int64)
    shifts = min(n_ctx, n_tokens - n * n_ctx)
    for epoch in np.unique(epochs):
        inside = epochs == epoch
        shift = int(generator(seed, "window shift", int(epoch)).integers(shifts))
        starts[inside] = Permutation(n, seed, "windows", int(epoch))(within[inside]) * n_ctx + shift
    return starts


def train_window(tokens: Tokens, n_ctx: int, seed: int, example_index: np.ndarray) -> np.ndarray:
    """The training windows of these global example numbers: int64 [n, n_ctx + 1].

    A pure function of (tokens, n_ctx, seed, example_index). Inside an epoch of `n_windows` examples no token is a
    target twice. Column 0 to n_ctx - 1 are inputs, 1 to n_ctx are targets.
    """
    starts = train_starts(tokens, n_ctx, seed, example_index)
    return tokens.ids.take(starts[:, None] + np.arange(n_ctx + 1)).astype(np.int64)


def val_windows(
    tokens: Tokens, n_ctx: int, batch_size: int, before: np.ndarray | tuple[()] = ()
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The fixed validation windows in order, `batch_size` at a time, the last batch as small as it must be.

    Yields (windows int64 [batch, n_ctx + 1], real bool [batch, n_ctx]): `real` marks the targets windows[:, 1:] that
    count. Only the last window can be short; it is filled with token 0 and real is False there. Over all batches each
    token after the first is a real target exactly once. Tokens that belong `before` a text begin each window, without
    being targets; then the first token is a target too.

    Raises SourceError where there are fewer than two tokens.
    """
    check_window(tokens, 1, "the validation text")
    own = n_ctx + 1 - len(before)
    stride, n_targets = (own, len(tokens)) if len(before) else (n_ctx, len(tokens) - 1)
    total = -(-n_targets // stride)
    columns = np.arange(own)
    for first in range(0, total, batch_size):
        positions = (np.arange(first, min(first + batch_size, total)) * stride)[:, None] + columns
        inside = positions < len(tokens)
        windows = np.where(inside, tokens.ids[np.where(inside, positions, 0)].astype(np.int64), 0)
        if len(before):
            windows = np.concatenate([np.broadcast_to(before, (len(windows), len(before))), windows], axis=1)
            inside = np.pad(inside, ((0, 0), (len(before), 0)))
        yield windows, inside[:, 1:]


def window_documents(tokens: Tokens, starts: np.ndarray, n_ctx: int) -> np.ndarray:
    """The document that each position of these windows belongs to: int64 [n, n_ctx + 1], numbers from 0.

    starts: int64 [n]. A token that ends a document belongs to the document that it ends. Positions beyond the last
    token count as one document more.
    """
    positions = np.asarray(starts)[:, None] + np.arange(n_ctx + 1)
    return np.searchsorted(tokens.offsets, positions, side="right") - 1


# short sequences side by side


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

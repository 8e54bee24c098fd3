"""What is kept between the steps of a generation: keys and values, or the state of a recurrence."""

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.errors import ConfigError
from qkv.shapes import Float, Int

ROOM = 32
"""Newest positions that a `SplitCache` keeps apart."""

SPLIT_FROM = 1 << 19
"""Bytes of one layer's keys from which on a `SplitCache` splits them; below, two products more cost more than gaps."""


class KVCache:
    """Keys and values of the positions read so far, preallocated for every layer of one model.

    Meant for generation under `torch.no_grad()`. `length` positions are filled; a forward pass appends to every layer
    and then calls `advance` once.
    """

    def __init__(
        self,
        n_layers: int,
        batch: int,
        n_kv_heads: int,
        n_ctx: int,
        d_head: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.length, self.n_ctx, self.batch = 0, n_ctx, batch
        shape = (n_layers, 2, batch, n_kv_heads, n_ctx, d_head)
        self._store = torch.zeros(shape, dtype=dtype, device=device)
        self._context: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def store(self) -> Tensor:
        """Keys and values, [layer, 2, batch, kv_head, n_ctx, d_head], of which `length` positions are filled."""
        return self._store

    def append(
        self,
        layer: int,
        k: Float[Tensor, "batch n_kv_heads new_pos d_head"],
        v: Float[Tensor, "batch n_kv_heads new_pos d_head"],
    ) -> tuple[Float[Tensor, "batch n_kv_heads key_pos d_head"], Float[Tensor, "batch n_kv_heads key_pos d_head"]]:
        """Store the new k and v; return all of that layer.

        Raises ConfigError where the new positions do not fit.
        """
        end = self.length + k.shape[2]
        if end > self.n_ctx:
            raise ConfigError(f"{end} positions do not fit into a cache of n_ctx = {self.n_ctx}")
        store = self._store[layer]
        store[0, :, :, self.length : end] = k
        store[1, :, :, self.length : end] = v
        return store[0, :, :, :end], store[1, :, :, :end]

    def context(self, layer: int, make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values of a cross-attention's context, made once."""
        if layer not in self._context:
            self._context[layer] = make()
        return self._context[layer]

    def select(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Let row i from now on be what row rows[i] was: beams that part, sequences that end."""
        kept = self._store[:, :, :, :, : self.length].index_select(2, rows)
        if len(rows) > self._store.shape[2]:
            shape = list(self._store.shape)
            shape[2] = len(rows)
            self._store = self._store.new_zeros(shape)
        self._store = self._store[:, :, : len(rows)]
        self._store[:, :, :, :, : self.length] = kept
        self._context = {
            layer: (k.index_select(0, rows), v.index_select(0, rows)) for layer, (k, v) in self._context.items()
        }
        self.batch = len(rows)

    def advance(self, n: int) -> None:
        """Count `n` positions as read, after every layer has stored them."""
        self.length += n


class SplitCache:
    """What a `KVCache` holds, taken over for reading one position at a time.

    Keys that have room to grow have gaps between their rows, and a processor fetches ahead along memory without: 64
    rows of 136 keys in places for 256 take four times as long to read as side by side. So a large cache is `settled`
    keys and values without gaps and the `recent` ones behind them, at most `ROOM`, which join them when those are full.
    Rows below are those of the batch and their kv_heads, [batch * kv_head].
    """

    def __init__(self, cache: KVCache, n_ctx: int) -> None:
        held, self.length, self.n_ctx = cache.store[:, :, :, :, : cache.length], cache.length, n_ctx
        n_layers, _, batch, n_kv, _, d_head = held.shape
        size = batch * n_kv * n_ctx * d_head
        split = held.device.type == "cpu" and size * held.element_size() >= SPLIT_FROM and n_ctx > ROOM
        self.n_settled = self.length if split else 0
        self._recent = held.new_zeros(n_layers, 2, batch, n_kv, ROOM if split else n_ctx, d_head)
        self._rows = self._recent.flatten(2, 3)
        self._keys, self._values = self._rows[:, 0].mT, self._rows[:, 1]
        self.settled: list[tuple[Tensor, ...]] = []
        """Keys [row, d_head, n_settled] and values [row, n_settled, d_head] of each layer; none where it is small."""
        self._memory = [held.new_empty(2 * size) for _ in range(n_layers + 1)] if split else []
        if split:
            self.settled = [_transposed(layer.flatten(1, 2)) for layer in held]
        else:
            self._recent[:, :, :, :, : self.length] = held

    def places(self) -> tuple[Tensor, ...]:
        """Where the key and the value of the next position go, for each layer [2, batch, kv_head, d_head]."""
        return self._recent.select(4, self.length - self.n_settled).unbind()

    def recent(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values that are not settled, the next position's among them, of each layer; shapes as of settled."""
        n = self.length - self.n_settled + 1
        keys, values = self._keys[:, :, :, :n].unbind(), self._values[:, :, :n].unbind()
        return list(zip(keys, values, strict=True))

    def memory(self) -> list[tuple[Tensor, ...]]:
        """Of each layer its recent keys and values [row, room, d_head], and where there are any its settled ones.

        Those are [row, n_settled, d_head]; all without gaps.
        """
        older = [(keys.mT, values) for keys, values in self.settled] or [()] * len(self._rows)
        return [(both[0], both[1], *before) for both, before in zip(self._rows, older, strict=True)]

    def advance(self) -> None:
        """Count one position as read, after every layer has stored it."""
        self.length += 1
        if self.settled and self.length - self.n_settled == self._rows.shape[3]:
            self._settle()

    def _settle(self) -> None:
        """Each layer's settled and recent positions side by side, in the memory that the layer before it left."""
        _, rows, _, d_head = self._rows[0].shape
        n, self.n_settled = self.n_settled, self.length
        for layer, (keys, values) in enumerate(self.settled):
            joined = self._memory[-1][: 2 * rows * self.length * d_head].view(2, rows, self.length, d_head)
            joined[0, :, :n], joined[1, :, :n], joined[:, :, n:] = keys.mT, values, self._rows[layer]
            self.settled[layer] = _transposed(joined)
            self._memory[-1], self._memory[layer] = self._memory[layer], self._memory[-1]


def _transposed(both: Tensor) -> tuple[Tensor, Tensor]:
    """[2, row, pos, d_head] as keys [row, d_head, pos] and values [row, pos, d_head], views both."""
    return both[0].mT, both[1]


class StateCache:
    """The state of every recurrent layer after the positions read so far; used like a `KVCache`."""

    def __init__(self, batch: int, n_ctx: int) -> None:
        self.length, self.n_ctx, self.batch = 0, n_ctx, batch
        self.states: dict[int, tuple[Tensor, Tensor]] = {}
        """Layer -> its h and c, [batch, width]; empty before the first position."""

    def select(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Let row i from now on be what row rows[i] was."""
        self.states = {
            layer: (h.index_select(0, rows), c.index_select(0, rows)) for layer, (h, c) in self.states.items()
        }
        self.batch = len(rows)

    def advance(self, n: int) -> None:
        """Count `n` positions as read, after every layer has read them."""
        self.length += n


Cache = KVCache | StateCache
"""What a model of either kind keeps."""

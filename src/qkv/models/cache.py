"""What is kept between the steps of a generation: keys and values, or the state of a recurrence."""

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.errors import ConfigError

__all__ = ["KVCache", "StateCache"]


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

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store new k, v [batch, kv_head, new_pos, d_head]; return all of that layer [batch, kv_head, key_pos, d_head].

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

    def select(self, rows: Tensor) -> None:
        """Let row i from now on be what row rows[i] was, int64 [new_batch]: beams that part, sequences that end."""
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


class StateCache:
    """The state of every recurrent layer after the positions read so far; used like a `KVCache`."""

    def __init__(self, batch: int, n_ctx: int) -> None:
        self.length, self.n_ctx, self.batch = 0, n_ctx, batch
        self.states: dict[int, tuple[Tensor, Tensor]] = {}
        """Layer -> its h and c, [batch, width]; empty before the first position."""

    def select(self, rows: Tensor) -> None:
        """Let row i from now on be what row rows[i] was, int64 [new_batch]."""
        self.states = {
            layer: (h.index_select(0, rows), c.index_select(0, rows)) for layer, (h, c) in self.states.items()
        }
        self.batch = len(rows)

    def advance(self, n: int) -> None:
        """Count `n` positions as read, after every layer has read them."""
        self.length += n

"""One pass over every matrix: norms, gradients, updates and drifts of all of them.

Written for small models on a processor, where a look costs what its memory traffic costs. Matrices are cut into pieces
that stay in the cache from one operation to the next, and NumPy works on the tensors' own memory: no thread is woken
(for a small matrix that costs more than the arithmetic), sums stay short (relative error near 1e-7 in float32), and no
number depends on the thread count. On another device the same operations are torch's, on whole matrices.

Parameters and gradients are read, never written. Held are the weights at step 0 and one copy of the weights now.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.models.parts import Entry

__all__ = ["Passes", "Reading"]

PIECE = 66_000
"""Weights in a piece: 264 kB in float32, three of which fit a second-level cache of 1 MB."""


_NUMPY = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Reading:
    """What one look gave: float64 arrays [n], one number per entry, or per head of those entries that have heads.

    NaN where there is none: no gradient, no update (a look between updates), no start.
    """

    norm: np.ndarray
    grad_norm: np.ndarray
    update: np.ndarray
    """|dW|_F"""
    distance: np.ndarray
    """|W - S|_F"""
    along: np.ndarray
    """The part of W - S along S, signed; 0 where S is 0."""
    start_norm: np.ndarray

    @staticmethod
    def of(
        norm: np.ndarray,
        grad_norm: np.ndarray,
        update: np.ndarray,
        distance: np.ndarray,
        inner: np.ndarray,
        start_norm: np.ndarray,
    ) -> "Reading":
        """From the inner product of W - S with S instead of `along`."""
        along = np.divide(inner, start_norm, out=np.where(np.isnan(inner), np.nan, 0.0), where=start_norm > 0)
        return Reading(norm, grad_norm, update, distance, along, start_norm)


class Passes:
    """Reads the same entries again and again; `start` holds their weights at step 0 by address, None where lost.

    Around an update: `before_update()`, then `after_update()`; `at_rest()` at any time between. After either,
    `by_head()` gives the same of every head of the entries that divide into heads, entry by entry.
    """

    def __init__(self, entries: Sequence[Entry], start: Mapping[str, Tensor] | None) -> None:
        self.entries = list(entries)
        first = self.entries[0].parameter
        plain = first.device.type == "cpu" and all(e.parameter.dtype in _NUMPY for e in self.entries)
        self._xp: Any = np if plain else torch
        self._piece = PIECE if plain else 2**62
        self._before = [torch.empty_like(e.parameter, requires_grad=False).contiguous() for e in self.entries]
        self._start = None if start is None else [start[e.address].detach().clone().contiguous() for e in self.entries]
        self._before_pieces, self._start_pieces = self._cut(self._before), self._cut(self._start or [])
        self._cached: tuple[list[int], list[Any]] = ([], [])
        self._counts = [-(-e.parameter.numel() // self._piece) for e in self.entries]
        squares = [self._xp.dot(piece, piece) for piece in self._start_pieces]
        self._start_norm = np.sqrt(self._by_entry(_numbers(squares), self._counts))
        self._grads: list[Any] = []
        self._with_grad: list[int] = []
        self._head_grad_norms = np.zeros(0)
        self._updated = False

    @property
    def divided(self) -> list[int]:
        """Which entries divide into heads."""
        return [i for i, entry in enumerate(self.entries) if entry.n_heads]

    @torch.no_grad()
    def before_update(self, *, heads: bool = False) -> None:
        """Keep the weights as they are and read the gradients. `heads` says that `by_head` will be asked for."""
        for before, weights in zip(self._before_pieces, self._weights(), strict=True):
            before[:] = weights
        grads = [entry.parameter.grad for entry in self.entries]
        self._with_grad = [i for i, grad in enumerate(grads) if grad is not None]
        pieces = self._cut([grad for grad in grads if grad is not None])
        self._grads = [self._xp.dot(piece, piece) for piece in pieces]
        if heads:
            self._head_grad_norms = self._head_norms([grads[i] for i in self.divided])

    @torch.no_grad()
    def after_update(self) -> Reading:
        """Everything of each entry, given that `before_update` was called."""
        self._updated = True
        return self._read()

    @torch.no_grad()
    def at_rest(self) -> Reading:
        """What can be read of each entry between updates."""
        self._updated = False
        return self._read()

    def _read(self) -> Reading:
        """One pass: each piece meets its copy before the update, then its start, while it is in the cache."""
        subtract, dot, pieces = self._xp.subtract, self._xp.dot, self._weights()
        norm, update, moved, inner = [], [], [], []
        room = self._xp.empty_like(max(pieces, key=len))
        starts = self._start_pieces if self._start is not None else [None] * len(pieces)
        for weights, before, start in zip(pieces, self._before_pieces, starts, strict=True):
            space = room[: len(weights)]
            norm.append(dot(weights, weights))
            if self._updated:
                subtract(weights, before, out=space)
                update.append(dot(space, space))
            if start is not None:
                subtract(weights, start, out=space)
                moved.append(dot(space, space))
                inner.append(dot(space, start))
        return self._assemble(norm, update, moved, inner)

    def _assemble(self, *per_piece: list[Any]) -> Reading:
        """Sums over the pieces of norm, update, distance and inner product as a reading, with one transfer."""
        parts = [*per_piece, self._grads if self._updated else []]
        numbers, at, columns = _numbers([value for part in parts for value in part]), 0, []
        for part, counts in zip(parts, [self._counts] * 4 + [[self._counts[i] for i in self._with_grad]], strict=True):
            columns.append(self._by_entry(numbers[at : at + len(part)], counts))
            at += len(part)
        norm, update, distance, inner, grads_there = columns
        grads = np.full(len(self.entries), np.nan)
        if self._updated and self._with_grad:
            grads[self._with_grad] = grads_there
        root = np.sqrt
        return Reading.of(root(norm), root(grads), root(update), root(distance), inner, self._start_norm)

    @torch.no_grad()
    def by_head(self) -> Reading:
        """The same of every head; call it right after `after_update` or `at_rest`."""
        chosen = self.divided
        weights, nothing = (
            [self.weights(i) for i in chosen],
            np.full(sum(self.entries[i].n_heads for i in chosen), np.nan),
        )
        updates = grads = moved = inner = start = nothing
        if self._updated:
            grads = self._head_grad_norms
            updates = self._head_norms([w - self._before[i] for i, w in zip(chosen, weights, strict=True)])
        if self._start is not None:
            starts = [self._start[i] for i in chosen]
            ways = [w - s for w, s in zip(weights, starts, strict=True)]
            products = [split_heads(self.entries[i], d * s) for i, d, s in zip(chosen, ways, starts, strict=True)]
            inner = _numbers([product.sum(dim=1) for product in products])
            moved, start = self._head_norms(ways), self._head_norms(starts)
        return Reading.of(self._head_norms(weights), grads, updates, moved, inner, start)

    def weights(self, index: int) -> Tensor:
        """The stored weights of one entry, detached."""
        return self.entries[index].parameter.detach()

    def start(self, index: int) -> Tensor | None:
        """The stored weights of one entry at step 0; None where they are lost."""
        return None if self._start is None else self._start[index]

    def _cut(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Pieces of contiguous tensors, sharing their memory."""
        pieces: list[Any] = []
        for tensor in tensors:
            flat = tensor.detach().numpy().reshape(-1) if self._xp is np else tensor.detach().flatten()
            if len(flat) <= self._piece:
                pieces.append(flat)
            else:
                pieces += [flat[i : i + self._piece] for i in range(0, len(flat), self._piece)]
        return pieces

    def _weights(self) -> list[Any]:
        """The parameters in pieces; cut again where one got other memory."""
        pointers = [entry.parameter.data_ptr() for entry in self.entries]
        if pointers != self._cached[0]:
            self._cached = (pointers, self._cut([entry.parameter.detach() for entry in self.entries]))
        return self._cached[1]

    def _by_entry(self, per_piece: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """Sums over the pieces of each entry, float64 [n]; NaN where nothing was summed."""
        if not len(per_piece):
            return np.full(len(counts), np.nan)
        if len(per_piece) == len(counts):
            return per_piece
        return np.add.reduceat(per_piece, np.cumsum([0, *counts[:-1]]))

    def _head_norms(self, stored: Sequence[Tensor | None]) -> np.ndarray:
        """|.|_F of each head of the divided entries, float64 [n heads]; NaN where a tensor is None."""
        parts = [
            torch.full((entry.n_heads,), torch.nan)
            if tensor is None
            else torch.linalg.vector_norm(split_heads(entry, tensor), dim=1)
            for entry, tensor in zip((self.entries[i] for i in self.divided), stored, strict=True)
        ]
        return _numbers(parts)


def split_heads(entry: Entry, stored: Tensor) -> Tensor:
    """[n_heads, weights of one head] of a tensor in an entry's storage."""
    return stored.unflatten(entry.axis, (entry.n_heads, -1)).movedim(entry.axis, 0).flatten(1)


def _numbers(values: Sequence[Any]) -> np.ndarray:
    """Scalars and vectors as one float64 array, with one transfer where they are on another device."""
    if not values:
        return np.zeros(0)
    if isinstance(values[0], Tensor):
        return torch.cat([value.flatten() for value in values]).cpu().double().numpy()
    return np.fromiter(values, dtype=np.float64, count=len(values))

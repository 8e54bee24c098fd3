"""One pass over every matrix: norms, gradients, updates and drifts of all of them, and of every head.

Written for small models on a processor, where a look costs what its memory traffic costs. Matrices are cut into pieces
that stay in the cache from one operation to the next, and NumPy works on the tensors' own memory: no thread is woken
(for a small matrix that costs more than the arithmetic), sums stay short (relative error near 1e-7 in float32), and no
number depends on the thread count. On another device the same operations are torch's, on whole matrices.

What is summed is additive, so each sum is taken once, head by head, and a matrix is the sum of its heads. Parameters,
gradients and optimizer state are read, never written. Held are the weights at step 0 and one copy of the weights now.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from qkv.models.parts import Entry

__all__ = ["Passes", "Reading"]

PIECE = 66_000
"""Weights in a piece: 264 kB in float32, three of which fit a second-level cache of 1 MB."""

_NUMPY = (torch.float32, torch.float64)

Moments = Mapping[str, Tensor]
"""Address -> running mean of squared gradients, in the parameter's shape."""


@dataclass(frozen=True)
class Reading:
    """What one look gave: float64 arrays [n], one number per entry, or per head of those entries that have heads.

    NaN where there is none: no gradient, no update (a look between updates), no start, no second moment.
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
    work: np.ndarray
    """<G, dW>, the first-order change of the loss by this update; negative where it descends."""
    pulled: np.ndarray
    """<G, W - S>; negative where the loss pulls further along the way from the start."""
    second: np.ndarray
    """Mean of the optimizer's running mean of squared gradients."""


_How = Literal["flat", "rows", "cols"]

_SUMS = ("norm", "grad", "update", "distance", "inner", "start", "work", "pulled", "second")


@dataclass(frozen=True)
class _Unit:
    """A piece of one entry: whole memory (`flat`), or rows or columns whose sums are kept apart for the heads."""

    entry: int
    how: _How
    shape: tuple[int, ...]
    """Of the whole entry, as it is cut: one axis for `flat`, two otherwise."""
    first: int
    last: int
    """Along the first of these axes."""
    owners: np.ndarray
    """Which slot each of its sums belongs to."""
    at: slice
    """Where its sums stand among those of all units."""

    def of(self, whole: Any) -> Any:
        """This piece of a tensor in the entry's storage."""
        return whole.reshape(self.shape)[self.first : self.last]


class Passes:
    """Reads the same entries again and again; `start` holds their weights at step 0 by address, None where lost.

    Around an update: `before_update()`, then `after_update()`; `at_rest()` at any time between. After either,
    `by_head()` gives the same of every head of the entries that divide into heads, entry by entry.
    """

    def __init__(
        self, entries: Sequence[Entry], start: Mapping[str, Tensor] | None, moments: Moments | None = None
    ) -> None:
        self.entries = list(entries)
        first = self.entries[0].parameter
        plain = first.device.type == "cpu" and all(e.parameter.dtype in _NUMPY for e in self.entries)
        self._xp: Any = np if plain else torch
        self._slots = np.cumsum([0, *(entry.n_heads or 1 for entry in self.entries)])
        self._units = _units(self.entries, self._slots, plain)
        self._owners = np.concatenate([unit.owners for unit in self._units])
        self._before = [torch.empty_like(e.parameter, requires_grad=False).contiguous() for e in self.entries]
        self._start = None if start is None else [start[e.address].detach().clone().contiguous() for e in self.entries]
        self._before_pieces, self._start_pieces = self._pieces(self._before), self._pieces(self._start or [])
        self._moments = [(moments or {}).get(e.address) for e in self.entries]
        self._cached: dict[str, tuple[list[int], list[Any]]] = {}
        self._sums: dict[str, np.ndarray] = {}
        self._start_sums = self._add(
            [self._dot(u, s, s) for u, s in zip(self._units, self._start_pieces, strict=False)]
        )
        self._updated = False

    @property
    def divided(self) -> list[int]:
        """Which entries divide into heads."""
        return [i for i, entry in enumerate(self.entries) if entry.n_heads]

    @torch.no_grad()
    def before_update(self) -> None:
        """Keep the weights as they are."""
        for before, weights in zip(self._before_pieces, self._weights(), strict=True):
            before[...] = weights

    @torch.no_grad()
    def after_update(self) -> Reading:
        """Everything of each entry, given that `before_update` was called and the gradients are still there."""
        return self._read(updated=True)

    @torch.no_grad()
    def at_rest(self) -> Reading:
        """What can be read of each entry between updates."""
        return self._read(updated=False)

    def by_head(self) -> Reading:
        """The same of every head, from the sums of the last reading."""
        keep = np.concatenate([np.arange(*self._slots[i : i + 2]) for i in self.divided] or [np.zeros(0, int)])
        sizes = [self.entries[i].parameter.numel() // self.entries[i].n_heads for i in self.divided]
        counts = np.repeat(sizes, [self.entries[i].n_heads for i in self.divided])
        return _reading({name: values[keep] for name, values in self._sums.items()}, counts)

    def weights(self, index: int) -> Tensor:
        """The stored weights of one entry, detached."""
        return self.entries[index].parameter.detach()

    def before(self, index: int) -> Tensor | None:
        """The stored weights of one entry before the update last read; None after a look at rest."""
        return self._before[index] if self._updated else None

    def start(self, index: int) -> Tensor | None:
        """The stored weights of one entry at step 0; None where they are lost."""
        return None if self._start is None else self._start[index]

    def _read(self, *, updated: bool) -> Reading:
        """One pass: each piece meets its copy before the update, its gradient and its start while it is in cache."""
        self._updated = updated
        found: dict[str, list[Any]] = {name: [] for name in _SUMS}
        weights, n = self._weights(), len(self._units)
        grads = self._pieces([e.parameter.grad for e in self.entries]) if updated else [None] * n
        starts, moments = self._start_pieces or [None] * n, self._in_memory("moments", self._moments)
        room = self._xp.empty_like(max(weights, key=lambda w: w.size if self._xp is np else w.numel()))
        for unit, w, before, grad, start, moment in zip(
            self._units, weights, self._before_pieces, grads, starts, moments, strict=True
        ):
            space = room.reshape(-1)[: w.shape[0] * (w.shape[1] if len(w.shape) > 1 else 1)].reshape(w.shape)
            found["norm"].append(self._dot(unit, w, w))
            if updated:
                self._xp.subtract(w, before, out=space)
                found["update"].append(self._dot(unit, space, space))
                found["grad"].append(None if grad is None else self._dot(unit, grad, grad))
                found["work"].append(None if grad is None else self._dot(unit, space, grad))
                found["second"].append(None if moment is None else self._total(unit, moment))
            if start is not None:
                self._xp.subtract(w, start, out=space)
                found["distance"].append(self._dot(unit, space, space))
                found["inner"].append(self._dot(unit, space, start))
                if updated:
                    found["pulled"].append(None if grad is None else self._dot(unit, space, grad))
        self._sums = {name: self._add(values) for name, values in found.items()} | {"start": self._start_sums}
        whole = {name: np.add.reduceat(values, self._slots[:-1]) for name, values in self._sums.items()}
        return _reading(whole, np.array([entry.parameter.numel() for entry in self.entries]))

    def _dot(self, unit: _Unit, a: Any, b: Any) -> Any:
        if unit.how == "flat":
            return self._xp.dot(a, b)
        if self._xp is np:
            return np.einsum("ij,ij->i" if unit.how == "rows" else "ij,ij->j", a, b)
        return (a * b).sum(1 if unit.how == "rows" else 0)

    def _total(self, unit: _Unit, a: Any) -> Any:
        return a.sum() if unit.how == "flat" else a.sum(1 if unit.how == "rows" else 0)

    def _add(self, sums: Sequence[Any]) -> np.ndarray:
        """Sums of the units, in their order, added up by slot: float64 [n slots]; NaN where nothing was summed."""
        values = np.full(len(self._owners), np.nan)
        there = [(unit.at, value) for unit, value in zip(self._units, sums, strict=False) if value is not None]
        if self._xp is np:
            for at, value in there:
                values[at] = value
        elif there:  # one transfer
            told = torch.cat([value.reshape(-1) for _, value in there]).cpu().double().numpy()
            values[np.concatenate([np.arange(at.start, at.stop) for at, _ in there])] = told
        return np.bincount(self._owners, weights=values, minlength=self._slots[-1])

    def _pieces(self, tensors: Sequence[Tensor | None]) -> list[Any]:
        """The units of contiguous tensors, sharing their memory; None for those of a tensor that is None."""
        if not tensors:
            return []
        whole: list[Any] = [
            None if t is None else (t.detach().numpy() if self._xp is np else t.detach()) for t in tensors
        ]
        return [None if whole[u.entry] is None else u.of(whole[u.entry]) for u in self._units]

    def _weights(self) -> list[Any]:
        """The parameters in pieces."""
        return self._in_memory("weights", [entry.parameter.detach() for entry in self.entries])

    def _in_memory(self, what: str, tensors: Sequence[Tensor | None]) -> list[Any]:
        """The pieces of the same tensors as before; cut again where one got other memory."""
        pointers = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        if pointers != self._cached.get(what, ([], []))[0]:
            self._cached[what] = (pointers, self._pieces(tensors))
        return self._cached[what][1]


def _units(entries: Sequence[Entry], slots: np.ndarray, plain: bool) -> list[_Unit]:
    """All pieces of all entries, in their order."""
    units: list[_Unit] = []
    for i, entry in enumerate(entries):
        for how, shape, first, last, owners in _cut(entry, slots[i], plain):
            n = units[-1].at.stop if units else 0
            units.append(_Unit(i, how, shape, first, last, owners, slice(n, n + len(owners))))
    return units


def _cut(entry: Entry, slot: int, plain: bool) -> Iterator[tuple[_How, tuple[int, ...], int, int, np.ndarray]]:
    """The pieces of one entry, whose first slot is `slot`: how, the entry's shape, first and last, owners."""
    n, shape, heads = entry.parameter.numel(), tuple(entry.parameter.shape), entry.n_heads
    most = PIECE if plain else n
    if not heads:
        for first in range(0, n, most):
            yield "flat", (n,), first, min(first + most, n), np.array([slot])
        return
    if entry.axis == 0:
        table = (shape[0], n // shape[0])
        owner: Callable[[int, int], np.ndarray] = lambda a, b: slot + np.arange(a, b) // (shape[0] // heads)  # noqa: E731
    else:
        table = shape
        columns = slot + np.arange(shape[1]) // (shape[1] // heads)
        owner = lambda a, b: columns  # noqa: E731
    rows = max(1, most // table[1])
    for first in range(0, table[0], rows):
        last = min(first + rows, table[0])
        yield "rows" if entry.axis == 0 else "cols", table, first, last, owner(first, last)


def _reading(sums: Mapping[str, np.ndarray], counts: np.ndarray) -> Reading:
    """Roots of the sums of squares, and the part of the way along the start."""
    start, inner = np.sqrt(sums["start"]), sums["inner"]
    along = np.divide(inner, start, out=np.where(np.isnan(inner), np.nan, 0.0), where=start > 0)
    return Reading(
        norm=np.sqrt(sums["norm"]),
        grad_norm=np.sqrt(sums["grad"]),
        update=np.sqrt(sums["update"]),
        distance=np.sqrt(sums["distance"]),
        along=along,
        start_norm=start,
        work=sums["work"],
        pulled=sums["pulled"],
        second=sums["second"] / counts,
    )

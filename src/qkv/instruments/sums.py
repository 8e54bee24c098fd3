"""One pass over every matrix: norms, gradients, updates and drifts of all of them, and of every head.

Written for small models on a processor, where a look costs what its memory traffic costs. Matrices are cut into pieces
that stay in the cache from one operation to the next, and NumPy works on the tensors' own memory: no thread is woken
(for a small matrix that costs more than the arithmetic), sums stay short (relative error near 1e-7 in float32), and no
number depends on the thread count. Where compiled passes are taken (`qkv.kernels.elementwise.using`) all sums of all
pieces are one call, which reads each number once. On another device the same operations are torch's, on whole matrices.

What is summed is additive, so each sum is taken once, head by head, and a matrix is the sum of its heads. Parameters,
gradients and optimizer state are read, never written. Held are the weights at step 0 and one copy of the weights now.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from qkv.instruments.readings import MatrixReading
from qkv.kernels.elementwise import Compiled, compiled_for
from qkv.models.parts import Entry

PIECE = 66_000
"""Weights in a piece: 264 kB in float32, three of which fit a second-level cache of 1 MB."""

_NUMPY = (torch.float32, torch.float64)

Array: TypeAlias = Any
"""np.ndarray on a processor, on another device a Tensor: both have the operations used here."""

Moments = Mapping[str, Tensor]
"""Address -> running mean of squared gradients, in the parameter's shape."""


_How = Literal["flat", "rows", "cols"]

_SUMS = ("norm", "grad", "update", "distance", "inner", "start", "work", "pulled", "second")
"""In the order of `Compiled.look`."""
_FLOAT_BYTES = 4


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
    """Which slot each of its sums belongs to: one for `flat`, else one for each row, or for each head's columns."""
    at: slice
    """Where its sums stand among those of all units."""

    def of(self, whole: Array) -> Array:
        """This piece of a tensor in the entry's storage."""
        return whole.reshape(self.shape)[self.first : self.last]

    @property
    def places(self) -> tuple[int, int, int, int]:
        """Where it begins in the entry's storage, and its shape: what is outside of its sums, they, what is inside."""
        inside, n, n_sums = self.shape[1] if self.how != "flat" else 1, self.last - self.first, len(self.owners)
        outside = n if self.how == "cols" else 1
        return self.first * inside, outside, n_sums, n * inside // (outside * n_sums)


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
        self._n_out = np.array([entry.shape[-1] for entry in self.entries])
        # of each head its share, whichever axis it is cut along: |S|^2 of a usual start is spread evenly over weights
        shares = [np.full(e.n_heads, e.shape[-1] / e.n_heads) for e in self.entries if e.n_heads]
        self._head_n_out = np.concatenate(shares or [np.zeros(0)])
        self._slots = np.cumsum([0, *(entry.n_heads or 1 for entry in self.entries)])
        self._units = _units(self.entries, self._slots, plain)
        self._owners = np.concatenate([unit.owners for unit in self._units])
        self._places = np.array([unit.places for unit in self._units], dtype=np.int64)
        self._is_summed_compiled = plain and all(e.parameter.dtype == torch.float32 for e in self.entries)
        self._before = [torch.empty_like(e.parameter, requires_grad=False).contiguous() for e in self.entries]
        self._start = None if start is None else [start[e.address].detach().clone().contiguous() for e in self.entries]
        self._before_pieces, self._start_pieces = self._pieces(self._before), self._pieces(self._start or [])
        self._moments = [(moments or {}).get(e.address) for e in self.entries]
        self._cached: dict[str, tuple[list[int], list[Array]]] = {}
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
        torch._foreach_copy_(self._before, [entry.parameter for entry in self.entries])  # type: ignore[attr-defined]

    @torch.no_grad()
    def after_update(self) -> MatrixReading:
        """Everything of each entry, given that `before_update` was called and the gradients are still there."""
        return self._read(updated=True)

    @torch.no_grad()
    def at_rest(self) -> MatrixReading:
        """What can be read of each entry between updates."""
        return self._read(updated=False)

    def by_head(self) -> MatrixReading:
        """The same of every head, from the sums of the last reading."""
        keep = np.concatenate([np.arange(*self._slots[i : i + 2]) for i in self.divided] or [np.zeros(0, int)])
        sizes = [self.entries[i].parameter.numel() // self.entries[i].n_heads for i in self.divided]
        counts = np.repeat(sizes, [self.entries[i].n_heads for i in self.divided])
        return _reading({name: values[keep] for name, values in self._sums.items()}, counts, self._head_n_out)

    def forget(self) -> None:
        """Hold no weights but those at the start: the parameters are about to get other memory."""
        self._cached.clear()

    def weights(self, index: int) -> Tensor:
        """The stored weights of one entry, detached."""
        return self.entries[index].parameter.detach()

    def before(self, index: int) -> Tensor | None:
        """The stored weights of one entry before the update last read; None after a look at rest."""
        return self._before[index] if self._updated else None

    def start(self, index: int) -> Tensor | None:
        """The stored weights of one entry at step 0; None where they are lost."""
        return None if self._start is None else self._start[index]

    def _read(self, *, updated: bool) -> MatrixReading:
        """One pass: each piece meets its copy before the update, its gradient and its start while it is in cache."""
        self._updated = updated
        by = compiled_for(self.entries[0].parameter.detach()) if self._is_summed_compiled else None
        if by is not None:
            return self._look(by, updated)
        found: dict[str, list[Array]] = {name: [] for name in _SUMS if name != "start"}
        weights, n = self._in_memory("weights", [e.parameter.detach() for e in self.entries]), len(self._units)
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
        return self._told({name: self._add(values) for name, values in found.items()} | {"start": self._start_sums})

    def _look(self, by: Compiled, updated: bool) -> MatrixReading:
        """The same by one call."""
        held: list[list[Tensor | None]] = []
        for i, entry in enumerate(self.entries):
            before, grad, moment = None, None, None
            if updated:
                before, grad, moment = self._before[i], entry.parameter.grad, self._moments[i]
            parts = (self.weights(i), before, grad, self.start(i), moment)
            held.append([None if part is None else part.contiguous() for part in parts])
        bases = np.array([[0 if part is None else part.data_ptr() for part in parts] for parts in held])
        bases = bases[[unit.entry for unit in self._units]]
        begins, shapes = self._places[:, :1], self._places[:, 1:]
        places = np.where(bases, bases + _FLOAT_BYTES * begins, 0)
        sums = by.look(torch.from_numpy(places), torch.from_numpy(shapes.copy())).numpy()
        w, before, grad, start, moment = np.repeat(bases != 0, shapes[:, 1], axis=0).T
        is_there = (w, grad, before, start, start, start, before & grad, start & grad, moment)
        found = {}
        for name, there, values in zip(_SUMS, is_there, sums.T, strict=True):
            found[name] = np.bincount(self._owners, np.where(there, values, np.nan), minlength=self._slots[-1])
        return self._told(found)

    def _told(self, sums: dict[str, np.ndarray]) -> MatrixReading:
        """What is read off the sums of each slot."""
        self._sums = sums
        whole = {name: np.add.reduceat(values, self._slots[:-1]) for name, values in self._sums.items()}
        return _reading(whole, np.array([entry.parameter.numel() for entry in self.entries]), self._n_out)

    def _dot(self, unit: _Unit, a: Array, b: Array) -> Array:
        if unit.how == "flat":
            return self._xp.dot(a, b)
        if self._xp is torch:
            return self._total(unit, a * b)
        if unit.how == "rows":
            return np.einsum("ij,ij->i", a, b)
        return self._by_head(unit, np.einsum("ij,ij->j", a, b))

    def _total(self, unit: _Unit, a: Array) -> Array:
        if unit.how == "flat":
            return a.sum()
        return a.sum(1) if unit.how == "rows" else self._by_head(unit, a.sum(0))

    def _by_head(self, unit: _Unit, columns: Array) -> Array:
        """What columns have, head by head."""
        each = columns.reshape(len(unit.owners), -1)
        return each.sum(1, dtype=np.float64) if self._xp is np else each.sum(1)

    def _add(self, sums: Sequence[Array]) -> np.ndarray:
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

    def _pieces(self, tensors: Sequence[Tensor | None]) -> list[Array]:
        """The units of contiguous tensors, sharing their memory; None for those of a tensor that is None."""
        if not tensors:
            return []
        whole: list[Array] = [
            None if t is None else (t.detach().numpy() if self._xp is np else t.detach()) for t in tensors
        ]
        return [None if whole[u.entry] is None else u.of(whole[u.entry]) for u in self._units]

    def _in_memory(self, what: str, tensors: Sequence[Tensor | None]) -> list[Array]:
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
        owner = lambda a, b: slot + np.arange(heads)  # noqa: E731
    rows = max(1, most // table[1])
    for first in range(0, table[0], rows):
        last = min(first + rows, table[0])
        yield "rows" if entry.axis == 0 else "cols", table, first, last, owner(first, last)


def _reading(sums: Mapping[str, np.ndarray], counts: np.ndarray, n_out: np.ndarray) -> MatrixReading:
    """Roots of the sums of squares, and the part of the way along the start."""
    start, inner = np.sqrt(sums["start"]), sums["inner"]
    along = np.divide(inner, start, out=np.where(np.isnan(inner), np.nan, 0.0), where=start > 0)
    return MatrixReading(
        norm=np.sqrt(sums["norm"]),
        grad_norm=np.sqrt(sums["grad"]),
        update=np.sqrt(sums["update"]),
        distance=np.sqrt(sums["distance"]),
        along=along,
        start_norm=start,
        n_out=n_out,
        work=sums["work"],
        pulled=sums["pulled"],
        second=sums["second"] / counts,
    )

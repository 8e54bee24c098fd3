"""Frozen matrices, heads and rows, kept bit for bit while everything around them trains.

A frozen matrix has no gradient at all, so no optimizer touches it: no decay, no momentum. A frozen head or row has
gradient 0, so it has no part in the gradient's norm nor in its neighbours' update, and is put back after every step.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from qkv.models.matrices import Entry


@dataclass(frozen=True, slots=True)
class _Phase:
    """What is frozen between two steps: whole matrices, and of others the indices along their axis."""

    whole: frozenset[str]
    slices: Mapping[str, Tensor]


class Freezer:
    """Which parts of `entries` (first name of a storage -> entry) are frozen at which steps; it holds them so."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        self.trainable = frozenset(address for address, entry in entries.items() if entry.parameter.requires_grad)
        """What can be frozen at all; the rest was not trained in the first place."""
        self._windows: dict[str, dict[int | None, list[tuple[int, int | None]]]] = {}
        self._boundaries = [0]
        self._phases: dict[int, _Phase] = {}
        self._entered = _Phase(frozenset(), {})
        self._hooks: list[RemovableHandle] = []
        self._kept: list[tuple[Tensor, int, Tensor, Tensor]] = []

    @property
    def boundaries(self) -> list[int]:
        """Step 0 and every step at which what is frozen changes."""
        return self._boundaries

    def add(self, address: str, piece: int | None, start: int, stop: int | None) -> bool:
        """Freeze a matrix, or a head or row of it, from `start` up to and not with `stop`; whether it was not yet."""
        windows = self._windows.setdefault(address, {})
        earlier = windows.get(None, []) + (windows.get(piece, []) if piece is not None else [])
        if address not in self.trainable or covered(start, stop, earlier):
            return False
        windows.setdefault(piece, []).append((start, stop))
        self._boundaries = sorted({*self._boundaries, start} | ({stop} if stop is not None else set()))
        self._phases.clear()
        return True

    def holds(self, address: str) -> bool:
        """Whether any of a matrix is frozen at any step."""
        return any(self._windows.get(address, {}).values())

    def whole(self, step: int) -> frozenset[str]:
        """Matrices that are wholly frozen at a step."""
        return self._phase(step).whole

    def held_part(self) -> str:
        """The matrix of which a part is frozen alone, at some step; or ""."""
        return next((address for step in self._boundaries for address in self._phase(step).slices), "")

    def enter(self, step: int) -> None:
        """Before a step: no gradients for what is frozen, gradients for the rest, and copies of heads and rows."""
        self._enter(self._phase(step))

    def restore(self) -> None:
        """After a step: heads and rows as they were."""
        for stored, axis, index, copy in self._kept:
            stored.index_copy_(axis, index, copy)

    def release(self) -> None:
        """Let everything train again."""
        self._enter(_Phase(frozenset(), {}))

    def _phase(self, step: int) -> _Phase:
        start = self._boundaries[bisect_right(self._boundaries, step) - 1]
        if start not in self._phases:
            held = {address: _active(windows, start) for address, windows in self._windows.items()}
            whole = {a for a, held_pieces in held.items() if _is_whole(held_pieces, self._entries[a])}
            slices = {
                a: self._index(a, held_pieces) for a, held_pieces in held.items() if held_pieces and a not in whole
            }
            self._phases[start] = _Phase(frozenset(whole), slices)
        return self._phases[start]

    def _index(self, address: str, pieces: set[int | None]) -> Tensor:
        """Indices of pieces along the axis of their storage, int64."""
        entry = self._entries[address]
        firsts = torch.tensor(sorted(piece for piece in pieces if piece is not None)) * entry.width
        return (firsts[:, None] + torch.arange(entry.width)).flatten()

    def _enter(self, phase: _Phase) -> None:
        for address in self.trainable:
            parameter, frozen = self._entries[address].parameter, address in phase.whole
            parameter.requires_grad_(not frozen)
            if frozen:
                parameter.grad = None
        if phase is not self._entered:
            for hook in self._hooks:
                hook.remove()
            self._hooks = [self._silence(address, index) for address, index in phase.slices.items()]
            self._entered = phase
        self._kept = []
        for address, index in phase.slices.items():
            stored, axis = self._entries[address].parameter.detach(), self._entries[address].axis
            index = index.to(stored.device)
            self._kept.append((stored, axis, index, stored.index_select(axis, index)))

    def _silence(self, address: str, index: Tensor) -> RemovableHandle:
        """Make the gradient of slices 0 whenever it is accumulated."""
        axis = self._entries[address].axis

        def silence(parameter: Tensor) -> None:
            assert parameter.grad is not None
            parameter.grad.index_fill_(axis, index.to(parameter.grad.device), 0.0)

        return self._entries[address].parameter.register_post_accumulate_grad_hook(silence)


def _active(windows: Mapping[int | None, list[tuple[int, int | None]]], step: int) -> set[int | None]:
    """The pieces (None: the whole) with a window that holds a step."""
    return {
        piece
        for piece, spans in windows.items()
        if any(start <= step and (stop is None or step < stop) for start, stop in spans)
    }


def _is_whole(pieces: set[int | None], entry: Entry) -> bool:
    """Whether pieces together are all of an entry."""
    return None in pieces or len(pieces) == entry.n_pieces


def covered(start: int, stop: int | None, windows: list[tuple[int, int | None]]) -> bool:
    """Whether windows together last from `start` to `stop`."""
    reached = start
    for first, last in sorted(windows, key=lambda window: window[0]):
        if first > reached:
            return False
        if last is None or (stop is not None and last >= stop):
            return True
        reached = max(reached, last)
    return False

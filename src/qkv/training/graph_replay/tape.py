"""Work on a CPU, written down once and done again: torch's operators and calls of ours, without the Python around them.

An update of a small model is some 150 calls, whose products a processor ends in a few milliseconds; as much time again
goes into the Python that decides on them. `Tape.record` does the work once and keeps what was called, on which memory;
`replay` calls the same functions on the same memory, so it makes the same bits.

What is made in between lies in memory of the tape's own, handed out and taken back as the work goes, so that a tape
needs no more than the work itself holds at a time. What is still in use when the recording ends, such as gradients,
keeps its place there, and is written anew by every replay.

What a call is told besides memory is fixed with the recording. A number that was read out of a tensor is one of these:
it is read again on every replay, and where it has changed the tape is of something else (`StaleTape`). Work that draws
random numbers, or whose shapes depend on values, cannot be recorded (`NoTape`).
"""

import bisect
import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from qkv.kernels.dispatch import Compiled, heard_by, pointers

Tree = TypeVar("Tree")

_aten = torch.ops.aten

_ROOM = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}
"""These give memory with nothing in it."""
_COPIES = {_aten.clone, _aten._to_copy}
_FILLS = {_aten.zeros: 0.0, _aten.zeros_like: 0.0, _aten.new_zeros: 0.0, _aten.ones: 1.0, _aten.ones_like: 1.0}
_OUT = {
    **{of.default: of.out for of in (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.cat, _aten.index_select)},
    **{of.Tensor: of.out for of in (_aten.mul, _aten.add, _aten.sub, _aten.div)},
    _aten.sum.dim_IntList: _aten.sum.IntList_out,
}
"""Operators that find a place for what they make, and those that write it where they are told to."""
_REFUSED = {torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}
_ALIGNED = 64
_CHUNK = 8 << 20


class NoTape(Exception):
    """This work cannot be recorded."""


class StaleTape(Exception):
    """A number that the recorded work was decided by is another one now."""


class Tape:
    """Calls, in the order in which they were made."""

    def __init__(self, most: int) -> None:
        self._calls: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self._kept: list[torch.UntypedStorage] = []
        """Memory outside the tape that recorded addresses point to."""
        self._memory = _Memory(most)

    @classmethod
    def record(cls, work: Callable[[], None], most: int) -> "Tape":
        """Do the work, and keep it in up to `most` bytes. Raises NoTape."""
        tape = cls(most)
        with heard_by(tape._hear), _Listening(tape):
            work()
        return tape

    def replay(self) -> None:
        """Do it again. Raises StaleTape before anything was done that depends on the number."""
        with torch.no_grad():
            for call, given in self._calls:
                call(*given)

    def _hear(self, function: Compiled, given: tuple[object, ...], found: int | None) -> None:
        """A compiled function of ours was called; what it returns, if anything, counts faults, of which it has none.

        Only addresses are needed. Looking them up with an operator of torch would record that operator as well.
        """
        self._kept += [t.untyped_storage() for t in given if isinstance(t, Tensor) and not self._memory.holds(t)]
        told = tuple(pointers(given))
        self._calls.append((function, told) if found is None else (_faultless, (function, told)))

    def _keep(self, function: OpOverload, given: tuple[object, ...], named: dict[str, object], found: object) -> object:
        """An operator was called; what it made, in memory of the tape's."""
        if function is _aten._local_scalar_dense.default:
            self._calls.append((_unchanged, (self._memory.beside(_tensor(given[0])), found)))
        elif _REFUSED & set(function.tags):
            raise NoTape(f"{function} cannot be repeated")
        elif function._schema.is_mutable:
            self._call(function, given, named)
        else:
            before = {_storage(t) for t in tree_leaves((given, named)) if isinstance(t, Tensor)}
            if any(_storage(t) not in before for t in tree_leaves(found) if isinstance(t, Tensor)):
                return self._make(function, given, named, found)
        return found

    def _make(self, function: OpOverload, given: tuple[object, ...], named: dict[str, object], found: object) -> object:
        """What an operator made gets a place, and is made there from now on."""
        placed = tree_map_only(Tensor, self._memory.like, found)
        packet, places = function.overloadpacket, [self._memory.beside(t) for t in tree_leaves(placed) if t is not None]
        if packet in _ROOM:
            return placed
        if packet in _FILLS:
            self._calls.append((places[0].fill_, (_FILLS[packet],)))
        elif packet in _COPIES:
            self._calls.append((places[0].copy_, (self._memory.beside(_tensor(given[0])),)))
        elif function in _OUT and not named.get("dtype"):
            self._call(_OUT[function], given, named | {"out": places[0]})
        else:
            again = functools.partial(function, *self._aside(given), **self._aside(named))
            self._calls.append((_remade, (again, places)))
        for place, tensor in zip(places, (t for t in tree_leaves(found) if t is not None), strict=True):
            place.copy_(tensor)
        return placed

    def _call(self, function: OpOverload, given: tuple[object, ...], named: dict[str, object]) -> None:
        given, named = self._aside(given), self._aside(named)
        self._calls.append((functools.partial(function, **named) if named else function, given))

    def _aside(self, given: Tree) -> Tree:
        return tree_map_only(Tensor, self._memory.beside, given)


class _Listening(TorchDispatchMode):
    """Tells a tape of every operator that this thread calls."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not wrapped for torch's compiler, which would be imported for it and takes a second."""
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        return self._tape._keep(func, args, kwargs or {}, func(*args, **(kwargs or {})))


class _Memory:
    """Chunks of memory, handed out in blocks; a block comes back when nothing lies in it any more."""

    def __init__(self, most: int) -> None:
        self._most, self.n_bytes = most, 0
        self._chunks: list[Tensor] = []
        self._free: list[tuple[int, int]] = []
        """(address, bytes) of what is not handed out, by address; no two of them touch inside a chunk."""

    def like(self, tensor: Tensor) -> Tensor:
        """A tensor of the same shape and strides in a block of its own. Raises NoTape where that would be too much."""
        n = tensor.untyped_storage().nbytes()
        if not n:
            return tensor
        block = -(-n // _ALIGNED) * _ALIGNED
        buffer = (ctypes.c_char * n).from_address(address := self._take(block))
        weakref.finalize(buffer, self._give_back, address, block).atexit = False
        flat = torch.frombuffer(buffer, dtype=tensor.dtype)  # holds the buffer for as long as anything lies in it
        return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def beside(self, tensor: Tensor) -> Tensor:
        """Another tensor over the same memory, which does not keep a block from coming back."""
        chunk = self._chunk_of(tensor)
        if chunk is None:
            return tensor.detach()
        place = torch.empty(0, dtype=tensor.dtype)
        first = (tensor.data_ptr() - chunk.data_ptr()) // place.element_size()
        place.set_(chunk.untyped_storage(), first, tensor.shape, tensor.stride())
        return place

    def holds(self, tensor: Tensor) -> bool:
        """Whether the tensor is in this memory."""
        return self._chunk_of(tensor) is not None

    def _chunk_of(self, tensor: Tensor) -> Tensor | None:
        address = tensor.data_ptr()
        return next((chunk for chunk in self._chunks if 0 <= address - chunk.data_ptr() < chunk.numel()), None)

    def _take(self, n: int) -> int:
        """The address of a block, the first that fits."""
        at = next((i for i, (_, free) in enumerate(self._free) if free >= n), None)
        if at is None:
            self._grow(max(n, _CHUNK))
            return self._take(n)
        address, free = self._free.pop(at)
        if free > n:
            self._free.insert(at, (address + n, free - n))
        return address

    def _grow(self, n: int) -> None:
        self.n_bytes += n
        if self.n_bytes > self._most:
            raise NoTape(f"it needs more than {self._most >> 20} MiB")
        self._chunks.append(chunk := torch.empty(n, dtype=torch.uint8))
        bisect.insort(self._free, (chunk.data_ptr(), n))

    def _give_back(self, address: int, n: int) -> None:
        """A block is free, and one with free neighbours of its chunk."""
        starts = {chunk.data_ptr() for chunk in self._chunks}
        at = bisect.bisect(self._free, (address, 0))
        if at < len(self._free) and self._free[at][0] == address + n and address + n not in starts:
            n += self._free.pop(at)[1]
        if at and sum(self._free[at - 1]) == address and address not in starts:
            address, before = self._free.pop(at - 1)
            n += before
        bisect.insort(self._free, (address, n))


def _storage(tensor: Tensor) -> int:
    if tensor.layout != torch.strided:
        raise NoTape(f"a tensor is {tensor.layout}")
    return tensor.untyped_storage()._cdata


def _tensor(given: object) -> Tensor:
    assert isinstance(given, Tensor)
    return given


def _remade(again: Callable[[], object], places: list[Tensor]) -> None:
    made = (t for t in tree_leaves(again()) if t is not None)
    for place, tensor in zip(places, made, strict=True):
        place.copy_(tensor)


def _unchanged(tensor: Tensor, before: object) -> None:
    if tensor.item() != before:
        raise StaleTape(f"{tensor.item()} for {before}")


def _faultless(function: Compiled, given: tuple[object, ...]) -> None:
    if n := function(*given):
        raise IndexError(f"{n} targets are no index of a logit")

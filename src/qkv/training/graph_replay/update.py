"""An update recorded once and played again, so that a device does not wait for the Python that decides on its work.

An update of a small model is some 1,500 kernels on a GPU, which a processor starts at 15 us each and the device ends
sooner; as a CUDA graph they are started together. On a CPU it is some 150 calls into torch and compiled passes, with
Python between them that takes a quarter to half of the time; as a `tape` they follow each other. Recorded are the
passes forward and backward, from a batch of one shape to gradients, and on a GPU the optimizer's step. Between the two
the loop looks at the loss and at the gradients' norms, as ever.

What differs from step to step lies in memory of its own that is written before each replay: the batch, the draws of
dropout and the rate. Everything else that the work reads or writes keeps its place: weights, the optimizer's state,
and the gradients, which are those of the recording. A batch of another shape, a matrix that no longer trains, or
gradients that lie elsewhere make another recording. Passes are recorded of whole rows alone (`_is_whole`): where what
is padded or hidden differs from batch to batch, shapes do too, and a recording would serve once.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.tasks.batch import Batch
from qkv.training.distributed.whole import Weights
from qkv.training.dropout import PlayedDropping
from qkv.training.graph_replay.tape import NoTape, StaleTape, Tape
from qkv.training.memory import hand_back_all
from qkv.training.optimizers import gradient_norms
from qkv.training.precision import Machine
from qkv.training.record import Constraint

if TYPE_CHECKING:
    from qkv.training.dropout import Dropping

_TIMES_MEMORY = 2
"""So often must the passes' memory be there for a recording, which keeps what it needs until the end."""
_MOST_TAPED = 512 << 20
"""Bytes that a tape may keep; work over more takes so long that nobody waits for Python."""


Replay = Callable[[], None]
"""Does work that was recorded again, on the same memory."""


class Captured(Weights, ABC):
    """What `Weights` answers, by replays; how work is recorded is a device's matter."""

    _passes: "_Passes | None" = None
    _norms: Tensor | None = None
    """Of the gradients that are there, where a replay has left them."""
    _gives_up = False

    def enter(self, constraint: Constraint, step: int) -> None:
        """What a change begins or ends with makes another recording: where gradients stop is a part of it."""
        super().enter(constraint, step)
        if constraint.acts_at(step):
            self._passes = None

    def learn(self, batch: Batch, drop: "Dropping | None", n_targets: int) -> Tensor:
        """By a replay, where the batch is one of whole rows and nothing was learned from since the last update."""
        parameters, self._norms = self.optimizer.parameters, None
        is_first = all(p.grad is None for p in parameters)
        if self._gives_up or not is_first or not _is_whole(batch):
            return super().learn(batch, drop, n_targets)
        weights = ((p.requires_grad, p.data_ptr()) for p in parameters)
        key = (*_shapes(batch), batch.smoothing, drop is None, n_targets, *weights)
        if self._passes is None or self._passes.key != key:
            self._passes = None  # its memory goes before other is taken
            self._passes = self._record_passes(key, batch, drop, n_targets)
        if self._passes is None:
            return super().learn(batch, drop, n_targets)
        try:
            share = self._passes.play(batch, drop, parameters)
        except StaleTape:
            self._passes, self._gives_up = None, True
            return super().learn(batch, drop, n_targets)
        self._norms = self._passes.norms
        return share

    def let_go(self) -> None:
        """Of the recording too."""
        super().let_go()
        self._passes = self._norms = None

    def clip_and_measure(self, clip: float) -> tuple[float, np.ndarray]:
        """The norms that the replay has left, where it was one."""
        with self.machine.natively():
            return self.optimizer.clip_and_measure(clip, self._norms)

    def _record_passes(
        self, key: tuple[object, ...], batch: Batch, drop: "Dropping | None", n_targets: int
    ) -> "_Passes | None":
        """The passes of such a batch; None where they cannot be recorded, or would keep too much memory."""
        device, parameters = self.machine.device, self.optimizer.parameters
        held = _apart(batch, device)
        played = None if drop is None else PlayedDropping(drop, device)
        found: dict[str, Tensor] = {}

        def passes() -> Tensor:
            return Weights.learn(self, held, played, n_targets)

        def measured() -> None:
            found["share"] = passes()
            there = [p.grad for p in parameters if p.grad is not None]
            with self.machine.natively():
                found["norms"] = gradient_norms(there or [found["share"]])

        fits = self._try(passes)
        self.optimizer.zero_grad()
        replay = self._record(measured) if fits else None
        gradients = [p.grad for p in parameters]
        self.optimizer.zero_grad()
        self._gives_up |= replay is None
        return None if replay is None else _Passes(key, replay, held, played, gradients=gradients, **found)

    @abstractmethod
    def _try(self, passes: Callable[[], object]) -> bool:
        """Pass once as it is, so that a recording finds tables made and choices taken; whether its memory is there."""

    @abstractmethod
    def _record(self, work: Callable[[], None]) -> Replay | None:
        """What `work` does; None, and said so, where it does what cannot be recorded."""


class OnCuda(Captured):
    """By CUDA graphs, the optimizer's step too."""

    _step: tuple[tuple[int, ...], Replay | None] = ((), None)

    @cached_property
    def _scale(self) -> Tensor:
        """The rate, where a recording reads it."""
        return torch.ones((), device=self.machine.device)

    def update(self, lr_scale: float) -> None:
        """By a replay, once gradients lie where they lay an update before."""
        self._scale.fill_(lr_scale)
        key = tuple(0 if p.grad is None else p.grad.data_ptr() for p in self.optimizer.parameters)
        before, graph = self._step
        if key != before or self._gives_up or self.optimizer.is_own:
            self._step = key, None
            self.optimizer.step(self._scale)
            return
        if graph is None:
            graph = self._record(lambda: self.optimizer.step(self._scale))
            self._step = key, graph
        if graph is None:
            self.optimizer.step(self._scale)
        else:
            graph()

    def let_go(self) -> None:
        """Of the step's graph too."""
        super().let_go()
        self._step = (), None

    def _try(self, passes: Callable[[], object]) -> bool:
        """On a stream of its own, as the recording will be."""
        device = self.machine.device
        before, apart = torch.cuda.memory_allocated(), torch.cuda.Stream()
        torch.cuda.reset_peak_memory_stats()
        apart.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(apart):
            with torch.no_grad():  # not compiled (`Machine.compiled`): a compiler finds every site of dropout known
                passes()
            passes()
        torch.cuda.current_stream().wait_stream(apart)
        self.optimizer.zero_grad()
        needed = torch.cuda.max_memory_allocated() - before
        return before + _TIMES_MEMORY * needed <= torch.cuda.get_device_properties(device).total_memory

    def _record(self, work: Callable[[], None]) -> Replay | None:
        """The kernels of `work`, none of which runs; None where it does what no graph can hold, once and for all."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads write checkpoints
                work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._gives_up = True
            said = str(error).strip().splitlines()[0]
            warnings.warn(f"an update cannot be recorded here ({said}); it is made kernel by kernel", stacklevel=2)
            return None
        return graph.replay


class OnCpu(Captured):
    """By a tape."""

    def let_go(self) -> None:
        """What follows a training finds the tape's memory."""
        super().let_go()
        hand_back_all()

    def _try(self, passes: Callable[[], object]) -> bool:
        passes()
        self.optimizer.zero_grad()
        hand_back_all()  # a tape has memory of its own
        return True

    def _record(self, work: Callable[[], None]) -> Replay | None:
        try:
            return Tape.record(work, _MOST_TAPED).replay
        except NoTape:
            return None


def captured(machine: Machine) -> type[Captured]:
    """How updates are recorded on a machine that does."""
    return OnCuda if machine.device == "cuda" else OnCpu


class _Passes(NamedTuple):
    """A recording of both passes, and the memory that it reads and writes."""

    key: tuple[object, ...]
    """What a batch must have in common with the one recorded."""
    recorded: Replay
    batch: Batch
    drop: PlayedDropping | None
    share: Tensor
    norms: Tensor
    gradients: list[Tensor | None]

    def play(self, batch: Batch, drop: "Dropping | None", parameters: list[Tensor]) -> Tensor:
        """Both passes of another batch; the parameters have their gradients then."""
        for place, part in zip(self.batch, batch, strict=True):
            if isinstance(place, Tensor) and isinstance(part, Tensor):
                waits = place.device.type == "cuda"  # nobody waits for the update before
                place.copy_(part.pin_memory() if waits else part, non_blocking=waits)
        if self.drop is not None and drop is not None:
            self.drop.follow(drop)
        self.recorded()
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return self.share


def _apart(batch: Batch, device: str) -> Batch:
    """The same batch there, in memory of its own."""
    return Batch(*(torch.clone(part.to(device)) if isinstance(part, Tensor) else part for part in batch))  # type: ignore


def _is_whole(batch: Batch) -> bool:
    """Whether nothing of a batch differs in number from one to the next: every position answers, or every image."""
    if any(part is not None for part in (batch.mask, batch.documents, batch.places, batch.source)):
        return False
    return batch.positions is None or batch.inputs.dim() == 4


def _shapes(batch: Batch) -> tuple[tuple[torch.Size, torch.dtype] | None, ...]:
    """Of each part that is there."""
    return tuple((part.shape, part.dtype) if isinstance(part, Tensor) else None for part in batch)

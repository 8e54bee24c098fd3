"""An update on a CUDA device, recorded once and played again: its kernels do not wait for a processor to start them.

An update of a small model is some 1,500 kernels, which a processor starts at 15 us each and the device ends sooner. As
a CUDA graph they are started together. Two are recorded: the passes forward and backward, from a batch of one shape to
gradients, and the optimizer's step. Between the two the loop looks at the loss and at the gradients' norms, as ever.

What differs from step to step lies in memory of its own that is written before each replay: the batch, the draws of
dropout and the rate. Everything else that the kernels read or write keeps its place: weights, the optimizer's state,
and the gradients, which are those of the recording. A batch of another shape, a matrix that no longer trains, or
gradients that lie elsewhere make another recording. Passes are recorded of whole rows alone (`_is_whole`): where what
is padded or hidden differs from batch to batch, shapes do too, and a recording would serve once.
"""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.tasks.batch import Batch
from qkv.training.dropout import PlayedDropping
from qkv.training.optimizers import clip_and_measure, gradient_norms
from qkv.training.weights import Weights

if TYPE_CHECKING:
    from qkv.training.dropout import Dropping

__all__ = ["Captured"]

_TIMES_MEMORY = 2
"""So often must the passes' memory be there for a recording, which keeps what it needs until the end."""


class Captured(Weights):
    """What `Weights` answers, by replays."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._passes: _Passes | None = None
        self._step: tuple[tuple[int, ...], torch.cuda.CUDAGraph | None] = ((), None)
        self._scale = torch.ones((), device=self.machine.device)
        self._norms: Tensor | None = None
        """Of the gradients that are there, where a replay has left them."""
        self._gives_up = False

    def learn(self, batch: Batch, drop: "Dropping | None", n_targets: int) -> Tensor:
        """By a replay, where the batch is one of whole rows and nothing was learned from since the last update."""
        parameters, self._norms = self.optimizer.parameters, None
        is_first = all(p.grad is None for p in parameters)
        if self._gives_up or not is_first or not _is_whole(batch):
            return super().learn(batch, drop, n_targets)
        key = (*_shapes(batch), batch.smoothing, drop is None, n_targets, *(p.requires_grad for p in parameters))
        if self._passes is None or self._passes.key != key:
            self._passes = None  # its memory goes before other is taken
            self._passes = self._record_passes(key, batch, drop, n_targets)
        if self._passes is None:
            return super().learn(batch, drop, n_targets)
        self._norms = self._passes.norms
        return self._passes.play(batch, drop, parameters)

    def clip_and_measure(self, clip: float) -> tuple[float, np.ndarray]:
        """The norms that the replay has left, where it was one."""
        return clip_and_measure(self.optimizer.parameters, clip, self._norms)

    def update(self, lr_scale: float) -> None:
        """By a replay, once gradients lie where they lay an update before."""
        self._scale.fill_(lr_scale)
        key = tuple(0 if p.grad is None else p.grad.data_ptr() for p in self.optimizer.parameters)
        before, graph = self._step
        if key != before or self._gives_up:
            self._step = key, None
            self.optimizer.step(self._scale)
            return
        if graph is None:
            graph = self._record(lambda: self.optimizer.step(self._scale))
            self._step = key, graph
        if graph is None:
            self.optimizer.step(self._scale)
        else:
            graph.replay()

    def _record_passes(
        self, key: tuple[Any, ...], batch: Batch, drop: "Dropping | None", n_targets: int
    ) -> "_Passes | None":
        """The passes of such a batch; None where they cannot be recorded, or would keep too much memory."""
        device, parameters = self.machine.device, self.optimizer.parameters
        held = batch.to(device)
        played = None if drop is None else PlayedDropping(drop, device)

        def passes() -> Tensor:
            return Weights.learn(self, held, played, n_targets)

        # Once as it is: kernels are chosen and tables made that a recording must find. On a stream of its own, as the
        # recording will be.
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
        if before + _TIMES_MEMORY * needed > torch.cuda.get_device_properties(device).total_memory:
            self._gives_up = True
            return None
        found: dict[str, Tensor] = {}

        def measured() -> None:
            found["share"] = passes()
            there = [p.grad for p in parameters if p.grad is not None]
            found["norms"] = gradient_norms(there or [found["share"]])

        graph = self._record(measured)
        gradients = [p.grad for p in parameters]
        self.optimizer.zero_grad()
        return None if graph is None else _Passes(key, graph, held, played, gradients=gradients, **found)

    def _record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
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
        return graph


class _Passes(NamedTuple):
    """A recording of both passes, and the memory that it reads and writes."""

    key: tuple[Any, ...]
    """What a batch must have in common with the one recorded."""
    graph: torch.cuda.CUDAGraph
    batch: Batch
    drop: PlayedDropping | None
    share: Tensor
    norms: Tensor
    gradients: list[Tensor | None]

    def play(self, batch: Batch, drop: "Dropping | None", parameters: list[Tensor]) -> Tensor:
        """Both passes of another batch; the parameters have their gradients then."""
        for place, part in zip(self.batch, batch, strict=True):
            if isinstance(place, Tensor) and isinstance(part, Tensor):
                place.copy_(part.pin_memory(), non_blocking=True)  # nobody waits for the update before
        if self.drop is not None and drop is not None:
            self.drop.follow(drop)
        self.graph.replay()
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return self.share


def _is_whole(batch: Batch) -> bool:
    """Whether nothing of a batch differs in number from one to the next: every position answers, or every image."""
    if not isinstance(batch, Batch) or any(part is not None for part in (batch.mask, batch.documents, batch.places)):
        return False
    return batch.positions is None or batch.inputs.dim() == 4


def _shapes(batch: Batch) -> tuple[Any, ...]:
    """Of each part that is there."""
    return tuple((part.shape, part.dtype) if isinstance(part, Tensor) else None for part in batch)

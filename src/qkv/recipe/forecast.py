"""What a training will take, before it starts: memory by its parts, time by its updates.

**Memory.** One micro-batch goes forward and backward, and one update is made, on tensors that have shapes and no
content (torch's `FakeTensorMode`), while every storage is counted as long as it lives. So what is counted is the code
that trains, with all it keeps and all it lets go, at no cost in memory. What a training holds beside that (the weights
at step 0, the buffers that checkpoints are copied into, the weights that instruments compare with) is counted from
shapes; what Python, torch and the data take is read from this process. Of a sharded training (`--shard`) the shares are
counted, the blocks that are whole while they are computed, and whole weights where there are any; see `_Count.shared`.

**Time.** Products are counted in the same pass. How fast they are made here is measured by a few updates: of the
training itself, or where these would take long, of one with fewer layers and examples. Elsewhere it is given.

Counted is the way a CPU trains; on another device attention may keep less. Nothing is trained or written.
"""

import contextlib
import dataclasses
import math
import os
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from qkv.errors import ConfigError, is_out_of_memory
from qkv.jsontypes import JsonObject
from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.recipe.build import assemble, check_machine
from qkv.recipe.config import RunConfig
from qkv.recipe.request import Request, resolve
from qkv.recipe.teaching import asking_cost
from qkv.tasks import Data, find_task
from qkv.training.distributed.shards import blocks_of
from qkv.training.optimizers import make_optimizer
from qkv.training.record import Listener, StepRecord
from qkv.words import many

_UPDATES = 4
"""Updates that are timed; the first does not count."""
_TIMED_FLOP = 4e11
"""Products of an update beyond which a smaller one is timed in its place: about ten seconds of one slow core."""
_TIMED_LAYERS = 2
_WORKING_BYTES = 70_000_000
"""What libraries take once they compute, and gaps that the allocator leaves between blocks; this, and that looks of
instruments take twice the weights beside what they hold, is fitted to measured trainings (tests/campaigns/plan.py)."""
_FSDP_BYTES = 60_000_000
"""What torch's modules for sharding take once they are imported, measured (docs/decisions,
2026-11-21-processes-add-gradients-in-a-fixed-order)."""
_MUON_COPIES = 4
"""Of its share of Muon's matrices a process holds: rows ahead, rows as sent, rows received, whole matrices."""


@dataclass(frozen=True)
class Place:
    """A machine that is not this one. Zero: this one, measured."""

    tflops: float = 0.0
    """What each process reaches in products of the training, in 10^12 operations a second."""
    gigabytes_per_second: float = 0.0
    """What each process can send to the others."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Memory in bytes and time in seconds, of each process."""

    model: str
    """Which model it is of, in words."""
    parameters: int
    """How many numbers are trained or frozen."""
    memory: dict[str, int]
    """Bytes by what they are for; those that are there at the same time sum to `peak`."""
    flop: float
    """Operations in the products of one update, all processes together."""
    update_seconds: float
    """Of one update, sums between processes included; the mean of those of teachers and those that ask them."""
    sum_seconds: float
    """Of these, what sums between processes take; 0 where nothing is known of the way between them."""
    updates: int
    """How many are made, those of teachers included; 0 where the wall time decides and none could be told."""
    tokens: int
    """Positions seen in all."""
    rate: str
    """Where the rate is from: measured, measured on a smaller training, or given."""
    note: str = ""
    """What else is to be known: of teachers, and what the law says of its plan; empty where that is nothing."""

    @property
    def peak(self) -> int:
        """The most memory that one process holds at a time."""
        return sum(self.memory.values())

    @property
    def seconds(self) -> float:
        """Of all updates; validation (up to 12% more) and instruments (`--watch`) not counted."""
        return self.updates * self.update_seconds

    def as_json(self) -> JsonObject:
        """Flat, as `plan --json` prints it."""
        return dataclasses.asdict(self) | {"peak_bytes": self.peak, "seconds": self.seconds}


def plan(request: Request, place: Place, cache: Path | None) -> Forecast:
    """`forecast` of what was asked for. Raises UserError for what could not be trained so."""
    if request.extend is not None:
        raise ConfigError(f"qkv plan does not take --extend; plan as many updates: --steps {request.extend}")
    config, corpus, scale = resolve(request, cache)
    check_machine(config)
    found = forecast(config, corpus, place=place)
    return dataclasses.replace(found, note=" ".join(filter(None, (found.note, scale.note))))


def forecast(config: RunConfig, corpus: Data, *, place: Place | None = None) -> Forecast:
    """What the training of a configuration takes."""
    place = place or Place()
    process = resident_bytes()
    count = _Count.of(config, corpus)
    world = config.machine.ranks
    flop = count.flop * world * _micro_batches(config)
    shared, watched = config.machine.shard and world > 1, config.watch != "off"
    memory = {f"Python, torch and data{'' if process else ' (not known here)'}": process}
    memory |= count.shared(world, watched) if shared else count.held(watched)
    training, teachers, note = config.training, config.training.teaching.teachers, ""
    if teachers:
        memory["teachers"] = teachers * (count.parameters + count.optimizer)
    seconds, rate = flop / world / (place.tflops * 1e12) if place.tflops else 0.0, "given"
    if not seconds:
        seconds, rate = _measured_seconds(config, corpus, count, sum(memory.values()))
    sums = 0.0
    if world > 1 and place.gigabytes_per_second:
        sent = count.sent_shared(_micro_batches(config)) if shared else 2 * count.gradients  # a ring: there and back
        sums = (world - 1) / world * sent / (place.gigabytes_per_second * 1e9)
    asking = asking_cost(teachers)
    update_seconds = (seconds + sums) * (teachers + asking) / (teachers + 1)
    each = training.schedule.steps or int(60 * training.minutes / update_seconds / (teachers + 1))
    each = min(each, training.schedule.most_steps or each)
    updates = (teachers + 1) * each
    if teachers:
        note = (
            f"This includes {many(teachers, 'teacher')}, trained first with {many(each, 'update')} each; an update that"
            f" asks them takes about {asking:.2g} times as long as one of theirs, and the time above is the mean."
        )
    positions = find_task(config.task).positions(corpus, config.model.sizes)
    return Forecast(
        model=config.model_words(count.parameters // 4),
        parameters=count.parameters // 4,
        memory=memory,
        flop=flop,
        update_seconds=update_seconds,
        sum_seconds=sums,
        updates=updates,
        tokens=updates * training.batch_size * positions,
        rate=rate,
        note=note,
    )


def resident_bytes() -> int:
    """The memory of this process that is in use, or the most that was; 0 where Python cannot tell, as on Windows."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return 0


def _micro_batches(config: RunConfig) -> int:
    return min(config.training.accumulate, config.training.batch_size // config.machine.ranks)


@dataclass(frozen=True, kw_only=True)
class _Count:
    """Bytes and products of one micro-batch of one process, and of an update."""

    parameters: int
    gradients: int
    optimizer: int
    passing: int
    """The most that forward and backward hold at a time, gradients included."""
    updating: int
    """The most that an update holds beside gradients and state."""
    muon: int
    """Bytes of the matrices that are made orthogonal."""
    block: int
    """Bytes of the largest block's weights."""
    outside: int
    """Bytes of weights outside of blocks, which are whole from the first layer to the last."""
    flop: float

    @classmethod
    def of(cls, config: RunConfig, corpus: Data) -> "_Count":
        """Run it without memory. Raises ConfigError where shapes depend on the content of tensors."""
        try:
            return cls._of(config, corpus)
        except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
            raise ConfigError(
                f"qkv plan cannot count --task {config.task} with this layout: {error} needs the content of a tensor;"
                " train a few steps instead (--steps 10 --json)"
            ) from error

    @classmethod
    def _of(cls, config: RunConfig, corpus: Data) -> "_Count":
        task, sizes = find_task(config.task), config.model.sizes
        each = -(-config.training.batch_size // config.machine.ranks // _micro_batches(config))
        batch: Any = task.train_batch(corpus, sizes, config.seed, 0, np.arange(each, dtype=np.int64))
        model: Any = build(config.model, config.seed, materialise=False)
        with FakeTensorMode(allow_non_fake_inputs=True) as shapes:
            model.to_empty(device="cpu")
            catalogue = Catalogue(model)
            optimizer = make_optimizer(catalogue, config.training.optimizer, precision=config.machine.precision)
            like = type(batch)(*(shapes.from_tensor(x) if isinstance(x, Tensor) else x for x in batch))
            parameters = [entry.parameter for entry in catalogue]
            one = torch.tensor(1.0)  # the one content that is known: a backward pass may read the slope of the loss
            with _Living() as passing, FlopCounterMode(display=False, custom_mapping=_UNCOUNTED) as products:
                with config.machine.passing():
                    nats, _ = task.loss(model, like, None)
                nats.backward(one.to(nats.dtype) if nats.dtype != one.dtype else one)
            del nats, one
            with _Living() as updating:
                optimizer.step(1.0)
            hidden = optimizer.groups().get("muon", [])
            blocks = [_bytes(list(block.parameters())) for block in blocks_of(model)]
            return cls(
                muon=_bytes([catalogue.entry(address).parameter for address in hidden]),
                block=max(blocks, default=0),
                outside=_bytes(parameters) - sum(blocks),
                parameters=_bytes(parameters),
                gradients=_bytes([p.grad for p in parameters if p.grad is not None]),
                optimizer=_bytes(list(optimizer.state().values())),
                passing=passing.most,
                updating=updating.most,
                flop=float(products.get_total_flops()),
            )

    def held(self, watched: bool) -> dict[str, int]:
        """Bytes by what they are for, at the moment when most are held."""
        return {
            "weights": self.parameters,
            "gradients": self.gradients,
            "optimizer state": self.optimizer,
            "activations and work": max(self.passing - self.gradients, self.updating, 0),
            "weights at step 0": self.parameters,
            "checkpoint buffers": self.parameters + self.optimizer,
            "instruments": 4 * self.parameters if watched else 0,
            "libraries at work": _WORKING_BYTES,
        }

    def shared(self, world: int, watched: bool) -> dict[str, int]:
        """The same of the first of `world` processes that share out weights, gradients and state.

        Of three moments the one that holds most: inside a step, where two blocks and what is outside of blocks are
        whole, with the gradients of one as they are made and as they are sent; at a look, where weights, gradients and
        state are whole; at the beginning and the end, where weights are.
        """
        share = {
            "weights, its share": -(-self.parameters // world),
            "optimizer state, its share": -(-self.optimizer // world),
            "libraries at work": _WORKING_BYTES + _FSDP_BYTES,
        }
        gradients = {"gradients, its share": -(-self.gradients // world)}
        exchanged = -(-(self.updating + _MUON_COPIES * self.muon) // world)
        passing = gradients | {
            "blocks that are whole": 4 * self.block + 2 * self.outside,
            "activations and work": max(self.passing - self.gradients, exchanged, 0),
        }
        moments = [passing, {"whole weights, at the beginning and the end": self.parameters}]
        if watched:
            start = {"weights at step 0": self.parameters}
            held, at_work = ({"instruments": times * self.parameters} for times in (2, 4))
            whole = {"whole weights, gradients and state, at a look": 2 * self.parameters + self.optimizer}
            moments = [moment | start | held for moment in moments] + [gradients | start | at_work | whole]
        return share | max(moments, key=lambda moment: sum(moment.values()))

    def sent_shared(self, micro_batches: int) -> int:
        """Bytes that all processes of a sharded training send together in an update, over (w - 1) / w.

        Each micro-batch gathers weights forward and backward and scatters gradients; Muon's matrices go to the process
        that owns them, and back.
        """
        return micro_batches * (2 * self.parameters + self.gradients) + 2 * self.muon


_Shape = Sequence[int]


def _added_product(total: _Shape, left: _Shape, right: _Shape, *more: object, **given: object) -> int:
    """Operations of total += left right, of shapes [.., n, k] and [.., k, m]."""
    return 2 * math.prod(left) * right[-1]


_UNCOUNTED = {
    torch.ops.aten.addmm_: _added_product,
    torch.ops.aten.baddbmm_: _added_product,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *more, **given: sdpa_flop_count(
        q, k, v
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda grad, q, k, v, *more, **given: sdpa_backward_flop_count(grad, q, k, v)
    ),
}
"""Products that torch's counter does not know: operator -> operations by shapes."""


class _Living(TorchDispatchMode):
    """Counts the bytes of storages that are made inside, as long as they live."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._now = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:  # of others the parts were counted
                self._add(tensor.untyped_storage())
        return made

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self._now += storage.nbytes()
            self.most = max(self.most, self._now)
            weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self._now -= self._sizes.pop(key, 0)


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class _Clock(Listener):
    """When each update was done."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def after_update(self, record: StepRecord) -> None:
        self.marks.append(time.perf_counter())


def _measured_seconds(config: RunConfig, corpus: Data, count: _Count, peak: int) -> tuple[float, str]:
    """(seconds of one update of this process, where they are from): timed, or by the rate of a smaller training.

    Raises ConfigError that tells its `peak` bytes where the smaller one, too, finds no memory here.
    """
    own = count.flop * _micro_batches(config)
    timed, word = _timed(config, own)
    flop = own if word == "measured" else _Count.of(timed, corpus).flop
    try:
        return _time(timed, corpus) * own / flop, word
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"this training holds {peak / 1e9:,.0f} GB in each process, and there is not the memory to time a part of"
            " it here; with what each process reaches (--tflops X) its memory by parts and its time are told"
        ) from None


def _timed(config: RunConfig, flop: float) -> tuple[RunConfig, str]:
    """What is timed: one process's share of the training, or of one with fewer layers and examples."""
    training, sizes = config.training, config.model.sizes
    examples = training.batch_size // config.machine.ranks
    own = dataclasses.replace(training, batch_size=examples, accumulate=_micro_batches(config))
    config = dataclasses.replace(
        config, machine=dataclasses.replace(config.machine, ranks=1, shard=False), training=own, from_run="", changes=()
    )
    if flop <= _TIMED_FLOP:
        return config, "measured"
    layers = min(_TIMED_LAYERS, sizes.n_layers)
    flop *= max(1, layers) / max(1, sizes.n_layers)
    fewer = max(1, min(examples, int(examples * _TIMED_FLOP / flop)))
    return (
        dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, sizes=dataclasses.replace(sizes, n_layers=layers)),
            training=dataclasses.replace(own, batch_size=fewer, accumulate=1),
        ),
        f"measured on {layers} layers and {fewer} {find_task(config.task).examples}",
    )


def _time(config: RunConfig, corpus: Data) -> float:
    """The quickest of a few updates with uniform labels, in seconds; the model is thrown away."""
    parts, clock = assemble(config, corpus), _Clock()
    parts.train(observers=[clock], random_labels=True, stop_after=_UPDATES, deadline_seconds=3600.0)
    parts.plan.at_end()
    return min(after - before for before, after in zip(clock.marks, clock.marks[1:], strict=False))

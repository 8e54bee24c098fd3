"""Weights, gradients and optimizer state shared out among processes: each holds its rows of every matrix.

    rank r of w holds of n rows those from r c up to (r + 1) c, c = ceil(n / w)        (DTensor's `Shard(0)`)

Passing forward and backward is torch's own FSDP2 (`fully_shard`; Zhao et al. 2023, arXiv 2304.11277): a block's
matrices are gathered when it is reached and released after it, gradients are summed and scattered at once, after
every micro-batch. Here sums are plain sums, as everywhere in `ranks`: the loss was divided by the global count before.

Everything after the backward pass is ours. An elementwise rule is itself on rows. Muon needs whole matrices: each has
one rank that owns it, which receives its rows, makes them orthogonal as one process does, and sends rows back. The
global norm is made of every rank's squares. Observers, constraints and tasks see the model and the catalogue that they
were given: its weights are there when `show` was called and are nothing but shapes when `hide` was, so a rank holds
whole weights at its beginning, at its end, and while it is looked at.

Checkpoints are the files of an unsharded training, byte for byte laid out alike: every rank writes its rows at their
place, and reads those that it needs. So a run goes on with any number of processes, sharded or not.

It does not hold frozen heads and rows or factors of low rank, and does not compile (`check_shard`).
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from qkv.errors import ConfigError
from qkv.models.zoo import stacks_of
from qkv.training.checkpoint import FILES, Checkpoint, Checkpoints, TrainingState, unfinished_path
from qkv.training.config import OptimizerConfig
from qkv.training.distributed.ranks import Ranks, buckets
from qkv.training.distributed.whole import Loss, Weights
from qkv.training.muon import Muon, Piecewise, add_scaled, orthogonal_pieces
from qkv.training.optimizers import Optimizer, clip_and_measure, make_optimizer
from qkv.training.precision import Machine
from qkv.training.record import Constraint
from qkv.training.tensorfile import SharedFile, load_rows

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from qkv.folder.run_folder import RunFolder
    from qkv.models.matrices import Catalogue
    from qkv.models.zoo import Model
    from qkv.tasks.batch import Batch
    from qkv.training.dropout import Dropping


class Shards(Weights):
    """What `Weights` answers, with the rows of this rank; the given model and optimizer hold nothing unless shown."""

    in_lockstep = True

    def __init__(
        self,
        model: "Model",
        catalogue: "Catalogue",
        optimizer: Optimizer,
        loss: Loss,
        ranks: Ranks,
        machine: Machine,
        config: OptimizerConfig,
    ) -> None:
        super().__init__(model, catalogue, optimizer, loss, ranks, machine)
        whole = [entry.parameter for entry in catalogue]
        around = copy.deepcopy(model, {id(parameter): parameter for parameter in whole})  # the same parameters
        step = _Step(around, loss)
        names = {id(parameter): name for name, parameter in step.named_parameters()}
        paths = [names[id(parameter)] for parameter in whole]
        _share_out(step, ranks.world, whole[0].device.type)
        found = dict(step.named_parameters())
        self._step, self._parameters = step, [found[path] for path in paths]
        with torch.no_grad():
            locals_ = [cast("DTensor", parameter).to_local().detach() for parameter in self._parameters]
        self.rows: dict[str, Tensor] = dict(zip(catalogue.addresses, locals_, strict=True))
        """This rank's rows by address, in the memory that trains, with their gradients before an update."""
        exchange = _Exchange(ranks, dict(zip(catalogue.addresses, whole, strict=True)))
        self._own = make_optimizer(
            catalogue,
            config,
            precision=machine.precision,
            held=self.rows,
            muon=partial(SharedMuon, self.rows, exchange),
        )
        self._looks = False
        self.hide()

    # a step

    def loss(self, batch: "Batch", drop: "Dropping | None" = None) -> tuple[Tensor, int]:
        """The task's loss, through FSDP."""
        with self.ranks.together():
            return self._step(batch, drop)

    def enter(self, constraint: Constraint, step: int) -> None:
        """Where a change begins to act it may write: into whole matrices, of which each rank takes its rows again."""
        if not constraint.acts_at(step):
            constraint.before_step(step)
        else:
            self._fill(self._weights())
            constraint.before_step(step)
            for whole, rows in self._weights():
                rows.copy_(self._part(whole))
            self.hide()
        for whole_stack, stack in zip(stacks_of(self.model), stacks_of(self._step.model), strict=True):
            stack.stops = whole_stack.stops

    def backward(self, loss: Tensor) -> None:
        """Gradients of this rank's rows, summed over ranks."""
        with self.ranks.together():
            loss.backward()

    def sum_gradients(self) -> None:
        """They are summed; those of frozen matrices are dropped, as one process would not have made them."""
        for entry, parameter, rows in zip(self.catalogue, self._parameters, self.rows.values(), strict=True):
            gradient = parameter.grad if entry.parameter.requires_grad else None
            rows.grad = None if gradient is None else cast("DTensor", gradient).to_local()

    @torch.no_grad()
    def clip_and_measure(self, clip: float) -> tuple[float, np.ndarray]:
        """The same norms on every rank: squares are added up in the order of ranks, float64."""
        rows = list(self.rows.values())
        gradients = [g for part in rows if (g := part.grad) is not None]
        if not gradients:
            return clip_and_measure(rows, clip)
        norms = torch.stack([torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients]).cpu().numpy()
        each = np.sqrt(self.ranks.sum(*np.square(norms).tolist()))
        return clip_and_measure(rows, clip, torch.from_numpy(np.append(each, np.sqrt(np.sum(each**2)))))

    def update(self, lr_scale: float) -> None:
        """One update of this rank's rows."""
        with self.machine.natively():
            self._own.step(lr_scale)

    def zero_grad(self) -> None:
        """Drop the gradients, including those that were shown."""
        for parameter, rows, entry in zip(self._parameters, self.rows.values(), self.catalogue, strict=True):
            parameter.grad = rows.grad = entry.parameter.grad = None

    # what is looked at

    def agree(self, wanted: bool) -> bool:
        """Whether a rank wants to look; those that do not take part and get nothing."""
        self._looks = wanted
        return bool(self.ranks.highest(wanted))

    def show(self, *, gradients: bool = False) -> None:
        """Gather weights, optimizer state and, where asked for, gradients, whole on every rank that looks."""
        self._fill([*self._weights(), *self._state()], here=self._looks)
        if not gradients:
            return
        pairs = []
        for entry, rows in zip(self.catalogue, self.rows.values(), strict=True):
            entry.parameter.grad = None
            if rows.grad is not None:
                pairs.append((hollow_like(entry.parameter), rows.grad))
                entry.parameter.grad = pairs[-1][0] if self._looks else None
        self._fill(pairs, here=self._looks)

    def hide(self) -> None:
        """Release whole weights and state: what is left has shapes and no content."""
        for whole, _ in [*self._weights(), *self._state()]:
            hollow(whole)

    def put_back(self) -> None:
        """Whole weights on every rank, without optimizer state."""
        self._fill(self._weights())

    def first_non_finite(self, *, gradients: bool = False) -> str:
        """The first address, in the catalogue's order, with weights (or a gradient) not finite on some rank, or ""."""
        tensors = [rows.grad if gradients else rows for rows in self.rows.values()]
        broken = [float(t is not None and not bool(torch.isfinite(t).all())) for t in tensors]
        anywhere = self.ranks.sum(*broken)
        return next((a for a, n in zip(self.catalogue.addresses, anywhere, strict=True) if n), "")

    def compare(self, step: int) -> None:
        """Nothing is held twice, so there is nothing to compare."""

    # what is kept

    def load(self, resume: Checkpoint) -> None:
        """Read this rank's rows of every tensor."""
        wholes = ({e.address: e.parameter for e in self.catalogue}, self.optimizer.state())
        for name, whole, rows in zip(FILES, wholes, (self.rows, self._own.state()), strict=True):
            wanted = {key: (tuple(t.shape), *rows_of_rank(t, self.ranks)) for key, t in whole.items()}
            for key, values in load_rows(resume.path / name, wanted).items():
                rows[key].copy_(values)

    def checkpoints(self, folder: "RunFolder", resume: Checkpoint | None) -> Checkpoints:
        """Without buffers: files are written by all."""
        return Checkpoints(folder, self.catalogue, self.optimizer, resume=resume, shared=True)

    def save(self, checkpoints: Checkpoints | None, folder: "RunFolder | None", state: TrainingState) -> None:
        """Every rank writes its rows into the same files; the first one then lets the checkpoint appear."""
        if folder is None:
            return
        wholes = ({e.address: e.parameter for e in self.catalogue}, self.optimizer.state())
        files = [SharedFile(whole) for whole in wholes]
        place = unfinished_path(folder, state.step)
        if checkpoints is not None:
            checkpoints.begin(state.step)
            for name, file in zip(FILES, files, strict=True):
                file.begin(place / name)
        self.ranks.meet()
        for name, file, whole, rows in zip(FILES, files, wholes, (self.rows, self._own.state()), strict=True):
            mine = {key: (rows_of_rank(whole[key], self.ranks)[0], part) for key, part in rows.items()}
            once = {key: part for key, part in mine.items() if whole[key].ndim or self.ranks.is_first}
            file.put(place / name, once)
        self.ranks.meet()
        if checkpoints is not None:
            checkpoints.finish(state)

    # inside

    def _weights(self) -> list[tuple[Tensor, Tensor]]:
        """(whole, rows) of every parameter."""
        return [(entry.parameter, rows) for entry, rows in zip(self.catalogue, self.rows.values(), strict=True)]

    def _state(self) -> list[tuple[Tensor, Tensor]]:
        """(whole, rows) of all that the optimizer keeps."""
        own = self._own.state()
        return [(whole, own[name]) for name, whole in self.optimizer.state().items()]

    def _part(self, whole: Tensor) -> Tensor:
        """This rank's rows of a whole tensor."""
        first, last = rows_of_rank(whole, self.ranks)
        return whole.detach()[first:last]

    @torch.no_grad()
    def _fill(self, pairs: Sequence[tuple[Tensor, Tensor]], here: bool = True) -> None:
        """Give whole tensors their content, from the rows of all ranks; elsewhere than `here` rows are only sent."""
        for whole, rows in pairs if here else ():
            whole.data = torch.empty(whole.shape, dtype=whole.dtype, device=whole.device)
            if not whole.ndim:
                whole.copy_(rows)
        world = self.ranks.world
        content = {id(whole): rows for whole, rows in pairs if whole.ndim}
        for bucket in buckets([whole for whole, _ in pairs if whole.ndim]):
            heights = [-(-len(whole) // world) * whole[0].numel() for whole in bucket]
            flat = bucket[0].new_zeros(sum(heights))
            for place, whole in zip(flat.split(heights), bucket, strict=True):
                rows = content[id(whole)]
                place[: rows.numel()] = rows.reshape(-1)
            every = flat.new_empty(world, len(flat))
            with self.ranks.together():
                _all_gather(every.view(-1), flat)
            for part, whole in zip(every.split(heights, dim=1), bucket if here else (), strict=here):
                whole.copy_(part.reshape(-1)[: whole.numel()].view(whole.shape))


_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13


def check_shard(machine: Machine, held_part: str = "", low_rank: str = "") -> None:
    """Make sure that a training can be shared out so; `held_part` is a matrix of which only a part is held, `low_rank`
    one of which factors are trained.

    Raises ConfigError with what to type.
    """
    if not machine.shard:
        return
    if machine.ranks == 1:
        raise ConfigError("--shard shares weights out among processes, and this is one; give --nproc N with it")
    if machine.compile:
        raise ConfigError("--shard cannot be compiled; leave machine.compile out")
    if machine.device == "mps":
        raise ConfigError("--shard needs --device cpu or cuda: processes cannot share out weights on mps")
    if held_part:
        raise ConfigError(
            f"--shard cannot freeze single heads or rows, as of {held_part}: its rows lie with several processes;"
            " freeze the whole matrix, or leave --shard out"
        )
    if low_rank:
        raise ConfigError(
            f"--shard cannot train {low_rank} by lora: its rows lie with several processes; leave --shard out"
        )


class _Step(nn.Module):
    """The model with the loss around it, so that all that is read of it is read inside one forward pass."""

    def __init__(self, model: "Model", loss: Loss) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, batch: "Batch", drop: "Dropping | None") -> tuple[Tensor, int]:
        """(sum of nats, number of targets)."""
        return self._loss(self.model, batch, drop)


def _share_out(step: _Step, world: int, device: str) -> None:
    """Put every block, and what is outside of blocks, under FSDP; all in one where blocks share a matrix."""
    from torch.distributed.device_mesh import init_device_mesh  # here, since it takes a second
    from torch.distributed.fsdp import FSDPModule, fully_shard

    # Nothing writes into what a block gave (`fused` adds out of place); a hook so lost would stop the backward pass.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning)
    mesh = init_device_mesh(device, (world,))
    for block in blocks_of(step):
        fully_shard(block, mesh=mesh)
    fully_shard(step, mesh=mesh, reshard_after_forward=True)
    for module in step.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """What is gathered and released by itself: every member of a list of modules; none where two share a parameter."""
    blocks = [block for held in model.modules() if isinstance(held, nn.ModuleList) for block in held]
    parameters = [id(parameter) for block in blocks for parameter in block.parameters()]
    return blocks if len(parameters) == len(set(parameters)) else []


def hollow(tensor: Tensor) -> None:
    """Release a tensor's content; its shape and type stay."""
    tensor.data = hollow_like(tensor)


def hollow_like(tensor: Tensor) -> Tensor:
    """Zeros of a tensor's shape and type that take no memory."""
    return torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


def rows_of_rank(whole: Tensor, ranks: Ranks, rank: int | None = None) -> tuple[int, int]:
    """The rows [first, last) of a tensor that a rank holds (this one, unless told); of a scalar (0, 0)."""
    if not whole.ndim:
        return 0, 0
    each, rank = -(-len(whole) // ranks.world), ranks.rank if rank is None else rank
    return min(rank * each, len(whole)), min((rank + 1) * each, len(whole))


def owners(sizes: Sequence[Sequence[int]], world: int) -> list[int]:
    """Which rank makes each matrix [d_in, d_out] orthogonal: the dearest first, each to who has least to do so far."""
    loads, owner = [0] * world, [0] * len(sizes)
    cost = [a * b * min(a, b) for a, b in sizes]
    for i in sorted(range(len(sizes)), key=lambda i: -cost[i]):
        owner[i] = loads.index(min(loads))
        loads[owner[i]] += cost[i]
    return owner


class _Exchange:
    """Carries matrices between the rows that ranks hold and the ranks that own them whole."""

    def __init__(self, ranks: Ranks, wholes: Mapping[str, Tensor]) -> None:
        self._ranks, self._wholes, self.world = ranks, wholes, ranks.world

    def collect(self, addresses: Sequence[str], rows: Sequence[Tensor], owner: Sequence[int]) -> dict[int, Tensor]:
        """Of the matrices that this rank owns, by number: the whole, from every rank's rows."""
        me, world = self._ranks.rank, self._ranks.world
        mine = [i for i, of in enumerate(owner) if of == me]
        nothing = rows[0].new_empty(0)
        parts = [[r.reshape(-1) for r, of in zip(rows, owner, strict=True) if of == to] for to in range(world)]
        sent = [torch.cat([nothing, *part]) for part in parts]
        counts = [[self._count(addresses[i], rank) for i in mine] for rank in range(world)]
        received = self._swap(sent, [sum(of_rank) for of_rank in counts])
        pieces = [part.split(of_rank) for part, of_rank in zip(received, counts, strict=True)]
        return {
            i: torch.cat([pieces[rank][k] for rank in range(world)]).view(self._wholes[addresses[i]].shape)
            for k, i in enumerate(mine)
        }

    def give_back(
        self, addresses: Sequence[str], wholes: Mapping[int, Tensor], rows: Sequence[Tensor], owner: Sequence[int]
    ) -> list[Tensor]:
        """The way back: this rank's rows of every matrix."""
        world = self._ranks.world
        sent = []
        for rank in range(world):
            spans = [(whole, *rows_of_rank(whole, self._ranks, rank)) for whole in wholes.values()]
            sent.append(torch.cat([rows[0].new_empty(0), *(whole[a:b].reshape(-1) for whole, a, b in spans)]))
        from_rank = [[i for i, of in enumerate(owner) if of == rank] for rank in range(world)]
        received = self._swap(sent, [sum(rows[i].numel() for i in of) for of in from_rank])
        found: dict[int, Tensor] = {}
        for part, numbers in zip(received, from_rank, strict=True):
            pieces = part.split([rows[i].numel() for i in numbers])
            found |= {i: piece.view(rows[i].shape) for i, piece in zip(numbers, pieces, strict=True)}
        return [found[i] for i in range(len(rows))]

    def _count(self, address: str, rank: int) -> int:
        first, last = rows_of_rank(self._wholes[address], self._ranks, rank)
        return (last - first) * self._wholes[address][0].numel()

    def _swap(self, sent: Sequence[Tensor], sizes: list[int]) -> Sequence[Tensor]:
        """Give each rank its part, and get one of each, of these sizes."""
        flat = torch.cat(list(sent))
        received = flat.new_empty(sum(sizes))
        with self._ranks.together():
            dist.all_to_all_single(received, flat, sizes, [len(part) for part in sent])
        return received.split(sizes)


class SharedMuon(Muon):
    """Muon on rows: momentum is held by rows, and each matrix is made orthogonal by the rank that owns it."""

    def __init__(
        self, rows: Mapping[str, Tensor], exchange: _Exchange, parameters: dict[str, Piecewise], **given: Any
    ) -> None:
        """`rows` are what is updated, by address; `parameters` tell shapes and heads of the whole."""
        super().__init__({}, **given)
        self.addresses, self._members = list(parameters), list(parameters.values())
        self._moved, self._exchange = [rows[address] for address in parameters], exchange
        self._moments = [torch.zeros_like(part) for part in self._moved]

    def _add_orthogonal(self, active: list[int], ahead: Sequence[Tensor], lr: float | Tensor) -> None:
        rows, names = [self._moved[i] for i in active], [self.addresses[i] for i in active]
        members = [self._members[i] for i in active]
        owner = owners([m.parameter.shape for m in members], self._exchange.world)
        wholes = self._exchange.collect(names, ahead, owner)
        mine = list(wholes)
        for k, update in orthogonal_pieces([members[i] for i in mine], [wholes[i] for i in mine], self._dtype):
            members[mine[k]].pieces(wholes[mine[k]]).copy_(update)
        for part, update, member in zip(
            rows, self._exchange.give_back(names, wholes, rows, owner), members, strict=True
        ):
            add_scaled(part, update, -lr * member.stretch)

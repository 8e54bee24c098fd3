"""Optimizers over the catalogue: Muon with AdamW, AdamW, SGD or your own; each parameter lies in one group.

Weight decay is decoupled (Loshchilov and Hutter 2019, arXiv 1711.05101) and touches 2-D matrices only. A parameter
whose gradient is None (frozen) is passed over: no decay, no momentum, no step count. The fused operators of torch do
the elementwise work; they are deterministic, and torch's own optimizer classes are the oracle of the tests.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from qkv.changes.low_rank import LowRank
from qkv.errors import ConfigError, RunFolderError
from qkv.extensions import Registry, load
from qkv.kernels import elementwise
from qkv.training.config import OptimizerConfig
from qkv.training.muon import Muon, Piecewise

if TYPE_CHECKING:
    from qkv.models.matrices import Catalogue

Zeros = Callable[[Tensor], Tensor]
"""Makes the room for what is kept of a parameter."""


class Rule(Protocol):
    """One way to turn gradients into updates, for the parameters of one group."""

    addresses: list[str]
    decay: float
    """What weight decay takes off in an update at the peak rate, as a share of each weight."""

    def step(self, lr_scale: float | Tensor) -> None:
        """One update at `lr_scale` times the peak rate; a scalar on the parameters' device is not waited for."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What must be kept between updates, by address and name, sharing memory."""
        ...


class _Fused:
    """What torch's fused operators work on: the parameters of one group, and what is kept of each."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        config: OptimizerConfig,
        *,
        weight_decay: float,
        zeros: Zeros = torch.zeros_like,
    ) -> None:
        self.addresses = list(parameters)
        self._parameters = list(parameters.values())
        self._config, self._weight_decay, self.decay = config, weight_decay, config.lr * weight_decay
        self._kept = self._room(zeros)

    def _room(self, zeros: Zeros) -> dict[str, list[Tensor]]:
        """What is kept, by its name, of every parameter."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """All that is kept of each address."""
        return {f"{a}.{kind}": kept[i] for i, a in enumerate(self.addresses) for kind, kept in self._kept.items()}


class AdamW(_Fused):
    """Adam with decoupled decay (Kingma and Ba 2015, arXiv 1412.6980; Loshchilov and Hutter 2019)."""

    def _room(self, zeros: Zeros) -> dict[str, list[Tensor]]:
        """`exp_avg`, `exp_avg_sq` in the parameter's shape and `updates` (a count)."""
        first, second = [zeros(p) for p in self._parameters], [zeros(p) for p in self._parameters]
        updates = [torch.zeros((), device=p.device) for p in self._parameters]
        return {"exp_avg": first, "exp_avg_sq": second, "updates": updates}

    def step(self, lr_scale: float | Tensor) -> None:
        """m <- b1 m + (1-b1) g; v <- b2 v + (1-b2) g^2; W <- (1 - lr wd) W - lr m^ / (sqrt(v^) + eps)."""
        active = [i for i, p in enumerate(self._parameters) if p.grad is not None]
        if not active:
            return
        first, second, updates = ([kept[i] for i in active] for kept in self._kept.values())
        torch._foreach_add_(updates, 1.0)  # type: ignore[attr-defined]
        torch._fused_adamw_(  # type: ignore[attr-defined]
            [self._parameters[i] for i in active],
            [g for i in active if (g := self._parameters[i].grad) is not None],
            first,
            second,
            [],
            updates,
            lr=self._config.lr * lr_scale,
            beta1=self._config.beta1,
            beta2=self._config.beta2,
            weight_decay=self._weight_decay,
            eps=self._config.eps,
            amsgrad=False,
            maximize=False,
        )


class Sgd(_Fused):
    """Gradient descent with classical momentum: b <- mu b + g; W <- (1 - lr wd) W - lr b."""

    def _room(self, zeros: Zeros) -> dict[str, list[Tensor]]:
        return {"momentum": [zeros(p) for p in self._parameters]} if self._config.momentum else {}

    def step(self, lr_scale: float | Tensor) -> None:
        """One update; without momentum and decay, a weight whose gradient is 0 keeps its bits."""
        active = [i for i, p in enumerate(self._parameters) if p.grad is not None]
        if not active:
            return
        lr = self._config.lr * lr_scale
        parameters = [self._parameters[i] for i in active]
        if self._weight_decay:
            torch._foreach_mul_(parameters, 1.0 - lr * self._weight_decay)  # type: ignore[attr-defined]
        torch._fused_sgd_(  # type: ignore[attr-defined]
            parameters,
            [g for p in parameters if (g := p.grad) is not None],
            [kept[i] for kept in self._kept.values() for i in active],
            weight_decay=0.0,
            momentum=self._config.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )


# an optimizer of one's own

_TAKEN = ("lr", "beta1", "beta2", "eps", "weight_decay", "momentum")
Kept = dict[str, Tensor | float | int | None]


def _class_of(name: str, thing: object) -> type[torch.optim.Optimizer]:
    """What was named, where it is an optimizer that can be built. Raises ConfigError."""
    if not isinstance(thing, type):
        raise ConfigError(f"{name} is a {type(thing).__name__}; expected a class, a subclass of torch.optim.Optimizer")
    if not issubclass(thing, torch.optim.Optimizer):
        raise ConfigError(f"the class {name} is no optimizer; expected a subclass of torch.optim.Optimizer")
    _, *others = inspect.signature(thing).parameters.values()
    names = [each.name for each in others]
    needed = [each.name for each in others if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
    if "lr" not in names or set(needed) - {*_TAKEN, "betas"}:
        signature = f"{thing.__name__}{inspect.signature(thing)}"
        raise ConfigError(
            f"the class {name} cannot be built: it is {signature}; expected (params, lr, ...), and a default for every"
            f" setting but {', '.join(_TAKEN)} and betas"
        )
    return thing


OPTIMIZERS: Registry[type[torch.optim.Optimizer]] = Registry("optimizers", {}, _class_of)
"""Those that other packages add, by the name that `optimizer.kind` may have."""


def spelled(kind: str) -> str:
    """`module:Class` of the optimizer that another package adds under a name; any other kind as it is."""
    if ":" in kind or kind in ("muon", "adamw", "sgd") or kind not in OPTIMIZERS:
        return kind
    found = OPTIMIZERS[kind]
    return f"{found.__module__}:{found.__qualname__}"


@cache
def own_class(kind: str) -> type[torch.optim.Optimizer]:
    """The class that `module:Class` names, once it has been tried on a small matrix.

    Raises ConfigError where it is not there, is no optimizer, fails, or could not be resumed exactly.
    """
    found = _class_of(kind, load(kind, "optimizer.kind"))
    config = OptimizerConfig(kind=kind, **defaults_of(found))
    try:
        through, again = _trial(found, config, stop=0), _trial(found, config, stop=2)
    except ConfigError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise ConfigError(f"the optimizer {kind} fails on a 3 x 2 matrix: {said}") from None
    if not torch.equal(through, again):
        raise ConfigError(
            f"the optimizer {kind} could not be resumed exactly: it keeps numbers outside self.state[parameter]; keep"
            " them there"
        )
    return found


def _trial(cls: type[torch.optim.Optimizer], config: OptimizerConfig, stop: int) -> Tensor:
    """A small matrix after four updates; where `stop`, the state goes through what is saved after so many."""
    draws = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(3, 2, generator=draws))
    rule = OwnRule({"W": weight}, config, weight_decay=config.weight_decay, cls=cls)
    for step in range(4):
        if stop and step == stop:
            state = {name: values.clone() for name, values in rule.state().items()}
            rule = OwnRule({"W": weight}, config, weight_decay=config.weight_decay, cls=cls)
            for name, values in rule.state().items():
                values.copy_(state[name])
            rule.take_state()
        weight.grad = torch.randn(3, 2, generator=draws)
        with torch.no_grad():
            rule.step(1 / (step + 1))
    return weight.detach()


def defaults_of(cls: type[torch.optim.Optimizer]) -> dict[str, float]:
    """The settings that a class gives a value itself."""
    given = {name: each.default for name, each in inspect.signature(cls).parameters.items()}
    if isinstance(betas := given.get("betas"), tuple) and len(betas) == 2:
        given |= {"beta1": betas[0], "beta2": betas[1]}
    found = {name: given[name] for name in _TAKEN if isinstance(given.get(name), int | float)}
    return {name: float(value) for name, value in ({"weight_decay": 0.0, "momentum": 0.0} | found).items()}


def settings_of(kind: str) -> set[str]:
    """The settings of `training.optimizer` that a class of one's own takes."""
    names = set(inspect.signature(own_class(kind)).parameters)
    return {name for name in _TAKEN if name in names} | ({"beta1", "beta2"} if "betas" in names else set())


class OwnRule:
    """A `Rule` by a subclass of `torch.optim.Optimizer` of one's own, named `module:Class` in `optimizer.kind`.

    Its constructor takes parameters and, by name, those settings that it has; the values that it gives them itself are
    the defaults. What it keeps of a parameter lies in `self.state[parameter]`: tensors and numbers.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        config: OptimizerConfig,
        *,
        weight_decay: float,
        zeros: Zeros = torch.zeros_like,
        cls: type[torch.optim.Optimizer] | None = None,
    ) -> None:
        cls = cls or own_class(config.kind)
        names = inspect.signature(cls).parameters
        settings = {name: getattr(config, name) for name in _TAKEN if name in names}
        settings |= {"weight_decay": weight_decay} if "weight_decay" in names else {}
        settings |= {"betas": (config.beta1, config.beta2)} if "betas" in names else {}
        self.addresses, self._parameters = list(parameters), list(parameters.values())
        self._lr, self.decay = config.lr, config.lr * weight_decay if "weight_decay" in names else 0.0
        self._own = cls(self._parameters, **settings)
        self._updates = {address: torch.zeros(()) for address in self.addresses}
        self._kinds: dict[str, type] = {}
        self._rooms: dict[str, Tensor] = {}
        for address, parameter in parameters.items():
            self._make_room(address, parameter, cls, settings)

    def _make_room(
        self, address: str, parameter: Tensor, cls: type[torch.optim.Optimizer], settings: Mapping[str, object]
    ) -> None:
        """Find out by an update of a copy what is kept of a parameter, which is saved even before the first."""
        copy = torch.nn.Parameter(parameter.detach().clone())
        copy.grad = torch.ones_like(copy)
        tried = cls([copy], **settings)  # type: ignore[arg-type]
        with torch.no_grad():
            tried.step()
        kept: Kept = tried.state.get(copy, {})
        for name, value in kept.items():
            if value is None:
                continue
            if not isinstance(value, Tensor | int | float):
                raise ConfigError(
                    f"the optimizer {cls.__name__} keeps {name!r} of type {type(value).__name__}; expected tensors and"
                    " numbers"
                )
            self._kinds[f"{address}.{name}"] = type(value)
            is_tensor = isinstance(value, Tensor)
            room = torch.zeros_like(value) if is_tensor else torch.zeros((), dtype=torch.float64)
            self._rooms[f"{address}.{name}"] = room

    def step(self, lr_scale: float | Tensor) -> None:
        """One update of the class's own, at `lr_scale` times its rate."""
        for group in self._own.param_groups:
            group["lr"] = self._lr * float(lr_scale)
        self._own.step()
        for address, parameter in zip(self.addresses, self._parameters, strict=True):
            if parameter.grad is not None:
                self._updates[address] += 1

    def state(self) -> dict[str, Tensor]:
        """What the class keeps of each address, as it is now, and `updates`, how many it made."""
        for address, parameter in zip(self.addresses, self._parameters, strict=True):
            kept: Kept = self._own.state.get(parameter, {})
            for name, value in kept.items():
                if (room := self._rooms.get(f"{address}.{name}")) is not None and value is not None:
                    room.copy_(value) if isinstance(value, Tensor) else room.fill_(value)
        return self._rooms | {f"{address}.updates": made for address, made in self._updates.items()}

    def take_state(self) -> None:
        """Go on from what was written into the tensors of `state`."""
        for address, parameter in zip(self.addresses, self._parameters, strict=True):
            if self._updates[address] > 0:
                names = [name for name in self._rooms if name.rpartition(".")[0] == address]
                self._own.state[parameter] = {name.rpartition(".")[2]: self._taken(name) for name in names}

    def _taken(self, name: str) -> Tensor | int | float:
        room, kind = self._rooms[name], self._kinds[name]
        return room.clone() if issubclass(kind, Tensor) else kind(room.item())


class Optimizer:
    """Named groups of parameters, each with its rule. Raises AssertionError unless they partition the catalogue."""

    def __init__(
        self,
        catalogue: "Catalogue",
        rules: Mapping[str, Rule],
        held: Mapping[str, Tensor] | None = None,
        low_rank: Mapping[str, LowRank] | None = None,
    ) -> None:
        self._catalogue, self._rules, self._low_rank = catalogue, dict(rules), dict(low_rank or {})
        named = [address for rule in rules.values() for address in rule.addresses]
        factors = [name for matrix in self._low_rank.values() for name in matrix.factors]
        moved = [*factors, *(address for address in catalogue.addresses if address not in self._low_rank)]
        assert sorted(named) == sorted(moved), "groups must name each parameter exactly once"
        own = held or {address: catalogue.entry(address).parameter for address in catalogue.addresses}
        self.parameters: list[Tensor] = [own[address] for address in catalogue.addresses]

    @property
    def is_own(self) -> bool:
        """Whether it is a class of one's own, whose step may decide by values and is not recorded."""
        return any(isinstance(rule, OwnRule) for rule in self._rules.values())

    def groups(self) -> dict[str, list[str]]:
        """Which addresses each rule moves."""
        return {name: list(rule.addresses) for name, rule in self._rules.items()}

    def decayed(self, lr_scales: Sequence[float]) -> dict[str, float]:
        """Address -> what weight decay alone would leave of each weight after updates at these rates, as a share."""
        left = {name: math.prod(1 - rule.decay * scale for scale in lr_scales) for name, rule in self._rules.items()}
        found = {address: left[name] for name, addresses in self.groups().items() for address in addresses}
        return {address: found.get(address, 1.0) for address in self._catalogue.addresses}

    def clip_and_measure(self, clip: float, norms: Tensor | None = None) -> tuple[float, np.ndarray]:
        """As the function of that name, of all parameters; of a matrix of low rank the gradient of its factors counts.

        Its own gradient, which is there to be looked at, is scaled with them.
        """
        if not self._low_rank:
            return clip_and_measure(self.parameters, clip, norms)
        for matrix in self._low_rank.values():
            matrix.take_gradient()
        pairs = list(zip(self._catalogue.addresses, self.parameters, strict=True))
        norm, each = clip_and_measure([self._low_rank[a].both if a in self._low_rank else p for a, p in pairs], clip)
        whole = [p.grad for a, p in pairs if a in self._low_rank and p.grad is not None]
        if whole and clip and clip < norm < float("inf"):
            torch._foreach_mul_(whole, clip / norm)  # type: ignore[attr-defined]
        return norm, each

    @torch.no_grad()
    def step(self, lr_scale: float | Tensor) -> None:
        """One update of every parameter that has a gradient, at `lr_scale` times each group's peak rate."""
        for rule in self._rules.values():
            rule.step(lr_scale)
        for matrix in self._low_rank.values():
            matrix.merge()

    def zero_grad(self) -> None:
        """Set every gradient to None (not to zero)."""
        for parameter in self.parameters:
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """All that must be kept, by address and name ("L0.W_Q.momentum", "W_E.exp_avg"), sharing memory."""
        keepers = [*self._rules.values(), *self._low_rank.values()]
        return {name: tensor for keeper in keepers for name, tensor in keeper.state().items()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state that `state()` gave. Raises RunFolderError where names or shapes differ."""
        mine = self.state()
        differing = sorted(mine.keys() ^ state.keys()) or [n for n in mine if mine[n].shape != state[n].shape]
        if differing:
            raise RunFolderError(
                f"the saved optimizer state is of another optimizer or model: {differing[0]} differs"
                f" ({len(differing)} of {len(mine)} entries); resume with the run's own settings"
            )
        for name, tensor in mine.items():
            tensor.copy_(state[name])
        for rule in self._rules.values():
            if isinstance(rule, OwnRule):
                rule.take_state()


def make_optimizer(
    catalogue: "Catalogue",
    config: OptimizerConfig,
    *,
    precision: str = "fp32",
    held: Mapping[str, Tensor] | None = None,
    low_rank: Mapping[str, LowRank] | None = None,
    muon: Callable[..., Rule] = Muon,
    zeros: Zeros = torch.zeros_like,
) -> Optimizer:
    """The optimizer of that kind over every parameter of the catalogue.

    Under Muon the updates of attention's and MLP's 2-D matrices are made orthogonal, head by head (in bfloat16 where
    `precision` is bf16), and the rest goes by AdamW. Biases, gains and scalars form a group without decay, and matrices
    that enter the stack one of their own where `config.embed_factor` is not 1. `held` gives
    what is updated in the place of each parameter, by address: the rows of it that a process holds, with their `grad`.
    `muon` makes the rule of the hidden matrices, `zeros` the room for what is kept. Of a matrix in `low_rank` the two
    factors are updated in its place, with decay, by AdamW also under Muon: orthogonal updates of A and of B are no
    orthogonal update of their product.
    """
    low_rank = low_rank or {}
    entries = [catalogue.entry(address) for address in catalogue.addresses if address not in low_rank]
    own = {e.address: e.parameter for e in entries} if held is None else held
    rules: dict[str, Rule] = {}
    if config.kind == "muon":
        hidden = {
            e.address: Piecewise(e.parameter, heads=e.n_heads, on_rows=e.kind == "W_O")
            for e in entries
            if e.site in ("attn", "mlp") and e.parameter.ndim == 2
        }
        if hidden:
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            lr, momentum, decay = config.muon_lr, config.momentum, config.weight_decay
            rules["muon"] = muon(hidden, lr=lr, momentum=momentum, weight_decay=decay, dtype=dtype, zeros=zeros)
        entries = [e for e in entries if e.address not in hidden]
    rule = OwnRule if config.is_own else Sgd if config.kind == "sgd" else AdamW
    name = config.kind.rpartition(":")[2].lower() if config.is_own else "sgd" if config.kind == "sgd" else "adamw"
    entering = [e.address for e in entries if e.site == "embed" and e.parameter.ndim == 2]
    tables = {address: own[address] for address in entering if config.embed_factor != 1}
    matrices = {e.address: own[e.address] for e in entries if e.parameter.ndim == 2 and e.address not in tables}
    matrices |= {name: factor for matrix in low_rank.values() for name, factor in matrix.factors.items()}
    others = {e.address: own[e.address] for e in entries if e.parameter.ndim != 2}
    if matrices:
        rules[name] = rule(matrices, config, weight_decay=config.weight_decay, zeros=zeros)
    if tables:
        theirs = replace(config, lr=config.lr * config.embed_factor)
        rules[f"{name}_embed"] = rule(tables, theirs, weight_decay=config.weight_decay, zeros=zeros)
    if others:
        rules[f"{name}_no_decay"] = rule(others, config, weight_decay=0.0, zeros=zeros)
    return Optimizer(catalogue, rules, held, low_rank)


def gradient_norms(gradients: Sequence[Tensor]) -> Tensor:
    """The 2-norm of each of n gradients and, last, of them all: float [n + 1], where they are."""
    by = elementwise.compiled_for(gradients[0])
    if by is not None and all(g.dtype == torch.float32 and g.is_contiguous() for g in gradients):
        squares = by.squares(gradients)
        return torch.cat((squares, squares.sum()[None])).sqrt_()
    norms = torch.stack(torch._foreach_norm(gradients))  # type: ignore[attr-defined]
    return torch.cat((norms, norms.norm()[None]))


@torch.no_grad()
def clip_and_measure(
    parameters: Sequence[Tensor], clip: float, norms: Tensor | None = None
) -> tuple[float, np.ndarray]:
    """Scale all gradients down together so that their global 2-norm is at most `clip` (0 = leave them); in place.

    Returns the norm before clipping, 0 without gradients, and that of each gradient, float64 [n], NaN where there is
    none. Where the norm is not finite, nothing is scaled. Pascanu, Mikolov and Bengio 2013, arXiv 1211.5063.

    `norms`: what `gradient_norms` says of the gradients that are there, where that is known.
    """
    each = np.full(len(parameters), np.nan)
    there = [i for i, p in enumerate(parameters) if p.grad is not None]
    gradients = [g for i in there if (g := parameters[i].grad) is not None]
    if not gradients:
        return 0.0, each
    found = (gradient_norms(gradients) if norms is None else norms).double().cpu().numpy()
    each[there], norm = found[:-1], float(found[-1])
    if clip and clip < norm < float("inf"):
        torch._foreach_mul_(gradients, clip / norm)  # type: ignore[attr-defined]
    return norm, each

"""An optimizer of your own: a subclass of `torch.optim.Optimizer`, named in `optimizer.kind` as `module:Class`.

Its constructor takes parameters and, by name, those settings that it has: lr, betas (or beta1, beta2), eps,
weight_decay and momentum; the values that it gives them itself are the defaults. All that it keeps of a parameter lies
in `self.state[parameter]`, as torch's own do: tensors and numbers, which are saved with the run.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor

from qkv.errors import ConfigError
from qkv.extensions import Registry, load
from qkv.training.config import OptimizerConfig

_SETTINGS = ("lr", "beta1", "beta2", "eps", "weight_decay", "momentum")
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
    if "lr" not in names or set(needed) - {*_SETTINGS, "betas"}:
        signature = f"{thing.__name__}{inspect.signature(thing)}"
        raise ConfigError(
            f"the class {name} cannot be built: it is {signature}; expected (params, lr, ...), and a default for every"
            f" setting but {', '.join(_SETTINGS)} and betas"
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
    found = {name: given[name] for name in _SETTINGS if isinstance(given.get(name), int | float)}
    return {name: float(value) for name, value in ({"weight_decay": 0.0, "momentum": 0.0} | found).items()}


def settings_of(kind: str) -> set[str]:
    """The settings of `training.optimizer` that a class of one's own takes."""
    names = set(inspect.signature(own_class(kind)).parameters)
    return {name for name in _SETTINGS if name in names} | ({"beta1", "beta2"} if "betas" in names else set())


class OwnRule:
    """A `Rule` by a class of one's own, which has its parameters to itself."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        config: OptimizerConfig,
        *,
        weight_decay: float,
        zeros: Callable[[Tensor], Tensor] = torch.zeros_like,
        cls: type[torch.optim.Optimizer] | None = None,
    ) -> None:
        cls = cls or own_class(config.kind)
        names = inspect.signature(cls).parameters
        settings = {name: getattr(config, name) for name in _SETTINGS if name in names}
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

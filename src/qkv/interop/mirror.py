"""A live PyTorch model in our names: which of its parameters hold which matrices, brought up to date when one looks.

Known are our own models, the families of `families`, and two layouts of other people's code (`NAMES`); for a model of
your own, names are given in the same way, one line for each kind of parameter. The mirror holds copies: fused
parameters (`c_attn`, `in_proj_weight`, `qkv_proj`) are split into matrices that each have a norm, a gradient and a
spectrum, and nothing of the live model is touched.
"""

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, SourceError, nearest
from qkv.interop.families import families_of
from qkv.interop.family import Family
from qkv.interop.importing import Placed, as_model, rows_of_model
from qkv.interop.name_map import BESIDE, ONE_PLUS, SAME, STACKED, TRANSPOSED, Form, Row
from qkv.interop.settings import Reading, read_config
from qkv.jsontypes import JsonMapping
from qkv.models import build
from qkv.models.layout import ModelConfig
from qkv.models.matrices import Catalogue
from qkv.models.parts import KINDS
from qkv.models.zoo import MODELS


def _names(*said: str) -> dict[str, str]:
    """Names of weights and biases -> addresses, of modules said as `module layer kinds`, or as `module norm`."""
    found = {}
    for module, place, *kinds in (one.split() for one in said):
        of = [f"{place}.{{}}_{kind}" for kind in kinds]
        found[f"{module}weight"] = ", ".join(of).replace("{}", "W") or f"{place}.gain"
        found[f"{module}bias"] = ", ".join(of).replace("{}", "b") or f"{place}.bias"
    return found


NAMES: Mapping[str, Mapping[str, str]] = {
    # karpathy/nanoGPT `model.py`; c_attn is a Linear there
    "nanoGPT": {"transformer.wte.weight": "W_E", "transformer.wpe.weight": "W_pos"}
    | _names(
        "transformer.h.{L}.ln_1. L{L}.norm1",
        "transformer.h.{L}.attn.c_attn. L{L} Q K V",
        "transformer.h.{L}.attn.c_proj. L{L} O",
        "transformer.h.{L}.ln_2. L{L}.norm2",
        "transformer.h.{L}.mlp.c_fc. L{L} in",
        "transformer.h.{L}.mlp.c_proj. L{L} out",
        "transformer.ln_f. norm_f",
    )
    | {"lm_head.weight": "W_U"},
    "torch.nn.TransformerEncoder": _names(
        "layers.{L}.self_attn.in_proj_ L{L} Q K V",
        "layers.{L}.self_attn.out_proj. L{L} O",
        "layers.{L}.linear1. L{L} in",
        "layers.{L}.linear2. L{L} out",
        "layers.{L}.norm1. L{L}.norm1",
        "layers.{L}.norm2. L{L}.norm2",
        "norm. norm_f",
    ),
}
"""Layouts that are known by their parameters' names: name of a parameter -> the addresses that it holds."""

_MAY_BE_NULL = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
"""Keys whose null turns something off that a silent file has."""
_HEAD_COUNTS = ("n_head", "n_heads", "num_heads", "num_attention_heads", "nhead")


class Shadow(nn.Module):
    """Parameters at the places that their addresses say, and no code: what is known of a model of somebody else's.

    `shapes` are as we store them, by address; `n_heads` and `n_kv_heads` say how W_Q, W_K, W_V and W_O divide.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], n_heads: int, n_kv_heads: int = 0) -> None:
        super().__init__()
        for address, shape in shapes.items():
            place: nn.Module = self
            *path, name = address.split(".")
            for part in ["head", *path] if KINDS[name].site == "head" else path:  # the way out comes last
                part = part[1:] if part[0] == "L" and part[1:].isdigit() else part
                if not hasattr(place, part):
                    place.add_module(part, nn.Module())
                place = getattr(place, part)
            setattr(place, "n_heads", n_heads)  # noqa: B010 - a plain attribute, which the catalogue asks for
            setattr(place, "n_kv_heads", n_kv_heads or n_heads)  # noqa: B010
            place.register_parameter(name, nn.Parameter(torch.empty(*shape)))

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        """Raises ConfigError: there is no code to run."""
        raise ConfigError(
            "qkv holds the matrices of this model, which was watched in a program of its own, but not its code;"
            " run it there"
        )

    hidden = forward_recorded = forward_with = forward

    @property
    def reader(self) -> Tensor:
        """Raises ConfigError likewise."""
        return self.forward()


def shadow_of(state: Mapping[str, Tensor], n_heads: int, n_kv_heads: int) -> Shadow:
    """A `Shadow` that holds these values, by address."""
    shadow = Shadow({address: tuple(values.shape) for address, values in state.items()}, n_heads, n_kv_heads)
    Catalogue(shadow).load_state(state)
    return shadow.eval()


@dataclass(frozen=True)
class _Link:
    """One live parameter (or buffer: Marian's `final_logits_bias`), and the mirror's that hold its matrices."""

    name: str
    live: Tensor
    form: Form
    shapes: tuple[tuple[int, ...], ...]
    held: tuple[nn.Parameter, ...]
    stored_shape: tuple[int, ...]


class Mirror:
    """Our copy of a live model; `refresh` brings it up to date."""

    def __init__(
        self, live: nn.Module, rows: Sequence[Placed], model: nn.Module, config: ModelConfig | None, *absent: str
    ) -> None:
        self._live = live
        parameters = self._tensors()
        self.model: Any = model
        """Ours: a model of our own where the layout is known, else a `Shadow`."""
        self.config = config
        """What it is made of; None where its layout is not known."""
        self.catalogue = Catalogue(model)
        self._links: list[_Link] = []
        seen: set[str] = set()
        for item in rows:
            if item.tied or item.row.copy or set(item.addresses) <= seen or item.row.stored not in parameters:
                continue
            parameter = parameters[item.row.stored]
            if tuple(parameter.shape) != item.stored_shape:
                expected = f"{list(item.stored_shape)} ({', '.join(item.addresses)})"
                raise ConfigError(
                    f"{item.row.stored} is {list(parameter.shape)}; by its configuration it is {expected}"
                )
            held = tuple(self.catalogue.entry(address).parameter for address in item.addresses)
            self._links.append(_Link(item.row.stored, parameter, item.row.form, item.shapes, held, item.stored_shape))
            seen |= set(item.addresses)
        for address in absent:  # no parameter of theirs, and 0 in ours
            nn.init.zeros_(self.catalogue.entry(address).parameter)
        missing = set(self.catalogue.addresses) - seen - set(absent)
        if missing:
            raise ConfigError(f"the model has no parameter for {', '.join(sorted(missing)[:5])}")
        linked = {id(link.live) for link in self._links}
        self.unnamed = [name for name, p in live.named_parameters() if id(p) not in linked]
        """Parameters of the live model that have no address here; they are not watched."""
        self.refresh()

    @torch.no_grad()
    def refresh(self, *, gradients: bool = False) -> None:
        """Copy the weights as they are now, and with `gradients` their gradients.

        Raises ConfigError where a parameter has another shape than when the mirror was made.
        """
        self._follow()
        for link in self._links:
            for held, part in zip(link.held, link.form.split(link.live.detach(), link.shapes), strict=True):
                held.copy_(part)
            if not gradients:
                continue
            if link.live.grad is None:
                for held in link.held:
                    held.grad = None
                continue
            form = SAME if link.form is ONE_PLUS else link.form  # a constant beside the weight has no gradient
            for held, part in zip(link.held, form.split(_dense(link.live.grad), link.shapes), strict=True):
                held.grad = torch.empty_like(held) if held.grad is None else held.grad
                held.grad.copy_(part)

    def gradient_norm(self) -> float:
        """The global 2-norm of the live gradients of what is watched."""
        gradients = [_dense(link.live.grad) for link in self._links if link.live.grad is not None]
        if not gradients:
            return 0.0
        return float(torch.stack(torch._foreach_norm(gradients)).norm())  # type: ignore[attr-defined]

    def has_gradients(self) -> bool:
        """Whether a backward pass was made since gradients were last set to None."""
        return any(link.live.grad is not None for link in self._links)

    def _tensors(self) -> dict[str, Tensor]:
        """The live model's parameters and buffers as they are now, by name."""
        held = (self._live.named_buffers(), self._live.named_parameters(remove_duplicate=False))
        return {name: values for pairs in held for name, values in pairs}

    def _follow(self) -> None:
        """Take what the model holds now under each name: a parameter may have been put in another's place."""
        now = self._tensors()
        for i, link in enumerate(self._links):
            live = now.get(link.name, link.live)
            if live.shape != link.stored_shape:
                raise ConfigError(
                    f"{link.name} is {list(live.shape)} and was {list(link.stored_shape)}: the model was changed"
                )
            if live is not link.live:
                self._links[i] = replace(link, live=live)


def _dense(gradient: Tensor) -> Tensor:
    """A gradient as a table of all rows; that of an embedding may hold only those that were met."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside wrappers of DistributedDataParallel and torch.compile."""
    while True:
        inside = getattr(model, "_orig_mod", None) or (
            model.module if type(model).__name__ in ("DistributedDataParallel", "DataParallel") else None
        )
        if not isinstance(inside, nn.Module):
            return model
        model = inside


def mirror_of(
    model: nn.Module, *, names: Mapping[str, str] | None = None, n_heads: int = 0, n_kv_heads: int = 0
) -> Mirror:
    """The mirror of a live model: one of ours, of a family of transformers, of a known layout, or by the names given.

    Raises ConfigError where the model is not known and no names are given, or names do not fit it.
    """
    model = unwrapped(model)
    config = getattr(model, "config", None)
    if names is None and type(model) in MODELS.values():
        return _of_ours(model)
    families, as_dict = families_of(getattr(config, "model_type", "")), getattr(config, "to_dict", None)
    if names is None and families and as_dict is not None:
        own = [one for one in families if type(model).__name__ in (one.architecture, *one.also)]
        return _of_family(model, (own or families)[0], as_dict())
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if names is None:
        known = [table for table in NAMES.values() if _covers(table, parameters)]
        if not known:
            raise ConfigError(_how_to_name(model, parameters))
        names = known[0]
    n_heads = n_heads or _count_heads(model)
    return _by_names(model, parameters, names, n_heads, n_kv_heads or n_heads)


def _of_ours(model: nn.Module) -> Mirror:
    """Of a model that `qkv.models.build` made: a copy of it, parameter by parameter."""
    ours: Any = copy.deepcopy(model).to("cpu").eval()
    ours.zero_grad()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    rows = []
    for entry in Catalogue(model):
        address, shape = (entry.address,), tuple(entry.parameter.shape)
        rows.append(Placed(Row(names[id(entry.parameter)], address), address, (shape,), False))
    return Mirror(model, rows, ours, ours.config)


def _of_family(model: nn.Module, family: Family, config: JsonMapping) -> Mirror:
    """Of a model of transformers, by the map that imports its checkpoints."""
    if type(model).__name__ not in (family.architecture, *(name for name in family.also if "For" in name)):
        raise ConfigError(
            f"the model is a {type(model).__name__}; of {family.title} qkv watches {family.architecture}."
            " For another, give names= (see docs/watching.md)"
        )
    given = {key: v for key, v in config.items() if v is not None or key in _MAY_BE_NULL}
    reading = Reading(f"the configuration of {type(model).__name__}", given)
    try:
        read_config(family.pieces, reading)
        ours = as_model(family, reading)
    except SourceError as error:
        raise ConfigError(str(error)) from None
    shadow = build(ours, 0, materialise=False).to_empty(device="cpu").eval()
    return Mirror(model, rows_of_model(family, ours), shadow, ours, *family.absent)


def _by_names(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], names: Mapping[str, str], n_heads: int, n_kv_heads: int
) -> Mirror:
    """Of any model, by a table from names to addresses."""
    placed: list[Placed] = []
    shapes: dict[str, tuple[int, ...]] = {}
    owners = dict(model.named_modules())
    first: dict[int, str] = {}
    for stored, written in names.items():
        addresses = tuple(part.strip() for part in written.split(","))
        for address in addresses:
            if address.rpartition(".")[2] not in KINDS:
                raise ConfigError(f"{stored}: {address!r} is no address of a matrix; the kinds are {', '.join(KINDS)}")
        for row in _rows_there(Row(stored, addresses), parameters):
            parameter = parameters[row.stored]
            if first.setdefault(id(parameter), row.stored) != row.stored:
                continue  # tied: known by its first name
            if twice := shapes.keys() & set(row.addresses):
                raise ConfigError(f"{row.stored}: {min(twice)} is named for another parameter too; leave one out")
            if parameter.ndim < 2 and (of := [a for a in row.addresses if ".W_" in f".{a}"]):
                raise ConfigError(f"{row.stored} is {list(parameter.shape)}; {of[0]} is a matrix, of two dimensions")
            form = _form(owners[row.stored.rpartition(".")[0]], row)
            own = _shapes(tuple(parameter.shape), form, row, n_heads, n_kv_heads)
            placed.append(Placed(replace(row, form=form), row.addresses, own, False))
            shapes |= dict(zip(row.addresses, own, strict=True))
    if not placed:
        close = nearest(next(iter(names)), parameters)
        raise ConfigError(f"no parameter of the model has one of these names; its own are {', '.join(close)}, ...")
    order = sorted(shapes, key=_canonical)
    return Mirror(model, placed, Shadow({a: shapes[a] for a in order}, n_heads, n_kv_heads), None)


def _rows_there(row: Row, parameters: Mapping[str, nn.Parameter]) -> list[Row]:
    """The row of each layer that the model has."""
    rows = map(row.at, itertools.count()) if row.per_layer else [row]
    return list(itertools.takewhile(lambda one: one.stored in parameters, rows))


def _form(owner: nn.Module, row: Row) -> Form:
    """How a parameter of that module holds matrices: a Linear is [out, in], a table and a Conv1D are as ours."""
    out_in = isinstance(owner, nn.Linear | nn.MultiheadAttention)
    if len(row.addresses) > 1:
        return STACKED if out_in else BESIDE
    return TRANSPOSED if out_in and row.stored.endswith("weight") else SAME


def _shapes(
    stored: tuple[int, ...], form: Form, row: Row, n_heads: int, n_kv_heads: int
) -> tuple[tuple[int, ...], ...]:
    """Shapes of the matrices in a stored tensor; q is wider than k and v where those are shared by heads."""
    if len(row.addresses) == 1:
        return (stored[::-1] if form is TRANSPOSED else stored,)
    total = stored[0] if form is STACKED else stored[-1]
    rest = stored[1:] if form is STACKED else stored[:-1]
    kinds = [KINDS[address.rpartition(".")[2]] for address in row.addresses]
    shared = [n_kv_heads if kind.divides == "KV" else n_heads if kind.site == "attn" else 1 for kind in kinds]
    heads = {kind.site == "attn" for kind in kinds}
    if total % sum(shared) or len(heads) > 1:
        parts = f"{len(shared)} parts{' of heads' * any(heads)}"
        raise ConfigError(f"{row.stored} is {list(stored)}, which does not divide into {parts}")
    width = total // sum(shared)
    return tuple((*rest, width * count) for count in shared)


def _canonical(address: str) -> tuple[int, int, int]:
    """Tables in first, then layer by layer, then what comes out; kinds in the order of the catalogue."""
    kind, layer = address.rpartition(".")[2], address.partition(".")[0]
    place = int(layer[1:]) if layer[:1] == "L" and layer[1:].isdigit() else None
    site = KINDS[kind].site
    return (1 if place is not None else (0 if site == "embed" else 2), place or 0, list(KINDS).index(kind))


def _covers(names: Mapping[str, str], parameters: Mapping[str, nn.Parameter]) -> bool:
    """Whether every parameter of the model is one of these names."""
    first = {".".join("0" if part.isdigit() else part for part in name.split(".")) for name in parameters}
    return first <= {name.replace("{L}", "0") for name in names}


def _count_heads(model: nn.Module) -> int:
    """The number of heads, as the model's configuration or its attention says it."""
    places = [getattr(model, "config", None), *model.modules()]
    for place in places:
        for name in _HEAD_COUNTS:
            value = getattr(place, name, None)
            if isinstance(value, int) and value > 0:
                return value
    raise ConfigError("the number of heads is not told by the model; give n_heads=")


def _how_to_name(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> str:
    some = ", ".join(list(parameters)[:3])
    return (
        f"{type(model).__name__} is no model that qkv knows by its names ({some}, ...); give names="
        '{"blocks.{L}.attn.qkv.weight": "L{L}.W_Q, L{L}.W_K, L{L}.W_V", ...} and n_heads=, see docs/watching.md'
    )

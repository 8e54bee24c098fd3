"""Activations by name: recording all of them, replacing some, and letting no gradient through some.

Names are `embed`, `L0.resid_pre`, `L0.x`, `L0.q` ..., `norm_f`; of those with heads one may be named: `L0.H3.z`,
`L0.KV1.k`. All work by a `hook` that the forward pass calls with every activation; a training has none, unless some
gradient is to be stopped.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from qkv.errors import AddressError, ChangeError, unknown
from qkv.kernels.autograd import Context
from qkv.models.addresses import parse_selector
from qkv.models.layout import Layout, Sizes

Hook = Callable[[str, Tensor], Tensor]
"""`hook(name, tensor) -> tensor`: sees, and may replace, an activation by its name ("L0.pattern")."""

Stops = Mapping[str, frozenset[int] | None]
"""Activations by name -> the heads that are meant, None for all of it."""

PER_QUERY_HEAD = ("q", "scores", "pattern", "z")
PER_KV_HEAD = ("k", "v")


def activation_names(sizes: Sizes, layout: Layout, *, scope: str = "", cross: bool = False) -> list[str]:
    """Every activation of a stack, in the order in which a forward pass computes them."""
    attention = ("q", "k", "v", "scores", "pattern", "z", "attn_out")
    mixed = attention if layout.mixer == "attention" else ("mix_out",)
    names = [f"{scope}embed"]
    for layer in range(sizes.n_layers):
        block = ("resid_pre", "x", *mixed)
        block += tuple(f"cross.{name}" for name in attention) if cross else ()
        block += () if layout.parallel else ("resid_mid",)
        block += (("mlp_out",) if layout.mlp != "none" else ()) + ("resid_post",)
        names += [f"{scope}L{layer}.{name}" for name in block]
    return [*names, f"{scope}norm_f"]


def recorder() -> tuple[Hook, dict[str, Tensor]]:
    """A hook that keeps every activation, and the dictionary it keeps them in."""
    record: dict[str, Tensor] = {}

    def hook(name: str, tensor: Tensor) -> Tensor:
        record[name] = tensor
        return tensor

    return hook, record


def replacer(replace: Mapping[str, Tensor], names: Sequence[str], sizes: Sizes) -> Hook:
    """A hook that puts `replace[address]` in place of the activation, or of one head's slice of it.

    Values must broadcast to what they replace: the whole activation, or [batch, pos, d_head] (q, k, v, z) and
    [batch, query_pos, key_pos] (scores, pattern) for one head.

    Raises AddressError for an address that no forward pass of this model computes, ChangeError for a shape that does
    not fit.
    """
    by_name: dict[str, list[tuple[str, int | None, Tensor]]] = {}
    for address, value in replace.items():
        name, head = parse_activation(address, names, sizes)
        by_name.setdefault(name, []).append((address, head, value))

    def hook(name: str, tensor: Tensor) -> Tensor:
        for address, head, value in by_name.get(name, ()):
            target = tensor if head is None else tensor[:, head]
            try:
                value = value.to(tensor).expand_as(target)
            except RuntimeError:
                raise ChangeError(
                    f"{address} has shape {tuple(target.shape)} here; the replacement has {tuple(value.shape)}"
                ) from None
            if head is None:
                tensor = value
            else:
                tensor = tensor.clone()
                tensor[:, head] = value
        return tensor

    return hook


def select_activations(selector: str, names: Sequence[str], sizes: Sizes) -> dict[str, frozenset[int] | None]:
    """The activations, among `names` of one stack, that a selector picks; empty where it picks none of them.

    A term that names heads picks those, another whole activations; what a leading `-` names is taken away again.

    Raises AddressError where it does not parse.
    """
    chosen: dict[str, set[int | None]] = {}
    for term in parse_selector(selector):
        for name in names:
            heads = [(address, parse_activation(address, names, sizes)[1]) for address in _head_names([name], sizes)]
            whole = {head for _, head in heads} or {None}
            found = whole if not term.by_head and (term.matches(name, "") or term.text == name) else set()
            found |= {head for address, head in heads if term.by_head and term.matches(address, "")}
            if term.token is None and found:
                before = chosen.get(name, set())
                chosen[name] = before - found if term.subtract else before | found
    n_heads = {name: len(_head_names([name], sizes)) or 1 for name in chosen}
    return {
        name: None if len(heads) == n_heads[name] else frozenset(head for head in heads if head is not None)
        for name, heads in chosen.items()
        if heads
    }


def joined(stops: Sequence[Stops]) -> dict[str, frozenset[int] | None]:
    """What any of them names."""
    found: dict[str, frozenset[int] | None] = {}
    for name, heads in (pair for each in stops for pair in each.items()):
        before = found.get(name, frozenset())
        found[name] = None if heads is None or before is None else before | heads
    return found


def spelled(stops: Stops, sizes: Sizes) -> list[str]:
    """Their addresses: whole activations, or the heads that are meant."""
    return [
        address
        for name, heads in stops.items()
        for address in ([name] if heads is None else [_head_names([name], sizes)[head] for head in sorted(heads)])
    ]


def stopper(stops: Stops, hook: Hook | None = None) -> Hook:
    """A hook that leaves every value as `hook` gives it, and lets no gradient back through those in `stops`.

    A parameter that nothing else leads to gets a gradient of 0, not none.
    """

    def stopped(name: str, tensor: Tensor) -> Tensor:
        tensor = hook(name, tensor) if hook else tensor
        return _Stop.apply(tensor, stops[name]) if name in stops else tensor  # type: ignore[no-any-return]

    return stopped


class _Stop(torch.autograd.Function):
    """The identity, whose gradient is 0 at some heads, or everywhere."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, heads: frozenset[int] | None) -> Tensor:
        ctx.heads = heads
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor, None]:
        (gradient,) = grads
        if ctx.heads is None:
            return torch.zeros_like(gradient), None
        return gradient.index_fill(1, torch.tensor(sorted(ctx.heads), device=gradient.device), 0.0), None


def parse_activation(address: str, names: Sequence[str], sizes: Sizes) -> tuple[str, int | None]:
    """An address as the name of the whole activation and, where it says one, the head.

    Raises AddressError for what is not in `names`, and for a head that it has not.
    """
    found = re.search(r"\.(H|KV)(\d+)(?=\.)", address)
    name = address if found is None else address[: found.start()] + address[found.end() :]
    part = name.rsplit(".", 1)[-1]
    if name not in names or (found and part not in PER_QUERY_HEAD + PER_KV_HEAD):
        raise AddressError(unknown("activation", address, [*names, *_head_names(names, sizes)]))
    if found is None:
        return name, None
    kind, head = found[1], int(found[2])
    if kind == "H" and part in PER_KV_HEAD and sizes.n_kv_heads != sizes.n_heads and head < sizes.n_heads:
        shared = head // (sizes.n_heads // sizes.n_kv_heads)
        raise AddressError(f"query heads share {part} here: {address} is {address.replace(found[0], f'.KV{shared}')}")
    count = sizes.n_kv_heads if part in PER_KV_HEAD else sizes.n_heads
    if head >= count or (kind == "KV" and part in PER_QUERY_HEAD):
        raise AddressError(unknown("activation", address, _head_names([name], sizes)))
    return name, head


def _head_names(names: Sequence[str], sizes: Sizes) -> list[str]:
    """The addresses of single heads' slices of the activations `names`."""
    out = []
    for name in names:
        stem, _, part = name.rpartition(".")
        shared = sizes.n_kv_heads != sizes.n_heads
        if part in PER_QUERY_HEAD or (part in PER_KV_HEAD and not shared):
            out += [f"{stem}.H{head}.{part}" for head in range(sizes.n_heads)]
        elif part in PER_KV_HEAD:
            out += [f"{stem}.KV{head}.{part}" for head in range(sizes.n_kv_heads)]
    return out

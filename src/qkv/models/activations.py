"""Activations by name: recording all of them, and replacing some.

Names are `embed`, `L0.resid_pre`, `L0.x`, `L0.q` ..., `norm_f`; a replacement may name one head: `L0.H3.z`, `L0.KV1.k`.
Both work by a `tap` that the forward pass calls with every activation; training passes none.
"""

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from qkv.errors import AddressError, ChangeError, unknown
from qkv.models.attention import Tap
from qkv.models.layout import Layout, Sizes

__all__ = ["activation_names", "recorder", "replacer"]

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


def recorder() -> tuple[Tap, dict[str, Tensor]]:
    """A tap that keeps every activation, and the dictionary it keeps them in."""
    record: dict[str, Tensor] = {}

    def tap(name: str, tensor: Tensor) -> Tensor:
        record[name] = tensor
        return tensor

    return tap, record


def replacer(replace: Mapping[str, Tensor], names: Sequence[str], sizes: Sizes) -> Tap:
    """A tap that puts `replace[address]` in place of the activation, or of one head's slice of it.

    Values must broadcast to what they replace: the whole activation, or [batch, pos, d_head] (q, k, v, z) and
    [batch, query_pos, key_pos] (scores, pattern) for one head.

    Raises AddressError for an address that no forward pass of this model computes, ChangeError for a shape that does
    not fit.
    """
    by_name: dict[str, list[tuple[str, int | None, Tensor]]] = {}
    for address, value in replace.items():
        name, head = _parse(address, names, sizes)
        by_name.setdefault(name, []).append((address, head, value))

    def tap(name: str, tensor: Tensor) -> Tensor:
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

    return tap


def _parse(address: str, names: Sequence[str], sizes: Sizes) -> tuple[str, int | None]:
    """An address as the name of the whole activation and, where it says one, the head."""
    found = re.search(r"\.(H|KV)(\d+)(?=\.)", address)
    name = address if found is None else address[: found.start()] + address[found.end() :]
    part = name.rsplit(".", 1)[-1]
    if name not in names or (found and part not in PER_QUERY_HEAD + PER_KV_HEAD):
        raise AddressError(unknown("activation", address, [*names, *_head_names(names, sizes)]))
    if found is None:
        return name, None
    kind, head = found[1], int(found[2])
    if kind == "H" and part in PER_KV_HEAD and sizes.n_kv_heads != sizes.n_heads:
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

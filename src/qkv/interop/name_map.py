"""Rows of a name map: which tensor of a checkpoint holds which of our matrices, and in what form, read both ways.

A `Row` is a sentence such as "h.{L}.attn.c_attn.weight is L{L}.W_Q, L{L}.W_K and L{L}.W_V beside one another". A form
takes a stored tensor apart into views in our storage ([in, out], heads as column blocks) and puts it together again, so
the same row imports, exports, and names the parts of a live model's parameters. Nothing here knows a family.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Form:
    """How one stored tensor holds one or more of our matrices."""

    stored_shape: Callable[[Sequence[Shape]], Shape]
    """The shape of the stored tensor that holds matrices of these shapes."""
    split: Callable[[Tensor, Sequence[Shape]], list[Tensor]]
    """The matrices in a stored tensor of the right shape, as views wherever it can be."""
    join: Callable[[Sequence[Tensor]], Tensor]
    """The stored tensor of these matrices; the inverse of `split`."""


def _turned(part: Tensor) -> Tensor:
    """A matrix transposed; a bias as it is."""
    return part.t() if part.ndim == 2 else part


SAME = Form(lambda shapes: shapes[0], lambda stored, shapes: [stored], lambda parts: parts[0])
"""As stored here."""
ONE_PLUS = Form(SAME.stored_shape, lambda stored, shapes: [1 + stored], lambda parts: parts[0] - 1)
"""A gain stored as what it is above 1."""
ONE = Form(lambda shapes: (1, *shapes[0]), lambda stored, shapes: [stored[0]], lambda parts: parts[0][None])
"""The same with an axis of length 1 before it, as a batch of one."""
TRANSPOSED = Form(lambda shapes: shapes[0][::-1], lambda stored, shapes: [stored.t()], lambda parts: parts[0].t())
"""[out, in], the weight of a torch Linear."""
BESIDE = Form(
    lambda shapes: (*shapes[0][:-1], sum(shape[-1] for shape in shapes)),
    lambda stored, shapes: list(stored.split([shape[-1] for shape in shapes], dim=-1)),
    lambda parts: torch.cat(list(parts), dim=-1),
)
"""Several matrices [in, out] (or biases [out]) side by side along the last axis."""
STACKED = Form(
    lambda shapes: (sum(shape[-1] for shape in shapes), *shapes[0][:-1]),
    lambda stored, shapes: [_turned(piece) for piece in stored.split([shape[-1] for shape in shapes], dim=0)],
    lambda parts: torch.cat([_turned(part) for part in parts], dim=0),
)
"""Several matrices, each [out, in] (biases [out]), one under the other along the first axis."""


def by_heads(n_kv_heads: int) -> Form:
    """For each key/value head in turn its query heads, k and v, along the first axis: [n_kv_heads, group + 2, d_head,
    in], or without `in` for biases."""

    def split(stored: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        widths = [shape[-1] // n_kv_heads for shape in shapes]
        return [_turned(p.flatten(0, 1)) for p in stored.unflatten(0, (n_kv_heads, -1)).split(widths, dim=1)]

    def join(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([_turned(part).unflatten(0, (n_kv_heads, -1)) for part in parts], dim=1).flatten(0, 1)

    return Form(STACKED.stored_shape, split, join)


def of_neighbours(d_head: int, turned: int) -> Form:
    """W_Q or W_K [out, in], or their biases [out], whose rotary positions pair neighbours 2 i and 2 i + 1 of the first
    `turned` of `d_head` coordinates; ours pair i with i + turned / 2, so they are put in that order.
    """

    def ordered(stored: Tensor, order: Tensor) -> Tensor:
        return stored.unflatten(0, (-1, d_head))[:, order].flatten(0, 1)

    every = torch.arange(d_head)
    order = torch.cat((every[:turned:2], every[1:turned:2], every[turned:]))
    back = order.argsort()
    return Form(
        TRANSPOSED.stored_shape,
        lambda stored, shapes: [ordered(stored, order).t()],
        lambda parts: ordered(parts[0].t(), back),
    )


def of_patches(channels: int, side: int) -> Form:
    """The weight of a convolution that cuts patches, [d_model, channels, side, side], of our [n_values, d_model]."""
    return Form(
        lambda shapes: (shapes[0][1], channels, side, side),
        lambda stored, shapes: [stored.flatten(1).t()],
        lambda parts: parts[0].t().unflatten(1, (channels, side, side)),
    )


def after(n: int) -> Form:
    """The rows that follow `n` rows which no real position reads; those are zero where we write them."""
    return Form(
        lambda shapes: (shapes[0][0] + n, *shapes[0][1:]),
        lambda stored, shapes: [stored[n:]],
        lambda parts: torch.cat([parts[0].new_zeros(n, *parts[0].shape[1:]), parts[0]]),
    )


@dataclass(frozen=True)
class Row:
    """One stored tensor and the addresses that it holds; `{L}` in both stands for each layer.

    A row whose addresses a model does not have (a bias it was configured without) is not there for that model. Where
    several rows hold one address, those that a file has must agree.
    """

    stored: str
    addresses: tuple[str, ...]
    form: Form = SAME
    copy: bool = False
    """Whether it is written for the sake of others, and not read."""
    alias: bool = False
    """Whether it is another name in use, which is read and never written."""

    def at(self, layer: int) -> "Row":
        """The row of one layer."""
        stored, *addresses = (name.replace("{L}", str(layer)) for name in (self.stored, *self.addresses))
        return replace(self, stored=stored, addresses=tuple(addresses))

    @property
    def per_layer(self) -> bool:
        """Whether there is one for each layer."""
        return "{L}" in self.stored

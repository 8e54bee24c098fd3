"""Rows of a name map: which tensor of a checkpoint holds which of our matrices, and in what form, read both ways.

A `Row` is a sentence such as "h.{L}.attn.c_attn.weight is L{L}.W_Q, L{L}.W_K and L{L}.W_V beside one another". A form
takes a stored tensor apart into views in our storage ([in, out], heads as column blocks) and puts it together again, so
the same row imports, exports, and names the parts of a live model's parameters. Nothing here knows a family.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

Shape = tuple[int, ...]


class Form(Protocol):
    """How one stored tensor holds one or more of our matrices."""

    def stored_shape(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of the stored tensor that holds matrices of these shapes."""
        ...

    def split(self, stored: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """The matrices in a stored tensor of the right shape, as views wherever it can be."""
        ...

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The stored tensor of these matrices; the inverse of `split`."""
        ...


class _Same:
    """As stored here."""

    def stored_shape(self, shapes: Sequence[Shape]) -> Shape:
        return shapes[0]

    def split(self, stored: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [stored]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return parts[0]


class _Transposed:
    """[out, in], the weight of a torch Linear."""

    def stored_shape(self, shapes: Sequence[Shape]) -> Shape:
        return shapes[0][::-1]

    def split(self, stored: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [stored.t()]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return parts[0].t()


class _Beside:
    """Several matrices [in, out] (or biases [out]) side by side along the last axis."""

    def stored_shape(self, shapes: Sequence[Shape]) -> Shape:
        return (*shapes[0][:-1], sum(shape[-1] for shape in shapes))

    def split(self, stored: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return list(stored.split([shape[-1] for shape in shapes], dim=-1))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts), dim=-1)


class _Stacked:
    """Several matrices, each [out, in] (biases [out]), one under the other along the first axis."""

    def stored_shape(self, shapes: Sequence[Shape]) -> Shape:
        return (sum(shape[-1] for shape in shapes), *shapes[0][:-1])

    def split(self, stored: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        pieces = stored.split([shape[-1] for shape in shapes], dim=0)
        return [piece.t() if piece.ndim == 2 else piece for piece in pieces]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.t() if part.ndim == 2 else part for part in parts], dim=0)


class _One:
    """The same with an axis of length 1 before it, as a batch of one."""

    def stored_shape(self, shapes: Sequence[Shape]) -> Shape:
        return (1, *shapes[0])

    def split(self, stored: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [stored[0]]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return parts[0][None]


SAME, TRANSPOSED, BESIDE, STACKED, ONE = _Same(), _Transposed(), _Beside(), _Stacked(), _One()


@dataclass(frozen=True)
class Interleaved:
    """For each key/value head in turn its query heads, k and v, along the first axis: [n_kv_heads, group + 2, d_head,
    in], or without `in` for biases."""

    n_kv_heads: int

    def stored_shape(self, shapes: Sequence[Shape]) -> Shape:
        return STACKED.stored_shape(shapes)

    def split(self, stored: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        widths = [shape[-1] // self.n_kv_heads for shape in shapes]
        pieces = [piece.flatten(0, 1) for piece in stored.unflatten(0, (self.n_kv_heads, -1)).split(widths, dim=1)]
        return [piece.t() if piece.ndim == 2 else piece for piece in pieces]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        rows = [(part.t() if part.ndim == 2 else part).unflatten(0, (self.n_kv_heads, -1)) for part in parts]
        return torch.cat(rows, dim=1).flatten(0, 1)


@dataclass(frozen=True)
class Neighbours:
    """W_Q or W_K [out, in], or their biases [out], whose rotary positions pair neighbours 2 i and 2 i + 1 of the first
    `turned` of `d_head` coordinates; ours pair i with i + turned / 2, so they are put in that order.
    """

    d_head: int
    turned: int

    def stored_shape(self, shapes: Sequence[Shape]) -> Shape:
        return shapes[0][::-1]

    def split(self, stored: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [stored.unflatten(0, (-1, self.d_head))[:, self._order()].flatten(0, 1).t()]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        back = self._order().argsort()
        return parts[0].t().unflatten(0, (-1, self.d_head))[:, back].flatten(0, 1)

    def _order(self) -> Tensor:
        every = torch.arange(self.d_head)
        return torch.cat((every[: self.turned : 2], every[1 : self.turned : 2], every[self.turned :]))


class _OnePlus:
    """A gain stored as what it is above 1."""

    def stored_shape(self, shapes: Sequence[Shape]) -> Shape:
        return shapes[0]

    def split(self, stored: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [1 + stored]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return parts[0] - 1


ONE_PLUS = _OnePlus()


@dataclass(frozen=True)
class PatchForm:
    """The weight of a convolution that cuts patches, [d_model, channels, side, side], of our [n_values, d_model]."""

    channels: int
    side: int

    def stored_shape(self, shapes: Sequence[Shape]) -> Shape:
        return (shapes[0][1], self.channels, self.side, self.side)

    def split(self, stored: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [stored.flatten(1).t()]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return parts[0].t().unflatten(1, (self.channels, self.side, self.side))


@dataclass(frozen=True)
class After:
    """The rows that follow `n` rows which no real position reads; those are zero where we write them."""

    n: int

    def stored_shape(self, shapes: Sequence[Shape]) -> Shape:
        return (shapes[0][0] + self.n, *shapes[0][1:])

    def split(self, stored: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        return [stored[self.n :]]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([parts[0].new_zeros(self.n, *parts[0].shape[1:]), parts[0]])


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

"""Rows of the catalogue: kinds of matrices, an entry for each parameter, and parts: an entry, one head or row of it.

Storage is for right multiplication, x W, as [in, out]; heads are column blocks of W_Q, W_K, W_V and row blocks of W_O.
`Part` alone translates storage into the field's shapes: W_Q, W_K, W_V [n_heads, d_model, d_head], W_O [n_heads, d_head,
d_model]. With shared key/value heads, n_heads of W_K and W_V counts those, and L2.H3.W_K is the one query head 3 reads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from qkv.errors import AddressError, ChangeError, unknown
from qkv.models.addresses import parse_address
from qkv.shapes import Num


@dataclass(frozen=True, slots=True)
class Kind:
    """What the last part of an address says of a matrix."""

    site: Literal["embed", "attn", "rnn", "mlp", "norm", "head"]
    divides: Literal["H", "KV", "row", ""] = ""
    """Into query heads, key/value heads, rows of tokens or positions, or not at all."""
    axis: int = 0
    """The axis of storage along which the pieces lie."""


def _of(kind: Kind, names: str) -> dict[str, Kind]:
    return dict.fromkeys(names.split(), kind)


KINDS: Mapping[str, Kind] = {
    **_of(Kind("embed", "row", 0), "W_E W_pos W_type W_rel"),
    **_of(Kind("embed"), "W_token b_E W_project b_project"),
    **_of(Kind("attn", "H", 1), "W_Q"),
    **_of(Kind("attn", "KV", 1), "W_K W_V"),
    **_of(Kind("attn", "H", 0), "W_O b_Q"),
    **_of(Kind("attn", "KV", 0), "b_K b_V"),
    **_of(Kind("attn"), "b_O"),
    **_of(Kind("attn", "H", 0), "b_sink"),
    **_of(Kind("rnn"), "W_ih W_hh b_ih W_ih_back W_hh_back b_ih_back"),
    **_of(Kind("mlp"), "W_in W_gate W_out b_in b_out"),
    **_of(Kind("norm"), "gain bias"),
    **_of(Kind("head"), "W_transform b_transform"),
    **_of(Kind("head", "row", 1), "W_U"),
    **_of(Kind("head", "row", 0), "b_U"),
    **_of(Kind("head"), "W_pool b_pool W_cls b_cls"),
}
"""Last part of an address -> its kind. A new kind of matrix is one word here."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Entry:
    """One parameter under one of its names."""

    address: str
    parameter: nn.Parameter
    layer: int | None
    site: str
    """embed, attn, rnn, mlp, norm or head."""
    kind: str
    """Last part of the address: `W_Q`, `gain`."""
    shape: tuple[int, ...]
    """In storage; of a tied W_U its own, [d_model, d_vocab]."""
    n_heads: int = 0
    """Heads it divides into (of W_K and W_V the key/value heads); 0 where it has none."""
    group: int = 1
    """Query heads that share each of them."""
    tied_to: str | None = None
    """For a second name: the address whose storage it shares."""
    transposed: bool = False
    """Whether this name is the transpose of the storage."""

    @property
    def storage(self) -> str:
        """The first name of its storage."""
        return self.tied_to or self.address

    @property
    def divides(self) -> str:
        """Into "H", "KV", "row", or "" where it does not."""
        return KINDS[self.kind].divides

    @property
    def axis(self) -> int:
        """The axis of the stored parameter along which its heads or rows lie."""
        return KINDS[self.kind].axis ^ self.transposed

    @property
    def n_pieces(self) -> int:
        """Heads or rows; 1 where it does not divide."""
        return self.n_heads or (self.parameter.shape[self.axis] if self.divides else 1)

    @property
    def width(self) -> int:
        """Of one piece along `axis`: d_head, or 1 for a row."""
        return self.parameter.shape[self.axis] // self.n_pieces

    def heads(self) -> Iterator["Part"]:
        """Every name of every head: L2.H3.W_K for each query head, and L2.KV1.W_K for each key/value head."""
        stem = self.address.removesuffix(self.kind)
        for piece in range(self.n_heads):
            names = [f"{stem}H{head}.{self.kind}" for head in range(piece * self.group, (piece + 1) * self.group)]
            for name in names:
                yield Part(name, self, piece, tuple(other for other in names if other != name))
            if self.divides == "KV":
                yield Part(f"{stem}KV{piece}.{self.kind}", self, piece, tuple(names) if self.group > 1 else ())

    def pieces(self) -> Iterator["Part"]:
        """The heads or rows that together are this entry, each once."""
        if self.n_heads:
            yield from {part.piece: part for part in self.heads()}.values()
        else:
            yield from (Part(f"{self.address}[{row}]", self, row) for row in range(self.n_pieces))


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """An entry, or one head or row of it."""

    address: str
    entry: Entry
    piece: int | None = None
    """Which head (of W_K and W_V: key/value head) or which row; None is the whole."""
    shared_with: tuple[str, ...] = ()
    """Other query heads' names for the same key/value head."""

    def of(self, stored: Num[Tensor, "..."]) -> Num[Tensor, "..."]:
        """This part of any tensor in the storage's shape, as a view in the storage's order."""
        entry = self.entry
        return stored if self.piece is None else stored.narrow(entry.axis, self.piece * entry.width, entry.width)

    def shaped(self, stored: Num[Tensor, "..."]) -> Num[Tensor, "..."]:
        """This part of any tensor in the storage's shape, as a view in the field's shape."""
        entry, values = self.entry, self.of(stored)
        if self.piece is not None:
            return values.squeeze(entry.axis) if entry.divides == "row" else values
        if entry.n_heads:
            return values.unflatten(entry.axis, (entry.n_heads, -1)).movedim(entry.axis, 0)
        return values.T if entry.transposed else values

    def view(self) -> Tensor:
        """The values, detached, in the parameter's own memory.

        Whole W_Q, W_K, W_V [n_heads, d_model, d_head], W_O [n_heads, d_head, d_model], b_Q, b_K, b_V [n_heads,
        d_head]; a head without the first axis; a row [d_model]; everything else as stored.
        """
        return self.shaped(self.entry.parameter.detach())

    def grad(self) -> Tensor | None:
        """The gradient in the same shape and its own memory, or None where there is none."""
        grad = self.entry.parameter.grad
        return None if grad is None else self.shaped(grad)

    def write(self, values: Num[Tensor, "..."]) -> None:
        """Replace the values by a tensor of the shape of `view()`; heads in `shared_with` change with it.

        Raises ChangeError where the shape is another.
        """
        view = self.view()
        if values.shape != view.shape:
            raise ChangeError(f"{self.address} is {list(view.shape)}; it cannot take values of {list(values.shape)}")
        view.copy_(values)


def make_entry(
    address: str, parameter: nn.Parameter, owner: nn.Module, *, tied_to: str | None = None, transposed: bool = False
) -> Entry:
    """The entry of a parameter that `owner` holds; an attention says there how many heads it has.

    Raises AddressError for a kind that `KINDS` has no row for.
    """
    kind = address.rpartition(".")[2]
    if kind not in KINDS:
        raise AddressError(unknown("kind of matrix", kind, KINDS))
    n_heads = getattr(owner, "n_heads", 1)
    n_kv_heads = getattr(owner, "n_kv_heads", n_heads)
    shape = tuple(parameter.shape)
    return Entry(
        address=address,
        parameter=parameter,
        layer=parse_address(address).layer,
        site=KINDS[kind].site,
        kind=kind,
        shape=shape[::-1] if transposed else shape,
        n_heads={"H": n_heads, "KV": n_kv_heads}.get(KINDS[kind].divides, 0),
        group=n_heads // n_kv_heads if KINDS[kind].divides == "KV" else 1,
        tied_to=tied_to,
        transposed=transposed,
    )

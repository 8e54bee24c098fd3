"""What a change can do to a matrix: one function per op that writes values, and one table of all ops.

An op is a pure function of its `Target`: the present values, the arguments, the seed and the step. Random values are
drawn by name, so one change of one address is the same matrix in every arm of a study. Nothing is ever unpickled.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from qkv.changes.stored import Loader, Stored, stored_values
from qkv.errors import AddressError, ChangeError
from qkv.models.addresses import parse_address
from qkv.models.matrices import Catalogue, Entry, Part
from qkv.models.start import start_values
from qkv.randomness import generator, key

_ROUNDING = 1e-6
"""Of the largest singular value: what is below that is none, in float32."""


@dataclass(frozen=True, slots=True)
class Target:
    """A matrix that an op is asked for new values of. All tensors here are as stored."""

    entry: Entry
    present: Tensor
    """Its values so far."""
    args: tuple[float | int | str, ...]
    step: int
    """The training step before which it is written."""
    seed: int
    catalogue: Catalogue
    loader: Loader | None

    def start(self, seed: int) -> Tensor:
        """Its starting values under a seed: what `build` gave it."""
        entry, model = self.entry, self.catalogue.model
        layout, sizes = getattr(model, "layout", None), getattr(model, "sizes", None)
        if layout is None or sizes is None:
            raise ChangeError(f"{entry.address} has no start on record: this model has no layout")
        shape = tuple(self.present.shape)
        return start_values(layout.start, entry.address, entry.kind, shape, shape[0], sizes.n_layers, seed)

    def normal(self, op: str) -> Tensor:
        """N(0, 1) values, drawn by (seed, op, address, step), float32."""
        draws = generator(self.seed, op, self.entry.address, self.step)
        return torch.from_numpy(draws.standard_normal(tuple(self.present.shape), dtype="float32"))


def _identity(target: Target) -> Tensor:
    """W = I, so that x W = x; a head is its own coordinates of x, from h d_head to (h + 1) d_head."""
    shape = tuple(target.present.shape)
    d_model = getattr(getattr(target.catalogue.model, "sizes", None), "d_model", shape[0])
    if shape != (d_model, d_model):
        raise ChangeError(
            f"{target.entry.address} cannot be the identity: it is stored as {_by(shape)}, "
            f"and the identity needs d_model x d_model, here {d_model} x {d_model}"
        )
    return torch.eye(d_model)


def _random(target: Target) -> Tensor:
    """N(0, std), or without std another draw from the matrix's own start."""
    if not target.args:
        return target.start(key(target.seed, "random", target.step) % 2**63)
    return target.normal("random") * float(target.args[0])


def _orthogonal(target: Target, part: Part) -> Tensor:
    """Orthonormal columns, or rows if those are fewer, uniform over all such (Saxe et al. 2013, arXiv 1312.6120)."""
    draw = part.of(target.normal("orthogonal")).double()
    if draw.ndim != 2 or min(draw.shape) < 2:
        raise ChangeError(f"{part.address} cannot be orthogonal: it is {_by(draw.shape)}, not a matrix")
    q, r = torch.linalg.qr(draw if draw.shape[0] >= draw.shape[1] else draw.T)
    q = q * torch.where(r.diagonal() < 0, -1.0, 1.0)
    return q if draw.shape[0] >= draw.shape[1] else q.T


def _rank(target: Target, part: Part) -> Tensor:
    """The nearest matrix of that rank, by its largest singular values (Eckart and Young 1936)."""
    values, rank = part.of(target.present), int(target.args[0])
    if values.ndim != 2 or rank >= min(values.shape):
        raise ChangeError(f"rank({rank}) has no effect on {part.address}: it is {_by(values.shape)}")
    u, s, vh = torch.linalg.svd(values.double(), full_matrices=False)
    if s[rank] <= _ROUNDING * s[0]:
        return values
    return (u[:, :rank] * s[:rank]) @ vh[:rank]


def _mean(target: Target) -> Tensor:
    """Each head or row becomes the mean of all heads or rows of its matrix."""
    entry, present = target.entry, target.present
    if entry.n_pieces < 2:
        raise ChangeError(f"{entry.address} has no mean: it is not made of several heads or rows")
    mean = present.unflatten(entry.axis, (entry.n_pieces, entry.width)).mean(dim=entry.axis)
    return torch.cat([mean] * entry.n_pieces, dim=entry.axis)


def _by(shape: tuple[int, ...]) -> str:
    """`64 x 256`."""
    return " x ".join(str(n) for n in shape)


@dataclass(frozen=True, slots=True)
class Argument:
    """What an op takes in its parentheses."""

    name: str
    read: Callable[[str], Any]
    """Raises ValueError, saying what is expected."""
    required: bool = True


@dataclass(frozen=True, slots=True)
class Op:
    """One op: what it says it did, what it writes, what it takes and whether it then holds."""

    sentence: str
    """After the address, with `{}` for the argument."""
    whole: Callable[[Target], Tensor] | None = None
    """New values of the whole matrix, of which a head or row takes its part."""
    piece: Callable[[Target, Part], Tensor] | None = None
    """New values of one part, where they are not part of new values of the whole."""
    read: Callable[[Target, Part], Stored] | None = None
    """What is read of one part in advance, to be laid over the values that it then has."""
    argument: Argument | None = None
    freezes: Literal["no", "unless train=true", "always"] = "no"
    on_activations: bool = False
    """Whether it acts, for its window, on activations, and writes no matrix."""

    @property
    def writes(self) -> bool:
        """Whether it gives new values."""
        return any(way is not None for way in (self.whole, self.piece, self.read))


def _std(text: str) -> float:
    if (value := _number(text)) <= 0:
        raise ValueError("a number above 0")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("a number")
    return value


def _factor(text: str) -> float:
    if (value := _number(text)) == 1:
        raise ValueError("a number other than 1, which has no effect")
    return value


def _whole_number(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise ValueError("a whole number of at least 1")
    return int(text)


def lora_numbers(text: str) -> tuple[int, float]:
    """Rank and alpha of `r` or `r,alpha=A`; alpha is the rank where none is given. Raises ValueError."""
    rank, comma, rest = text.partition(",")
    name, _, alpha = rest.partition("=")
    if comma and name.strip() != "alpha":
        raise ValueError("a rank and, if you like, alpha, as in lora(8,alpha=16)")
    found = _whole_number(rank.strip())
    return found, _std(alpha) if comma else float(found)


def _lora(text: str) -> str:
    rank, alpha = lora_numbers(text)
    return f"{rank}" if alpha == rank else f"{rank},alpha={alpha!r}"


def _address(text: str) -> str:
    try:
        address = parse_address(text)
    except AddressError:
        address = None
    if address is None or address.kind != "matrix" or address.head is not None or address.token is not None:
        raise ValueError("the address of a whole matrix, such as L0.W_Q")
    return text


_HELD: Literal["unless train=true"] = "unless train=true"

OPS: Mapping[str, Op] = {
    "freeze": Op("frozen", freezes="always"),
    "only": Op("trained, and everything else frozen", freezes="always"),
    "identity": Op("set to the identity", _identity, freezes=_HELD),
    "random": Op("drawn at random {}", _random, argument=Argument("std", _std, required=False), freezes=_HELD),
    "orthogonal": Op("set to a random orthogonal matrix", piece=_orthogonal, freezes=_HELD),
    "zero": Op("set to 0", lambda target: torch.zeros_like(target.present), freezes=_HELD),
    "share": Op("one matrix with {}", argument=Argument("B", _address)),
    "load": Op(
        "loaded from {}",
        read=lambda target, part: stored_values(str(target.args[0]), part, target.catalogue, target.loader),
        argument=Argument("FILE or RUN:B@STEP", str),
    ),
    "reset": Op("set back to its start", lambda target: target.start(target.seed)),
    "scale": Op(
        "multiplied by {}", lambda target: target.present * float(target.args[0]), argument=Argument("c", _factor)
    ),
    "rank": Op("cut to rank {}", piece=_rank, argument=Argument("r", _whole_number)),
    "mean": Op("set to the mean of its heads or rows", _mean),
    "lora": Op("frozen, plus a trained product of two factors, lora({})", argument=Argument("r,alpha=A", _lora)),
    "stop_gradient": Op("passed by no gradient", on_activations=True),
}
"""Name -> op. A new op is one function and one row here."""

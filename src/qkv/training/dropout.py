"""Dropout by name: each mask is a pure function of (seed, step, global example index, site), whatever the batch.

So an update split into micro-batches, or shared by ranks, drops exactly what the whole batch would, and a resumed run
needs no generator state. The bits come from SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom
number generators") in int64 arithmetic, which every device computes alike; each (seed, step, site, example) starts a
stream of its own. Dropout itself: Srivastava et al. 2014, JMLR 15.
"""

from copy import copy

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from qkv.kernels import elementwise
from qkv.kernels.autograd import Context, once_differentiable
from qkv.randomness import key

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MOST_SITES = 4096
"""Of one model: two of each block and one more."""
_LEVELS = 65536
"""Each element gets 16 of the 64 bits of a draw: p is exact to 1/65536, and the survivors' scale to the last bit."""


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, in place, on int64 that stands for unsigned 64-bit; shifts are made logical by masks."""
    z ^= (z >> 30) & (2**34 - 1)
    z *= _signed(_MIX_1)
    z ^= (z >> 27) & (2**37 - 1)
    z *= _signed(_MIX_2)
    z ^= (z >> 31) & (2**33 - 1)
    return z


def _halves(seed: int, step: int, site: str) -> tuple[int, int]:
    """The name of a site in a step, as two int64."""
    name = key(seed, "dropout", step, site)
    return _signed(name), _signed(name >> 64)


def _named(examples: Tensor, low: int | Tensor, high: int | Tensor) -> Tensor:
    """Where each example's stream of bits starts under a name: int64, in the shape of `examples`, where they are."""
    # Two rounds between the example's number and its stream, so that neighbours' streams start far apart.
    streams = _mix((examples + low) * _signed(_GOLDEN))
    return _mix(streams ^ high)


def _streams(examples: Tensor, seed: int, step: int, site: str) -> Tensor:
    """The same at a site in a step."""
    return _named(examples, *_halves(seed, step, site))


@torch.library.custom_op("qkv::dropout_streams", mutates_args=())
def _compiled_streams(examples: Tensor, seed: int, step: Tensor, site: str) -> Tensor:
    """The same for a compiler, which looks neither into it nor at the number of the step."""
    return _streams(examples, seed, int(step), site)


@_compiled_streams.register_fake
def _(examples: Tensor, seed: int, step: Tensor, site: str) -> Tensor:
    return torch.empty_like(examples)


def _draws(streams: Tensor, places: Tensor | None, width: int) -> Tensor:
    """`width` draws of 16 bits from each stream, or from its part at a place: int16 [*streams.shape, width]."""
    draws = torch.arange(1, -(-width // 4) + 1, device=streams.device)
    if places is not None:
        draws = draws + places[..., None] * len(draws)
    return _mix(draws * _signed(_GOLDEN) + streams[..., None]).view(torch.int16)[..., :width]


@torch.library.custom_op("qkv::dropout_draws", mutates_args=())
def _compiled_draws(streams: Tensor, places: Tensor | None, width: int) -> Tensor:
    """The same for a compiler: torch's 2.11 takes a count on a GPU for one of 32 bits, which the factor is not."""
    return _draws(streams, places, width).contiguous()


@_compiled_draws.register_fake
def _(streams: Tensor, places: Tensor | None, width: int) -> Tensor:
    return streams.new_empty((*streams.shape, width), dtype=torch.int16)


class Dropping:
    """`drop(site, x)` for the examples of one (micro-)batch; x [batch, ...] of any shape, one row an example.

    Element i of an example (row-major) has the same fate whatever comes after it, so padding changes nothing. Survivors
    are divided by their share, so the mean is kept.
    """

    _owners: Tensor | None = None
    _places: Tensor | None = None

    def __init__(self, p: float, seed: int, step: Tensor, examples: Tensor) -> None:
        self._p, self._seed, self._step, self._examples = p, seed, step, examples
        self._threshold = min(round(p * _LEVELS), _LEVELS - 1)

    def placed(self, owners: Tensor, places: Tensor) -> "Dropping":
        """The same for x [batch, pos, ...] whose rows hold several examples, one behind another.

        owners, places: int64 [batch, pos]: which example of the batch a position belongs to, and which of its positions
        it is. Where a position's values come in fours, each has the fate it would have in a row of its own. Positions
        of no example may name any.
        """
        placed = copy(self)
        placed._owners, placed._places = owners, places
        return placed

    def streams(self, site: str) -> Tensor:
        """Where each example's bits start at a site: int64 [batch]."""
        if torch.compiler.is_compiling():
            return _compiled_streams(self._examples, self._seed, self._step, site)
        return _streams(self._examples, self._seed, int(self._step), site)

    def __call__(self, site: str, x: Tensor) -> Tensor:
        """x with a share of its values 0."""
        streams, places = self._drawn(site, x)
        if (by := _compiled(x)) is not None:
            return _Dropped.apply(x, by, self._as(x, streams, places))
        draw = _compiled_draws if torch.compiler.is_compiling() else _draws
        bits = draw(streams, places, x[(0,) * streams.ndim].numel()).reshape(x.shape)
        kept = bits >= self._threshold - _LEVELS // 2
        return x * (kept * self._scale).to(x.dtype)

    def onto(self, stream: Tensor, site: str, x: Tensor) -> Tensor:
        """stream + drop(site, x)."""
        if (by := _compiled(x)) is None or _compiled(stream) is None or stream.dtype != torch.float32:
            return stream + self(site, x)
        return _DroppedOnto.apply(stream, x, by, self._as(x, *self._drawn(site, x)))

    def _drawn(self, site: str, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The stream of bits of each row, and the place in it where it begins."""
        streams = self.streams(site).to(x.device)
        if self._owners is not None:
            streams = streams[self._owners.to(x.device)]
        return streams, None if self._places is None else self._places.to(x.device)

    def _as(self, x: Tensor, streams: Tensor, places: Tensor | None) -> elementwise.Draws:
        """The arguments of the compiled passes over x; the factor has x's dtype."""
        scale = float(torch.tensor(self._scale, dtype=x.dtype))
        places = None if places is None else places.contiguous()
        return elementwise.Draws(streams.contiguous(), places, self._threshold - _LEVELS // 2, scale)

    @property
    def _scale(self) -> float:
        """By which survivors are multiplied."""
        return _LEVELS / (_LEVELS - self._threshold)


def _compiled(x: Tensor) -> elementwise.Compiled | None:
    """The compiled passes, where they are taken now and serve x."""
    return None if torch.compiler.is_compiling() else elementwise.compiled_for(x)


class _Dropped(Function):
    """Dropout by one compiled pass each way: what is drawn is drawn again, and not kept."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, by: elementwise.Compiled, draws: elementwise.Draws) -> Tensor:
        ctx.by, ctx.draws = by, draws
        return by.drop(x, draws)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (dy,) = grads
        return ctx.by.drop(dy, ctx.draws), None, None


class _DroppedOnto(Function):
    """The same, and the sum with the residual stream with it."""

    @staticmethod
    def forward(ctx: Context, stream: Tensor, x: Tensor, by: elementwise.Compiled, draws: elementwise.Draws) -> Tensor:
        ctx.by, ctx.draws, ctx.dtype = by, draws, x.dtype
        return by.drop_onto(x, draws, stream)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (dy,) = grads
        return dy, ctx.by.drop_onto_back(dy, ctx.draws, ctx.dtype), None, None


class PlayedDropping(Dropping):
    """The same draws where a device plays its work again: what differs from step to step is read from its memory.

    `follow(drop)` writes there what another one's step and examples are. Sites are known once they were asked for.
    """

    def __init__(self, like: Dropping, device: torch.device | str) -> None:
        super().__init__(like._p, like._seed, like._step, like._examples.to(device))
        self._rows: dict[str, int] = {}
        self._names = torch.zeros(_MOST_SITES, 2, dtype=torch.int64, device=device)

    def streams(self, site: str) -> Tensor:
        """Where each example's bits start at a site: int64 [batch]."""
        low, high = self._names[self._rows.setdefault(site, len(self._rows))]
        return _named(self._examples, low, high)

    def follow(self, drop: Dropping) -> None:
        """Draw what `drop` would from here on; its examples are as many."""
        self._examples.copy_(self._pinned(drop._examples), non_blocking=True)
        if names := [_halves(drop._seed, int(drop._step), site) for site in self._rows]:
            self._names[: len(names)].copy_(self._pinned(torch.tensor(names)), non_blocking=True)

    def _pinned(self, x: Tensor) -> Tensor:
        """Where a device can fetch it while the processor goes on."""
        return x.pin_memory() if self._names.device.type == "cuda" else x


def make_drop(p: float, seed: int, step: int, example_ids: np.ndarray) -> Dropping | None:
    """Dropout of a share p (0 to 1, not included) of every site; None where p is 0 and nothing is to be drawn.

    example_ids: int64 [batch], global numbers of the examples.
    """
    if p == 0:
        return None
    assert 0 < p < 1
    examples = torch.from_numpy(np.ascontiguousarray(example_ids, dtype=np.int64))
    return Dropping(p, seed, torch.tensor(step), examples)

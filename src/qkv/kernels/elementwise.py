"""The passes over activations between the products of a block: by torch's operators, or by compiled ones of ours.

`Formulas` (in `formulas`) writes each of them in operators of torch; it is what `Compiled` must equal. A compiled pass
reads and writes its rows once where the operators take five to ten turns over memory. `using` says which is taken, and
up to which sizes products and attention are ours (`Kernels`); a training says it for as long as it runs
(`Machine.native`, `Machine.kernels`).
"""

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv import native
from qkv.kernels.amx import Tiles
from qkv.kernels.attention import Attending
from qkv.kernels.dispatch import call
from qkv.kernels.gemm import Multiplying, Vectors
from qkv.kernels.reference import (
    Bias,
    Formulas,
    Gain,
    Gains,
    HeadBias,
    Heads,
    Joined,
    Kept,
    Like,
    NormKind,
    Product,
    Rows,
    SideGrads,
    Sides,
    Weight,
)
from qkv.shapes import Bool, Float, Float32, Float64, Int64

WIDEST_HEAD = 4096
"""Numbers of a head that a compiled pass works on at a time."""


ANY_SIZE = 2**30
"""As a limit in `Kernels`: no matrix of a training on a CPU is larger."""


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The largest sizes for which compiled products and attention are used; torch computes larger ones. 0 means never.

    They are measured once on each machine, because which code is faster depends on the processor. The choice affects
    the last bits of a result, so a run keeps the limits it started with.
    """

    product: int = 0
    """Products with a bias, a residual sum or nothing after them: the number of weights in the matrix."""
    activated: int = 0
    """Products before or after an activation without a gate: the number of weights in the matrix."""
    gradient: int = 0
    """Gradients of weight matrices: the number of weights in the matrix."""
    keys: int = 0
    """Attention: positions times d_head, the size of one head's keys."""


UNMEASURED = {
    torch.bfloat16: Kernels(product=2**18, activated=5 * 2**17, gradient=ANY_SIZE, keys=ANY_SIZE),
    torch.float32: Kernels(product=2**16, activated=2**16, gradient=2**20, keys=ANY_SIZE),
}
"""The limits of runs whose configuration names none: measured on processors with AVX-512 and AMX, before each machine
measured its own (`training.calibration`)."""

CType = type[ctypes.c_long] | type[ctypes.c_void_p] | type[ctypes.c_float]
_CHUNKS = 32
"""Shares in which compiled passes make sums over rows."""


class Draws(NamedTuple):
    """What is drawn at a site of dropout, as `training/dropout.py` has it."""

    streams: Int64[Tensor, "*rows"]
    """Of the first dimensions of what is dropped: each has the draws of one row of the others."""
    places: Int64[Tensor, "*rows"] | None
    """From which part of its stream on a row draws; None: from its start."""
    limit: int
    scale: float

    def of(self, x: Float[Tensor, "..."]) -> tuple[object, ...]:
        """As a compiled pass over x is told."""
        n = self.streams.numel()
        return n, x.numel() // max(1, n), self.streams, self.places, self.limit, self.scale


class Compiled(Formulas):
    """The same of float32 and bfloat16 products and a float32 stream, one call each (`native/*.cpp`).

    A method without a docstring of its own is as `Formulas` says.

    Sums over rows are made in shares whose number is that of no machine, so results do not depend on threads.
    """

    paired = False

    def __init__(self, library: ctypes.CDLL) -> None:
        self._calls: dict[tuple[str, torch.dtype], Callable[..., int | None]] = {}
        n, pointer, number = ctypes.c_long, ctypes.c_void_p, ctypes.c_float
        shapes = {
            **{f"activate_{kind}": (n, n, *3 * (pointer,)) for kind in ("relu2", "gelu_tanh", "gelu")},
            "plus": (n, n, *4 * (pointer,)),
            "gate": (n, *3 * (pointer,)),
            "gate_back": (n, *4 * (pointer,)),
            "slope": (n, n, *4 * (pointer,)),
            "norm": (n, n, n, *3 * (pointer,), number, pointer, pointer),
            "norm_back": (n, n, n, *8 * (pointer,)),
            "heads": (*5 * (n,), *3 * (pointer,), number, *5 * (pointer,)),
            "heads_back": (*5 * (n,), *10 * (pointer,)),
            **{
                f"drop{kind}": (n, n, pointer, pointer, n, number, *3 * (pointer,))
                for kind in ("", "_onto", "_onto_back")
            },
            "loss_slope": (n, n, *3 * (pointer,), number, *3 * (pointer,)),
            "scores": (n, n, *5 * (pointer,)),
        }
        for dtype, ending in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
            for name, types in shapes.items():
                counts = name in ("loss_slope", "scores")
                self._calls[name, dtype] = _found(library, f"{name}_{ending}", n if counts else None, types)
        sums = (n, *3 * (pointer,))
        self._squares, self._look = (_found(library, f"{name}_f32", None, sums) for name in ("squares", "look"))

    def _call(self, name: str, dtype: torch.dtype, *given: object) -> int | None:
        """Of tensors their memory: contiguous ones, float32 but for activations, which are of `dtype`."""
        return call(self._calls[name, dtype], *given)

    def norm(self, x: Rows, gain: Gain, bias: Gain | None, kind: NormKind, dtype: torch.dtype) -> tuple[Rows, Kept]:
        x, gain, (n, d) = x.contiguous(), gain.contiguous(), x.shape
        y, stats = x.new_empty(n, d, dtype=dtype), x.new_empty(n, 2)
        self._call("norm", dtype, n, d, kind.centred, x, gain, bias, kind.eps, y, stats)
        return y, (x, stats, None)

    def norm_back(
        self, dy: Rows, kept: Kept, gain: Gain, bias: Gain | None, kind: NormKind, onto: Rows | None
    ) -> tuple[Rows, Gain, Gain | None]:
        x, stats, _ = kept
        assert x is not None
        (n, d), dy, gain = x.shape, dy.contiguous(), gain.contiguous()
        onto = None if onto is None else onto.contiguous()
        dx, (shares, sums) = torch.empty_like(x), _sums(x, 2, d)
        self._call("norm_back", dy.dtype, n, d, kind.centred, dy, x, stats, gain, onto, dx, shares, sums)
        d_gain, d_bias = sums.unbind()
        return dx, d_gain, None if bias is None else d_bias

    def product(self, y: Rows, W: Weight, bias: Bias | None) -> tuple[Product, Bias | None]:
        """See `Formulas`; the bias is left to the pass that follows."""
        return y @ W, None if bias is None else bias.contiguous()

    def plus_product(self, x: Product, y: Rows, W: Weight, bias: Bias | None) -> Product:
        x, p = x.contiguous(), y @ W
        out = p if p.dtype == x.dtype else torch.empty_like(x)
        self._call("plus", p.dtype, *x.shape, x, p, None if bias is None else bias.contiguous(), out)
        return out

    def activate(self, kind: str, c: Product, bias: Bias | None = None) -> tuple[Product, Product]:
        """See `Formulas`; the slope is made beside s for each kind."""
        s = torch.empty_like(c)
        self._call(f"activate_{kind}", c.dtype, c.numel() // c.shape[-1], c.shape[-1], c, bias, s)
        return s, c

    def slope(self, kind: str, ds: Product, kept: Product, *, summed: bool) -> tuple[Product, Bias | None]:
        n, m = ds.shape
        shares, sums = _sums(ds, m) if summed else (None, None)
        self._call("slope", ds.dtype, n, m, ds, kept, shares, sums)
        return ds, sums

    def gate(self, g: Product, c: Product) -> tuple[Product, Product | None]:
        """See `Formulas`; silu(g) is made once more on the way back."""
        s = torch.empty_like(c)
        self._call("gate", c.dtype, c.numel(), g, c, s)
        return s, None

    def gate_back(self, ds: Product, g: Product, c: Product, a: Product | None) -> tuple[Product, Product]:
        dg = torch.empty_like(ds)
        self._call("gate_back", ds.dtype, ds.numel(), ds, g, c, dg)
        return ds, dg

    def place(self, h: Joined, bias: HeadBias | None, gains: Gains | None, heads: Heads) -> tuple[Sides, Kept]:
        batch, pos, _, d = h.shape
        q = h.new_empty(batch, heads.n_heads, pos, d)
        k, v = (h.new_empty(batch, heads.n_kv_heads, pos, d) for _ in range(2))
        both = rs = None
        if gains is not None:
            both = torch.cat(gains)
            rs = h.new_empty(batch, pos, heads.n_heads + heads.n_kv_heads, dtype=torch.float32)
        sizes = (batch, pos, heads.n_heads, heads.n_kv_heads, d)
        self._call("heads", h.dtype, *sizes, h, bias, both, heads.qk_eps, _turns(heads), q, k, v, rs)
        return (q, k, v), (h if gains is not None else None, rs, both)

    def place_back(self, grads: SideGrads, kept: Kept, heads: Heads, like: Like) -> tuple[Joined, Gains | None]:
        h, rs, gains = kept
        batch, pos = like.shape[:2]
        sizes = (batch, pos, heads.n_heads, heads.n_kv_heads, heads.d_head)
        dh = like.new_empty(batch, pos, heads.n_heads + 2 * heads.n_kv_heads, heads.d_head)
        shares, d_gains = (None, None) if gains is None else _sums(gains, 2, heads.d_head)
        parts = [None if grad is None else grad.to(like.dtype).contiguous() for grad in grads]
        self._call("heads_back", like.dtype, *sizes, *parts, h, gains, _turns(heads), rs, dh, shares, d_gains)
        if d_gains is None:
            return dh, None
        d_q, d_k = d_gains.unbind()
        return dh, (d_q, d_k)

    def drop(self, x: Float[Tensor, "*shape"], draws: Draws) -> Float[Tensor, "*shape"]:
        """x times `draws.scale` where a draw of 16 bits is at least `draws.limit`, times 0 elsewhere."""
        x, y = x.contiguous(), torch.empty(x.shape, dtype=x.dtype)
        self._call("drop", x.dtype, *draws.of(x), x, None, y)
        return y

    def drop_onto(
        self, x: Float[Tensor, "*shape"], draws: Draws, onto: Float32[Tensor, "*shape"]
    ) -> Float32[Tensor, "*shape"]:
        """onto + drop(x)."""
        x, onto, y = x.contiguous(), onto.contiguous(), torch.empty(x.shape)
        self._call("drop_onto", x.dtype, *draws.of(x), x, onto, y)
        return y

    def drop_onto_back(
        self, dy: Float32[Tensor, "*shape"], draws: Draws, dtype: torch.dtype
    ) -> Float[Tensor, "*shape"]:
        """drop of dy, rounded to a dtype before and after."""
        dy, dx = dy.contiguous(), torch.empty(dy.shape, dtype=dtype)
        self._call("drop_onto_back", dtype, *draws.of(dy), dy, None, dx)
        return dx

    def loss_slope(
        self,
        logits: Float[Tensor, "n d_vocab"],
        bias: Float[Tensor, "d_vocab"] | None,
        targets: Int64[Tensor, "n"],
        smoothing: float,
    ) -> tuple[Float32[Tensor, "n"], Float32[Tensor, "d_vocab"] | None]:
        """Each row's loss, and with a bias the sum over rows of its slope; the slope in logits' place.

        Of softmax(logits + bias) on targets, as `tasks.crossentropy` has it. Raises IndexError.
        """
        logits, targets, (n, m) = logits.contiguous(), targets.contiguous(), logits.shape
        nats = logits.new_empty(n, dtype=torch.float32)
        shares, sums = (None, None) if bias is None else _sums(nats, m)
        bias = None if bias is None else bias.contiguous()
        made = (nats, shares, sums)
        _all_words(self._call("loss_slope", logits.dtype, n, m, logits, bias, targets, smoothing, *made), m)
        return nats, sums

    def scores(
        self, logits: Float[Tensor, "n d_vocab"], bias: Float[Tensor, "d_vocab"] | None, targets: Int64[Tensor, "n"]
    ) -> tuple[Float32[Tensor, "n"], Bool[Tensor, "n"]]:
        """Each row's loss, and whether its first largest logit is the target. Raises IndexError."""
        logits, targets, (n, m) = logits.contiguous(), targets.contiguous(), logits.shape
        nats, correct = logits.new_empty(n, dtype=torch.float32), logits.new_empty(n, dtype=torch.bool)
        bias = None if bias is None else bias.contiguous()
        _all_words(self._call("scores", logits.dtype, n, m, logits, bias, targets, nats, correct), m)
        return nats, correct

    def squares(self, tensors: Sequence[Float32[Tensor, "..."]]) -> Float64[Tensor, "n"]:
        """The sum of the squares of each of n contiguous tensors."""
        n = len(tensors)
        places = (ctypes.c_void_p * n)(*map(Tensor.data_ptr, tensors))
        sizes = (ctypes.c_long * n)(*map(Tensor.numel, tensors))
        sums = torch.empty(n, dtype=torch.float64)
        call(self._squares, n, places, sizes, sums)
        return sums

    def look(self, parts: Int64[Tensor, "n 5"], shapes: Int64[Tensor, "n 3"]) -> Float64[Tensor, "heads 9"]:
        """Sums over the heads of n pieces of matrices, piece by piece.

        parts: addresses of contiguous float32 numbers, 0 for what is not there: weights w, those before an update,
        their gradient g, the weights s at the start, the optimizer's mean m of squared gradients. shapes: each piece as
        [outer, heads, inner]. The sums, with dw the update: |w|^2, |g|^2, |dw|^2, |w - s|^2, <w - s, s>, |s|^2,
        <dw, g>, <w - s, g>, the sum of m; 0 of what is not there.
        """
        sums = torch.empty(int(shapes[:, 1].sum()), 9, dtype=torch.float64)
        call(self._look, len(parts), parts, shapes, sums)
        return sums


def _found(library: ctypes.CDLL, name: str, result: CType | None, types: Sequence[CType]) -> Callable[..., int | None]:
    """A pass of `native/passes.cpp` by its name, as a function of Python."""
    library.find_pass.restype = ctypes.c_void_p
    return ctypes.CFUNCTYPE(result, *types)(library.find_pass(name.encode()))


def _sums(like: Tensor, *shape: int) -> tuple[Tensor, Tensor]:
    """Room for the shares of a sum over rows, and for the sum: float32."""
    return like.new_empty(_CHUNKS, *shape, dtype=torch.float32), like.new_empty(shape, dtype=torch.float32)


def _all_words(n_wrong: int | None, m: int) -> None:
    """Refuse targets that are no index of a logit."""
    if n_wrong:
        raise IndexError(f"{n_wrong} targets are not from 0 to {m - 1}")


def _turns(heads: Heads) -> Tensor | None:
    """[pos, d_head / 2, 2]: cos and sin."""
    return None if heads.turn is None else torch.view_as_real(heads.turn).contiguous()


class Multiplied(Compiled):
    """The same with products of ours (`kernels/gemm.py`), where those are the faster ones.

    The gradients of weights are made by them, and a product and the pass that follows at once where the matrix is
    small: of a large one torch's product is the faster, by more than the pass costs; an activation costs most.
    """

    def __init__(self, library: ctypes.CDLL, by: Multiplying, limits: Kernels) -> None:
        super().__init__(library)
        self.by, self.limits = by, limits

    def weight_dtype(self, size: int, dtype: torch.dtype, *, activated: bool = False) -> torch.dtype:
        """float32 where ours multiply: tiles round a matrix as it is laid into them."""
        return torch.float32 if size <= (self.limits.activated if activated else self.limits.product) else dtype

    def _takes(self, W: Tensor, *, activated: bool = False) -> bool:
        """Whether a matrix is small: where activations are of another type, it came as `weight_dtype` wants it."""
        small = self.by.dtype != torch.float32 or W.numel() <= (
            self.limits.activated if activated else self.limits.product
        )
        return small and W.dtype == torch.float32

    def weight_grad(self, x: Rows, d: Product, summed: Product | None) -> tuple[Weight, Bias | None]:
        """See `Formulas`; both are summed and kept in float32, and db is that of d as it is."""
        if x.shape[1] * d.shape[1] > self.limits.gradient or x.dtype != self.by.dtype:
            return super().weight_grad(x, d, summed)
        return self.by.weight_grad(x, d, summed=summed is not None)

    def product(self, y: Rows, W: Weight, bias: Bias | None) -> tuple[Product, Bias | None]:
        return (self.by.product(y, W, bias), None) if self._takes(W) else super().product(y, W, bias)

    def product_back(self, d: Product, W: Weight) -> Rows:
        return self.by.product(d, W, turned=True) if self._takes(W) else super().product_back(d, W)

    def sum_back(self, d: Product, W: Weight, d2: Product, W2: Weight) -> Rows:
        """See `Formulas`; the sum is not rounded on its way."""
        if not self._takes(W):
            return super().sum_back(d, W, d2, W2)
        return self.by.product(d, W, turned=True, other=(d2, W2))

    def plus_product(self, x: Product, y: Rows, W: Weight, bias: Bias | None) -> Product:
        return self.by.plus(x, y, W, bias) if self._takes(W) else super().plus_product(x, y, W, bias)

    def hidden(self, kind: str, y: Rows, W: Weight, bias: Bias | None) -> tuple[Product, Product]:
        if not self._takes(W, activated=True):
            return super().hidden(kind, y, W, bias)
        return self.by.activated(kind, y, W, bias)

    def hidden_back(self, kind: str, d: Product, W: Weight, kept: Rows, *, summed: bool) -> tuple[Rows, Gain | None]:
        if not self._takes(W, activated=True):
            return super().hidden_back(kind, d, W, kept, summed=summed)
        return self.by.sloped(d, W, kept, 2.0 if kind == "relu2" else 1.0), None

    def gated(self, y: Rows, W: Weight, W_gate: Weight, bias: Bias | None) -> tuple[Product, Kept]:
        if not self._takes(W):
            return super().gated(y, W, W_gate, bias)
        s, c, g = self.by.gated(y, W, W_gate, bias)
        return s, (None, g, c)

    def gated_back(self, d: Product, W: Weight, kept: Kept) -> tuple[Rows, Rows]:
        _, g, c = kept
        assert g is not None and c is not None
        return self.by.gated_back(d, W, g, c) if self._takes(W) else super().gated_back(d, W, kept)


_FORMULAS = Formulas()


class _Native(NamedTuple):
    """What is compiled here: passes by themselves, and with products of ours by their type."""

    plain: Compiled
    multiplied: dict[torch.dtype, Multiplied]


_COMPILED_DTYPES = (torch.float32, torch.bfloat16)
_using: _Native | None = None


@contextlib.contextmanager
def using(compiled: bool, kernels: Kernels | None = None, dtype: torch.dtype = torch.float32) -> Iterator[None]:
    """Take the compiled passes inside, where they can be had, or torch's operators; what was taken before, after.

    `kernels` limits compiled products and attention in `dtype`; without it, and in other dtypes, `UNMEASURED` does.
    """
    global _using
    before = _using
    _using = _compiled(kernels, dtype) if compiled else None
    try:
        yield
    finally:
        _using = before


@functools.lru_cache(maxsize=64)
def _compiled(kernels: Kernels | None, dtype: torch.dtype) -> _Native | None:
    library, ours = _libraries()
    if library is None:
        return None
    limits = UNMEASURED | ({} if kernels is None else {dtype: kernels})
    return _Native(Compiled(library), {by.dtype: Multiplied(library, by, limits[by.dtype]) for by in ours})


@functools.cache
def _libraries() -> tuple[ctypes.CDLL | None, list[Multiplying]]:
    """Passes, and products by their type."""
    with ThreadPoolExecutor() as at_once:  # a machine that has none yet compiles them side by side
        library, tiles, vectors = at_once.map(native.load, ("passes", "tiles", "vectors"))
    ours: list[Multiplying] = [] if vectors is None else [Vectors(vectors)]
    ours += [] if tiles is None or not tiles.tiles() else [Tiles(tiles)]
    return library, ours


def is_compiled() -> bool:
    """Whether compiled passes are taken now."""
    return _using is not None


def compiled_for(x: Float[Tensor, "..."]) -> Compiled | None:
    """The compiled passes, where they are taken now and serve such a tensor."""
    if _using is None or type(x) is not Tensor or x.device.type != "cpu" or x.dtype not in _COMPILED_DTYPES:
        return None
    return _using.plain


def tiles_for(q: Float[Tensor, "..."]) -> Tiles | None:
    """The processor's tiles, where they are taken now and serve such a tensor."""
    by = attending_for(q)
    return by if isinstance(by, Tiles) else None


def attending_for(q: Float[Tensor, "..."], n_keys: int = 0) -> Attending | None:
    """Compiled attention, where it is used now and serves such a tensor [..., d_head] and so many keys."""
    if _using is None or type(q) is not Tensor or q.device.type != "cpu":
        return None
    ours = _using.multiplied.get(q.dtype)
    return None if ours is None or n_keys * q.shape[-1] > ours.limits.keys else ours.by


def chosen(x: Float[Tensor, "..."], dtype: torch.dtype, d_head: int = 0) -> Formulas:
    """What makes the passes over a stream `x`, with products in `dtype` and heads of that width.

    Tensors of other types than torch's own, such as those without memory that a plan counts with, are torch's matter.
    """
    if (
        _using is None
        or type(x) not in (Tensor, nn.Parameter)
        or x.dtype != torch.float32
        or dtype not in _COMPILED_DTYPES
        or d_head > WIDEST_HEAD
    ):
        return _FORMULAS
    return _using.multiplied.get(dtype, _using.plain)

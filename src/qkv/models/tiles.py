"""Products of bfloat16 by the tiles of the processor, summed in float32 (`native/tiles.cpp`; Intel's AMX).

They serve where torch's own products are slow: the gradients of weights, whose operands both lie across, and attention,
whose scores need not go through memory. `Compiled` in `passes` holds them where the processor has any.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

__all__ = ["Tiles"]

_SIDE, _DEPTH = 16, 32
"""Columns of a tile, and rows in its depth."""

_HOW = {
    name: number
    for number, name in enumerate(("written", "relu2", "gelu_tanh", "gelu", "plus", "sloped", "gated", "gated_back"))
}
"""What is made of a product, as `native/tiles.cpp` counts it."""


def _memory(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class Tiles:
    """One call each, on contiguous tensors; results do not depend on the number of threads."""

    def __init__(self, library: ctypes.CDLL) -> None:
        n, pointer = ctypes.c_long, ctypes.c_void_p
        self._weights, self._attend, self._back = library.weight_gradient, library.attend, library.attend_back
        self._weights.argtypes, self._weights.restype = (
            (n, n, n, pointer, pointer, ctypes.c_float, pointer, pointer),
            None,
        )
        sizes = (*7 * (n,), ctypes.c_float, pointer, n, n)
        self._attend.argtypes, self._attend.restype = (*sizes, *5 * (pointer,)), None
        self._back.argtypes, self._back.restype = (*sizes, *8 * (pointer,)), None
        self._orthogonalise, number = library.orthogonalise, ctypes.c_float
        self._orthogonalise.argtypes = n, n, n, pointer, pointer, n, pointer, number, number
        self._orthogonalise.restype = None
        self._multiply = library.multiply
        self._multiply.argtypes = (n, n, n, n, *4 * (pointer,), n, number, *9 * (pointer,))
        self._multiply.restype = None

    def weight_grad(self, x: Tensor, d: Tensor, *, summed: bool, factor: float = 1.0) -> tuple[Tensor, Tensor | None]:
        """factor x^T d [a, b] of rows x [n, a] and d [n, b], and where asked the sum of d's rows, in float32."""
        x, d, (n, a), b = x.contiguous(), d.contiguous(), x.shape, d.shape[1]
        dW = d.new_empty(a, b, dtype=torch.float32)
        db = d.new_empty(b, dtype=torch.float32) if summed else None
        self._weights(n, a, b, *map(_memory, (x, d)), factor, *map(_memory, (dW, db)))
        return dW, db

    def product(
        self,
        x: Tensor,
        W: Tensor,
        bias: Tensor | None = None,
        *,
        turned: bool = False,
        other: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """x W + b, or x W^T where `turned`, bfloat16 [n, m] of rows x [n, k] and W float32; plus `other`, x2 W2."""
        out = x.new_empty(x.shape[0], W.shape[0 if turned else 1])
        self._made("written", x, W, turned=turned, other=other, bias=bias, out=out)
        return out

    def plus(self, stream: Tensor, x: Tensor, W: Tensor, bias: Tensor | None) -> Tensor:
        """stream + x W + b, float32."""
        stream = stream.contiguous()
        out = torch.empty_like(stream)
        self._made("plus", x, W, bias=bias, stream=stream, onto=out)
        return out

    def activated(self, kind: str, x: Tensor, W: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """act(x W + b) and its slope (half of it for relu2)."""
        out = x.new_empty(x.shape[0], W.shape[1])
        slope = torch.empty_like(out)
        self._made(kind, x, W, bias=bias, out=out, second=slope)
        return out, slope

    def sloped(self, d: Tensor, W: Tensor, slope: Tensor, factor: float) -> Tensor:
        """factor d W^T slope."""
        out = torch.empty_like(slope)
        self._made("sloped", d, W, turned=True, factor=factor, a=slope, out=out)
        return out

    def gated(self, x: Tensor, W: Tensor, W_gate: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """silu(g) c, c = x W + b and g = x W_gate."""
        out = x.new_empty(x.shape[0], W.shape[1])
        c, g = torch.empty_like(out), torch.empty_like(out)
        self._made("gated", x, W, beside=W_gate, bias=bias, out=out, second=c, third=g)
        return out, c, g

    def gated_back(self, d: Tensor, W: Tensor, g: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """silu(g) ds and silu'(g) c ds, ds = d W^T."""
        dc, dg = torch.empty_like(g), torch.empty_like(g)
        self._made("gated_back", d, W, turned=True, a=g, b=c, out=dc, second=dg)
        return dc, dg

    def _made(
        self,
        how: str,
        x: Tensor,
        W: Tensor,
        *,
        turned: bool = False,
        other: tuple[Tensor, Tensor] | None = None,
        beside: Tensor | None = None,
        factor: float = 1.0,
        bias: Tensor | None = None,
        stream: Tensor | None = None,
        a: Tensor | None = None,
        b: Tensor | None = None,
        out: Tensor | None = None,
        second: Tensor | None = None,
        third: Tensor | None = None,
        onto: Tensor | None = None,
    ) -> None:
        """A product and what is made of it (`native/products.h`); activations contiguous bfloat16, all else float32."""
        x2, W2 = other if other is not None else (None, beside)
        x, W = x.contiguous(), W.contiguous()
        x2, W2, bias = (None if t is None else t.contiguous() for t in (x2, W2, bias))
        (n, k), m = x.shape, W.shape[0 if turned else 1]
        tiles = -(-m // _SIDE) * _SIDE * -(-k // _DEPTH) * _DEPTH // 2
        room = W.new_empty(tiles * (1 if W2 is None else 2))
        first, rest = (x, W, x2, W2), (bias, stream, a, b, out, second, third, onto, room)
        self._multiply(_HOW[how], n, k, m, *map(_memory, first), turned, factor, *map(_memory, rest))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, *, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """z [batch, head, pos, d], by position in memory, and log sum_j exp(score_ij), float32 [batch, head, pos]."""
        batch, heads, pos, d = q.shape
        z, mass = q.new_empty(batch, pos, heads, d), q.new_empty(batch, heads, pos, dtype=torch.float32)
        self._attend(*_sizes(q, k, bias, scale, causal), *(t.data_ptr() for t in (q, k, v, z, mass)))
        return z.transpose(1, 2), mass

    def attend_back(
        self,
        dz: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mass: Tensor,
        bias: Tensor | None,
        scale: float,
        *,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of q, k and v, of that of z."""
        dz, parts = dz.transpose(1, 2).contiguous(), (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
        self._back(*_sizes(q, k, bias, scale, causal), *(t.data_ptr() for t in (q, k, v, mass, dz, *parts)))
        return parts

    def orthogonalise(
        self, stack: Tensor, steps: tuple[tuple[float, float, float], ...], rounding: float, tiny: float
    ) -> Tensor:
        """The polar factor of each matrix of a stack [count, rows, columns], by quintic steps on its singular values.

        Each is first divided by |(X X^T)^2|_F^(1/4), times the root of `rounding`; where |X X^T|_F is at most `tiny`
        it is 0 (see `qkv.training.muon`).
        """
        stack, numbers = stack.contiguous(), torch.tensor(steps, dtype=torch.float32)
        out = torch.empty_like(stack)
        where = stack.data_ptr(), out.data_ptr(), len(steps), numbers.data_ptr()
        self._orthogonalise(*stack.shape, *where, rounding, tiny)
        return out


def _sizes(q: Tensor, k: Tensor, bias: Tensor | None, scale: float, causal: bool) -> tuple[Any, ...]:
    """What `native/tiles.cpp` is told of an attention; `bias` float32 [batch or 1, 1, queries or 1, keys]."""
    batch, heads, queries, d = q.shape
    where = (None, 0, 0)
    if bias is not None:
        assert bias.dtype == torch.float32 and bias.stride(3) == 1 and bias.shape[1] == 1
        where = bias.data_ptr(), *(0 if bias.shape[i] == 1 else bias.stride(i) for i in (0, 2))
    return batch, heads, k.shape[1], queries, k.shape[2], d, causal, scale, *where

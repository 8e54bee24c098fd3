"""Products compiled for this processor, with the pass that follows made before their result is written.

bfloat16 by its tiles (`tiles`, summed in float32), float32 by its vectors: `native/tiles.cpp` and `native/vectors.cpp`.
A product, what is made of it, the gradient of a weight and attention are one call each.
"""

import ctypes
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from qkv.kernels.attention import Attending
from qkv.kernels.dispatch import call
from qkv.kernels.reference import Bias, Product, Rows, Weight
from qkv.shapes import Float32

_HOW = {
    name: number
    for number, name in enumerate(("written", "relu2", "gelu_tanh", "gelu", "plus", "sloped", "gated", "gated_back"))
}
"""Epilogues of a product, numbered as in `by_number` of `native/epilogue.h`."""
_WIDEST_PANEL = 32
"""Columns of a panel of float32, at most."""


class Multiplying(Attending, ABC):
    """The calls of one library, on contiguous tensors; results do not depend on the number of threads."""

    dtype = torch.float32
    """Of activations."""

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library)
        n, pointer, number = ctypes.c_long, ctypes.c_void_p, ctypes.c_float
        self._weights, self._multiply = library.weight_gradient, library.multiply
        self._weights.argtypes, self._weights.restype = (n, n, n, pointer, pointer, number, pointer, pointer), None
        self._multiply.argtypes = (n, n, n, n, *4 * (pointer,), n, number, *9 * (pointer,))
        self._multiply.restype = None

    @abstractmethod
    def _laid(self, k: int, m: int) -> int:
        """Numbers of 32 bits that weights [k, m] take as they are laid out for a product, at most."""

    def weight_grad(
        self, x: Rows, d: Product, *, summed: bool, factor: float = 1.0
    ) -> tuple[Float32[Tensor, "d m"], Float32[Tensor, "m"] | None]:
        """factor x^T d, and where asked the sum of d's rows."""
        x, d, (n, a), b = x.contiguous(), d.contiguous(), x.shape, d.shape[1]
        dW = d.new_empty(a, b, dtype=torch.float32)
        db = d.new_empty(b, dtype=torch.float32) if summed else None
        call(self._weights, n, a, b, x, d, factor, dW, db)
        return dW, db

    def product(
        self,
        x: Rows,
        W: Float32[Tensor, "d m"] | Float32[Tensor, "m d"],
        bias: Bias | None = None,
        *,
        turned: bool = False,
        other: tuple[Tensor, Tensor] | None = None,
    ) -> Product:
        """x W + b, or x W^T where `turned`; plus `other`, x2 W2."""
        out = x.new_empty(x.shape[0], W.shape[0 if turned else 1])
        self._made("written", x, W, turned=turned, other=other, bias=bias, out=out)
        return out

    def plus(self, stream: Product, x: Rows, W: Weight, bias: Bias | None) -> Product:
        """stream + x W + b, float32."""
        stream = stream.contiguous()
        out = torch.empty_like(stream)
        self._made("plus", x, W, bias=bias, stream=stream, onto=out)
        return out

    def activated(self, kind: str, x: Rows, W: Weight, bias: Bias | None) -> tuple[Product, Product]:
        """act(x W + b) and its slope (half of it for relu2)."""
        out = x.new_empty(x.shape[0], W.shape[1])
        slope = torch.empty_like(out)
        self._made(kind, x, W, bias=bias, out=out, second=slope)
        return out, slope

    def sloped(self, d: Product, W: Weight, slope: Rows, factor: float) -> Rows:
        """factor d W^T slope."""
        out = torch.empty_like(slope)
        self._made("sloped", d, W, turned=True, factor=factor, a=slope, out=out)
        return out

    def gated(self, x: Rows, W: Weight, W_gate: Weight, bias: Bias | None) -> tuple[Product, Product, Product]:
        """silu(g) c, c = x W + b and g = x W_gate."""
        out = x.new_empty(x.shape[0], W.shape[1])
        c, g = torch.empty_like(out), torch.empty_like(out)
        self._made("gated", x, W, beside=W_gate, bias=bias, out=out, second=c, third=g)
        return out, c, g

    def gated_back(self, d: Product, W: Weight, g: Rows, c: Rows) -> tuple[Rows, Rows]:
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
        """A product and what is made of it (`native/epilogue.h`); activations contiguous, of `dtype`; else float32."""
        x2, W2 = other if other is not None else (None, beside)
        x, W = x.contiguous(), W.contiguous()
        x2, W2, bias = (None if t is None else t.contiguous() for t in (x2, W2, bias))
        (n, k), m = x.shape, W.shape[0 if turned else 1]
        room = W.new_empty(self._laid(k, m) * (1 if W2 is None else 2))
        made = bias, stream, a, b, out, second, third, onto
        call(self._multiply, _HOW[how], n, k, m, x, W, x2, W2, turned, factor, *made, room)


class Vectors(Multiplying):
    """Of float32, by the vectors that every processor has."""

    def _laid(self, k: int, m: int) -> int:
        return -(-m // _WIDEST_PANEL) * _WIDEST_PANEL * k

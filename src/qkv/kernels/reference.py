"""The passes over activations between the products of a block, in operators of torch.

They are what compiled ones (`passes`) must equal, in values and gradients, and what runs where nothing is compiled.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.shapes import Complex, Float

Rows = Float[Tensor, "n d"]
"""One row for each position: what goes into a product."""
Weight = Float[Tensor, "d m"]
Product = Float[Tensor, "n m"]
"""What comes out of the product of `Rows` and `Weight`."""
Gain = Float[Tensor, "d"]
"""A number for each column of `Rows`: gains and biases of a norm."""
Bias = Float[Tensor, "m"]
"""A number for each column of `Product`: the bias of a product."""
Sides = tuple[
    Float[Tensor, "batch n_heads pos d_head"],
    Float[Tensor, "batch n_kv_heads pos d_head"],
    Float[Tensor, "batch n_kv_heads pos d_head"],
]
"""q, k and v."""
SideGrads = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Their gradients; None: zero."""
Joined = Float[Tensor, "batch pos all_heads d_head"]
"""q, k and v side by side, as one product gives them."""
HeadBias = Float[Tensor, "all_heads*d_head"]
Like = Float[Tensor, "batch pos *width"]
Gains = tuple[Float[Tensor, "d_head"], Float[Tensor, "d_head"]]
"""Of QK-norm: q's and k's."""
Kept = Sequence[Tensor | None]
"""What a pass leaves for the one back: three, or None in their places."""


class NormKind(NamedTuple):
    """A norm, but for its gain and bias."""

    eps: float
    centred: bool
    """Whether the mean is subtracted: LayerNorm, else RMSNorm."""


class Heads(NamedTuple):
    """How the joined products of an attention are cut and placed."""

    n_heads: int
    n_kv_heads: int
    d_head: int
    turn: Complex[Tensor, "pos half"] | None
    """cos + i sin of the rotary angles of half the numbers of a head; None: no turn."""
    qk_eps: float
    """eps of QK-norm."""


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of what is not a product: at least float32."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last axis, kept."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def _complex(x: Tensor) -> Tensor:
    """[..., d] with neighbours as complex [..., d / 2], sharing memory."""
    return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))


class Formulas:
    """Each pass in operators of torch, on CPU tensors of any float type."""

    paired = True
    """Whether rotary turns take coordinates 2i and 2i + 1 of a head, not i and i + d_head / 2, as a pair."""

    # norms

    def norm(self, x: Rows, gain: Gain, bias: Gain | None, kind: NormKind, dtype: torch.dtype) -> tuple[Rows, Kept]:
        """y = g u + b, of `dtype`, u = r (x - mean), r = 1 / rms(x - mean), mean 0 for RMSNorm."""
        rows = x.to(wide_dtype(x.dtype))
        if kind.centred:
            gain, bias = gain.to(rows.dtype), None if bias is None else bias.to(rows.dtype)
            y, mean, r = torch.native_layer_norm(rows, rows.shape[1:], gain, bias, kind.eps)
            return y.to(dtype), (rows, mean, r)
        r = _inverse_rms(rows, kind.eps)
        u = rows * r
        return (u * gain).to(dtype), (u, r, None)

    def norm_back(
        self, dy: Rows, kept: Kept, gain: Gain, bias: Gain | None, kind: NormKind, onto: Rows | None
    ) -> tuple[Rows, Gain, Gain | None]:
        """dx = r (g dy - [mean(g dy)] - u mean(g dy u)) [+ onto], dg = sum_n dy u, db = sum_n dy. May overwrite dy."""
        if kind.centred:
            x, mean, r = kept
            assert x is not None
            gain, bias = gain.to(x.dtype), None if bias is None else bias.to(x.dtype)
            asked = [True, True, bias is not None]
            back = torch.ops.aten.native_layer_norm_backward
            dx, d_gain, d_bias = back(dy.to(x.dtype), x, x.shape[1:], mean, r, gain, bias, asked)
            return (dx if onto is None else dx.add_(onto)), d_gain, d_bias if bias is not None else None
        u, r, _ = kept
        assert u is not None and r is not None
        dy, gain = dy.to(u.dtype), gain.to(u.dtype)
        along = dy * u
        d_gain = along.sum(0)
        share = (along @ gain).div_(-u.shape[1])
        d = dy.mul_(gain).addcmul_(u, share[:, None])
        return (d.mul_(r) if onto is None else torch.addcmul(onto, d, r)), d_gain, None

    # products of rows, and with them the passes that follow

    def weight_dtype(self, size: int, dtype: torch.dtype, *, activated: bool = False) -> torch.dtype:
        """In what dtype a matrix of so many numbers is wanted for products in `dtype`.

        `activated`: whether it is on either side of an activation that has no gate.
        """
        return dtype

    def product(self, y: Rows, W: Weight, bias: Bias | None) -> tuple[Product, Bias | None]:
        """y W + b, and what of b is still to be added by the pass that follows."""
        return (y @ W if bias is None else torch.addmm(bias.to(y.dtype), y, W)), None

    def product_back(self, d: Product, W: Weight) -> Rows:
        """d W^T."""
        return d @ W.t()

    def sum_back(self, d: Product, W: Weight, d2: Product, W2: Weight) -> Rows:
        """d W^T + d2 W2^T."""
        return (d @ W.t()).addmm_(d2, W2.t())

    def plus_product(self, x: Product, y: Rows, W: Weight, bias: Bias | None) -> Product:
        """x + y W + b of rows, in the dtype of x: back onto the residual stream."""
        if x.dtype == y.dtype:
            out = torch.addmm(x, y, W)
            return out if bias is None else out.add_(bias)
        return x + self.product(y, W, bias)[0]

    def hidden(self, kind: str, y: Rows, W: Weight, bias: Bias | None) -> tuple[Product, Product]:
        """s = act(y W + b), and what the slope is made of."""
        return self.activate(kind, *self.product(y, W, bias))

    def hidden_back(self, kind: str, d: Product, W: Weight, kept: Rows, *, summed: bool) -> tuple[Rows, Gain | None]:
        """dc = act'(c) d W^T; where asked its sum over rows, or None where `weight_grad` makes that on its way."""
        factor = 2 if kind == "relu2" else 1
        ds = torch.addmm(d.new_empty(()), d, W.t(), beta=0, alpha=factor)
        return self.slope(kind, ds, kept, summed=summed)

    def gated(self, y: Rows, W: Weight, W_gate: Weight, bias: Bias | None) -> tuple[Product, Kept]:
        """s = silu(g) c, g = y W_gate, c = y W + b, and what is kept for the way back."""
        c = y @ W if bias is None else torch.addmm(bias.to(y.dtype), y, W)
        g = y @ W_gate
        s, a = self.gate(g, c)
        return s, (a, g, c)

    def gated_back(self, d: Product, W: Weight, kept: Kept) -> tuple[Rows, Rows]:
        """dc and dg of ds = d W^T."""
        a, g, c = kept
        assert g is not None and c is not None
        return self.gate_back(d @ W.t(), g, c, a)

    # the MLP

    def activate(self, kind: str, c: Product, bias: Bias | None = None) -> tuple[Product, Product]:
        """s = act(c [+ b]), and what the slope is made of. May overwrite c.

        relu2: s = a a with a = relu(c), which is half the slope; gelu_tanh: the slope is made beside s; gelu: of c.
        """
        assert bias is None, "a product of torch has its bias"
        if kind == "relu2":
            a = c.relu_()
            return a * a, a
        return _gelu_tanh(c) if kind == "gelu_tanh" else (F.gelu(c), c)

    def slope(self, kind: str, ds: Product, kept: Product, *, summed: bool) -> tuple[Product, Bias | None]:
        """dc = act'(c) ds (half of it for relu2), and where asked its sum over rows. May overwrite ds."""
        dc = torch.ops.aten.gelu_backward(ds, kept) if kind == "gelu" else ds.mul_(kept)
        return dc, dc.sum(0, dtype=wide_dtype(dc.dtype)) if summed else None

    def gate(self, g: Product, c: Product) -> tuple[Product, Product | None]:
        """s = silu(g) c, and silu(g) for the way back."""
        a = F.silu(g)
        return a * c, a

    def gate_back(self, ds: Product, g: Product, c: Product, a: Product | None) -> tuple[Product, Product]:
        """dc = silu(g) ds and dg = silu'(g) c ds. May overwrite ds."""
        assert a is not None
        dc = ds * a
        return dc, torch.ops.aten.silu_backward(ds.mul_(c), g)

    # weights

    def weight_grad(self, x: Rows, d: Product, summed: Product | None) -> tuple[Weight, Bias | None]:
        """dW = x^T d; db = sum_n of `summed`, d as it was before it was rounded."""
        return x.t() @ d, None if summed is None else summed.sum(0, dtype=wide_dtype(summed.dtype))

    # heads

    def place(self, h: Joined, bias: HeadBias | None, gains: Gains | None, heads: Heads) -> tuple[Sides, Kept]:
        """q, k, v of their joined products h; may overwrite h.

        `bias` is what `product` left of theirs. Of q and k each head is normed (q' = g q / rms(q)) and turned
        (q'' = e^{ia} q').
        """
        assert bias is None, "a product of torch has its bias"
        dtype, n_qk = h.dtype, heads.n_heads + heads.n_kv_heads
        qk, v = h.narrow(2, 0, n_qk), h.narrow(2, n_qk, heads.n_kv_heads)
        u = r = gain = None
        if gains is not None:
            u = qk = qk.to(wide_dtype(dtype))
            r = _inverse_rms(qk, heads.qk_eps)
            gain = _head_gains(*gains, heads).to(qk.dtype)
            qk = qk.mul_(r) * gain
        if heads.turn is not None:
            pairs = _complex(qk.to(wide_dtype(dtype)))
            turned = pairs.mul_(heads.turn[:, None]) if u is not None else pairs * heads.turn[:, None]
            qk = torch.view_as_real(turned).flatten(-2)
        q, k = qk.narrow(2, 0, heads.n_heads), qk.narrow(2, heads.n_heads, heads.n_kv_heads)
        return (_by_head(q, dtype), _by_head(k, dtype), _by_head(v, dtype)), (u, r, gain)

    def place_back(self, grads: SideGrads, kept: Kept, heads: Heads, like: Like) -> tuple[Joined, Gains | None]:
        """dh, of the dtype of `like`, of dq, dk, dv (None: zero); and the gradients of the gains.

        With u = q / rms(q): du = g e^{-ia} dq'', dg = sum du u, dq = r (du - u <du, u> / d_head).
        """
        u, r, gain = kept
        batch, pos = like.shape[:2]
        n_qk = heads.n_heads + heads.n_kv_heads
        d_qk = torch.empty(batch, pos, n_qk, heads.d_head, dtype=wide_dtype(like.dtype))
        _gather(d_qk, grads[:2], (heads.n_heads, heads.n_kv_heads))
        if heads.turn is not None:
            _complex(d_qk).mul_(heads.turn.conj()[:, None])
        d_gains = None
        if u is not None and r is not None and gain is not None:
            along = d_qk * u
            d_gains = _split_head_gains(along.sum((0, 1)), heads)
            share = along.mul_(gain).sum(-1, keepdim=True).div_(-heads.d_head)
            d_qk.mul_(gain).addcmul_(u, share).mul_(r)
        dh = like.new_empty(batch, pos, n_qk + heads.n_kv_heads, heads.d_head)
        dh.narrow(2, 0, n_qk).copy_(d_qk)
        _gather(dh.narrow(2, n_qk, heads.n_kv_heads), grads[2:], (heads.n_kv_heads,))
        return dh, d_gains


def _by_head(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[batch, pos, head, d] as [batch, head, pos, d] of that dtype; where it is bfloat16, in that order in memory."""
    x = x.transpose(1, 2)
    return x.to(dtype, memory_format=torch.contiguous_format) if dtype == torch.bfloat16 else x.to(dtype)


def _gather(into: Tensor, parts: tuple[Tensor | None, ...], counts: tuple[int, ...]) -> None:
    """Write gradients [batch, head, pos, d], None meaning zero, side by side into [batch, pos, heads, d]."""
    start = 0
    for part, count in zip(parts, counts, strict=True):
        place = into.narrow(2, start, count)
        place.zero_() if part is None else place.copy_(part.transpose(1, 2))
        start += count


def _head_gains(q_gain: Tensor, k_gain: Tensor, heads: Heads) -> Tensor:
    """Gains of all heads of q and k, in the order of their coordinates: [n_heads + n_kv_heads, d_head]."""
    both = torch.stack((q_gain, k_gain))
    if heads.turn is not None:
        both = both.view(2, 2, -1).transpose(1, 2).reshape(2, -1)
    return torch.cat((both[:1].expand(heads.n_heads, -1), both[1:].expand(heads.n_kv_heads, -1)))


def _split_head_gains(d: Tensor, heads: Heads) -> tuple[Tensor, Tensor]:
    """The inverse of `_head_gains`, for gradients."""
    if heads.turn is not None:
        d = d.view(d.shape[0], -1, 2).transpose(1, 2).reshape(d.shape)
    return d[: heads.n_heads].sum(0), d[heads.n_heads :].sum(0)


_TANH_RATE = math.sqrt(8 / math.pi)
_TANH_CUBE = 0.044715 * _TANH_RATE


def _gelu_tanh(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (1 + tanh(v / 2)) / 2 and its slope, v = sqrt(8 / pi) (x + 0.044715 x^3), each of x's shape and dtype.

    (1 + tanh(v / 2)) / 2 is sigmoid(v), for which torch has a vectorised operator as it has none for tanh; the slope is
    g + 3 w g (1 - g) with g = sigmoid(v) and w = x v' / 3 = v - 2/3 sqrt(8 / pi) x.
    """
    wide = x.to(wide_dtype(x.dtype))
    v = torch.addcmul(wide.new_tensor(_TANH_RATE), wide, wide, value=_TANH_CUBE).mul_(wide)
    w = torch.sub(v, wide, alpha=2 / 3 * _TANH_RATE)
    g = v.sigmoid_()
    slope = torch.addcmul(g, w.addcmul_(w, g, value=-1), g, value=3, out=w)
    return g.mul(wide).to(x.dtype), slope.to(x.dtype)

"""The fast path on a CPU: the parts of a block with hand-written backward passes.

At the sizes people train on a CPU (d_model of some hundreds, a thousand tokens a step) a step is made of products,
which stay as they are, and of passes over activations and dispatches of small operators, which autograd multiplies.
Each class here does one part of a block in as few of both as its algebra, written in its docstring, allows. The
explicit path of `attention`, `blocks` and `norms` is the formula that each must equal in values and gradients.

They serve first derivatives on CPU tensors in eager mode. Elsewhere, under torch.compile, and where somebody looks (a
tap), the formulas run. Products are in autocast's dtype where that is on; norms and rotary turns are never below
float32.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

__all__ = ["Heads", "attention_in", "attention_out", "mlp", "product_dtype", "rms_norm", "serves"]

Grads = tuple[Tensor | None, ...]


def serves(x: Tensor) -> bool:
    """Whether the fast path is the right one for `x`: a CPU tensor in eager mode."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products on `x`: its own, or autocast's."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of what is not a product: at least float32."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _rows(x: Tensor) -> Tensor:
    """[..., d] as [n, d]."""
    return x.reshape(-1, x.shape[-1])


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last axis, kept."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()


# RMSNorm --------------------------------------------------------------------------------------------------------------


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gain over the last axis: x [..., d], gain [d] -> [..., d]."""
    return _RMSNorm.apply(x, gain, eps)


def _norm_forward(x: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """y = u g, u = r x and r = 1/rms(x), for x [..., d] as rows of at least float32."""
    rows = _rows(x).to(_wide_dtype(x.dtype))
    r = _inverse_rms(rows, eps)
    u = rows * r
    return u * gain, u, r


def _norm_backward(dy: Tensor, u: Tensor, r: Tensor, gain: Tensor, onto: Tensor | None) -> tuple[Tensor, Tensor]:
    """dx = r (g dy - u <g dy, u> / d) [+ onto] and dg = sum_n dy u. May overwrite dy."""
    gain = gain.to(dy.dtype)
    along = dy * u
    d_gain = along.sum(0)
    share = (along @ gain).div_(-u.shape[1])
    d = dy.mul_(gain).addcmul_(u, share[:, None])
    return (d.mul_(r) if onto is None else torch.addcmul(onto, d, r)), d_gain


class _RMSNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        y, u, r = _norm_forward(x, gain, eps)
        ctx.save_for_backward(u, r, gain)
        return y.view(x.shape).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Grads:
        u, r, gain = ctx.saved_tensors
        dx, d_gain = _norm_backward(_rows(dy).to(u.dtype, copy=True), u, r, gain, None)
        return dx.view(dy.shape), d_gain, None


# Attention, from the residual stream to q, k, v -----------------------------------------------------------------------


class Heads(NamedTuple):
    """How the joined products of an attention are cut and placed."""

    n_heads: int
    n_kv_heads: int
    d_head: int
    turn: Tensor | None
    """cos + i sin of the rotary angles, complex [pos, d_head / 2]; None: no turn."""
    qk_eps: float
    """eps of QK-norm."""


def attention_in(
    x: Tensor,
    norm: tuple[Tensor, float] | None,
    weights: tuple[Tensor, Tensor, Tensor],
    biases: tuple[Tensor, Tensor, Tensor] | None,
    gains: tuple[Tensor, Tensor] | None,
    heads: Heads,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q [batch, head, pos, d_head], k and v [batch, kv_head, pos, d_head] of x [batch, pos, d_model]; and x, handed on.

    `norm` is the gain and eps of the RMSNorm before (None: x enters as it is), `weights` are W_Q, W_K, W_V, `biases`
    b_Q, b_K, b_V, `gains` those of QK-norm (None: none). With rotary turns the coordinates of q and k come in another
    order, the same for both, which no score can see. The x that is handed on is for the residual sum: its gradient then
    joins the norm's in one pass.
    """
    gain, eps = norm if norm is not None else (None, 0.0)
    added = biases or (None, None, None)
    return _AttentionIn.apply(x, gain, *weights, *added, *(gains or (None, None)), eps, heads, product_dtype(x))


def _beside(halves: Tensor, d_head: int) -> tuple[Tensor, Tensor]:
    """The halves of every head of [rows, n * d_head], as two views [rows, n, d_head / 2]."""
    halves = halves.view(halves.shape[0], -1, 2, d_head // 2)
    return halves.select(2, 0), halves.select(2, 1)


def _pairs(joined: Tensor, d_head: int) -> tuple[Tensor, Tensor]:
    """First and second of every pair of neighbours of [rows, n * d_head], as two views [rows, n, d_head / 2]."""
    pairs = joined.view(joined.shape[0], -1, d_head // 2, 2)
    return pairs.select(3, 0), pairs.select(3, 1)


def _join(weights: tuple[Tensor, Tensor, Tensor], heads: Heads, dtype: torch.dtype) -> Tensor:
    """[W_Q | W_K | W_V]; for rotary turns, coordinates i and i + d_head/2 of q and k side by side.

    Side by side, a pair is one complex number and its turn one complex product. The order is changed here, on the small
    matrices, and not on every token.
    """
    if heads.turn is None:
        return torch.cat(weights, dim=1).to(dtype)
    widths = [weight.shape[1] for weight in weights]
    joined = weights[0].new_empty(weights[0].shape[0], sum(widths), dtype=dtype)
    start = 0
    for weight, width in zip(weights[:2], widths[:2], strict=True):
        part = joined.narrow(1, start, width)
        for pair, half in zip(_pairs(part, heads.d_head), _beside(weight, heads.d_head), strict=True):
            pair.copy_(half)
        start += width
    joined.narrow(1, start, widths[2]).copy_(weights[2])
    return joined


def _split(joined: Tensor, widths: list[int], heads: Heads, needed: tuple[bool, ...]) -> list[Tensor | None]:
    """The inverse of `_join`, for gradients; None where not needed."""
    out: list[Tensor | None] = []
    for i, width in enumerate(widths):
        part = joined.narrow(1, sum(widths[:i]), width)
        if not needed[i]:
            out.append(None)
        elif i == 2 or heads.turn is None:
            out.append(part.contiguous())
        else:
            whole = part.new_empty(part.shape)
            for half, pair in zip(_beside(whole, heads.d_head), _pairs(part, heads.d_head), strict=True):
                half.copy_(pair)
            out.append(whole)
    return out


def _complex(x: Tensor) -> Tensor:
    """[..., d] with neighbours as complex [..., d / 2], sharing memory."""
    return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))


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


class _AttentionIn(Function):
    """y = norm(x); [q | k | v] = y [W_Q | W_K | W_V] + b; then per pair of q and k  q' = e^{ia} g u,  u = q / rms(q).

    Backward: du = g e^{-ia} dq', dg = sum du u, dq = r (g du - u <g du, u> / d_head); then one product each for the
    joined weights and for y. q and k share one buffer, so a step is one pass over both.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gain: Tensor | None,
        W_Q: Tensor,
        W_K: Tensor,
        W_V: Tensor,
        b_Q: Tensor | None,
        b_K: Tensor | None,
        b_V: Tensor | None,
        q_gain: Tensor | None,
        k_gain: Tensor | None,
        eps: float,
        heads: Heads,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)  # an output may be unused, such as the x handed on
        ctx.heads, ctx.shape, ctx.widths = heads, x.shape, [W.shape[1] for W in (W_Q, W_K, W_V)]
        u = r = head_u = head_r = head_gain = None
        y = _rows(x)
        if gain is not None:
            y, u, r = _norm_forward(x, gain, eps)
        y, joined = y.to(dtype), _join((W_Q, W_K, W_V), heads, dtype)
        if b_Q is not None and b_K is not None and b_V is not None:
            bias = _join((b_Q[None], b_K[None], b_V[None]), heads, dtype)[0]
            h = torch.addmm(bias, y, joined).view(*x.shape[:2], -1, heads.d_head)
        else:
            h = (y @ joined).view(*x.shape[:2], -1, heads.d_head)
        n_qk = heads.n_heads + heads.n_kv_heads
        qk, v = h.narrow(2, 0, n_qk), h.narrow(2, n_qk, heads.n_kv_heads)
        if q_gain is not None and k_gain is not None:
            head_u = qk = qk.to(_wide_dtype(dtype))
            head_r = _inverse_rms(qk, heads.qk_eps)
            head_gain = _head_gains(q_gain, k_gain, heads).to(qk.dtype)
            qk = qk.mul_(head_r) * head_gain
        if heads.turn is not None:
            pairs = _complex(qk.to(_wide_dtype(dtype)))
            turned = pairs.mul_(heads.turn[:, None]) if head_u is not None else pairs * heads.turn[:, None]
            qk = torch.view_as_real(turned).flatten(-2)
        ctx.save_for_backward(gain, u, r, y, joined, head_u, head_r, head_gain)
        q, k = (
            _by_head(part, dtype)
            for part in (qk.narrow(2, 0, heads.n_heads), qk.narrow(2, heads.n_heads, heads.n_kv_heads))
        )
        return q, k, _by_head(v, dtype), x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, onto: Tensor | None) -> Grads:
        gain, u, r, y, joined, head_u, head_r, head_gain = ctx.saved_tensors
        heads, (batch, pos, _) = ctx.heads, ctx.shape
        n_qk = heads.n_heads + heads.n_kv_heads
        d_qk = torch.empty(batch, pos, n_qk, heads.d_head, dtype=_wide_dtype(y.dtype))
        _gather(d_qk, (dq, dk), (heads.n_heads, heads.n_kv_heads))
        if heads.turn is not None:
            _complex(d_qk).mul_(heads.turn.conj()[:, None])
        d_gains: tuple[Tensor | None, Tensor | None] = (None, None)
        if head_u is not None:
            along = d_qk * head_u
            d_gains = _split_head_gains(along.sum((0, 1)), heads)
            share = along.mul_(head_gain).sum(-1, keepdim=True).div_(-heads.d_head)
            d_qk.mul_(head_gain).addcmul_(head_u, share).mul_(head_r)
        dh = torch.empty(batch, pos, n_qk + heads.n_kv_heads, heads.d_head, dtype=y.dtype)
        dh.narrow(2, 0, n_qk).copy_(d_qk)
        _gather(dh.narrow(2, n_qk, heads.n_kv_heads), (dv,), (heads.n_kv_heads,))
        rows = dh.view(batch * pos, -1)
        d_weights: list[Tensor | None] = [None, None, None]
        if any(ctx.needs_input_grad[2:5]):
            d_weights = _split(y.t() @ rows, ctx.widths, heads, ctx.needs_input_grad[2:5])
        d_biases: list[Tensor | None] = [None, None, None]
        if any(ctx.needs_input_grad[5:8]):
            summed = rows.sum(0, keepdim=True, dtype=d_qk.dtype)
            parts = _split(summed, ctx.widths, heads, ctx.needs_input_grad[5:8])
            d_biases = [None if part is None else part[0] for part in parts]
        dx = d_gain = None
        if any(ctx.needs_input_grad[:2]):
            dx, onto = rows @ joined.t(), None if onto is None else _rows(onto)
            if gain is not None:
                dx, d_gain = _norm_backward(dx.to(u.dtype), u, r, gain, onto)
            elif onto is not None:
                dx = dx.to(onto.dtype).add_(onto)
            dx = dx.view(ctx.shape)
        return dx, d_gain, *d_weights, *d_biases, *d_gains, None, None, None


# Attention, back onto the residual stream -----------------------------------------------------------------------------


def attention_out(residual: Tensor | None, z: Tensor, W_O: Tensor, b_O: Tensor | None) -> Tensor:
    """residual + concat_h(z_h) W_O + b_O: residual [batch, pos, d_model] or None, z [batch, head, pos, d_head]."""
    return _AttentionOut.apply(residual, z, W_O, b_O, product_dtype(z))


def _plus_product(residual: Tensor | None, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """residual + rows @ weight + bias, in as few operators as dtypes allow."""
    if residual is None:
        return rows @ weight if bias is None else torch.addmm(bias.to(rows.dtype), rows, weight)
    if residual.dtype == rows.dtype:
        out = torch.addmm(_rows(residual), rows, weight)
        return out if bias is None else out.add_(bias)
    product = rows @ weight if bias is None else torch.addmm(bias.to(rows.dtype), rows, weight)
    return _rows(residual) + product


def _summed(dy: Tensor) -> Tensor:
    """The gradient of a bias that was added to every row, at least float32."""
    return _rows(dy).sum(0, dtype=_wide_dtype(dy.dtype))


class _AttentionOut(Function):
    """y = x + z W + b; dx = dy, dz = dy W^T, dW = z^T dy, db = sum_n dy."""

    @staticmethod
    def forward(
        ctx: Any, residual: Tensor | None, z: Tensor, W_O: Tensor, b_O: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        heads, weight = z.transpose(1, 2), W_O.to(dtype)
        rows = heads.reshape(-1, weight.shape[0]).to(dtype)
        ctx.save_for_backward(rows, weight)
        ctx.shape = heads.shape
        return _plus_product(residual, rows, weight, b_O).view(*heads.shape[:2], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Grads:
        rows, weight = ctx.saved_tensors
        d = _rows(dy).to(rows.dtype)
        dz = dW = None
        if ctx.needs_input_grad[1]:
            dz = (d @ weight.t()).view(ctx.shape).transpose(1, 2)
        if ctx.needs_input_grad[2]:
            dW = rows.t() @ d
        db = _summed(dy) if ctx.needs_input_grad[3] else None
        return dy if ctx.needs_input_grad[0] else None, dz, dW, db, None


# MLP ------------------------------------------------------------------------------------------------------------------


def mlp(
    x: Tensor,
    norm: tuple[Tensor, float] | None,
    kind: str,
    weights: tuple[Tensor, Tensor | None, Tensor],
    biases: tuple[Tensor | None, Tensor | None],
    *,
    residual: bool,
) -> Tensor:
    """[x +] act(norm(x) W_in + b_in) W_out + b_out, x [batch, pos, d_model] -> the same; `kind` as in `Layout.mlp`.

    `norm` is the gain and eps of the RMSNorm before (None: x enters as it is); `weights` are W_in, W_gate (of swiglu)
    and W_out, `biases` b_in and b_out.
    """
    gain, eps = norm if norm is not None else (None, 0.0)
    return _MLP.apply(x, gain, *weights, *biases, eps, kind, residual, product_dtype(x))


class _MLP(Function):
    """relu^2: a = relu(y W_in + b_in), s = a a, da = 2 a ds, the factor inside the product that makes ds.

    swiglu: a = silu(g), g = y W_gate, c = y W_in, s = a c, dc = a ds, dg = silu'(g) c ds.
    gelu: s = gelu(c), dc = gelu'(c) ds; of gelu_tanh the slope gelu'(c) is made beside s and kept, in c's place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gain: Tensor | None,
        W_in: Tensor,
        W_gate: Tensor | None,
        W_out: Tensor,
        b_in: Tensor | None,
        b_out: Tensor | None,
        eps: float,
        kind: str,
        residual: bool,
        dtype: torch.dtype,
    ) -> Tensor:
        u = r = g = a = gate = None
        y = _rows(x)
        if gain is not None:
            y, u, r = _norm_forward(x, gain, eps)
        y, w_in, w_out = y.to(dtype), W_in.to(dtype), W_out.to(dtype)
        c = y @ w_in if b_in is None else torch.addmm(b_in.to(dtype), y, w_in)
        if W_gate is not None:
            gate = W_gate.to(dtype)
            g = y @ gate
            a = F.silu(g)
            s = a * c
        elif kind == "relu2":
            a = c.relu_()
            s = a * a
        elif kind == "gelu_tanh":
            s, a = _gelu_tanh(c)
            c = None
        else:
            s = F.gelu(c)
        ctx.save_for_backward(gain, u, r, y, a, g, c, s, w_in, gate, w_out)
        ctx.residual, ctx.shape, ctx.kind = residual, x.shape, kind
        return _plus_product(x if residual else None, s, w_out, b_out).view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Grads:
        gain, u, r, y, a, g, c, s, w_in, gate, w_out = ctx.saved_tensors
        need_x, need_gain, need_in, need_gate, need_out, need_b_in, need_b_out = ctx.needs_input_grad[:7]
        rows = _rows(dy)
        d = rows.to(y.dtype)
        d_gain = dg = None
        d_out = s.t() @ d if need_out else None
        if gate is not None:
            ds = d @ w_out.t()
            dc = ds * a
            dg = torch.ops.aten.silu_backward(ds.mul_(c), g)
        elif ctx.kind == "relu2":
            dc = torch.addmm(d.new_empty(()), d, w_out.t(), beta=0, alpha=2).mul_(a)
        elif ctx.kind == "gelu_tanh":
            dc = (d @ w_out.t()).mul_(a)
        else:
            dc = torch.ops.aten.gelu_backward(d @ w_out.t(), c)
        d_gate = y.t() @ dg if dg is not None and need_gate else None
        d_in = y.t() @ dc if need_in else None
        dx = rows if ctx.residual else None
        if need_x or need_gain:
            d_y = dc @ w_in.t()
            if dg is not None and gate is not None:
                d_y.addmm_(dg, gate.t())
            d_y = d_y.to(rows.dtype)
            if gain is not None:
                dx, d_gain = _norm_backward(d_y.to(u.dtype), u, r, gain, dx)
            else:
                dx = d_y if dx is None else d_y.add_(dx)
        d_b_in, d_b_out = (_summed(dc) if need_b_in else None), (_summed(rows) if need_b_out else None)
        d_x = None if dx is None else dx.view(ctx.shape)
        return d_x, d_gain, d_in, d_gate, d_out, d_b_in, d_b_out, None, None, None, None


_TANH_RATE = math.sqrt(8 / math.pi)
_TANH_CUBE = 0.044715 * _TANH_RATE


def _gelu_tanh(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (1 + tanh(v / 2)) / 2 and its slope, v = sqrt(8 / pi) (x + 0.044715 x^3), each of x's shape and dtype.

    (1 + tanh(v / 2)) / 2 is sigmoid(v), for which torch has a vectorised operator as it has none for tanh; the slope is
    g + 3 w g (1 - g) with g = sigmoid(v) and w = x v' / 3 = v - 2/3 sqrt(8 / pi) x.
    """
    wide = x.to(_wide_dtype(x.dtype))
    v = torch.addcmul(wide.new_tensor(_TANH_RATE), wide, wide, value=_TANH_CUBE).mul_(wide)
    w = torch.sub(v, wide, alpha=2 / 3 * _TANH_RATE)
    g = v.sigmoid_()
    slope = torch.addcmul(g, w.addcmul_(w, g, value=-1), g, value=3, out=w)
    return g.mul(wide).to(x.dtype), slope.to(x.dtype)

"""The fast path on a CPU: a few parts of a block with hand-written backward passes.

At the sizes people train on a CPU (d_model of some hundreds, a thousand tokens a step) a step is made of products, which
stay as they are, and of passes over activations and dispatches of small operators, which autograd multiplies. Each class
here does one part of a block in as few passes as its algebra allows; its docstring holds the algebra, and the function
named `plain_*` beside it is the formula that it must equal in values and gradients (the tests compare them).

They serve first derivatives on CPU tensors. Elsewhere, under torch.compile, and where somebody looks (a tap), the plain
formulas run. All of them keep to the dtype of their input; half precision is computed in float32 between products.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

__all__ = [
    "attention_out",
    "heads_of",
    "join_qkv",
    "plain_attention_out",
    "plain_heads_of",
    "plain_join_qkv",
    "plain_relu2_mlp",
    "plain_rms_norm",
    "relu2_mlp",
    "rms_norm",
    "serves",
]


def serves(x: Tensor) -> bool:
    """Whether the fast path is the right one for `x`: a CPU tensor in eager mode."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products on `x`: its own, or autocast's."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _rows(x: Tensor) -> Tensor:
    """[..., d] as [n, d]."""
    return x.reshape(-1, x.shape[-1])


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last axis, kept."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def plain_rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gain."""
    return F.rms_norm(x, gain.shape, gain, eps)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last axis: x [..., d], gain [d] -> [..., d]."""
    return _RMSNorm.apply(x, gain, eps)


class _RMSNorm(Function):
    """With r = 1/rms(x) and u = r x: y = g u; dg = sum_n dy u; dx = r (g dy - u <g dy, u> / d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        wide = _rows(_wide(x))
        r = _inverse_rms(wide, eps)
        u = wide * r
        ctx.save_for_backward(u, r, gain)
        return (u * gain).view(x.shape).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        u, r, gain = ctx.saved_tensors
        g = _rows(dy)
        along = g * u
        d_gain = along.sum(0).to(gain.dtype) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, d_gain, None
        share = (along @ gain.to(along.dtype)).div_(-u.shape[1])
        dx = (g * gain).addcmul_(u, share[:, None]).mul_(r)
        return dx.view(dy.shape).to(dy.dtype), d_gain, None


def plain_join_qkv(W_Q: Tensor, W_K: Tensor, W_V: Tensor, d_head: int) -> Tensor:
    """[W_Q | W_K | W_V], with the pair (i, i + d_head/2) of every head of W_Q and W_K put side by side."""

    def paired(weight: Tensor) -> Tensor:
        return weight.unflatten(-1, (-1, 2, d_head // 2)).transpose(-1, -2).flatten(-3)

    return torch.cat((paired(W_Q), paired(W_K), W_V), dim=-1)


def join_qkv(W_Q: Tensor, W_K: Tensor, W_V: Tensor, d_head: int) -> Tensor:
    """One matrix for q, k and v: [..., n_heads * d_head], twice [..., n_kv_heads * d_head] -> [..., their sum].

    Scores do not change when the coordinates of q and k are reordered alike. Side by side, a pair is one complex number
    and its rotary turn one complex product, so the order is changed on the small matrix and not on every token.
    """
    return _JoinQKV.apply(W_Q, W_K, W_V, d_head)


class _JoinQKV(Function):
    """A copy forward, and the inverse copies backward."""

    @staticmethod
    def forward(ctx: Any, W_Q: Tensor, W_K: Tensor, W_V: Tensor, d_head: int) -> Tensor:
        ctx.widths, ctx.d_head = [W.shape[-1] for W in (W_Q, W_K, W_V)], d_head
        out = W_Q.new_empty(*W_Q.shape[:-1], sum(ctx.widths))
        q, k, v = out.split(ctx.widths, dim=-1)
        for joined, weight in ((q, W_Q), (k, W_K)):
            pairs, halves = joined.unflatten(-1, (-1, d_head // 2, 2)), weight.unflatten(-1, (-1, 2, d_head // 2))
            pairs[..., 0].copy_(halves[..., 0, :])
            pairs[..., 1].copy_(halves[..., 1, :])
        v.copy_(W_V)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        grads: list[Tensor | None] = []
        for i, part in enumerate(d_out.split(ctx.widths, dim=-1)):
            if not ctx.needs_input_grad[i]:
                grads.append(None)
            elif i == 2:
                grads.append(part.contiguous())
            else:
                grad = part.new_empty(part.shape)
                pairs = part.unflatten(-1, (-1, ctx.d_head // 2, 2))
                halves = grad.unflatten(-1, (-1, 2, ctx.d_head // 2))
                halves[..., 0, :].copy_(pairs[..., 0])
                halves[..., 1, :].copy_(pairs[..., 1])
                grads.append(grad)
        return *grads, None


def _paired(gain: Tensor) -> Tensor:
    """Coordinates of one head [d_head] in the order of `join_qkv`."""
    return gain.view(2, -1).t().reshape(-1)


def plain_heads_of(
    h: Tensor, gains: tuple[Tensor, Tensor] | None, turn: Tensor, eps: float, n_heads: int, n_kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v from joined products: split, norm each head of q and k, turn each pair."""
    batch, pos, width = h.shape
    heads = h.view(batch, pos, -1, width // (n_heads + 2 * n_kv_heads)).transpose(1, 2)
    q, k, v = heads.split((n_heads, n_kv_heads, n_kv_heads), dim=1)
    if gains is not None:
        q, k = (plain_rms_norm(part, _paired(gain), eps) for part, gain in zip((q, k), gains, strict=True))

    def turned(part: Tensor) -> Tensor:
        pairs = torch.view_as_complex(_wide(part).unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn[:pos]).flatten(-2).to(h.dtype)

    return turned(q), turned(k), v


def heads_of(
    h: Tensor, gains: tuple[Tensor, Tensor] | None, turn: Tensor, eps: float, n_heads: int, n_kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q [batch, head, pos, d_head], k and v [batch, kv_head, pos, d_head] from h [batch, pos, joined], pairs side by side.

    `gains` are those of QK-norm [d_head] in their stored order, or None; `turn` [pos or more, d_head / 2] is complex,
    cos + i sin of the rotary angles.
    """
    q_gain, k_gain = gains if gains is not None else (None, None)
    return _Heads.apply(h, q_gain, k_gain, turn[: h.shape[1], None], eps, n_heads, n_kv_heads)


class _Heads(Function):
    """q' = e^{i a} (g u) with u = r q, per pair; du = g e^{-i a} dq'; dg = sum du u; dq = r (g du - u <g du, u> / d_head).

    q and k lie in one buffer, so each step is one pass over both.
    """

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        q_gain: Tensor | None,
        k_gain: Tensor | None,
        turn: Tensor,
        eps: float,
        n_heads: int,
        n_kv_heads: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, pos, width = h.shape
        d_head, n_qk = width // (n_heads + 2 * n_kv_heads), n_heads + n_kv_heads
        heads = h.view(batch, pos, -1, d_head)
        qk = _wide(heads[:, :, :n_qk])
        ctx.shape, ctx.n_heads, ctx.n_qk, ctx.normed = h.shape, n_heads, n_qk, q_gain is not None
        if q_gain is not None and k_gain is not None:
            r = _inverse_rms(qk, eps)
            u = qk * r
            gain = torch.cat((_paired(q_gain).expand(n_heads, -1), _paired(k_gain).expand(n_kv_heads, -1))).to(u.dtype)
            ctx.save_for_backward(turn, u, r, gain)
            qk = u * gain
            pairs = torch.view_as_complex(qk.view(batch, pos, n_qk, -1, 2))
            pairs.mul_(turn)
        else:
            ctx.save_for_backward(turn)
            qk = torch.view_as_real(torch.view_as_complex(qk.unflatten(-1, (-1, 2))) * turn).flatten(-2)
        q, k = qk.to(h.dtype).transpose(1, 2).split((n_heads, n_kv_heads), dim=1)
        return q, k, heads[:, :, n_qk:].detach().transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
        turn, *saved = ctx.saved_tensors
        batch, pos, width = ctx.shape
        d_head, n_heads, n_qk = dq.shape[-1], ctx.n_heads, ctx.n_qk
        back = torch.conj_physical(turn)
        out = torch.empty(batch, pos, width // d_head, d_head, dtype=_wide(dq).dtype, device=dq.device)
        out[:, :, n_qk:] = dv.transpose(1, 2)
        d = out[:, :, :n_qk]
        for part, grad in ((d[:, :, :n_heads], dq), (d[:, :, n_heads:], dk)):
            grad = _wide(grad).transpose(1, 2)
            grad = grad if grad.stride(-1) == 1 else grad.contiguous()
            torch.mul(_complex(grad), back, out=_complex(part))
        d_q_gain = d_k_gain = None
        if ctx.normed:
            u, r, gain = saved
            along = d * u
            if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
                d_gain = along.sum((0, 1)).view(n_qk, -1, 2).transpose(1, 2).reshape(n_qk, d_head)
                d_q_gain, d_k_gain = d_gain[:n_heads].sum(0), d_gain[n_heads:].sum(0)
            share = along.mul_(gain).sum(-1, keepdim=True).div_(-d_head)
            d.mul_(gain).addcmul_(u, share).mul_(r)
        return out.view(ctx.shape).to(dq.dtype), d_q_gain, d_k_gain, None, None, None, None


def _complex(x: Tensor) -> Tensor:
    """[..., d] with neighbours as complex [..., d / 2], sharing memory."""
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def plain_attention_out(residual: Tensor | None, z: Tensor, W_O: Tensor) -> Tensor:
    """residual + concat_h(z_h) W_O."""
    out = z.transpose(1, 2).flatten(2) @ W_O
    return out if residual is None else residual + out


def attention_out(residual: Tensor | None, z: Tensor, W_O: Tensor) -> Tensor:
    """The same in one product: residual [batch, pos, d_model], z [batch, head, pos, d_head], W_O [head * d_head, d_model]."""
    return _AttentionOut.apply(residual, z, W_O, _product_dtype(z))


class _AttentionOut(Function):
    """y = x + z W; dx = dy, dz = dy W^T, dW = z^T dy."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor | None, z: Tensor, W_O: Tensor, dtype: torch.dtype) -> Tensor:
        heads = z.transpose(1, 2)
        rows = heads.reshape(-1, W_O.shape[0]).to(dtype)
        ctx.save_for_backward(rows, W_O)
        ctx.shape = heads.shape
        return _plus_product(residual, rows, W_O.to(dtype), heads.shape[:2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        rows, W_O = ctx.saved_tensors
        g = _rows(dy).to(rows.dtype)
        dz = dW = None
        if ctx.needs_input_grad[1]:
            dz = (g @ W_O.to(rows.dtype).t()).view(ctx.shape).transpose(1, 2)
        if ctx.needs_input_grad[2]:
            dW = (rows.t() @ g).to(W_O.dtype)
        return dy if ctx.needs_input_grad[0] else None, dz, dW, None


def _plus_product(residual: Tensor | None, rows: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
    """residual + rows @ weight as [*shape, d], in one operator where dtypes agree."""
    if residual is None:
        out = rows @ weight
    elif residual.dtype == rows.dtype:
        out = torch.addmm(_rows(residual), rows, weight)
    else:
        out = _rows(residual) + rows @ weight
    return out.view(*shape, weight.shape[1])


def plain_relu2_mlp(residual: Tensor | None, x: Tensor, W_in: Tensor, W_out: Tensor) -> Tensor:
    """residual + relu(x W_in)^2 W_out."""
    out = F.relu(x @ W_in).square() @ W_out
    return out if residual is None else residual + out


def relu2_mlp(residual: Tensor | None, x: Tensor, W_in: Tensor, W_out: Tensor) -> Tensor:
    """The same: residual, x [..., d_model], W_in [d_model, d_mlp], W_out [d_mlp, d_model] -> [..., d_model]."""
    return _ReLU2.apply(residual, x, W_in, W_out, _product_dtype(x))


class _ReLU2(Function):
    """a = relu(x W_in), s = a a, y = residual + s W_out; da = 2 a (dy W_out^T), the factor 2 inside the product."""

    @staticmethod
    def forward(
        ctx: Any, residual: Tensor | None, x: Tensor, W_in: Tensor, W_out: Tensor, dtype: torch.dtype
    ) -> Tensor:
        rows = _rows(x).to(dtype)
        a = (rows @ W_in.to(dtype)).relu_()
        s = a * a
        ctx.save_for_backward(rows, a, s, W_in, W_out)
        ctx.x_dtype = x.dtype
        return _plus_product(residual, s, W_out.to(dtype), x.shape[:-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        rows, a, s, W_in, W_out = ctx.saved_tensors
        need_residual, need_x, need_in, need_out, _ = ctx.needs_input_grad
        g = _rows(dy).to(rows.dtype)
        dx = dW_in = dW_out = None
        if need_out:
            dW_out = (s.t() @ g).to(W_out.dtype)
        if need_x or need_in:
            da = torch.addmm(g.new_empty(()), g, W_out.to(g.dtype).t(), beta=0, alpha=2).mul_(a)
            if need_in:
                dW_in = (rows.t() @ da).to(W_in.dtype)
            if need_x:
                dx = (da @ W_in.to(g.dtype).t()).view(dy.shape).to(ctx.x_dtype)
        return dy if need_residual else None, dx, dW_in, dW_out, None

"""The fast path on a CPU: the parts of a block with hand-written backward passes.

At the sizes people train on a CPU (d_model of some hundreds, a thousand tokens a step) a step is made of products,
which stay as they are, and of passes over activations and dispatches of small operators, which autograd multiplies.
Each class here does one part of a block in as few of both as its algebra, written in its docstring, allows. The
explicit path of `attention`, `blocks` and `norms` is the formula that each must equal in values and gradients.

The passes between the products are those of `passes`: torch's operators, or compiled ones.

They serve first derivatives on CPU tensors in eager mode. Elsewhere, under torch.compile, and where somebody looks (a
hook), the formulas run. Products are in autocast's dtype where that is on; norms and rotary turns are never below
float32.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function, function
from torch.autograd.function import FunctionCtx

from qkv.kernels import elementwise
from qkv.kernels.attention import Keys, Queries, Stream
from qkv.kernels.reference import Formulas, Gains, Heads, Kept, NormKind, wide_dtype
from qkv.shapes import Float

Grads = tuple[Tensor | None, ...]


if TYPE_CHECKING:

    class Context(FunctionCtx):
        """What a function of autograd keeps from its forward pass for its backward pass, in attributes of any name."""

        needs_input_grad: tuple[bool, ...]
        saved_tensors: tuple[Any, ...]
        """Tensors, and None where it was given None."""

        def save_for_backward(self, *tensors: Tensor | None) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: object) -> None: ...

else:
    Context = FunctionCtx

Backward = TypeVar("Backward", bound=Callable[..., object])


def once_differentiable(backward: Backward) -> Backward:
    """torch's, with the type of the backward pass that it is given."""
    return function.once_differentiable(backward)  # type: ignore[return-value]


class Norm(NamedTuple):
    """The norm before a part of a block, as the fast path takes it."""

    gain: Float[Tensor, "d"]
    bias: Float[Tensor, "d"] | None
    kind: NormKind


def serves(x: Float[Tensor, "..."]) -> bool:
    """Whether the fast path is the right one for `x`: a CPU tensor in eager mode."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def product_dtype(x: Float[Tensor, "..."]) -> torch.dtype:
    """The dtype of matrix products on `x`: its own, or autocast's."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _rows(x: Tensor) -> Tensor:
    """[..., d] as [n, d]."""
    return x.reshape(-1, x.shape[-1])


# A norm by itself -----------------------------------------------------------------------------------------------------


def norm(x: Float[Tensor, "*batch d"], how: Norm) -> Float[Tensor, "*batch d"]:
    """The norm of x over its last axis, of x's dtype."""
    return _Norm.apply(x, *how)


class _Norm(Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, gain: Tensor, bias: Tensor | None, kind: NormKind) -> Tensor:
        ctx.by, ctx.kind = elementwise.chosen(x, x.dtype), kind
        y, kept = ctx.by.norm(_rows(x), gain, bias, kind, x.dtype)
        ctx.save_for_backward(gain, bias, *kept)
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *grads: Tensor) -> Grads:
        (dy,) = grads
        gain, bias, *kept = ctx.saved_tensors
        rows = _rows(dy).to(wide_dtype(dy.dtype), copy=True)
        dx, d_gain, d_bias = ctx.by.norm_back(rows, kept, gain, bias, ctx.kind, None)
        return dx.view(dy.shape), d_gain, d_bias, None


# Attention, from the residual stream to q, k, v -----------------------------------------------------------------------


def attention_in(
    x: Stream,
    norm: Norm | None,
    weights: tuple[Tensor, Tensor, Tensor],
    biases: tuple[Tensor, Tensor, Tensor] | None,
    gains: Gains | None,
    heads: Heads,
) -> tuple[Queries, Keys, Keys, Stream]:
    """q, k and v of x; and x, handed on.

    `norm` comes first (None: x enters as it is), `weights` are W_Q, W_K, W_V, `biases` b_Q, b_K, b_V, `gains` those of
    QK-norm (None: none). With rotary turns the coordinates of q and k may come in another order, the same for both,
    which no score can see. The x that is handed on is for the residual sum: its gradient then
    joins the norm's in one pass.
    """
    added = biases or (None, None, None)
    given = *(norm or _NO_NORM), *weights, *added, *(gains or (None, None))
    return _AttentionIn.apply(x, *given, heads, product_dtype(x))


_NO_NORM = (None, None, None)


def _beside(halves: Tensor, d_head: int) -> tuple[Tensor, Tensor]:
    """The halves of every head of [rows, n * d_head], as two views [rows, n, d_head / 2]."""
    halves = halves.view(halves.shape[0], -1, 2, d_head // 2)
    return halves.select(2, 0), halves.select(2, 1)


def _pairs(joined: Tensor, d_head: int) -> tuple[Tensor, Tensor]:
    """First and second of every pair of neighbours of [rows, n * d_head], as two views [rows, n, d_head / 2]."""
    pairs = joined.view(joined.shape[0], -1, d_head // 2, 2)
    return pairs.select(3, 0), pairs.select(3, 1)


def _join(weights: tuple[Tensor, Tensor, Tensor], heads: Heads, dtype: torch.dtype, paired: bool) -> Tensor:
    """[W_Q | W_K | W_V]; where `paired` for rotary turns, coordinates i and i + d_head/2 of q and k side by side.

    Side by side, a pair is one complex number and its turn one complex product. The order is changed here, on the small
    matrices, and not on every token.
    """
    if heads.turn is None or not paired:
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


def _split(
    joined: Tensor, widths: list[int], heads: Heads, needed: tuple[bool, ...], paired: bool
) -> list[Tensor | None]:
    """The inverse of `_join`, for gradients; None where not needed."""
    out: list[Tensor | None] = []
    for i, width in enumerate(widths):
        part = joined.narrow(1, sum(widths[:i]), width)
        if not needed[i]:
            out.append(None)
        elif i == 2 or heads.turn is None or not paired:
            out.append(part.contiguous())
        else:
            whole = part.new_empty(part.shape)
            for half, pair in zip(_beside(whole, heads.d_head), _pairs(part, heads.d_head), strict=True):
                half.copy_(pair)
            out.append(whole)
    return out


class _AttentionIn(Function):
    """y = norm(x); [q | k | v] = y [W_Q | W_K | W_V] + b; then q and k are normed and turned (`Formulas.place`).

    Backward one product each for the joined weights and for y. q and k share one buffer, so a step is one pass over
    both.
    """

    @staticmethod
    def forward(
        ctx: Context,
        x: Tensor,
        gain: Tensor | None,
        shift: Tensor | None,
        kind: NormKind | None,
        W_Q: Tensor,
        W_K: Tensor,
        W_V: Tensor,
        b_Q: Tensor | None,
        b_K: Tensor | None,
        b_V: Tensor | None,
        q_gain: Tensor | None,
        k_gain: Tensor | None,
        heads: Heads,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)  # an output may be unused, such as the x handed on
        ctx.heads, ctx.shape, ctx.widths = heads, x.shape, [W.shape[1] for W in (W_Q, W_K, W_V)]
        ctx.by, ctx.kind = by, kind = elementwise.chosen(x, dtype, heads.d_head), kind
        y, kept = _normed(by, _rows(x), gain, shift, kind, dtype)
        size = x.shape[-1] * sum(ctx.widths)
        joined = _join((W_Q, W_K, W_V), heads, by.weight_dtype(size, dtype), by.paired)
        bias = None
        if b_Q is not None and b_K is not None and b_V is not None:
            bias = _join((b_Q[None], b_K[None], b_V[None]), heads, b_Q.dtype, by.paired)[0]
        h, rest = by.product(y, joined, bias)
        gains = (q_gain, k_gain) if q_gain is not None and k_gain is not None else None
        sides, of_heads = by.place(h.view(*x.shape[:2], -1, heads.d_head), rest, gains, heads)
        ctx.save_for_backward(gain, shift, y, joined, *kept, *of_heads)
        return *sides, x

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *grads: Tensor | None) -> Grads:
        dq, dk, dv, onto = grads
        gain, shift, y, joined, *kept = ctx.saved_tensors
        by, heads, (batch, pos, _) = ctx.by, ctx.heads, ctx.shape
        need_x, need_gain, need_shift = ctx.needs_input_grad[:3]
        need_weights, need_biases = ctx.needs_input_grad[4:7], ctx.needs_input_grad[7:10]
        dh, d_gains = by.place_back((dq, dk, dv), kept[3:], heads, y.view(batch, pos, -1))
        rows = dh.view(batch * pos, -1)
        d_weights: list[Tensor | None] = [None, None, None]
        d_biases: list[Tensor | None] = [None, None, None]
        dW, db = _weight_grads(by, y, rows, rows, any(need_weights), any(need_biases))
        if dW is not None:
            d_weights = _split(dW, ctx.widths, heads, need_weights, by.paired)
        if db is not None:
            parts = _split(db[None], ctx.widths, heads, need_biases, by.paired)
            d_biases = [None if part is None else part[0] for part in parts]
        dx = d_gain = d_shift = None
        if need_x or need_gain or need_shift:
            dx, onto = by.product_back(rows, joined), None if onto is None else _rows(onto)
            if gain is not None:
                dx, d_gain, d_shift = by.norm_back(dx, kept[:3], gain, shift, ctx.kind, onto)
            elif onto is not None:
                dx = dx.to(onto.dtype).add_(onto)
            dx = dx.view(ctx.shape)
        return dx, d_gain, d_shift, None, *d_weights, *d_biases, *(d_gains or (None, None)), None, None


def _weight_grads(
    by: Formulas, x: Tensor, d: Tensor, whole: Tensor, need_W: bool, need_b: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Of y = x W + b, dW = x^T d and db = sum_n d, where needed; `whole` is d before it was rounded."""
    if not need_W:
        return None, whole.sum(0, dtype=wide_dtype(whole.dtype)) if need_b else None
    return by.weight_grad(x, d, whole if need_b else None)


def _normed(
    by: Formulas, rows: Tensor, gain: Tensor | None, shift: Tensor | None, kind: NormKind | None, dtype: torch.dtype
) -> tuple[Tensor, Kept]:
    """norm(rows) in the dtype of products, and what is kept for the way back; rows as they are without a norm."""
    if gain is None or kind is None:
        return rows.to(dtype), (None, None, None)
    return by.norm(rows, gain, shift, kind, dtype)


# Attention, back onto the residual stream -----------------------------------------------------------------------------


def attention_out(
    residual: Stream | None,
    z: Queries,
    W_O: Float[Tensor, "n_heads*d_head d_model"],
    b_O: Float[Tensor, "d_model"] | None,
) -> Stream:
    """[residual +] concat_h(z_h) W_O + b_O."""
    return _AttentionOut.apply(residual, z, W_O, b_O, product_dtype(z))


def _onto(by: Formulas, residual: Tensor | None, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[residual +] rows @ weight + bias."""
    if residual is not None:
        return by.plus_product(_rows(residual), rows, weight, bias)
    out, rest = by.product(rows, weight, bias)
    return out if rest is None else out.add_(rest)


class _AttentionOut(Function):
    """y = x + z W + b; dx = dy, dz = dy W^T, dW = z^T dy, db = sum_n dy."""

    @staticmethod
    def forward(
        ctx: Context, residual: Tensor | None, z: Tensor, W_O: Tensor, b_O: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        ctx.by = by = elementwise.chosen(W_O if residual is None else residual, dtype)
        heads, weight = z.transpose(1, 2), W_O.to(by.weight_dtype(W_O.numel(), dtype))
        rows = heads.reshape(-1, weight.shape[0]).to(dtype)
        ctx.save_for_backward(rows, weight)
        ctx.shape = heads.shape
        return _onto(by, residual, rows, weight, b_O).view(*heads.shape[:2], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *grads: Tensor) -> Grads:
        (dy,) = grads
        rows, weight = ctx.saved_tensors
        whole, dz = _rows(dy), None
        d = whole.to(rows.dtype)
        if ctx.needs_input_grad[1]:
            dz = ctx.by.product_back(d, weight).view(ctx.shape).transpose(1, 2)
        dW, db = _weight_grads(ctx.by, rows, d, whole, *ctx.needs_input_grad[2:4])
        return dy if ctx.needs_input_grad[0] else None, dz, dW, db, None


# MLP ------------------------------------------------------------------------------------------------------------------


def mlp(
    x: Float[Tensor, "*batch d_model"],
    norm: Norm | None,
    kind: str,
    weights: tuple[
        Float[Tensor, "d_model d_mlp"], Float[Tensor, "d_model d_mlp"] | None, Float[Tensor, "d_mlp d_model"]
    ],
    biases: tuple[Float[Tensor, "d_mlp"] | None, Float[Tensor, "d_model"] | None],
    *,
    residual: bool,
) -> Float[Tensor, "*batch d_model"]:
    """[x +] act(norm(x) W_in + b_in) W_out + b_out; `kind` as in `Layout.mlp`.

    `norm` comes first (None: x enters as it is); `weights` are W_in, W_gate (of swiglu) and W_out, `biases` b_in and
    b_out.
    """
    return _MLP.apply(x, *(norm or _NO_NORM), *weights, *biases, kind, residual, product_dtype(x))


class _MLP(Function):
    """s = act(c), c = y W_in + b_in, dc = act'(c) ds; relu^2: dc = 2 relu(c) ds, the 2 inside the product of ds.

    swiglu: s = silu(g) c, g = y W_gate, dc = silu(g) ds, dg = silu'(g) c ds.
    """

    @staticmethod
    def forward(
        ctx: Context,
        x: Tensor,
        gain: Tensor | None,
        shift: Tensor | None,
        norm_kind: NormKind | None,
        W_in: Tensor,
        W_gate: Tensor | None,
        W_out: Tensor,
        b_in: Tensor | None,
        b_out: Tensor | None,
        kind: str,
        residual: bool,
        dtype: torch.dtype,
    ) -> Tensor:
        by, alone = elementwise.chosen(x, dtype), W_gate is None
        y, kept = _normed(by, _rows(x), gain, shift, norm_kind, dtype)
        wanted, back = (by.weight_dtype(W.numel(), dtype, activated=alone) for W in (W_in, W_out))
        w_in, w_out, gate = W_in.to(wanted), W_out.to(back), None
        if W_gate is not None:
            gate = W_gate.to(wanted)
            s, of_gate = by.gated(y, w_in, gate, b_in)
        else:
            s, slope = by.hidden(kind, y, w_in, b_in)
            of_gate = slope, None, None
        ctx.save_for_backward(gain, shift, y, s, w_in, gate, w_out, *of_gate, *kept)
        ctx.by, ctx.norm_kind, ctx.kind, ctx.residual, ctx.shape = by, norm_kind, kind, residual, x.shape
        return _onto(by, x if residual else None, s, w_out, b_out).view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *grads: Tensor) -> Grads:
        (dy,) = grads
        gain, shift, y, s, w_in, gate, w_out, *kept = ctx.saved_tensors
        of_gate, kept = kept[:3], kept[3:]
        need_x, need_gain, need_shift, _, need_in, need_gate, need_out, need_b_in, need_b_out = ctx.needs_input_grad[:9]
        by, rows = ctx.by, _rows(dy)
        d = rows.to(y.dtype)
        d_gain = d_shift = dg = d_b_in = None
        d_out, d_b_out = _weight_grads(by, s, d, rows, need_out, need_b_out)
        if gate is not None:
            dc, dg = by.gated_back(d, w_out, of_gate)
        else:
            dc, d_b_in = by.hidden_back(ctx.kind, d, w_out, of_gate[0], summed=need_b_in)
        d_in, summed = _weight_grads(by, y, dc, dc, need_in, need_b_in and d_b_in is None)
        d_b_in = summed if d_b_in is None else d_b_in
        d_gate = by.weight_grad(y, dg, None)[0] if dg is not None and need_gate else None
        dx = rows if ctx.residual else None
        if need_x or need_gain or need_shift:
            two = dg is not None and gate is not None
            d_y = by.sum_back(dc, w_in, dg, gate) if two else by.product_back(dc, w_in)
            if gain is not None:
                dx, d_gain, d_shift = by.norm_back(d_y, kept, gain, shift, ctx.norm_kind, dx)
            else:
                d_y = d_y.to(rows.dtype)
                dx = d_y if dx is None else d_y.add_(dx)
        d_x = None if dx is None else dx.view(ctx.shape)
        return d_x, d_gain, d_shift, None, d_in, d_gate, d_out, d_b_in, d_b_out, None, None, None

"""softmax(scale q k^T + bias) v by plain products: the fast path where texts are short.

torch's fused operator for the CPU never forms a pattern; it works in tiles of float32, which takes its time. Here the
pattern of some heads at a time is formed, and five plain products do it all; where the processor multiplies bfloat16,
several times as fast. Backward, with P the pattern:

    dV = P^T dZ,  dP = dZ V^T,  dS = P (dP - rowsum(dP P)),  dQ = scale dS K,  dK = scale dS^T Q

P is kept for it where it is small. Where it is not, it is made once more, some heads at a time: a product and a softmax
in a core's cache, and no memory that grows with the square of the length.

`attention.attend_explicit` is the formula that this must equal in values and gradients.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from qkv.kernels.attention import Attending, Hiding, Keys, Mixed, Queries, Values, Visible
from qkv.kernels.autograd import Context, Grads, once_differentiable, product_dtype, serves
from qkv.kernels.elementwise import attending_for
from qkv.shapes import Float

LONGEST = {torch.bfloat16: 512, torch.float32: 128}
"""Up to how many keys this path is the faster one (two cores with AVX-512; tests/campaigns/attention.py)."""
LONGEST_COMPILED = {torch.bfloat16: 4096, torch.float32: 1024}
"""Most keys for which compiled attention is the faster one: a head then fits next to the processor."""
WIDEST_COMPILED = 256
"""Most numbers of a head, for the same reason."""
AT_ONCE = 2**20
"""Entries of the pattern worked on at a time, and most of one that is kept."""


def attend(q: Queries, k: Keys, v: Values, to: Visible, scale: float) -> Mixed:
    """z = softmax(scale q k^T + bias) v by the fastest path for tensors like these; torch's where there is none.

    n_heads is a multiple of n_kv_heads.
    """
    if serves(q) and compiled_serves(q, k):
        return attend_compiled(q, k, v, to.bias, scale, causal=to.causal)
    if serves(q) and k.shape[2] <= LONGEST.get(product_dtype(q), 0):
        return attend_by_products(q, k, v, causal_bias(q.shape[2], q) if to.causal else to.bias, scale)
    shared = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=to.bias, is_causal=to.causal, scale=scale, enable_gqa=shared
    )


def attend_by_products(q: Queries, k: Keys, v: Keys, bias: Hiding | None, scale: float) -> Queries:
    """z; without a `bias` all keys are seen."""
    dtype = product_dtype(q)
    return _Attend.apply(q.to(dtype), k.to(dtype), v.to(dtype), bias, scale)


def compiled_serves(q: Queries, k: Keys) -> bool:
    """Whether attention is compiled here for tensors like these, and serves keys of this number and width."""
    there = q.dtype == product_dtype(q) and attending_for(q, k.shape[2]) is not None
    return there and k.shape[2] <= LONGEST_COMPILED[q.dtype] and q.shape[3] <= WIDEST_COMPILED


def attend_compiled(q: Queries, k: Keys, v: Keys, bias: Hiding | None, scale: float, *, causal: bool) -> Queries:
    """The same as compiled for this processor, which keeps no pattern: the scores are made once more on the way back.

    z lies by position in memory, as the product with W_O reads it.
    """
    by = attending_for(q)
    assert by is not None
    bias = None if bias is None else bias.float().contiguous()
    return _Compiled.apply(q.contiguous(), *(x.to(q.dtype).contiguous() for x in (k, v)), bias, scale, causal, by)


class _Compiled(Function):
    @staticmethod
    def forward(
        ctx: Context, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: bool, by: Attending
    ) -> Tensor:
        z, mass = by.attend(q, k, v, bias, scale, causal=causal)
        ctx.save_for_backward(q, k, v, mass, bias)
        ctx.how = by, scale, causal
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *grads: Tensor) -> Grads:
        (dz,) = grads
        q, k, v, mass, bias = ctx.saved_tensors
        by, scale, causal = ctx.how
        return *by.attend_back(dz.to(q.dtype), q, k, v, mass, bias, scale, causal=causal), None, None, None, None


def causal_bias(n: int, like: Float[Tensor, "..."]) -> Float[Tensor, "1 1 {n} {n}"]:
    """0 up to a query's own position and -inf behind it."""
    return torch.full((1, 1, n, n), -math.inf, dtype=like.dtype, device=like.device).triu_(1)


def _stacked(x: Tensor, count: int) -> Tensor:
    """[batch, head, pos, d] as [batch * count, head / count * pos, d]: heads that share a key head below each other."""
    return x.reshape(x.shape[0] * count, -1, x.shape[-1])


def _bias_for(bias: Tensor, q: Tensor, n_kv: int) -> Tensor:
    """The bias as one that `baddbmm` can broadcast onto the stacked scores."""
    batch, heads, n_query, _ = q.shape
    group = heads // n_kv
    if group == 1 and bias.shape[0] == 1:
        return bias[0]
    bias = bias.to(q.dtype).expand(batch, n_kv, n_query, bias.shape[-1])
    return bias.repeat(1, 1, group, 1).flatten(0, 1)


class _Attend(Function):
    @staticmethod
    def forward(ctx: Context, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        n_kv = k.shape[1]
        rows, keys, values = (_stacked(x, n_kv) for x in (q, k, v))
        if bias is None:
            bias, beta = rows.new_empty(()), 0
        else:
            bias, beta = _bias_for(bias.to(q.dtype), q, n_kv), 1
        z, pattern, portions = torch.empty_like(rows), None, _portions(rows, keys)
        for part in portions:
            pattern = _pattern(rows[part], keys[part], bias, beta, scale, part)
            torch.bmm(pattern, values[part], out=z[part])
        ctx.save_for_backward(rows, keys, values, bias, pattern if len(portions) == 1 else None)
        ctx.scale, ctx.beta, ctx.shapes = scale, beta, (q.shape, k.shape)
        return z.view(q.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *grads: Tensor) -> Grads:
        (dz,) = grads
        rows, keys, values, bias, kept = ctx.saved_tensors
        shape, kv_shape = ctx.shapes
        dz = _stacked(dz.to(values.dtype), kv_shape[1])
        d_rows, d_keys, d_values = torch.empty_like(rows), torch.empty_like(keys), torch.empty_like(values)
        none = rows.new_empty(())
        for part in _portions(rows, keys):
            pattern = kept
            if pattern is None:
                pattern = _pattern(rows[part], keys[part], bias, ctx.beta, ctx.scale, part)
            torch.bmm(pattern.mT, dz[part], out=d_values[part])
            d_pattern = torch.bmm(dz[part], values[part].mT)
            d_scores = torch.ops.aten._softmax_backward_data(d_pattern, pattern, -1, pattern.dtype)
            torch.baddbmm(none, d_scores, keys[part], beta=0, alpha=ctx.scale, out=d_rows[part])
            torch.baddbmm(none, d_scores.mT, rows[part], beta=0, alpha=ctx.scale, out=d_keys[part])
        return d_rows.view(shape), d_keys.view(kv_shape), d_values.view(kv_shape), None, None


def _pattern(rows: Tensor, keys: Tensor, bias: Tensor, beta: float, scale: float, part: slice) -> Tensor:
    """softmax(scale rows keys^T + bias) of a portion."""
    its = bias if bias.ndim == 0 or bias.shape[0] == 1 else bias[part]
    return torch.baddbmm(its, rows, keys.mT, beta=beta, alpha=scale).softmax(-1)


def _portions(rows: Tensor, keys: Tensor) -> list[slice]:
    """Cuts along the first axis of about `AT_ONCE` entries of the pattern."""
    count = max(1, AT_ONCE // (rows.shape[1] * keys.shape[1]))
    return [slice(i, i + count) for i in range(0, rows.shape[0], count)]

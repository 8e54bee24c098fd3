"""softmax(scale q k^T + bias) v with the pattern kept: the fast path where the pattern is small.

torch's fused operator for the CPU never forms the pattern, which saves memory and costs time: its backward pass makes
the scores once more, in tiles of float32. Up to some thousand positions the pattern fits, and then five plain products
do it all; where the processor multiplies bfloat16, several times as fast. Backward, with P the pattern:

    dV = P^T dZ,  dP = dZ V^T,  dS = P (dP - rowsum(dP P)),  dQ = scale dS K,  dK = scale dS^T Q

`attention.attend_explicit` is the formula that this must equal in values and gradients.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from qkv.models.fused import product_dtype
from qkv.models.passes import tiles_for
from qkv.models.tiles import Tiles

__all__ = ["attend_by_tiles", "attend_kept", "keeps", "tiles_serve"]

Grads = tuple[Tensor | None, ...]

LARGEST_PATTERN = 2**25
"""Most entries of a pattern that is kept: 64 MiB in bfloat16."""
LONGEST = {torch.bfloat16: 512, torch.float32: 128}
"""Up to how many keys this path is the faster one (two cores with AVX-512; benchmarks/attention.py)."""
LONGEST_BY_TILES, WIDEST_BY_TILES = 4096, 256
"""Most keys, and numbers of a head, for which tiles are the faster ones: then a head fits next to the processor."""
AT_ONCE = 2**20
"""Entries of the pattern worked on at a time, for its intermediate values to stay small."""


def keeps(q: Tensor, k: Tensor) -> bool:
    """Whether this path is the faster one, and the pattern fits."""
    batch, heads, n_query, _ = q.shape
    n_key = k.shape[2]
    return n_key <= LONGEST.get(product_dtype(q), 0) and batch * heads * n_query * n_key <= LARGEST_PATTERN


def attend_kept(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """z [batch, head, query_pos, d_head] of q of that shape and k, v [batch, kv_head, key_pos, d_head].

    `bias`, 0 or -inf, broadcasts to [batch, head, query_pos, key_pos] and has size 1 in the place of head; None: all
    keys are seen. Query head h reads key head h // (heads / kv_heads).
    """
    dtype = product_dtype(q)
    return _Attend.apply(q.to(dtype), k.to(dtype), v.to(dtype), bias, scale)


def tiles_serve(q: Tensor, k: Tensor) -> bool:
    """Whether the processor's tiles are taken, and serve keys of this number and width."""
    return tiles_for(q) is not None and k.shape[2] <= LONGEST_BY_TILES and q.shape[3] <= WIDEST_BY_TILES


def attend_by_tiles(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, *, causal: bool) -> Tensor:
    """The same of bfloat16 q by tiles, which keep no pattern: the scores are made once more on the way back.

    z lies by position in memory, as the product with W_O reads it.
    """
    tiles = tiles_for(q)
    assert tiles is not None
    bias = None if bias is None else bias.float().contiguous()
    return _ByTiles.apply(q.contiguous(), *(x.to(q.dtype).contiguous() for x in (k, v)), bias, scale, causal, tiles)


class _ByTiles(Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: bool, tiles: Tiles
    ) -> Tensor:
        z, mass = tiles.attend(q, k, v, bias, scale, causal=causal)
        ctx.save_for_backward(q, k, v, mass, bias)
        ctx.how = tiles, scale, causal
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> Grads:
        q, k, v, mass, bias = ctx.saved_tensors
        tiles, scale, causal = ctx.how
        return *tiles.attend_back(dz.to(q.dtype), q, k, v, mass, bias, scale, causal=causal), None, None, None, None


def causal_bias(n: int, like: Tensor) -> Tensor:
    """0 up to a query's own position and -inf behind it: [1, 1, n, n]."""
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
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        n_kv = k.shape[1]
        rows, keys, values = (_stacked(x, n_kv) for x in (q, k, v))
        if bias is None:
            bias, beta = rows.new_empty(()), 0
        else:
            bias, beta = _bias_for(bias.to(q.dtype), q, n_kv), 1
        z = torch.empty_like(rows)
        pattern = rows.new_empty(rows.shape[0], rows.shape[1], keys.shape[1])
        for part in _portions(pattern):
            its = bias if bias.ndim == 0 or bias.shape[0] == 1 else bias[part]
            scores = torch.baddbmm(its, rows[part], keys[part].mT, beta=beta, alpha=scale)
            torch.softmax(scores, -1, out=pattern[part])
            torch.bmm(pattern[part], values[part], out=z[part])
        ctx.save_for_backward(rows, keys, values, pattern)
        ctx.scale, ctx.shapes = scale, (q.shape, k.shape)
        return z.view(q.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> Grads:
        rows, keys, values, pattern = ctx.saved_tensors
        shape, kv_shape = ctx.shapes
        dz = _stacked(dz.to(values.dtype), kv_shape[1])
        d_rows, d_keys, d_values = torch.empty_like(rows), torch.empty_like(keys), torch.empty_like(values)
        none = rows.new_empty(())
        for part in _portions(pattern):
            torch.bmm(pattern[part].mT, dz[part], out=d_values[part])
            d_pattern = torch.bmm(dz[part], values[part].mT)
            d_scores = torch.ops.aten._softmax_backward_data(d_pattern, pattern[part], -1, pattern.dtype)
            torch.baddbmm(none, d_scores, keys[part], beta=0, alpha=ctx.scale, out=d_rows[part])
            torch.baddbmm(none, d_scores.mT, rows[part], beta=0, alpha=ctx.scale, out=d_keys[part])
        return d_rows.view(shape), d_keys.view(kv_shape), d_values.view(kv_shape), None, None


def _portions(pattern: Tensor) -> list[slice]:
    """Cuts along the first axis of about `AT_ONCE` entries."""
    count = max(1, AT_ONCE // (pattern.shape[1] * pattern.shape[2]))
    return [slice(i, i + count) for i in range(0, pattern.shape[0], count)]

"""What the rows of softmax(s), s = scale * q_i . k_j, tell, without the table of query positions by key positions.

The entropy of a row is H_i = lse_i - E_p[s_i], and E_p[s_i] is scale * q_i times the mean key under the pattern: one
fused attention with the keys as values. A last coordinate that is 0 in q and the position in k rides along and gives
the mean position looked at. Masses on single columns and diagonals are exp(s - lse); the largest score is taken block
by block. So memory is O(N d) and the fused kernel does the work. Keys are centred first (softmax does not see the
shift), everything is in float64: exact to 1e-5 nats for scores up to 500.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.shapes import Float, Float64

BLOCK_BYTES = 1 << 24
"""Room for a block of scores, in the exact fallback and for the largest score."""


class Expectations(NamedTuple):
    """Of every row."""

    lse: Float64[Tensor, "batch n_heads query_pos"]
    """log sum_j exp(s_ij), with k centred"""
    score: Float64[Tensor, "batch n_heads query_pos"]
    """E_p[s_ij], with k centred"""
    position: Float64[Tensor, "batch n_heads query_pos"]
    """E_p[j]"""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Every row of the patterns of some heads, over a segment within which everything is visible: what a measure reads.

    Each answers [batch, n_heads, query_pos], float64.
    """

    q: Float64[Tensor, "batch n_heads query_pos d_head"]
    k: Float64[Tensor, "batch n_heads key_pos d_head"]
    """Centred."""
    scale: float
    causal: bool
    itself: bool
    """False in cross-attention, where no position is a row's own."""
    found: Expectations
    top: Float64[Tensor, "batch n_heads query_pos"]
    """The largest score, with k centred."""
    shift: Float64[Tensor, "batch n_heads query_pos"]
    """What centring takes off each score."""

    def mass(
        self, queries: Float64[Tensor, "..."], seen: Float64[Tensor, "..."], lse: Float64[Tensor, "..."]
    ) -> Tensor:
        """The attention of each query for the one key beside it."""
        return (self.scale * (queries * seen).sum(-1) - lse).exp()

    def nothing(self) -> Tensor:
        """Undefined in every row."""
        return torch.full_like(self.top, torch.nan)

    def places(self) -> Float64[Tensor, "query_pos"]:
        """The position of each row."""
        return torch.arange(self.q.shape[2], dtype=self.q.dtype, device=self.q.device)

    def distances(self) -> Tensor:
        """E_p|i - j| where both sides are seen, block by block."""
        place, parts, at = self.places(), [], 0
        for scores in _blocks(self.q, self.k, scale=self.scale, causal=False):
            rows = slice(at, at + scores.shape[2])
            away = (place[rows, None] - place).abs()
            parts.append(((scores - self.found.lse[:, :, rows, None]).exp_() * away).sum(-1))
            at = rows.stop
        return torch.cat(parts, dim=-1)


def expectations(
    q: Float64[Tensor, "batch n_heads query_pos d_head"],
    k: Float64[Tensor, "batch n_heads key_pos d_head"],
    *,
    scale: float,
    causal: bool,
) -> Expectations:
    """lse, E_p[s] and E_p[position] of each row; k centred."""
    place = torch.arange(k.shape[2], dtype=k.dtype, device=k.device)
    wide_q = torch.cat([q, q.new_zeros(*q.shape[:-1], 1)], dim=-1)
    wide_k = torch.cat([k, place[:, None].expand(*k.shape[:-1], 1)], dim=-1)
    if q.device.type == "cpu" and _kernel_gives_lse():
        mean, lse = _kernel(wide_q, wide_k, scale=scale, causal=causal)
    else:
        mean, lse = _blockwise(wide_q, wide_k, scale=scale, causal=causal)
    return Expectations(lse, scale * (q * mean[..., :-1]).sum(-1), mean[..., -1])


def largest_scores(
    q: Float[Tensor, "batch n_heads query_pos d_head"],
    k: Float[Tensor, "batch n_heads key_pos d_head"],
    *,
    scale: float,
    causal: bool,
) -> Float[Tensor, "batch n_heads query_pos"]:
    """max_j scale * q_i . k_j of each row, block by block."""
    top, at = q.new_empty(q.shape[:3]), 0
    for scores in _blocks(q, k, scale=scale, causal=causal):
        torch.amax(scores, dim=-1, out=top[:, :, at : at + scores.shape[2]])
        at += scores.shape[2]
    return top


def centred(k: Float[Tensor, "batch n_heads pos d_head"]) -> Float64[Tensor, "batch n_heads pos d_head"]:
    """k less its mean over positions, float64."""
    wide = k.double()
    return wide - wide.mean(2, keepdim=True)


def _kernel(q: Tensor, k: Tensor, *, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """(mean of k under the pattern, log-sum-exp) from the fused attention of the processor."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k, 0.0, causal, scale=scale)
    return out, lse


@cache
def _kernel_gives_lse() -> bool:
    """Whether this torch has that operator, and it answers as the exact way does."""
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, n, 5, dtype=torch.float64, generator=draw) for n in (7, 7))
    try:
        found = [(_kernel(q, k, scale=0.7, causal=c), _blockwise(q, k, scale=0.7, causal=c)) for c in (True, False)]
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
    return all(torch.allclose(a, b, rtol=1e-6, atol=1e-6) for pair in found for a, b in zip(*pair, strict=True))


def _blockwise(q: Tensor, k: Tensor, *, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """The same by its formula, a block of query positions at a time."""
    means, sums = [], []
    for scores in _blocks(q, k, scale=scale, causal=causal):
        lse = scores.logsumexp(-1)
        sums.append(lse)
        means.append((scores - lse[..., None]).exp_() @ k)
    return torch.cat(means, dim=2), torch.cat(sums, dim=2)


def _blocks(q: Tensor, k: Tensor, *, scale: float, causal: bool) -> Iterator[Tensor]:
    """scale * q k^T, -inf where a key is hidden, for one block of query positions after another.

    All blocks are the same memory: who keeps one must copy it.
    """
    n, m = q.shape[2], k.shape[2]
    rows = min(n, max(1, BLOCK_BYTES // (q.element_size() * q.shape[0] * q.shape[1] * m)))
    room = q.new_empty(q.shape[0] * q.shape[1] * rows * m)
    for first in range(0, n, rows):
        last = min(first + rows, n)
        scores = room[: q.shape[0] * q.shape[1] * (last - first) * m].view(*q.shape[:2], last - first, m)
        torch.matmul(q[:, :, first:last] * scale, k.mT, out=scores)
        if causal:
            hidden = torch.ones(last - first, m, dtype=torch.bool, device=q.device).triu_(first + 1)
            scores.masked_fill_(hidden, -math.inf)
        yield scores

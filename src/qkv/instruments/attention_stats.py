"""What every head attends to, exactly, without the table of query positions by key positions.

The entropy of a row of softmax(s), s = scale * q_i . k_j, is H_i = lse_i - E_p[s_i], and E_p[s_i] is scale * q_i times
the mean key under the pattern: one fused attention with the keys as values. A last coordinate that is 0 in q and the
position in k rides along and gives the mean position looked at. Masses on single columns and diagonals are
exp(s - lse); the largest score is taken block by block. So memory is O(N d) and the fused kernel does the work. Keys
are centred first (softmax does not see the shift), everything is in float64, and what rounding made negative is 0:
exact to 1e-5 nats for scores up to 500.

Of causal rows the first is left out: it has one key and no choice. Documents and padding are taken one document at a
time, so that no mask is as large as the table. Refuses: rotary distances, biases added to scores, dropout.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from qkv.shapes import Bool, Float, Float64, Int

__all__ = [
    "DOMINANT",
    "INDUCTION",
    "STATISTICS",
    "attention_stats",
    "expectations",
    "induction_score",
    "largest_scores",
]

DOMINANT = 0.9
"""A key with more of a row's attention than this dominates it."""

STATISTICS = ("entropy", "largest_score", "own_mass", "previous_mass", "first_mass", "distance", "dominant_rows")
"""What `attention_stats` gives of each head."""

INDUCTION = "induction"
"""What it gives of random tokens that repeat."""

BLOCK_BYTES = 1 << 24
"""Room for a block of scores, in the exact fallback and for the largest score."""

HEADS_BYTES = 1 << 25
"""Room for the float64 copies of q and k of the heads that are taken together."""


@dataclass(frozen=True)
class Expectations:
    """Of every row."""

    lse: Float64[Tensor, "batch n_heads query_pos"]
    """log sum_j exp(s_ij), with k centred"""
    score: Float64[Tensor, "batch n_heads query_pos"]
    """E_p[s_ij], with k centred"""
    position: Float64[Tensor, "batch n_heads query_pos"]
    """E_p[j]"""

    def without_the_last(self) -> "Expectations":
        """Of all sequences but the last."""
        return Expectations(self.lse[:-1], self.score[:-1], self.position[:-1])


def attention_stats(
    q: Float[Tensor, "batch n_heads query_pos d_head"],
    k: Float[Tensor, "batch n_kv_heads key_pos d_head"],
    *,
    scale: float,
    causal: bool = False,
    documents: Int[Tensor, "batch key_pos"] | None = None,
    keys: Bool[Tensor, "batch key_pos"] | None = None,
    queries: Bool[Tensor, "batch query_pos"] | None = None,
    itself: bool = True,
    period: int = 0,
) -> dict[str, Float64[np.ndarray, "n_heads"]]:
    """Means over all rows (`largest_score`: the largest) of each head by name, NaN where undefined.

    q and k as they meet in the scores, n_heads a multiple of n_kv_heads. `documents` keeps documents apart; `keys` is
    True for real tokens. `itself` False is cross-attention: no own or previous position, no distance; there `queries`
    is True for the tokens that ask, and `documents` is not read. With a `period` the last sequence of a batch without
    masks is no text but random tokens that repeat after so many: it gives `INDUCTION`, as `induction_score` does, and
    counts for nothing else. Of a causal batch it may go on behind the second time, of another it ends there.

    entropy in nats, 0 to ln(number of keys); largest_score any number (scaled, before softmax); masses and
    dominant_rows (rows with a key above 0.9) 0 to 1; distance in positions, 0 and up.
    """
    heads, parts, names = q.shape[1], [], (*STATISTICS, INDUCTION) if period else STATISTICS
    for b, rows, columns in _segments(q, k, documents, keys, queries, itself):
        one_q, one_k = q[b][:, :, rows], k[b][:, :, columns]
        at_once = max(1, HEADS_BYTES // (8 * 4 * (one_q.shape[2] + one_k.shape[2]) * one_q.shape[3] * one_q.shape[0]))
        found = []
        for first in range(0, heads, at_once):
            chosen = torch.arange(first, min(first + at_once, heads), device=q.device)
            shared = one_k[:, chosen // (heads // k.shape[1])]
            found.append(_rows(one_q[:, chosen], shared, scale=scale, causal=causal, itself=itself, period=period))
        parts.append({name: np.concatenate([f[name] for f in found]) for name in names})
    if not parts:
        return {name: np.full(heads, np.nan) for name in names}
    joined = {name: np.concatenate([part[name] for part in parts], axis=1) for name in names}
    return {name: _over_rows(name, values) for name, values in joined.items()}


def induction_score(
    q: Float[Tensor, "batch n_heads pos d_head"],
    k: Float[Tensor, "batch n_kv_heads pos d_head"],
    *,
    scale: float,
    period: int,
    causal: bool = True,
) -> Float64[np.ndarray, "n_heads"]:
    """How much each head looks from a repeated token to what followed it before, 0 to 1.

    The mean of pattern[period + i, i + 1] over a text of random tokens that repeats after `period` positions (the
    prefix-matching score of Olsson et al. 2022, arXiv 2209.11895). q and k as in `attention_stats`.
    """
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    q, k = q.double(), _centred(k)
    lse = expectations(q, k, scale=scale, causal=causal).lse
    return _induction(q, k, lse, scale, period).mean((0, 2)).cpu().numpy()


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


def _induction(q: Tensor, k: Tensor, lse: Tensor, scale: float, period: int) -> Tensor:
    """pattern[period + i, i + 1] for i up to period - 1: [batch, head, period - 1]."""
    score = scale * (q[:, :, period : 2 * period - 1] * k[:, :, 1:period]).sum(-1)
    return (score - lse[:, :, period : 2 * period - 1]).exp()


def _rows(q: Tensor, k: Tensor, *, scale: float, causal: bool, itself: bool, period: int) -> dict[str, np.ndarray]:
    """Every statistic of every row of one segment: name -> float64 [head, batch * query_pos]."""
    shift = scale * (q.double() * k.double().mean(2, keepdim=True)).sum(-1)  # what centring takes off each score
    q, k = q.double(), _centred(k)
    found = expectations(q, k, scale=scale, causal=causal)
    repeated = q.new_empty(0)
    if period:
        repeated = _induction(q[-1:], k[-1:], found.lse[-1:], scale, period)
        q, k, shift, found = q[:-1], k[:-1], shift[:-1], found.without_the_last()
    top = largest_scores(q, k, scale=scale, causal=causal)
    nothing = torch.full_like(top, torch.nan)

    def mass(queries: Tensor, seen: Tensor, lse: Tensor) -> Tensor:
        return (scale * (queries * seen).sum(-1) - lse).exp()

    own = previous = distance = nothing
    if itself:
        own, previous = mass(q, k, found.lse), nothing.clone()
        previous[:, :, 1:] = mass(q[:, :, 1:], k[:, :, :-1], found.lse[:, :, 1:])
        # a mean of |i - j| needs both sides kept apart; causal rows have one side only
        place = torch.arange(q.shape[2], dtype=q.dtype, device=q.device)
        distance = place - found.position if causal else _distances(q, k, found.lse, scale)
    rows = {
        "entropy": (found.lse - found.score).clamp_min(0),
        "largest_score": top + shift,
        "own_mass": own,
        "previous_mass": previous,
        "first_mass": mass(q, k[:, :, :1], found.lse),
        "distance": distance,
        "dominant_rows": ((top - found.lse).exp() > DOMINANT).double(),
    }
    skip = 1 if causal else 0
    told = {name: values[:, :, skip:].transpose(0, 1).flatten(1).cpu().numpy() for name, values in rows.items()}
    return told | {INDUCTION: repeated[0].cpu().numpy()} if period else told


def _distances(q: Tensor, k: Tensor, lse: Tensor, scale: float) -> Tensor:
    """E_p|i - j| of each row where both sides are seen, block by block."""
    place, parts, at = torch.arange(k.shape[2], dtype=q.dtype, device=q.device), [], 0
    for scores in _blocks(q, k, scale=scale, causal=False):
        rows = slice(at, at + scores.shape[2])
        away = (place[rows, None] - place).abs()
        parts.append(((scores - lse[:, :, rows, None]).exp_() * away).sum(-1))
        at = rows.stop
    return torch.cat(parts, dim=-1)


def _over_rows(name: str, values: np.ndarray) -> np.ndarray:
    """[head, rows] -> [head]: the largest, or the mean of what is defined."""
    missing = np.isnan(values)
    if missing.all():  # or there are no rows
        return np.full(len(values), np.nan)
    if not missing.any():
        return values.max(axis=1) if name == "largest_score" else values.mean(axis=1)
    return np.nanmax(values, axis=1) if name == "largest_score" else np.nanmean(values, axis=1)


def _segments(
    q: Tensor,
    k: Tensor,
    documents: Tensor | None,
    keys: Tensor | None,
    queries: Tensor | None,
    itself: bool,
) -> Iterator[tuple[slice, Tensor | slice, Tensor | slice]]:
    """(rows of the batch, query positions, key positions) of each piece within which everything is visible."""
    everything = slice(None)
    if documents is None and keys is None and queries is None:
        yield everything, everything, everything
        return
    for b in range(q.shape[0]):
        real = torch.ones(k.shape[2], dtype=torch.bool, device=k.device) if keys is None else keys[b]
        if not itself:
            asking = everything if queries is None else queries[b].nonzero()[:, 0]
            if real.any():
                yield slice(b, b + 1), asking, real.nonzero()[:, 0]
            continue
        number = torch.zeros_like(real, dtype=torch.int64) if documents is None else documents[b]
        for document in number[real].unique():
            there = ((number == document) & real).nonzero()[:, 0]
            yield slice(b, b + 1), there, there


def _centred(k: Tensor) -> Tensor:
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

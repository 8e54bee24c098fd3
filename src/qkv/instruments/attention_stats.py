"""What every head attends to, exactly, without the table of query positions by key positions (`attention_rows.py`).

`measures/attention.py` says what is measured of a row; this module cuts the rows and takes their means. What rounding
made negative is 0. Of causal rows the first is left out: it has one key and no choice. Documents and padding are taken
one document at a time, so that no mask is as large as the table. Refuses: rotary distances, biases added to scores,
dropout.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from qkv.instruments.attention_rows import Expectations, Rows, centred, expectations, largest_scores
from qkv.instruments.measures.attention import INDUCTION
from qkv.instruments.registry import MEASURES, STATISTICS
from qkv.shapes import Bool, Float, Float64, Int

__all__ = ["INDUCTION", "STATISTICS", "attention_stats", "induction_score"]

HEADS_BYTES = 1 << 25
"""Room for the float64 copies of q and k of the heads that are taken together."""


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
    by_window: bool = False,
) -> dict[str, Float64[np.ndarray, "n_heads *window"]]:
    """Means over all rows (`largest_score`: the largest) of each head by name, NaN where undefined.

    With `by_window` every sequence of the batch by itself: [n_heads, batch], without a `period`.

    q and k as they meet in the scores, n_heads a multiple of n_kv_heads. `documents` keeps documents apart; `keys` is
    True for real tokens. `itself` False is cross-attention: no own or previous position, no distance; there `queries`
    is True for the tokens that ask, and `documents` is not read. With a `period` the last sequence of a batch without
    masks is no text but random tokens that repeat after so many: it gives `INDUCTION`, as `induction_score` does, and
    counts for nothing else. Of a causal batch it may go on behind the second time, of another it ends there.

    entropy in nats, 0 to ln(number of keys); largest_score any number (scaled, before softmax); masses and
    dominant_rows (rows with a key above 0.9) 0 to 1; distance in positions, 0 and up.
    """
    assert not (period and by_window), "the repeated text counts for no window"
    heads, parts, names = q.shape[1], [], (*STATISTICS, *([INDUCTION] if period else []))
    windows, owners = np.arange(q.shape[0]), []
    for b, rows, columns in _segments(q, k, documents, keys, queries, itself):
        one_q, one_k = q[b][:, :, rows], k[b][:, :, columns]
        at_once = max(1, HEADS_BYTES // (8 * 4 * (one_q.shape[2] + one_k.shape[2]) * one_q.shape[3] * one_q.shape[0]))
        found = []
        for first in range(0, heads, at_once):
            chosen = torch.arange(first, min(first + at_once, heads), device=q.device)
            shared = one_k[:, chosen // (heads // k.shape[1])]
            found.append(_rows(one_q[:, chosen], shared, scale=scale, causal=causal, itself=itself, period=period))
        parts.append({name: np.concatenate([f[name] for f in found]) for name in names})
        owners.append(windows[b].repeat(parts[-1][names[0]].shape[1] // len(windows[b])))
    if not parts:
        return {name: np.full((heads, len(windows)) if by_window else heads, np.nan) for name in names}
    joined = {name: np.concatenate([part[name] for part in parts], axis=1) for name in names}
    if by_window:
        columns = [np.concatenate(owners) == window for window in windows]
        each = {name: [_over_rows(name, values[:, own]) for own in columns] for name, values in joined.items()}
        return {name: np.stack(values, axis=1) for name, values in each.items()}
    return {name: _over_rows(name, values) for name, values in joined.items()}


def induction_score(
    q: Float[Tensor, "batch n_heads pos d_head"],
    k: Float[Tensor, "batch n_kv_heads pos d_head"],
    *,
    scale: float,
    period: int,
    causal: bool = True,
    by_window: bool = False,
) -> Float64[np.ndarray, "n_heads *window"]:
    """How much each head looks from a repeated token to what followed it before, 0 to 1; with `by_window` in every
    sequence of the batch by itself: [n_heads, batch].

    The mean of pattern[period + i, i + 1] over a text of random tokens that repeats after `period` positions (the
    prefix-matching score of Olsson et al. 2022, arXiv 2209.11895). q and k as in `attention_stats`.
    """
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    q, k = q.double(), centred(k)
    lse = expectations(q, k, scale=scale, causal=causal).lse
    found = _induction(q, k, lse, scale, period).mean(2)
    return (found.T if by_window else found.mean(0)).cpu().numpy()


def _induction(q: Tensor, k: Tensor, lse: Tensor, scale: float, period: int) -> Tensor:
    """pattern[period + i, i + 1] for i up to period - 1: [batch, head, period - 1]."""
    score = scale * (q[:, :, period : 2 * period - 1] * k[:, :, 1:period]).sum(-1)
    return (score - lse[:, :, period : 2 * period - 1]).exp()


def _rows(q: Tensor, k: Tensor, *, scale: float, causal: bool, itself: bool, period: int) -> dict[str, np.ndarray]:
    """Every statistic of every row of one segment: name -> float64 [head, batch * query_pos]."""
    shift = scale * (q.double() * k.double().mean(2, keepdim=True)).sum(-1)  # what centring takes off each score
    q, k = q.double(), centred(k)
    found = expectations(q, k, scale=scale, causal=causal)
    repeated = q.new_empty(0)
    if period:
        repeated = _induction(q[-1:], k[-1:], found.lse[-1:], scale, period)
        q, k, shift, found = q[:-1], k[:-1], shift[:-1], Expectations(*(part[:-1] for part in found))
    top = largest_scores(q, k, scale=scale, causal=causal)
    rows = Rows(q=q, k=k, scale=scale, causal=causal, itself=itself, found=found, top=top, shift=shift)
    skip = 1 if causal else 0
    told = {name: of(rows)[:, :, skip:].transpose(0, 1).flatten(1).cpu().numpy() for name, of in STATISTICS.items()}
    return told | {INDUCTION: repeated[0].cpu().numpy()} if period else told


def _over_rows(name: str, values: np.ndarray) -> np.ndarray:
    """[head, rows] -> [head]: the largest, or the mean of what is defined."""
    is_largest, missing = MEASURES[name].is_largest, np.isnan(values)
    if missing.all():  # or there are no rows
        return np.full(len(values), np.nan)
    if not missing.any():
        return values.max(axis=1) if is_largest else values.mean(axis=1)
    return np.nanmax(values, axis=1) if is_largest else np.nanmean(values, axis=1)


def _segments(
    q: Tensor, k: Tensor, documents: Tensor | None, keys: Tensor | None, queries: Tensor | None, itself: bool
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

"""Attention compiled for this processor: bfloat16 by its tiles (`native/tiles.cpp`), float32 by its vectors
(`native/vectors.cpp`).

A head's scores stay next to the processor: no pattern is kept, and they are made once more on the way back.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

__all__ = ["Attending", "apart", "together"]


def apart(whole: Tensor, n_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q [batch, n_heads, pos, d], k and v [batch, kv_head, pos, d]: views of the heads of [batch, pos, head, d]."""
    n_kv = (whole.shape[2] - n_heads) // 2
    q, k, v = (part.transpose(1, 2) for part in whole.split((n_heads, n_kv, n_kv), dim=2))
    return q, k, v


def together(q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
    """The tensor that q, k and v are `apart`; None where they are not the views of one."""
    (batch, n_heads, pos, d), n_kv = q.shape, k.shape[1]
    heads, storage = n_heads + 2 * n_kv, q.untyped_storage().data_ptr()
    strides, of_key = (pos * heads * d, d, heads * d, 1), (batch, n_kv, pos, d)
    for part, shape, before in ((q, q.shape, 0), (k, of_key, n_heads), (v, of_key, n_heads + n_kv)):
        start = q.data_ptr() + before * d * q.element_size()
        if (part.shape, part.stride(), part.dtype, part.data_ptr()) != (shape, strides, q.dtype, start):
            return None
        if part.untyped_storage().data_ptr() != storage:
            return None
    return q.as_strided((batch, pos, heads, d), (strides[0], strides[2], d, 1))


class Attending:
    """Both ways of one library; results do not depend on the number of threads.

    q, k and v are contiguous, or three parts of one tensor (`together`), and so are their gradients.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        n, pointer = ctypes.c_long, ctypes.c_void_p
        self._forward, self._back = library.attend, library.attend_back
        sizes = (*13 * (n,), ctypes.c_float, pointer, n, n)
        self._forward.argtypes, self._forward.restype = (*sizes, *5 * (pointer,)), None
        self._back.argtypes, self._back.restype = (*sizes, *8 * (pointer,)), None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, *, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """z [batch, head, pos, d], by position in memory, and log sum_j exp(score_ij), float32 [batch, head, pos]."""
        batch, heads, pos, d = q.shape
        z, mass = q.new_empty(batch, pos, heads, d), q.new_empty(batch, heads, pos, dtype=torch.float32)
        self._forward(*_sizes(q, k, bias, scale, causal), *(t.data_ptr() for t in (q, k, v, z, mass)))
        return z.transpose(1, 2), mass

    def attend_back(
        self,
        dz: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mass: Tensor,
        bias: Tensor | None,
        scale: float,
        *,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of q, k and v, of that of z."""
        dz, whole = dz.transpose(1, 2).contiguous(), together(q, k, v)
        if whole is None:
            parts = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        else:
            parts = apart(torch.empty_like(whole), q.shape[1])
        self._back(*_sizes(q, k, bias, scale, causal), *(t.data_ptr() for t in (q, k, v, mass, dz, *parts)))
        return parts


def _sizes(q: Tensor, k: Tensor, bias: Tensor | None, scale: float, causal: bool) -> tuple[Any, ...]:
    """What a library is told of an attention; `bias` float32 [batch or 1, 1, queries or 1, keys]."""
    batch, heads, queries, d = q.shape
    where = (None, 0, 0)
    if bias is not None:
        assert bias.dtype == torch.float32 and bias.stride(3) == 1 and bias.shape[1] == 1
        where = bias.data_ptr(), *(0 if bias.shape[i] == 1 else bias.stride(i) for i in (0, 2))
    shape = batch, heads, k.shape[1], queries, k.shape[2], d
    return *shape, *q.stride()[:3], *k.stride()[:3], causal, scale, *where

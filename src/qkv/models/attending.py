"""Attention compiled for this processor: bfloat16 by its tiles (`native/tiles.cpp`), float32 by its vectors
(`native/vectors.cpp`).

A head's scores stay next to the processor: no pattern is kept, and they are made once more on the way back.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from qkv.models.calling import call

__all__ = ["Attending"]


class Attending:
    """Both ways of one library, on contiguous tensors; results do not depend on the number of threads."""

    def __init__(self, library: ctypes.CDLL) -> None:
        n, pointer = ctypes.c_long, ctypes.c_void_p
        self._forward, self._back = library.attend, library.attend_back
        sizes = (*7 * (n,), ctypes.c_float, pointer, n, n)
        self._forward.argtypes, self._forward.restype = (*sizes, *5 * (pointer,)), None
        self._back.argtypes, self._back.restype = (*sizes, *8 * (pointer,)), None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, *, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """z [batch, head, pos, d], by position in memory, and log sum_j exp(score_ij), float32 [batch, head, pos]."""
        batch, heads, pos, d = q.shape
        z, mass = q.new_empty(batch, pos, heads, d), q.new_empty(batch, heads, pos, dtype=torch.float32)
        call(self._forward, *_sizes(q, k, bias, scale, causal), q, k, v, z, mass)
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
        dz, parts = dz.transpose(1, 2).contiguous(), (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
        call(self._back, *_sizes(q, k, bias, scale, causal), q, k, v, mass, dz, *parts)
        return parts


def _sizes(q: Tensor, k: Tensor, bias: Tensor | None, scale: float, causal: bool) -> tuple[Any, ...]:
    """What a library is told of an attention; `bias` float32 [batch or 1, 1, queries or 1, keys]."""
    batch, heads, queries, d = q.shape
    where: tuple[Any, ...] = (None, 0, 0)
    if bias is not None:
        assert bias.dtype == torch.float32 and bias.stride(3) == 1 and bias.shape[1] == 1
        where = bias, *(0 if bias.shape[i] == 1 else bias.stride(i) for i in (0, 2))
    return batch, heads, k.shape[1], queries, k.shape[2], d, causal, scale, *where

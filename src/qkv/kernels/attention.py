"""Attention compiled for this processor: bfloat16 by its tiles (`native/tiles.cpp`), float32 by its vectors
(`native/vectors.cpp`).

A head's scores stay next to the processor: no pattern is kept, and they are made once more on the way back.
"""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.kernels.dispatch import call
from qkv.shapes import Bool, Float, Float32, Int

Stream = Float[Tensor, "batch query_pos d_model"]
"""The residual stream."""
Context = Float[Tensor, "batch key_pos d_model"]
"""What keys and values are made of, where not of the stream."""
Queries = Float[Tensor, "batch n_heads query_pos d_head"]
Keys = Float[Tensor, "batch n_kv_heads key_pos d_head"]
"""Keys or values: n_heads is a multiple of n_kv_heads, and query head h reads head h // (n_heads / n_kv_heads)."""
Values = Float[Tensor, "batch n_kv_heads key_pos d_value"]
"""Values of another width than keys."""
Mixed = Float[Tensor, "batch n_heads query_pos d_value"]
"""z: what each query gets."""
Hiding = Float[Tensor, "#batch 1 #query_pos key_pos"]
"""What is added to scores: 0 where a key is seen, -inf where it is hidden."""
Mass = Float32[Tensor, "batch n_heads query_pos"]
"""log sum_j exp(score_ij) of each query."""


class Visible(NamedTuple):
    """Which keys a query may see."""

    causal: bool
    """Key positions up to the query's own, and nothing else to say; `bias` is then None."""
    bias: Float[Tensor, "#batch 1 #query_pos key_pos"] | None
    """Otherwise 0 where visible and -inf where not; None: everything."""
    keys: Bool[Tensor, "batch key_pos"] | None = None
    """What it was made of, for those who read position by position: True = real token."""
    documents: Int[Tensor, "batch key_pos"] | None = None
    """The document of each position."""


class Attending:
    """Both ways of one library, on contiguous tensors; results do not depend on the number of threads."""

    def __init__(self, library: ctypes.CDLL) -> None:
        n, pointer = ctypes.c_long, ctypes.c_void_p
        self._forward, self._back = library.attend, library.attend_back
        sizes = (*7 * (n,), ctypes.c_float, pointer, n, n)
        self._forward.argtypes, self._forward.restype = (*sizes, *5 * (pointer,)), None
        self._back.argtypes, self._back.restype = (*sizes, *8 * (pointer,)), None

    def attend(
        self, q: Queries, k: Keys, v: Keys, bias: Hiding | None, scale: float, *, causal: bool
    ) -> tuple[Queries, Mass]:
        """z, which lies by position in memory, and what softmax divides by. `bias` is float32."""
        batch, heads, pos, d = q.shape
        z, mass = q.new_empty(batch, pos, heads, d), q.new_empty(batch, heads, pos, dtype=torch.float32)
        call(self._forward, *_sizes(q, k, bias, scale, causal), q, k, v, z, mass)
        return z.transpose(1, 2), mass

    def attend_back(
        self, dz: Queries, q: Queries, k: Keys, v: Keys, mass: Mass, bias: Hiding | None, scale: float, *, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of q, k and v, of that of z."""
        dz, parts = dz.transpose(1, 2).contiguous(), (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
        call(self._back, *_sizes(q, k, bias, scale, causal), q, k, v, mass, dz, *parts)
        return parts


def _sizes(q: Tensor, k: Tensor, bias: Tensor | None, scale: float, causal: bool) -> tuple[object, ...]:
    """What a library is told of an attention."""
    batch, heads, queries, d = q.shape
    where: tuple[object, ...] = (None, 0, 0)
    if bias is not None:
        assert bias.dtype == torch.float32 and bias.stride(3) == 1 and bias.shape[1] == 1
        where = bias, *(0 if bias.shape[i] == 1 else bias.stride(i) for i in (0, 2))
    return batch, heads, k.shape[1], queries, k.shape[2], d, causal, scale, *where

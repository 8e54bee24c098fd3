"""Products of bfloat16 by the tiles of the processor, summed in float32 (`native/tiles.cpp`; Intel's AMX).

They serve where torch's own products are slow: the gradients of weights, whose operands both lie across, and attention,
whose scores need not go through memory. `Multiplied` in `passes` takes them where the processor has any.
"""

import ctypes

import torch
from torch import Tensor

from qkv.kernels.dispatch import call
from qkv.kernels.gemm import Multiplying
from qkv.shapes import Float

_SIDE, _DEPTH = 16, 32
"""Columns of a tile, and rows in its depth."""


class Tiles(Multiplying):
    """Of bfloat16; and the polar factors of matrices."""

    dtype = torch.bfloat16

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library)
        n, pointer, number = ctypes.c_long, ctypes.c_void_p, ctypes.c_float
        self._orthogonalise = library.orthogonalise
        self._orthogonalise.argtypes = n, n, n, pointer, pointer, n, pointer, number, number
        self._orthogonalise.restype = None

    def _laid(self, k: int, m: int) -> int:
        return -(-m // _SIDE) * _SIDE * -(-k // _DEPTH) * _DEPTH // 2

    def orthogonalise(
        self,
        stack: Float[Tensor, "count rows columns"],
        steps: tuple[tuple[float, float, float], ...],
        rounding: float,
        tiny: float,
    ) -> Float[Tensor, "count rows columns"]:
        """The polar factor of each matrix of a stack, by quintic steps on its singular values.

        Each is first divided by |(X X^T)^2|_F^(1/4), times the root of `rounding`; where |X X^T|_F is at most `tiny`
        it is 0 (see `qkv.training.muon`).
        """
        stack, numbers = stack.contiguous(), torch.tensor(steps, dtype=torch.float32)
        out = torch.empty_like(stack)
        call(self._orthogonalise, *stack.shape, stack, out, len(steps), numbers, rounding, tiny)
        return out
